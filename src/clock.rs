//! The two clocks: monotonic for ages and windows, wall for what people read.
//!
//! Passed in wherever time is asked for, so a test or a simulation owns both. It never sleeps:
//! sleeping is tokio's.

use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The time now, on both clocks.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time since the clock was made.
    fn now(&self) -> Duration;
    /// Wall-clock time; it may jump.
    fn wall(&self) -> SystemTime;
}

/// The machine's clocks; the monotonic one is tokio's, so paused time works.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn start() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}
