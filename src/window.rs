//! Keeps one Pod's reads and answers increases between two of them, or why there are none.
//!
//! Time is an argument and nothing here does I/O, so every rule of the contract's section 5 is a
//! table-driven test. It knows families, label sets and resets; what an increase means, and which
//! code a missing one has, is the snapshot's business.

mod family;
mod plan;

use crate::catalogue::{FamilyKind, Filter, Kind, Ranks, Software, TotalPart};
use crate::config::WindowTimes;
use crate::exposition::{Sample, Samples};
use family::{FamilyState, Step};
use plan::Plan;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Start times that moved by no more than this are the same start (contract, section 5).
const START_TOLERANCE_SECONDS: f64 = 5.0;

/// Weight and companion of an increase: of a counter its value and nothing, of a histogram count
/// and sum, of a ratio queries and hits. The weight chooses among ranks.
pub type Pair = [f64; 2];

/// Adds a pair. A sum beyond the largest number is that number: none is ever infinite (contract,
/// section 7), whatever a Pod exports.
fn add(sum: &mut Pair, pair: Pair) {
    for (sum, part) in sum.iter_mut().zip(pair) {
        *sum = (*sum + part).min(f64::MAX);
    }
}

/// The increase of a field between its baseline and the newest read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Increase {
    /// The window's length.
    pub seconds: f64,
    /// The baseline read's number; equal numbers are the same read.
    pub baseline: u64,
    /// Ranks that repeat the same requests counted once.
    pub one: Pair,
    /// Every rank's label sets.
    pub all: Pair,
}

/// Why a field has no increase in the newest read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoWindow {
    /// The series is absent; `seen` since the Pod's first good read or its last reset.
    Absent {
        /// Whether it had been there.
        seen: bool,
    },
    /// There is no baseline yet.
    FirstSample,
    /// The Pod's counters were reset since the last read.
    Reset,
}

/// One kept good read.
#[derive(Debug, Clone, Copy)]
struct Read {
    number: u64,
    at: Duration,
}

/// What a read did to a Pod's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    /// Nothing was reset.
    No,
    /// Values fell, and nothing else says that the Pod restarted.
    Fell,
    /// A start time, `_created`, the container or the absence of everything says so.
    Known,
}

/// One field's running sums and what they depend on.
#[derive(Debug, Clone, Default)]
struct FieldState {
    /// The alternative that is read; kept while it is absent.
    chosen: Option<usize>,
    /// The number of the read from which the chosen alternative goes.
    since: u64,
    /// Sums over ranks counted once, and over all, since the first good read.
    one: Pair,
    all: Pair,
    plan: Plan,
}

/// The reads of one Pod, as far as windows and totals need them.
#[derive(Debug, Clone)]
pub struct History {
    software: Arc<Software>,
    reads: VecDeque<Read>,
    /// The number that the next read gets.
    next: u64,
    /// The number of the first good read, or of the read of the last reset.
    epoch: u64,
    /// Whether the newest read is a reset.
    reset: bool,
    resets: u64,
    process_start: Option<f64>,
    observed: Option<SystemTime>,
    families: Vec<FamilyState>,
    gauges: Vec<Vec<Sample>>,
    fields: Vec<FieldState>,
}

impl History {
    /// An empty history of a Pod that runs this software.
    pub fn new(software: Arc<Software>) -> History {
        let families = software.families.iter().map(|_| FamilyState::default()).collect();
        let gauges = software.families.iter().map(|_| Vec::new()).collect();
        let fields = software.fields.iter().map(|_| FieldState::default()).collect();
        History {
            software,
            reads: VecDeque::new(),
            next: 0,
            epoch: 0,
            reset: false,
            resets: 0,
            process_start: None,
            observed: None,
            families,
            gauges,
            fields,
        }
    }

    /// The software whose series this history keeps.
    pub fn software(&self) -> &Arc<Software> {
        &self.software
    }

    /// Resets since the first good read.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// Whether there has been a good read.
    pub fn has_read(&self) -> bool {
        self.next > 0
    }

    /// Bytes of the label sets of counters and histograms that are kept, vanished ones included.
    pub fn label_bytes(&self) -> usize {
        self.families.iter().flat_map(FamilyState::series).map(|series| series.labels.size()).sum()
    }

