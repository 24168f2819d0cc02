//! Counts answered requests by path and status code.
//!
//! Paths come from a fixed set, so a client cannot make series.

use crate::export::Point;
use http::StatusCode;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The paths of the contract's section 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// `/`
    Landing,
    /// The path of section 7.
    Json,
    /// `/healthz`
    Health,
    /// `/metrics`
    Metrics,
    /// `/readyz`
    Ready,
    /// Anything else.
    Other,
}

impl Path {
    const KNOWN: [Path; 5] = [Path::Landing, Path::Json, Path::Health, Path::Metrics, Path::Ready];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Path::Landing => "/",
            Path::Json => "/apis/worker.gpustack.ai/v1/namespaces/{namespace}/modeldeployments/{name}/metrics",
            Path::Health => "/healthz",
            Path::Metrics => "/metrics",
            Path::Ready => "/readyz",
            Path::Other => "other",
        }
    }
}

/// Answered requests since the start.
#[derive(Debug)]
pub struct Requests(Mutex<BTreeMap<(Path, u16), u64>>);

impl Requests {
    /// None yet; the expected answer of every path starts at 0, so its first increase is not lost.
    pub fn new() -> Requests {
        Requests(Mutex::new(Path::KNOWN.into_iter().map(|path| ((path, StatusCode::OK.as_u16()), 0)).collect()))
    }

    /// One more.
    pub fn count(&self, path: Path, code: StatusCode) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry((path, code.as_u16())).or_default() += 1;
    }

    /// The counts.
    pub fn points(&self) -> Vec<Point> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let point = |((path, code), count): (&(Path, u16), &u64)| Point {
            family: "modeldeployment_exporter_http_requests_total".into(),
            labels: vec![("path", path.as_str().into()), ("code", code.to_string().into())],
            value: *count as f64,
        };
        counts.iter().map(point).collect()
    }
}
