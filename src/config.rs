//! The environment, read into one validated value.
//!
//! Every wrong value is reported at once, each with its variable, the value and what is accepted.
//! It opens no file and no socket.

use std::path::PathBuf;
use std::time::Duration;

/// Where the deployment is learned from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `DEPLOYMENT_FILE`.
    File(PathBuf),
}

/// The limits and times of reading Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeLimits {
    /// `SCRAPE_INTERVAL`: from one round's start to the next.
    pub interval: Duration,
    /// `SCRAPE_TIMEOUT`: one Pod's read.
    pub timeout: Duration,
    /// `ROUND_TIMEOUT`: one whole round.
    pub round_timeout: Duration,
    /// `SCRAPE_CONCURRENCY`: reads in flight, at least 1.
    pub concurrency: usize,
    /// `MAX_PODS`: Pods read in a round, at least 1.
    pub max_pods: usize,
    /// `MAX_BODY_BYTES`: one Pod's body, at least 1.
    pub max_body_bytes: u64,
}

/// The times of section 5's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTimes {
    /// `WINDOW`; zero means from one read to the next.
    pub window: Duration,
    /// `SCRAPE_INTERVAL`, of which half is the tolerance of a baseline's age.
    pub interval: Duration,
    /// `COUNTER_MAX_AGE`: an older read is no baseline.
    pub max_age: Duration,
}

/// `LOG_FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Everything the environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the deployment is learned from.
    pub source: Source,
    /// `LISTEN_ADDRESS`: host:port.
    pub listen: String,
    /// How Pods are read.
    pub scrape: ScrapeLimits,
    /// How windows are chosen.
    pub window: WindowTimes,
    /// `LOG_FORMAT`.
    pub log_format: LogFormat,
}