    /// Takes a good read: `at` on the monotonic clock, `observed` on the wall clock, `started` when
    /// the container that declares the metrics port started, where discovery knows.
    pub fn observe(
        &mut self,
        at: Duration,
        observed: SystemTime,
        samples: &Samples,
        started: Option<SystemTime>,
        times: &WindowTimes,
    ) {
        let number = self.next;
        self.next += 1;
        let software = Arc::clone(&self.software);
        let reads: Vec<family::Incoming<'_>> =
            software.families.iter().map(|family| family::incoming(family, samples)).collect();
        for (gauge, (family, read)) in self.gauges.iter_mut().zip(software.families.iter().zip(&reads)) {
            gauge.clear();
            if family.kind == FamilyKind::Gauge {
                gauge.extend(
                    read.values.iter().map(|(labels, [value, _])| Sample { labels: (*labels).clone(), value: *value }),
                );
            }
        }
        let restart = if number == 0 { Restart::No } else { self.restart(&reads, samples, started) };
        self.reset = restart != Restart::No;
        if self.reset {
            self.resets += 1;
            self.epoch = number;
            self.reads.clear();
            // What is known of the start before the last one says nothing about the next one.
            self.process_start = None;
        }
        let step = Step { number, epoch: self.epoch, first: number == 0, restart };
        for ((state, family), read) in self.families.iter_mut().zip(&software.families).zip(&reads) {
            if family.kind != FamilyKind::Gauge {
                state.take(read, &step);
            }
        }
        if let Some(start) = samples.of(software.process_start).first() {
            self.process_start = Some(start.value);
        }
        self.observed = Some(observed);
        self.reads.push_back(Read { number, at });
        self.forget(at, times);
        self.sum(&software, number);
    }

