//! Which label sets of a field count together: the totals of priorities, and ranks that repeat the
//! same requests (contract, section 4). Worked out when label sets come or go, not at every read.

use super::family::{FamilyState, Series};
use super::{Pair, add, passes};
use crate::catalogue::{Kind, Part, Software};
use crate::exposition::{Labels, Sample};
use std::collections::HashMap;

/// The label sets of one field, grouped.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    versions: Vec<u64>,
    members: Vec<Member>,
    groups: Vec<Group>,
}

/// What one rank (and priority) of a field says: label sets that differ only in filtered labels.
#[derive(Debug, Clone)]
struct Member {
    labels: Labels,
    class: Class,
    /// The label sets, each with the place in a [`Pair`] that it goes to, or both places.
    inputs: Vec<Input>,
}

#[derive(Debug, Clone)]
struct Input {
    place: Option<usize>,
    family: usize,
    series: usize,
}

/// Where a label set stands among those of its field.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Index of the group of ranks that repeat the same requests.
    group: usize,
    /// Index of the sets that differ only in the label that marks totals.
    alike: usize,
    /// The total of those, rather than a part.
    is_total: bool,
}

#[derive(Debug, Clone)]
struct Group {
    labels: Labels,
    /// The rank that the totals follow.
    choice: Option<Labels>,
}

/// Sorts label sets into groups of ranks and of parts with their total.
struct Sorter<'a> {
    software: &'a Software,
    groups: HashMap<Labels, usize>,
    alike: HashMap<Labels, usize>,
}

impl Sorter<'_> {
    fn new(software: &Software) -> Sorter<'_> {
        Sorter { software, groups: HashMap::new(), alike: HashMap::new() }
    }

    fn class(&mut self, labels: &Labels) -> Class {
        let ranks = &self.software.ranks;
        let group = labels.without(|name| ranks.iter().any(|rank| rank == name));
        let total = self.software.total_label.as_deref();
        let alike = labels.without(|name| Some(name) == total);
        let is_total = total.is_some_and(|total| labels.get(total).unwrap_or("").is_empty());
        Class { group: index_of(&mut self.groups, group), alike: index_of(&mut self.alike, alike), is_total }
    }
}

fn index_of(all: &mut HashMap<Labels, usize>, labels: Labels) -> usize {
    let next = all.len();
    *all.entry(labels).or_insert(next)
}

/// Whether each of these counts: a part does not while its total is there.
fn counts(classes: &[(Class, bool)]) -> Vec<bool> {
    let mut has_total = vec![false; classes.iter().map(|(class, _)| class.alike + 1).max().unwrap_or(0)];
    for (class, active) in classes {
        has_total[class.alike] |= class.is_total && *active;
    }
    classes.iter().map(|(class, active)| *active && (class.is_total || !has_total[class.alike])).collect()
}

/// The value of a gauge: the total instead of its parts, the largest of ranks that repeat the same
/// requests, summed over the rest.
pub fn gauge<'a>(software: &Software, samples: impl Iterator<Item = &'a Sample>) -> f64 {
    let samples: Vec<&Sample> = samples.collect();
    if let [only] = samples[..] {
        return only.value;
    }
    let mut sorter = Sorter::new(software);
    let classes: Vec<(Class, bool)> = samples.iter().map(|sample| (sorter.class(&sample.labels), true)).collect();
    let mut largest: Vec<f64> = vec![0.0; sorter.groups.len()];
    for ((sample, (class, _)), counts) in samples.iter().zip(&classes).zip(counts(&classes)) {
        if counts {
            largest[class.group] = largest[class.group].max(sample.value);
        }
    }
    largest.iter().sum::<f64>().min(f64::MAX)
}

