//! One family of counters or histograms of one Pod: its label sets, their steps from read to read,
//! and since when it goes on. It chooses no window and folds no rank.

use super::{Pair, Restart, add};
use crate::catalogue::{Family, FamilyKind};
use crate::exposition::{Labels, Samples};
use std::collections::{BTreeMap, VecDeque};

/// Label sets that vanished are remembered, for one that comes back adds nothing. Past this many
/// in a family they are forgotten together, and until the next reset no new label set counts from
/// zero: memory stays bounded and nothing is counted twice.
const MAX_VANISHED: usize = 10_000;

/// The same in bytes of their labels, for a label value may be as long as a body.
const MAX_VANISHED_BYTES: usize = 2 << 20;

/// A family in one read: its label sets with their values, sorted.
#[derive(Debug, Default)]
pub struct Incoming<'a> {
    /// Which of the family's names was read.
    name: Option<usize>,
    /// Value, or count and sum.
    pub values: Vec<(&'a Labels, Pair)>,
    created: Vec<(&'a Labels, f64)>,
    other_form: bool,
}

/// Finds a family's label sets in a read: of its names the first one present, of a histogram the
/// sets that have both count and sum, none whose label is not valid.
pub fn incoming<'a>(family: &Family, samples: &'a Samples) -> Incoming<'a> {
    let valid = |labels: &Labels| {
        family.valid.as_ref().is_none_or(|filter| filter.is_valid(labels.get(&filter.label).unwrap_or("")))
    };
    let mut read = Incoming::default();
    for &name in &family.values {
        let values = samples.of(name).iter().filter(|sample| valid(&sample.labels));
        read.values = match family.sum {
            None => values.map(|sample| (&sample.labels, [sample.value, 0.0])).collect(),
            Some(sum) => {
                let sums = samples.of(sum);
                let sum_of = |labels| sums.binary_search_by(|sum| sum.labels.cmp(labels)).ok().map(|i| sums[i].value);
                values.filter_map(|s| Some((&s.labels, [s.value, sum_of(&s.labels)?]))).collect()
            }
        };
        if !read.values.is_empty() {
            read.name = Some(name);
            break;
        }
    }
    if let Some(created) = family.created {
        read.created = samples.of(created).iter().map(|sample| (&sample.labels, sample.value)).collect();
    }
    read.other_form = family.other_form.is_some_and(|id| !samples.of(id).is_empty()) && read.values.is_empty();
    debug_assert!(family.kind == FamilyKind::Histogram || family.sum.is_none());
    read
}

/// How a read is taken.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The read's number.
    pub number: u64,
    /// The number of the first good read or of the last reset's.
    pub epoch: u64,
    /// The Pod's first good read: nothing is an increase.
    pub first: bool,
    /// Whether this read is a reset.
    pub restart: Restart,
}

/// One label set.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its labels.
    pub labels: Labels,
    /// Its newest value.
    value: Pair,
    /// Whether the newest read has it.
    pub present: bool,
    /// The increases that are not zero, each with the number of the read that it leads to.
    steps: VecDeque<(u64, Pair)>,
    /// What the newest read adds to the totals.
    pub added: Pair,
    /// What was added since the first good read or the last reset; chooses the totals' rank.
    pub growth: Pair,
}

impl Series {
    /// The increase after a read.
    pub fn since(&self, baseline: u64) -> Pair {
        let mut sum = [0.0, 0.0];
        for (number, step) in &self.steps {
            if *number > baseline {
                add(&mut sum, *step);
            }
        }
        sum
    }

    /// Whether the newest read has it or a step after the baseline does.
    pub fn is_active(&self, baseline: u64) -> bool {
        self.present || self.steps.back().is_some_and(|(number, _)| *number > baseline)
    }
}

/// A family's state after the newest read.
#[derive(Debug, Clone, Default)]
pub struct FamilyState {
    name: Option<usize>,
    /// Sorted by labels: the sets of the newest read and those that vanished since the last reset.
    series: Vec<Series>,
    created: BTreeMap<Labels, f64>,
    present: bool,
    seen: bool,
    seen_before_reset: bool,
    /// The number of the read from which it goes on without a gap.
    since: u64,
    other_form: bool,
    /// Vanished label sets were forgotten: a new one may be an old one.
    forgot: bool,
    /// Changes whenever a label set is added or removed.
    version: u64,
}

fn difference(now: Pair, before: Pair) -> Pair {
    [(now[0] - before[0]).max(0.0), (now[1] - before[1]).max(0.0)]
}

impl FamilyState {
    /// Whether the newest read has it.
    pub fn present(&self) -> bool {
        self.present
    }

    /// Whether a read since the first good one or the last reset had it.
    pub fn was_seen(&self) -> bool {
        self.seen
    }

    /// In the round of a reset: whether it had been seen before.
    pub fn seen_before_reset(&self) -> bool {
        self.seen_before_reset
    }

    /// The number of the read from which it goes on without a gap.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Whether the newest read has it as a gauge although it is a histogram.
    pub fn has_other_form(&self) -> bool {
        self.other_form
    }

    /// The label sets, sorted.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Changes whenever a label set is added or removed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The label sets of the newest read with their values.
    pub fn newest(&self) -> impl Iterator<Item = (&Labels, Pair)> {
        self.series.iter().filter(|series| series.present).map(|series| (&series.labels, series.value))
    }

