//! The `process_*` families of the exporter itself, by their standard names.
//!
//! What the system does not tell has no series.

use super::Point;
use procfs::WithCurrentSystemInfo;
use procfs::process::{LimitValue, Process};

/// The process, with what never changes about it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exporter {
    /// Seconds since the Unix epoch.
    start: Option<f64>,
}

impl Exporter {
    /// This process.
    pub fn myself() -> Exporter {
        let start = Process::myself()
            .and_then(|process| process.stat())
            .and_then(|stat| Ok(procfs::boot_time_secs()? as f64 + seconds(stat.starttime)));
        Exporter { start: start.ok() }
    }

    /// The process now.
    pub fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> =
            self.start.iter().map(|start| Point::bare("process_start_time_seconds", *start)).collect();
        let Ok(process) = Process::myself() else { return points };
        if let Ok(stat) = process.stat() {
            points.push(Point::bare("process_cpu_seconds_total", seconds(stat.utime.saturating_add(stat.stime))));
            points.push(Point::bare("process_virtual_memory_bytes", stat.vsize as f64));
            points.push(Point::bare("process_resident_memory_bytes", stat.rss_bytes().get() as f64));
        }
        if let Ok(count) = process.fd_count() {
            points.push(Point::bare("process_open_fds", count as f64));
        }
        if let Ok(LimitValue::Value(max)) = process.limits().map(|limits| limits.max_open_files.soft_limit) {
            points.push(Point::bare("process_max_fds", max as f64));
        }
        points
    }
}

/// Seconds of clock ticks.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_process_is_told_in_base_units() {
        let points = Exporter::myself().points();
        let value = |family: &str| points.iter().find(|point| point.family == family).unwrap().value;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((0.0..3600.0).contains(&(now - value("process_start_time_seconds"))));
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