    /// Whether, and how surely, the Pod's counters were reset before this read.
    fn restart(&self, reads: &[family::Incoming<'_>], samples: &Samples, started: Option<SystemTime>) -> Restart {
        let moved = |before: f64, now: f64| (before - now).abs() > START_TOLERANCE_SECONDS;
        let process = samples.of(self.software.process_start).first();
        let restarted = self.process_start.zip(process).is_some_and(|(before, now)| moved(before, now.value))
            || started.zip(self.observed).is_some_and(|(started, last)| started > last)
            || self.families.iter().zip(reads).any(|(state, read)| state.created_moved(read, moved));
        let seen = self.families.iter().any(FamilyState::was_seen);
        let all_absent =
            seen && self.families.iter().zip(reads).all(|(state, read)| !state.was_seen() || read.values.is_empty());
        if restarted || all_absent {
            return Restart::Known;
        }
        if self.families.iter().zip(reads).any(|(state, read)| state.fell(read)) { Restart::Fell } else { Restart::No }
    }

    /// Drops the reads that can be no baseline any more, now or later.
    fn forget(&mut self, now: Duration, times: &WindowTimes) {
        while self.reads.len() > 1 && now.saturating_sub(self.reads[0].at) > times.max_age {
            self.reads.pop_front();
        }
        if let Some(baseline) = self.baseline(self.epoch, times) {
            while self.reads.front().is_some_and(|read| read.number < baseline.number) {
                self.reads.pop_front();
            }
        }
        let oldest = self.reads.front().map_or(0, |read| read.number);
        for family in &mut self.families {
            family.forget_steps(oldest);
        }
    }

    /// The youngest kept read that is old enough, or the oldest: of those from `since` on and before
    /// the newest.
    fn baseline(&self, since: u64, times: &WindowTimes) -> Option<Read> {
        let newest = self.reads.back()?;
        let enough = times.window.saturating_sub(times.interval / 2);
        let earlier = || {
            let kept = self.reads.iter().take(self.reads.len() - 1);
            kept.filter(|read| read.number >= since && read.at < newest.at)
        };
        let old_enough = earlier().rfind(|read| newest.at - read.at >= enough);
        old_enough.or_else(|| earlier().next()).copied()
    }

    /// The length of the window that a field has which every kept read has.
    pub fn window_seconds(&self, times: &WindowTimes) -> Option<f64> {
        let baseline = self.baseline(self.epoch, times)?;
        Some(seconds(self.reads.back()?.at - baseline.at))
    }

    /// Which alternative of a field the newest read has, else the one read before, else the first.
    pub fn alternative(&self, field: usize) -> usize {
        self.fields.get(field).and_then(|state| state.chosen).unwrap_or(0)
    }

    /// The increase of a counter, histogram or ratio in its window.
    pub fn increase(&self, field: usize, times: &WindowTimes) -> Result<Increase, NoWindow> {
        let state = self.fields.get(field).ok_or(NoWindow::Absent { seen: false })?;
        let absent = NoWindow::Absent { seen: self.seen(field) };
        let Some(definition) = self.software.fields.get(field) else { return Err(absent) };
        let parts = &definition.alternatives.get(state.chosen.unwrap_or(0)).ok_or(absent)?.parts;
        let families = || parts.iter().filter_map(|part| self.families.get(part.family));
        let known = definition.alternatives.iter().flat_map(|alternative| &alternative.parts);
        let known = known.filter_map(|part| self.families.get(part.family));
        if self.reset && known.into_iter().any(|family| family.present() || family.seen_before_reset()) {
            return Err(NoWindow::Reset);
        }
        if !families().all(FamilyState::present) {
            return Err(absent);
        }
        let since = families().map(|family| family.since()).fold(state.since, u64::max);
        let baseline = self.baseline(since, times).ok_or(NoWindow::FirstSample)?;
        let newest = self.reads.back().ok_or(NoWindow::FirstSample)?;
        let (one, all) = state.plan.window(&self.families, baseline.number);
        Ok(Increase { seconds: seconds(newest.at - baseline.at), baseline: baseline.number, one, all })
    }

    /// Whether any of a field's series was seen since the first good read or the last reset.
    fn seen(&self, field: usize) -> bool {
        let Some(field) = self.software.fields.get(field) else { return false };
        let mut parts = field.alternatives.iter().flat_map(|alternative| &alternative.parts);
        parts.any(|part| self.families.get(part.family).is_some_and(FamilyState::was_seen))
    }

    /// The value of a gauge in the newest read: ranks counted once, label sets summed.
    pub fn gauge(&self, field: usize) -> Option<f64> {
        let definition = self.software.fields.get(field)?;
        let part = definition.alternatives.get(self.alternative(field))?.parts.first()?;
        let samples = self.gauges.get(part.family).filter(|samples| !samples.is_empty())?;
        let counts = |sample: &&Sample| passes(part.filter.as_ref(), &sample.labels);
        Some(plan::gauge(&self.software, samples.iter().filter(counts)))
    }

    /// A field's sum since the Pod's first good read, in the series' own unit; none where the read
    /// has the series in another form.
    pub fn total(&self, field: usize, part: TotalPart, ranks: Ranks) -> Option<f64> {
        let state = self.fields.get(field).filter(|_| self.has_read())?;
        let definition = self.software.fields.get(field)?;
        let parts = definition.alternatives.iter().flat_map(|alternative| &alternative.parts);
        let mut families = parts.filter_map(|part| self.families.get(part.family));
        if families.any(FamilyState::has_other_form) {
            return None;
        }
        let pair = match ranks {
            Ranks::One => state.one,
            Ranks::All => state.all,
        };
        Some(match part {
            TotalPart::Value | TotalPart::Count | TotalPart::Queries => pair[0],
            TotalPart::Sum | TotalPart::Hits => pair[1],
        })
    }

    /// Whether the newest read has a series, by the specification's name.
    pub fn has_series(&self, series: &str) -> bool {
        let Some(index) = self.software.family(series) else { return false };
        self.families[index].present() || !self.gauges[index].is_empty()
    }

    /// Whether a counter is at zero or absent in the newest read.
    pub fn is_unmoved(&self, series: &str) -> bool {
        let Some(index) = self.software.family(series) else { return true };
        self.families[index].newest().all(|(_, [value, _])| value == 0.0)
    }

    /// Whether a label set of a series in the newest read has a label.
    pub fn has_label(&self, series: &str, label: &str) -> bool {
        let Some(index) = self.software.family(series) else { return false };
        let counters = self.families[index].newest().map(|(labels, _)| labels);
        let mut all = counters.chain(self.gauges[index].iter().map(|sample| &sample.labels));
        all.any(|labels| labels.get(label).is_some())
    }

    /// Chooses each field's alternative and adds the newest step to its sums.
    fn sum(&mut self, software: &Software, number: u64) {
        for (field, state) in software.fields.iter().zip(&mut self.fields) {
            if field.definition.kind == Kind::Share {
                continue;
            }
            let has = |part: &crate::catalogue::Part| {
                self.families[part.family].present() || !self.gauges[part.family].is_empty()
            };
            let Some(now) = field.alternatives.iter().position(|a| a.parts.iter().any(has)) else {
                if self.reset {
                    state.plan.forget_choice();
                }
                continue;
            };
            let switched = state.chosen.is_some_and(|before| before != now);
            state.chosen = Some(now);
            if field.definition.kind == Kind::Gauge {
                continue;
            }
            if switched {
                state.since = number;
            }
            if self.reset {
                state.plan.forget_choice();
            }
            let kind = field.definition.kind;
            state.plan.refresh(software, kind, &field.alternatives[now].parts, &self.families, switched);
            let (one, all) = state.plan.step(&self.families);
            if !switched {
                add(&mut state.one, one);
                add(&mut state.all, all);
            }
        }
    }
}

/// Whether a label set counts under a filter.
fn passes(filter: Option<&Filter>, labels: &crate::exposition::Labels) -> bool {
    filter.is_none_or(|filter| filter.matches(labels.get(&filter.label).unwrap_or("")))
}

/// A window's length: whole microseconds, so that value × windowSeconds gives the increase back.
fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}
