//! Turns a snapshot's points into Prometheus series, at most once per round and format.
//!
//! It decides no value: what is missing from the points has no series.

use std::borrow::Cow;

/// One sample of a round: a family of the contract's section 8, its labels and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The full name, with `modeldeployment_` and, of counters, `_total`.
    pub family: Cow<'static, str>,
    /// The labels, `namespace`, `modeldeployment` and `pod` among them.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}