impl Plan {
    /// Works the groups out again if label sets came or went.
    pub fn refresh(&mut self, software: &Software, kind: Kind, parts: &[Part], families: &[FamilyState], anew: bool) {
        let versions = parts.iter().map(|part| families[part.family].version());
        if !anew && self.versions.iter().copied().eq(versions.clone()) {
            return;
        }
        self.versions = versions.collect();
        self.members.clear();
        for (index, part) in parts.iter().enumerate() {
            // Hits and queries: the queries are the weight that chooses among ranks.
            let place = (kind == Kind::Ratio).then_some(1 - index.min(1));
            for (series, Series { labels, .. }) in families[part.family].series().iter().enumerate() {
                if !passes(part.filter.as_ref(), labels) {
                    continue;
                }
                let labels = match &part.filter {
                    Some(filter) => labels.without(|name| name == filter.label),
                    None => labels.clone(),
                };
                let input = Input { place, family: part.family, series };
                self.members.push(Member {
                    labels,
                    class: Class { group: 0, alike: 0, is_total: false },
                    inputs: vec![input],
                });
            }
        }
        self.members.sort_by(|a, b| a.labels.cmp(&b.labels));
        self.members.dedup_by(|next, kept| {
            let same = next.labels == kept.labels;
            if same {
                kept.inputs.append(&mut next.inputs);
            }
            same
        });
        let mut sorter = Sorter::new(software);
        for member in &mut self.members {
            member.class = sorter.class(&member.labels);
        }
        let kept = std::mem::take(&mut self.groups).into_iter().map(|group| (group.labels, group.choice));
        let mut kept: HashMap<Labels, Option<Labels>> = kept.collect();
        let mut groups: Vec<(Labels, usize)> = sorter.groups.into_iter().collect();
        groups.sort_by_key(|(_, index)| *index);
        let group = |labels: Labels| Group { choice: kept.remove(&labels).flatten(), labels };
        self.groups = groups.into_iter().map(|(labels, _)| labels).map(group).collect();
    }

    /// Lets the totals choose their ranks again.
    pub fn forget_choice(&mut self) {
        for group in &mut self.groups {
            group.choice = None;
        }
    }

    /// The increase since a read: with ranks counted once, and over all of them.
    pub fn window(&self, families: &[FamilyState], baseline: u64) -> (Pair, Pair) {
        let active = |member: &Member| member.series(families).any(|(_, series)| series.is_active(baseline));
        let classes: Vec<(Class, bool)> = self.members.iter().map(|m| (m.class, active(m))).collect();
        let mut all = [0.0, 0.0];
        let mut largest: Vec<Option<Pair>> = vec![None; self.groups.len()];
        for (member, counts) in self.members.iter().zip(counts(&classes)) {
            if counts {
                let pair = member.gather(families, |series| series.since(baseline));
                add(&mut all, pair);
                let best = &mut largest[member.class.group];
                if best.is_none_or(|best| pair[0] > best[0]) {
                    *best = Some(pair);
                }
            }
        }
        let mut one = [0.0, 0.0];
        largest.into_iter().flatten().for_each(|pair| add(&mut one, pair));
        (one, all)
    }

    /// What the newest read adds to the totals: of the rank that they follow, and over all ranks.
    pub fn step(&mut self, families: &[FamilyState]) -> (Pair, Pair) {
        let present = |member: &Member| member.series(families).any(|(_, series)| series.present);
        let classes: Vec<(Class, bool)> = self.members.iter().map(|m| (m.class, present(m))).collect();
        let mut all = [0.0, 0.0];
        let mut best: Vec<Option<(f64, usize)>> = vec![None; self.groups.len()];
        let mut chosen: Vec<Option<usize>> = vec![None; self.groups.len()];
        for (index, (member, counts)) in self.members.iter().zip(counts(&classes)).enumerate() {
            if !counts {
                continue;
            }
            add(&mut all, member.gather(families, |series| series.added));
            let group = member.class.group;
            if self.groups[group].choice.as_ref() == Some(&member.labels) {
                chosen[group] = Some(index);
            }
            let growth = member.gather(families, |series| series.growth)[0];
            if growth > 0.0 && best[group].is_none_or(|(most, _)| growth > most) {
                best[group] = Some((growth, index));
            }
        }
        let mut one = [0.0, 0.0];
        for (index, group) in self.groups.iter_mut().enumerate() {
            // The rank that is followed has vanished, or none has grown so far: choose by growth.
            let member = chosen[index].or(best[index].map(|(_, member)| member)).map(|m| &self.members[m]);
            if chosen[index].is_none() {
                group.choice = member.map(|member| member.labels.clone());
            }
            if let Some(member) = member {
                add(&mut one, member.gather(families, |series| series.added));
            }
        }
        (one, all)
    }
}

impl Member {
    fn series<'a>(&'a self, families: &'a [FamilyState]) -> impl Iterator<Item = (&'a Input, &'a Series)> {
        self.inputs.iter().filter_map(|input| Some((input, families.get(input.family)?.series().get(input.series)?)))
    }

    fn gather(&self, families: &[FamilyState], value: impl Fn(&Series) -> Pair) -> Pair {
        let mut sum = [0.0, 0.0];
        for (input, series) in self.series(families) {
            match (input.place, value(series)) {
                (None, pair) => add(&mut sum, pair),
                (Some(place), pair) => sum[place] = (sum[place] + pair[0]).min(f64::MAX),
            }
        }
        sum
    }
}
