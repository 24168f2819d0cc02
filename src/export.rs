//! Turns a snapshot's points into Prometheus series, at most once per round and format.
//!
//! It decides no value: what is missing from the points has no series. What it exports is a table
//! ([`families::FAMILIES`]); a point outside of it is a defect, not a new series.

mod encode;
pub mod families;
pub mod gzip;
pub mod process;

pub use encode::{Distribution, Format, encode};

use smol_str::SmolStr;
use std::borrow::Cow;

/// One sample of a round: a family of the contract's section 8, its labels and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The full name, with `modeldeployment_` and, of counters, `_total`.
    pub family: Cow<'static, str>,
    /// The labels, `namespace`, `modeldeployment` and `pod` among them. A round has thousands of
    /// values, most of them short or the same, and these are copied without an allocation.
    pub labels: Vec<(&'static str, SmolStr)>,
    /// The value.
    pub value: f64,
}

impl Point {
    /// A sample without labels, as the exporter's own families have them.
    pub(crate) fn bare(family: &'static str, value: f64) -> Point {
        Point { family: Cow::Borrowed(family), labels: Vec::new(), value }
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use super::families::{FAMILIES, Kind};
    use super::{Distribution, Point};
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    /// Two points of every family that has points, in no order.
    pub(crate) fn points() -> Vec<Point> {
        let mut points = Vec::new();
        for (at, family) in FAMILIES.iter().enumerate().filter(|(_, family)| family.kind != Kind::Histogram) {
            for side in ["b", "a"] {
                let labels = family.labels.iter().map(|name| (*name, format!("{side} \"{name}\"").into())).collect();
                points.push(Point { family: family.name.into(), labels, value: at as f64 + 0.5 });
                if family.labels.is_empty() {
                    break;
                }
            }
        }
        points
    }

    /// Some observations of the histogram.
    pub(crate) fn distribution() -> Distribution {
        Distribution {
            family: "modeldeployment_exporter_round_duration_seconds",
            sum: 1.25,
            buckets: vec![(0.5, 1), (f64::INFINITY, 1)],
        }
    }

    /// Runs a program on this input; whether it succeeded, and all it wrote.
    pub(crate) fn run(program: &str, args: &[&str], input: &[u8]) -> (bool, Vec<u8>) {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let mut out = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
        child.stderr.take().unwrap().read_to_end(&mut out).unwrap();
        writer.join().unwrap().unwrap();
        (child.wait().unwrap().success(), out)
    }
}
