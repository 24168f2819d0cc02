//! Applies the rules to one round and its windows and builds the one immutable object.
//!
//! This is where `missing[]` and `partial` are decided, in one place. It reads no Pod, keeps no
//! state between rounds and knows no engine or router by name.

mod object;
mod points;
mod rules;

pub use object::{CacheHit, Code, Gauge, Metadata, Missing, ModelDeploymentMetrics, Windowed};
pub use points::{lasting, points};
pub use rules::{FieldValue, Value, provides};

use crate::catalogue::List;
use crate::config::WindowTimes;
use crate::deployment::{Deployment, Member, Pod};
use crate::scrape::{Cause, Unreadable};
use crate::window::History;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// One Pod's part of a round, with what is kept of it between rounds.
#[derive(Debug)]
pub struct PodRound<'a> {
    /// The Pod.
    pub pod: &'a Arc<Pod>,
    /// Its reads so far, the one of this round included; none for a Pod past `MAX_PODS`.
    pub history: Option<&'a History>,
    /// Failed reads so far, in the order of [`Cause::ALL`].
    pub failures: [u64; Cause::ALL.len()],
    /// What this round did with it.
    pub outcome: Outcome<'a>,
}

/// What a round did with a Pod.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It was read at this time.
    Read {
        /// Wall-clock time of the read.
        observed: SystemTime,
        /// How long it took.
        took: Duration,
        /// The body's size.
        body_bytes: u64,
    },
    /// It was tried and could not be read.
    Failed {
        /// Why.
        why: &'a Unreadable,
        /// How long it took.
        took: Duration,
        /// Bytes of the body that came.
        body_bytes: u64,
    },
    /// It has no usable endpoint, for this reason.
    NoEndpoint(&'a str),
    /// It is past `MAX_PODS`.
    Omitted,
}

/// One round, ready for the rules.
#[derive(Debug)]
pub struct RoundView<'a> {
    /// The deployment that the round read.
    pub deployment: &'a Deployment,
    /// Its parts with the Pods expected of each.
    pub expected: Vec<(Member, u64)>,
    /// The Pods that are still there, in reading order.
    pub pods: Vec<PodRound<'a>>,
    /// How windows are chosen.
    pub times: WindowTimes,
    /// `MAX_PODS`, for the sentence about omitted Pods.
    pub max_pods: usize,
    /// Whether discovery has not been heard for too long.
    pub discovery_stale: bool,
    /// When the object is assembled.
    pub now: SystemTime,
}

/// What a round came to.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The JSON object.
    pub object: ModelDeploymentMetrics,
    /// Whether at least one owned Pod was read.
    pub readable: bool,
    /// Each Pod's values, beside its place in the round.
    pub values: Vec<(usize, FieldValue)>,
}

/// Applies the rules to a round.
pub fn assemble(round: &RoundView<'_>) -> Snapshot {
    let mut missing = rules::parts(round);
    let mut values: Vec<(usize, FieldValue)> = Vec::new();
    let mut readable = false;
    for (index, pod) in round.pods.iter().enumerate() {
        if let (Outcome::Read { .. }, Some(history)) = (&pod.outcome, pod.history) {
            readable = true;
            let (pod_values, pod_missing) = rules::fields(round.deployment, pod.pod, history, &round.times);
            values.extend(pod_values.into_iter().map(|value| (index, value)));
            missing.extend(pod_missing);
        }
    }
    missing.sort_by(|a, b| (&a.pod, &a.source, a.code).cmp(&(&b.pod, &b.source, b.code)));
    missing.dedup_by(|a, b| (&a.pod, &a.source, a.code) == (&b.pod, &b.source, b.code));
    let mut object = ModelDeploymentMetrics {
        api_version: "worker.gpustack.ai/v1",
        kind: "ModelDeploymentMetrics",
        metadata: Metadata { name: round.deployment.name.clone(), namespace: round.deployment.namespace.clone() },
        timestamp: round.now,
        processing: gauges(round, &values, List::Processing),
        queueing: gauges(round, &values, List::Queueing),
        cache_hits: Vec::new(),
        latency: Vec::new(),
        traffic: Vec::new(),
        transfer: Vec::new(),
        partial: missing.iter().any(|entry| entry.code.is_partial()),
        missing,
    };
    for (index, value) in &values {
        let pod = &round.pods[*index];
        let Outcome::Read { observed, .. } = pod.outcome else { continue };
        if let Value::Ratio { hits, queries, seconds } = value.value {
            object.cache_hits.push(CacheHit {
                pod: pod.pod.name.clone(),
                source: value.source.clone(),
                scope: value.definition.name.clone(),
                unit: value.definition.unit.clone(),
                hits,
                queries,
                rate: hits / queries,
                window_seconds: seconds,
                pod_count: 1,
                observed_at: observed,
            });
        }
        let list = match value.definition.list {
            List::Latency => &mut object.latency,
            List::Traffic => &mut object.traffic,
            List::Transfer => &mut object.transfer,
            List::Processing | List::Queueing | List::CacheHits => continue,
        };
        if let Some((json, samples, seconds)) = value.value.windowed() {
            list.push(Windowed {
                name: value.definition.name.clone(),
                pod: pod.pod.name.clone(),
                source: value.source.clone(),
                scope: round.deployment.scope(pod.pod.member),
                unit: value.definition.unit.clone(),
                value: json,
                samples,
                window_seconds: seconds,
                observed_at: observed,
            });
        }
    }
    object.cache_hits.sort_by(|a, b| (&a.pod, &a.scope).cmp(&(&b.pod, &b.scope)));
    for list in [&mut object.latency, &mut object.traffic, &mut object.transfer] {
        list.sort_by(|a, b| (&a.pod, &a.name).cmp(&(&b.pod, &b.name)));
    }
    Snapshot { object, readable, values }
}

/// Sums a list's gauges by name, scope and source: a router's view is never added to an engine's,
/// nor one role's to another's.
fn gauges(round: &RoundView<'_>, values: &[(usize, FieldValue)], list: List) -> Vec<Gauge> {
    let mut sums: BTreeMap<(String, String, String), Gauge> = BTreeMap::new();
    for (index, field) in values.iter().filter(|(_, field)| field.definition.list == list) {
        let pod = &round.pods[*index];
        let (Value::Gauge(value), Outcome::Read { observed, .. }) = (&field.value, pod.outcome) else { continue };
        let scope = round.deployment.scope(pod.pod.member);
        let key = (field.definition.name.clone(), scope.clone(), field.source.clone());
        let sum = sums.entry(key).or_insert_with(|| Gauge {
            name: field.definition.name.clone(),
            source: field.source.clone(),
            scope,
            unit: field.definition.unit.clone(),
            value: 0.0,
            pod_count: 0,
            observed_at: observed,
        });
        sum.value = rules::finite(sum.value + value);
        sum.pod_count += 1;
        sum.observed_at = sum.observed_at.max(observed);
    }
    sums.into_values().collect()
}
