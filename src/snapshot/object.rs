//! The JSON object of the contract's section 7, as serde types that are exactly it.

use serde::{Serialize, Serializer};
use std::time::SystemTime;

/// The `ModelDeploymentMetrics` object.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelDeploymentMetrics {
    /// `worker.gpustack.ai/v1`
    pub api_version: &'static str,
    /// `ModelDeploymentMetrics`
    pub kind: &'static str,
    /// Name and namespace.
    pub metadata: Metadata,
    /// When the object was assembled.
    #[serde(serialize_with = "rfc3339")]
    pub timestamp: SystemTime,
    /// Requests and workers now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processing: Vec<Gauge>,
    /// Requests waiting now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queueing: Vec<Gauge>,
    /// Cache hits of the window, per Pod and scope.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cache_hits: Vec<CacheHit>,
    /// Window means of latencies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Windowed>,
    /// Router rates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<Windowed>,
    /// KV transfers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transfer: Vec<Windowed>,
    /// What is missing, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
    /// Whether a required source did not contribute.
    pub partial: bool,
}

/// The object's name.
#[derive(Debug, Clone, Serialize)]
pub struct Metadata {
    /// The deployment's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// One entry of `processing[]` or `queueing[]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gauge {
    /// The field.
    pub name: String,
    /// The series it was read from.
    pub source: String,
    /// `engine/<role>` or `router`.
    pub scope: String,
    /// Its unit.
    pub unit: String,
    /// The sum over the Pods that were read.
    #[serde(serialize_with = "number")]
    pub value: f64,
    /// How many Pods contributed.
    pub pod_count: u64,
    /// The newest Pod's read.
    #[serde(serialize_with = "rfc3339")]
    pub observed_at: SystemTime,
}

/// One entry of `cacheHits[]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheHit {
    /// The Pod.
    pub pod: String,
    /// The counters.
    pub source: String,
    /// The cache scope: `local-prefix`, …
    pub scope: String,
    /// `tokens`
    pub unit: String,
    /// Hits of the window.
    #[serde(serialize_with = "number")]
    pub hits: f64,
    /// Queries of the window.
    #[serde(serialize_with = "number")]
    pub queries: f64,
    /// Hits over queries, from 0 to 1.
    #[serde(serialize_with = "number")]
    pub rate: f64,
    /// The window's length in seconds.
    #[serde(serialize_with = "number")]
    pub window_seconds: f64,
    /// Always 1.
    pub pod_count: u64,
    /// The Pod's read.
    #[serde(serialize_with = "rfc3339")]
    pub observed_at: SystemTime,
}

/// One entry of `latency[]`, `traffic[]` or `transfer[]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Windowed {
    /// The field.
    pub name: String,
    /// The Pod.
    pub pod: String,
    /// The series it was read from.
    pub source: String,
    /// `engine/<role>` or `router`.
    pub scope: String,
    /// Its unit.
    pub unit: String,
    /// Its value.
    #[serde(serialize_with = "number")]
    pub value: f64,
    /// Observations of the window; of a rate, the counter's increase; of a share, what it is over.
    #[serde(serialize_with = "number")]
    pub samples: f64,
    /// The window's length in seconds.
    #[serde(serialize_with = "number")]
    pub window_seconds: f64,
    /// The Pod's read.
    #[serde(serialize_with = "rfc3339")]
    pub observed_at: SystemTime,
}

/// One entry of `missing[]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The Pod; empty when the entry is about no single one.
    pub pod: String,
    /// The series, the cache scope, or the part of the deployment.
    pub source: String,
    /// For people.
    pub reason: String,
    /// For programs.
    pub code: Code,
    /// Of an unreadable Pod, which kind of failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
}

/// Why something is missing: the closed list of the contract's section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Code {
    CounterReset,
    DiscoveryStale,
    ErrorsExceedRequests,
    FirstSample,
    Idle,
    IncompatibleDenominator,
    MetricAbsent,
    NoEndpoint,
    NoObservations,
    NoPod,
    NoQueries,
    NoRequests,
    NotExportedYet,
    PodLimit,
    ReplicasMissing,
    Unreadable,
    UnsupportedSource,
    WindowsDiffer,
}

impl Code {
    /// Every code, in alphabetical order.
    pub const ALL: [Code; 18] = [
        Code::CounterReset,
        Code::DiscoveryStale,
        Code::ErrorsExceedRequests,
        Code::FirstSample,
        Code::Idle,
        Code::IncompatibleDenominator,
        Code::MetricAbsent,
        Code::NoEndpoint,
        Code::NoObservations,
        Code::NoPod,
        Code::NoQueries,
        Code::NoRequests,
        Code::NotExportedYet,
        Code::PodLimit,
        Code::ReplicasMissing,
        Code::Unreadable,
        Code::UnsupportedSource,
        Code::WindowsDiffer,
    ];

    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::CounterReset => "counter-reset",
            Code::DiscoveryStale => "discovery-stale",
            Code::ErrorsExceedRequests => "errors-exceed-requests",
            Code::FirstSample => "first-sample",
            Code::Idle => "idle",
            Code::IncompatibleDenominator => "incompatible-denominator",
            Code::MetricAbsent => "metric-absent",
            Code::NoEndpoint => "no-endpoint",
            Code::NoObservations => "no-observations",
            Code::NoPod => "no-pod",
            Code::NoQueries => "no-queries",
            Code::NoRequests => "no-requests",
            Code::NotExportedYet => "not-exported-yet",
            Code::PodLimit => "pod-limit",
            Code::ReplicasMissing => "replicas-missing",
            Code::Unreadable => "unreadable",
            Code::UnsupportedSource => "unsupported-source",
            Code::WindowsDiffer => "windows-differ",
        }
    }

    /// Whether an entry with this code sets `partial` (section 6: every code without a circle).
    pub fn is_partial(self) -> bool {
        !matches!(self, Code::NotExportedYet | Code::UnsupportedSource | Code::Idle)
    }
}

/// RFC 3339 in UTC with whole seconds.
fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
}

/// A JSON number; whole ones without a fraction.
fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}
