//! Which values of a round the landing page shows, under which heading and in which unit.
//!
//! Data and number formats only. A value comes from the round's points, in base units; nothing is
//! computed from another value here.

use crate::export::families::FAMILIES;
use std::time::Duration;

/// What a column's values are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A whole number of something.
    Count,
    /// Seconds.
    Seconds,
    /// A fraction of 1, shown as a percentage.
    Ratio,
    /// Something per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
}

/// One column of a table of Pods.
#[derive(Debug)]
pub struct Column {
    /// The family that its values are points of, without `modeldeployment_`.
    pub family: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// Its values' unit.
    pub unit: Unit,
}

const fn column(family: &'static str, heading: &'static str, unit: Unit) -> Column {
    Column { family, heading, unit }
}

/// Every column, in the page's order; the families of the contract's section 8 that are values of
/// now or of a window.
pub const COLUMNS: &[Column] = &[
    column("running_requests", "Running", Unit::Count),
    column("waiting_requests", "Waiting", Unit::Count),
    column("decode_transfer_waiting_requests", "Waiting for KV", Unit::Count),
    column("router_running_requests", "Running", Unit::Count),
    column("router_backends", "Backends", Unit::Count),
    column("router_reported_workers", "Workers", Unit::Count),
    column("ttft_mean_seconds", "TTFT", Unit::Seconds),
    column("tpot_mean_seconds", "TPOT", Unit::Seconds),
    column("itl_mean_seconds", "ITL", Unit::Seconds),
    column("cache_hit_ratio", "Hit ratio", Unit::Ratio),
    column("router_requests_per_second", "Requests", Unit::PerSecond),
    column("router_successful_requests_per_second", "Successes", Unit::PerSecond),
    column("router_pd_requests_per_second", "PD requests", Unit::PerSecond),
    column("router_error_ratio", "Error ratio", Unit::Ratio),
    column("router_request_errors_per_second", "Request errors", Unit::PerSecond),
    column("router_errors_per_second", "Errors", Unit::PerSecond),
    column("router_pd_errors_per_second", "PD errors", Unit::PerSecond),
    column("router_retries_exhausted_per_second", "Retries exhausted", Unit::PerSecond),
    column("router_http_5xx_responses_per_second", "HTTP 5xx", Unit::PerSecond),
    column("kv_transfer_latency_mean_seconds", "KV transfer", Unit::Seconds),
    column("kv_transfer_speed_mean_bytes_per_second", "KV speed", Unit::BytesPerSecond),
    column("kv_transfer_size_mean_bytes", "KV size", Unit::Bytes),
    column("kv_transfer_failures_per_second", "KV failures", Unit::PerSecond),
    column("pod_window_seconds", "Window", Unit::Seconds),
    column("pod_resets_total", "Resets", Unit::Count),
];

impl Column {
    /// What `/metrics` says of the family.
    pub fn help(&self) -> &'static str {
        let family = FAMILIES.iter().find(|family| family.name.strip_prefix("modeldeployment_") == Some(self.family));
        family.map_or("", |family| family.help)
    }
}

impl Unit {
    /// A value for people, with about three significant digits.
    pub fn short(self, value: f64) -> String {
        match self {
            Unit::Count => digits(value),
            Unit::Seconds if value == 0.0 || value >= 1.0 => format!("{} s", digits(value)),
            Unit::Seconds if value >= 0.001 => format!("{} ms", digits(value * 1e3)),
            Unit::Seconds => format!("{} µs", digits(value * 1e6)),
            Unit::Ratio => format!("{} %", digits(value * 100.0)),
            Unit::PerSecond => format!("{} /s", digits(value)),
            Unit::Bytes => bytes(value),
            Unit::BytesPerSecond => format!("{}/s", bytes(value)),
        }
    }

    /// The value as it is, with the base unit.
    pub fn exact(self, value: f64) -> String {
        let unit = match self {
            Unit::Count | Unit::Ratio => "",
            Unit::Seconds => " s",
            Unit::PerSecond => " /s",
            Unit::Bytes => " B",
            Unit::BytesPerSecond => " B/s",
        };
        format!("{value}{unit}")
    }
}

/// Three significant digits below a thousand, no fraction above; whole numbers as they are.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if value.fract() == 0.0 || size >= 100.0 => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        0.001.. => 4,
        _ => return format!("{value:.1e}"),
    };
    format!("{value:.decimals$}")
}

fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value;
    let mut units = units.into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if scaled < 1024.0 {
            break;
        }
        (scaled, unit) = (scaled / 1024.0, larger);
    }
    format!("{} {unit}", digits(scaled))
}

/// A span of time for people.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn every_field_of_the_catalogue_has_a_column() {
        let catalogue = Catalogue::embedded().unwrap();
        assert!(catalogue.definitions.len() > 20);
        for definition in &catalogue.definitions {
            let family = &definition.gauge;
            assert!(COLUMNS.iter().any(|column| column.family == family), "{family} has no column");
        }
    }

    #[test]
    fn every_column_is_a_family() {
        for column in COLUMNS {
            assert_ne!(column.help(), "", "{}", column.family);
            assert_eq!(COLUMNS.iter().filter(|other| other.family == column.family).count(), 1, "{}", column.family);
        }
    }

    #[test]
    fn values_are_short_and_exact() {
        for (unit, value, short, exact) in [
            (Unit::Count, 0.0, "0", "0"),
            (Unit::Count, 12_345.0, "12345", "12345"),
            (Unit::Seconds, 0.0, "0 s", "0 s"),
            (Unit::Seconds, 0.000_025, "25 µs", "0.000025 s"),
            (Unit::Seconds, 0.312_456, "312 ms", "0.312456 s"),
            (Unit::Seconds, 30.010_659, "30.0 s", "30.010659 s"),
            (Unit::Seconds, 1.2345, "1.23 s", "1.2345 s"),
            (Unit::Ratio, 0.393_008_974_964_572_5, "39.3 %", "0.3930089749645725"),
            (Unit::Ratio, 1.0, "100 %", "1"),
            (Unit::Ratio, 0.000_004, "4.0e-4 %", "0.000004"),
            (Unit::PerSecond, 0.0, "0 /s", "0 /s"),
            (Unit::PerSecond, 0.0125, "0.0125 /s", "0.0125 /s"),
            (Unit::Bytes, 1023.0, "1023 B", "1023 B"),
            (Unit::Bytes, 1_572_864.0, "1.50 MiB", "1572864 B"),
            (Unit::BytesPerSecond, 2_147_483_648.0, "2 GiB/s", "2147483648 B/s"),
        ] {
            assert_eq!(unit.short(value), short);
            assert_eq!(unit.exact(value), exact);
        }
    }

    #[test]
    fn spans_have_one_unit() {
        let seconds = [0, 119, 120, 7_199, 7_200, 172_799, 172_800];
        let spans = seconds.map(|seconds| span(Duration::from_secs(seconds)));
        assert_eq!(spans, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days"]);
    }
}
