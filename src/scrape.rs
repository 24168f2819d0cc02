//! Runs one round: reads every Pod within its limits, one reading or one typed error per Pod.
//!
//! It never stops a round for one Pod, keeps no samples between rounds (only connections), and
//! knows no field.

use crate::deployment::Pod;
use crate::exposition::Samples;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// One Pod's good read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Monotonic time at which the answer's head arrived: engines render the body before they send it.
    pub at: Duration,
    /// The same moment on the wall clock.
    pub observed: SystemTime,
    /// The wanted samples.
    pub samples: Samples,
}

/// Why a Pod is unreadable: the `cause` of the contract's section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// No whole answer in time.
    Timeout,
    /// The connection was refused.
    Refused,
    /// The connection was reset or closed before an answer.
    Reset,
    /// A status other than 200.
    Status,
    /// A redirect that is not followed.
    Redirect,
    /// A body over the cap.
    TooLarge,
    /// A body cut short.
    Truncated,
    /// A body that is not the text exposition.
    NotExposition,
    /// A certificate that is not trusted or does not match, or a client certificate that is asked for.
    Tls,
    /// Anything else.
    Other,
}

impl Cause {
    /// Every cause, in the contract's order.
    pub const ALL: [Cause; 10] = [
        Cause::Timeout,
        Cause::Refused,
        Cause::Reset,
        Cause::Status,
        Cause::Redirect,
        Cause::TooLarge,
        Cause::Truncated,
        Cause::NotExposition,
        Cause::Tls,
        Cause::Other,
    ];

    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Timeout => "timeout",
            Cause::Refused => "refused",
            Cause::Reset => "reset",
            Cause::Status => "status",
            Cause::Redirect => "redirect",
            Cause::TooLarge => "too-large",
            Cause::Truncated => "truncated",
            Cause::NotExposition => "not-exposition",
            Cause::Tls => "tls",
            Cause::Other => "other",
        }
    }
}

/// A Pod that could not be read in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Which kind of failure.
    pub cause: Cause,
    /// The sentence for people; without addresses of this process, tokens or URLs.
    pub reason: String,
}

/// One Pod's part of a round. A Pod without an endpoint is not scraped and has none.
#[derive(Debug, Clone)]
pub struct Scraped {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// What was read.
    pub result: Result<Reading, Unreadable>,
    /// How long the read took, from its start to its end.
    pub took: Duration,
    /// Bytes of the body that were read.
    pub body_bytes: u64,
}

/// One finished round.
#[derive(Debug, Clone)]
pub struct Round {
    /// The Pods that were read or tried, in reading order.
    pub scraped: Vec<Scraped>,
    /// The Pods past `MAX_PODS`, in reading order.
    pub omitted: Vec<Arc<Pod>>,
    /// How long the round took.
    pub took: Duration,
}