    /// Whether the value of a label set is lower than in the read before; of a histogram its count.
    pub fn fell(&self, read: &Incoming<'_>) -> bool {
        if self.name != read.name {
            return false;
        }
        let mut incoming = read.values.iter().peekable();
        self.series.iter().filter(|series| series.present).any(|series| {
            while incoming.next_if(|(labels, _)| **labels < series.labels).is_some() {}
            incoming.peek().is_some_and(|(labels, now)| **labels == series.labels && now[0] < series.value[0])
        })
    }

    /// Whether the `_created` time of a label set moved.
    pub fn created_moved(&self, read: &Incoming<'_>, moved: impl Fn(f64, f64) -> bool) -> bool {
        read.created.iter().any(|(labels, now)| self.created.get(labels).is_some_and(|before| moved(*before, *now)))
    }

    /// Takes a read: steps for windows, additions for totals.
    pub fn take(&mut self, read: &Incoming<'_>, step: &Step) {
        let reset = step.restart != Restart::No;
        let renamed = read.name.is_some() && self.name.is_some() && self.name != read.name;
        if renamed {
            self.series.clear();
            self.version += 1;
        }
        // A family that was seen and comes back starts again with a first sample.
        let returns = renamed || (self.seen && !self.present && !read.values.is_empty());
        self.merge(read, step, returns);
        self.seen_before_reset = reset && self.seen;
        if reset {
            self.seen = false;
            self.forgot = false;
        }
        self.present = !read.values.is_empty();
        if self.present {
            if returns && !reset {
                self.since = step.number;
            } else if !self.seen {
                // Never seen: the reads since the first good one or the last reset are its zeros.
                self.since = step.epoch;
            }
            self.seen = true;
            self.name = read.name;
        }
        self.other_form = read.other_form;
        let bytes: usize = self.created.keys().map(Labels::size).sum();
        let read_bytes: usize = read.created.iter().map(|(labels, _)| labels.size()).sum();
        let many = self.created.len() > read.created.len() + MAX_VANISHED || bytes > read_bytes + MAX_VANISHED_BYTES;
        // A restarted process makes each set anew when it first needs it; that is no second reset.
        if reset || many {
            self.created.clear();
        }
        for (labels, created) in &read.created {
            match self.created.get_mut(*labels) {
                Some(kept) => *kept = *created,
                None => drop(self.created.insert((*labels).clone(), *created)),
            }
        }
    }

    /// Walks the kept and the read label sets, both sorted, side by side.
    fn merge(&mut self, read: &Incoming<'_>, step: &Step, returns: bool) {
        let reset = step.restart != Restart::No;
        let mut fresh: Vec<Series> = Vec::new();
        let mut at = 0;
        for (labels, now) in &read.values {
            while at < self.series.len() && self.series[at].labels < **labels {
                self.series[at].pass_over();
                at += 1;
            }
            let known = self.series.get_mut(at).filter(|series| series.labels == **labels);
            let is_known = known.is_some();
            let before = known.as_ref().filter(|series| series.present).map(|series| series.value);
            // What the totals gain (contract, section 8) and what the window does (section 5).
            let added = match step.restart {
                Restart::Known => *now,
                _ if step.first || returns => [0.0, 0.0],
                _ => match before {
                    Some(before) if now[0] < before[0] => *now,
                    Some(before) => difference(*now, before),
                    // Seen, vanished and back inside the family: nothing in this step.
                    None if is_known || self.forgot => [0.0, 0.0],
                    // Never seen and absent from an earlier read: that read is its zero.
                    None => *now,
                },
            };
            match known {
                Some(series) => {
                    if reset {
                        series.steps.clear();
                        series.growth = [0.0, 0.0];
                    } else if returns {
                        series.steps.clear();
                    }
                    series.gain(*now, added, step.number, !reset);
                    at += 1;
                }
                None => {
                    let mut series = Series {
                        labels: (*labels).clone(),
                        value: [0.0, 0.0],
                        present: true,
                        steps: VecDeque::new(),
                        added: [0.0, 0.0],
                        growth: [0.0, 0.0],
                    };
                    series.gain(*now, added, step.number, !reset);
                    fresh.push(series);
                }
            }
        }
        for series in &mut self.series[at..] {
            series.pass_over();
        }
        if returns && !reset {
            for series in self.series.iter_mut().filter(|series| !series.present) {
                series.steps.clear();
            }
        }
        if reset && self.series.iter().any(|series| !series.present) {
            self.series.retain(|series| series.present);
            self.version += 1;
        }
        if !fresh.is_empty() {
            self.series.append(&mut fresh);
            self.series.sort_by(|a, b| a.labels.cmp(&b.labels));
            self.version += 1;
        }
    }

    /// Drops the steps that lead to the oldest kept read or to an earlier one, and bounds what is
    /// remembered of vanished label sets.
    pub fn forget_steps(&mut self, oldest: u64) {
        let (mut vanished, mut bytes) = (0, 0);
        for series in &mut self.series {
            while series.steps.front().is_some_and(|(number, _)| *number <= oldest) {
                series.steps.pop_front();
            }
            if !series.present {
                vanished += 1;
                bytes += series.labels.size();
            }
        }
        if vanished > MAX_VANISHED || bytes > MAX_VANISHED_BYTES {
            self.series.retain(|series| series.present || !series.steps.is_empty());
            self.forgot = true;
            self.version += 1;
        }
    }
}

impl Series {
    fn pass_over(&mut self) {
        self.present = false;
        self.added = [0.0, 0.0];
    }

    fn gain(&mut self, now: Pair, added: Pair, number: u64, is_step: bool) {
        self.value = now;
        self.present = true;
        self.added = added;
        add(&mut self.growth, added);
        if is_step && added != [0.0, 0.0] {
            self.steps.push_back((number, added));
        }
    }
}
