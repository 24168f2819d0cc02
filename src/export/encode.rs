//! Points to the bytes of an exposition: grouped by family, sorted, checked.
//!
//! The crate that writes the lines checks neither names nor duplicates, so this module does, and
//! the same points always give the same bytes.

use super::Point;
use super::families::{FAMILIES, Family, Kind, OPTIONAL_LABEL};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The two expositions of section 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What ends a whole exposition.
    pub fn end(self) -> &'static str {
        match self {
            Format::Text => "",
            Format::OpenMetrics => "# EOF\n",
        }
    }
}

/// One histogram without labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The family's full name.
    pub family: &'static str,
    /// The sum of the observations.
    pub sum: f64,
    /// Each bucket's upper bound, the last one infinite, with the observations that fell into it alone.
    pub buckets: Vec<(f64, u64)>,
}

/// A point that cannot be exported; each is a defect of whoever made the points.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the family {0} is not known")]
    UnknownFamily(String),
    #[error("the labels of a series of {family} are {found:?}")]
    Labels { family: &'static str, found: Vec<&'static str> },
    #[error("a series of {family} is not a finite number")]
    NotFinite { family: &'static str },
    #[error("{family} has two series with the labels {labels:?}")]
    Duplicate { family: &'static str, labels: Vec<String> },
}

/// One series: the values of its labels in the family's order, none for an absent one.
struct Series {
    labels: Vec<Option<u16>>,
    point: usize,
}

/// The points of one exposition, ready to be written.
#[derive(Debug)]
struct Arranged {
    points: Arc<[Point]>,
    distributions: Vec<Distribution>,
    /// Of each family of the table: the points and, for each, where its labels are.
    series: Vec<Vec<Series>>,
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.point)
    }
}

impl Series {
    /// Name and value of each label that the series has.
    fn labels<'a>(&'a self, family: &'a Family, points: &'a [Point]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let labels = points.get(self.point).map_or(&[][..], |point| &point.labels);
        family.labels.iter().zip(&self.labels).filter_map(|(name, at)| {
            let (_, value) = labels.get(usize::from((*at)?))?;
            Some((*name, value.as_str()))
        })
    }
}

/// Finds the family and the label places of one point.
fn place(point: &Point, index: usize, families: &HashMap<&str, usize>) -> Result<(usize, Series), Fault> {
    let Some((at, family)) = families.get(&*point.family).and_then(|at| Some((*at, FAMILIES.get(*at)?))) else {
        return Err(Fault::UnknownFamily(point.family.to_string()));
    };
    if family.kind == Kind::Histogram {
        return Err(Fault::UnknownFamily(point.family.to_string()));
    }
    if !point.value.is_finite() {
        return Err(Fault::NotFinite { family: family.name });
    }
    let labels: Vec<Option<u16>> = family
        .labels
        .iter()
        .map(|name| point.labels.iter().position(|(n, _)| n == name).and_then(|at| u16::try_from(at).ok()))
        .collect();
    let complete = family.labels.iter().zip(&labels).all(|(name, at)| at.is_some() || *name == OPTIONAL_LABEL);
    if !complete || labels.iter().flatten().count() != point.labels.len() {
        let found = point.labels.iter().map(|(name, _)| *name).collect();
        return Err(Fault::Labels { family: family.name, found });
    }
    Ok((at, Series { labels, point: index }))
}

/// Groups, sorts and checks; what is at fault is left out and reported.
fn arrange(points: Arc<[Point]>, distributions: Vec<Distribution>) -> (Arranged, Vec<Fault>) {
    let families: HashMap<&str, usize> = FAMILIES.iter().enumerate().map(|(at, family)| (family.name, at)).collect();
    let mut series: Vec<Vec<Series>> = FAMILIES.iter().map(|_| Vec::new()).collect();
    let mut faults = Vec::new();
    for (index, point) in points.iter().enumerate() {
        match place(point, index, &families) {
            Ok((at, placed)) => series[at].push(placed),
            Err(fault) => faults.push(fault),
        }
    }
    for (family, series) in FAMILIES.iter().zip(&mut series) {
        series.sort_by(|a, b| a.labels(family, &points).cmp(b.labels(family, &points)));
        series.dedup_by(|b, a| {
            let same = a.labels(family, &points).eq(b.labels(family, &points));
            if same {
                let labels = a.labels(family, &points).map(|(_, value)| value.to_owned()).collect();
                faults.push(Fault::Duplicate { family: family.name, labels });
            }
            same
        });
    }
    (Arranged { points, distributions, series }, faults)
}

/// The faults of points, for tests of whoever makes them.
#[cfg(test)]
pub(super) fn faults(points: &[Point]) -> Vec<Fault> {
    arrange(points.into(), Vec::new()).1
}

/// The HELP text as OpenMetrics wants it: the crate writes it as it is given.
fn escaped_help(help: &str) -> Cow<'_, str> {
    if help.contains(['\\', '"', '\n']) {
        Cow::Owned(help.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
    } else {
        Cow::Borrowed(help)
    }
}

struct Write {
    arranged: Arranged,
    format: Format,
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").finish_non_exhaustive()
    }
}

/// Whole numbers are written without a fraction up to here, where f64 still has every one: 2^53.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Collector for Write {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (family, series) in FAMILIES.iter().zip(&self.arranged.series) {
            let distribution = self.arranged.distributions.iter().find(|d| d.family == family.name);
            if series.is_empty() && distribution.is_none() {
                continue;
            }
            // The 0.0.4 writer escapes the HELP text itself.
            let help = match self.format {
                Format::Text => Cow::Borrowed(family.help),
                Format::OpenMetrics => escaped_help(family.help),
            };
            let (name, kind) = match family.kind {
                Kind::Gauge => (family.name, MetricType::Gauge),
                // The crate appends `_total` to every counter.
                Kind::Counter => (family.name.strip_suffix("_total").unwrap_or(family.name), MetricType::Counter),
                Kind::Histogram => (family.name, MetricType::Histogram),
            };
            let mut metric = encoder.encode_descriptor(name, &help, None, kind)?;
            if let Some(distribution) = distribution {
                let count = distribution.buckets.iter().map(|(_, count)| count).sum();
                metric.encode_histogram::<NoLabelSet>(distribution.sum, count, &distribution.buckets, None)?;
            }
            for one in series {
                let Some(point) = self.arranged.points.get(one.point) else { continue };
                let labels: Vec<(&str, &str)> = one.labels(family, &self.arranged.points).collect();
                let value = point.value;
                let whole = (value.fract() == 0.0 && value.abs() < EXACT).then_some(value as i64);
                let mut metric = metric.encode_family(&labels)?;
                match (family.kind, whole) {
                    (Kind::Counter, Some(whole)) if whole >= 0 => {
                        metric.encode_counter::<NoLabelSet, u64, f64>(&whole.unsigned_abs(), None)?;
                    }
                    (Kind::Counter, _) => metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)?,
                    (_, Some(whole)) => metric.encode_gauge(&whole)?,
                    (_, None) => metric.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

/// The exposition of these points, without what ends it: families in the table's order, series
/// sorted by labels, no family without a sample.
///
/// A point of an unknown family, with other labels than its family's, with a value that is not
/// finite or with the labels of an earlier point is a defect: it is left out and logged as an
/// error, and stops a debug build.
pub fn encode(points: Arc<[Point]>, distributions: Vec<Distribution>, format: Format) -> String {
    let (arranged, faults) = arrange(points, distributions);
    for fault in &faults {
        tracing::error!(%fault, "a series is not exported");
    }
    debug_assert!(faults.is_empty(), "{faults:?}");
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Write { arranged, format }));
    let mut out = String::new();
    let written = match format {
        Format::Text => prometheus_text::encode(&mut out, &registry),
        Format::OpenMetrics => text::encode_registry(&mut out, &registry),
    };
    // Writing to a String cannot fail.
    if let Err(error) = written {
        tracing::error!(%error, "the exposition could not be written");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::catalogue::{Definition, FIELDS};

    fn point(family: &'static str, labels: &[(&'static str, &str)], value: f64) -> Point {
        Point { family: family.into(), labels: labels.iter().map(|(n, v)| (*n, (*v).into())).collect(), value }
    }

    fn up(pod: &str, value: f64) -> Point {
        point("modeldeployment_up", &[("pod", pod), ("modeldeployment", "chat"), ("namespace", "team")], value)
    }

    fn rounds(value: f64) -> Point {
        point("modeldeployment_exporter_rounds_total", &[], value)
    }

    #[test]
    fn families_come_in_the_tables_order_and_series_sorted_by_labels() {
        let points = [rounds(3.0), up("b", 0.25), up("a\"\\\n", 1.0)];
        let help = FAMILIES.iter().find(|family| family.name == "modeldeployment_up").unwrap().help;
        let text = encode(points.clone().into(), Vec::new(), Format::Text);
        assert_eq!(
            text,
            format!(
                "# HELP modeldeployment_up {help}\n\
                 # TYPE modeldeployment_up gauge\n\
                 modeldeployment_up{{namespace=\"team\",modeldeployment=\"chat\",pod=\"a\\\"\\\\\\n\"}} 1\n\
                 modeldeployment_up{{namespace=\"team\",modeldeployment=\"chat\",pod=\"b\"}} 0.25\n\
                 # HELP modeldeployment_exporter_rounds_total Finished rounds of reading the deployment's Pods.\n\
                 # TYPE modeldeployment_exporter_rounds_total counter\n\
                 modeldeployment_exporter_rounds_total 3\n"
            )
        );
        let open = encode(points.into(), Vec::new(), Format::OpenMetrics);
        assert!(
            open.contains("# TYPE modeldeployment_exporter_rounds counter\nmodeldeployment_exporter_rounds_total 3\n")
        );
        assert!(!open.contains("# EOF"));
    }

    #[test]
    fn an_empty_label_value_is_written() {
        let text = encode([up("", 1.0)].into(), Vec::new(), Format::Text);
        assert!(text.contains(",pod=\"\"} 1\n"), "{text}");
    }

    #[test]
    fn the_order_of_points_changes_no_byte() {
        let points = fixture::points();
        let reversed: Vec<Point> = points.iter().rev().cloned().collect();
        for format in [Format::Text, Format::OpenMetrics] {
            let bytes = encode(points.clone().into(), Vec::new(), format);
            assert_eq!(encode(points.clone().into(), Vec::new(), format), bytes);
            assert_eq!(encode(reversed.clone().into(), Vec::new(), format), bytes);
        }
    }

    #[test]
    fn every_family_is_written_once_with_its_type() {
        let distributions = vec![fixture::distribution()];
        let text = encode(fixture::points().into(), distributions.clone(), Format::Text);
        let open = encode(fixture::points().into(), distributions, Format::OpenMetrics);
        for family in FAMILIES {
            let kind = match family.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Histogram => "histogram",
            };
            let name = family.name;
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
            assert_eq!(text.matches(&format!("# HELP {name} {}\n", family.help)).count(), 1, "{name}");
            let name = if family.kind == Kind::Counter { name.strip_suffix("_total").unwrap() } else { name };
            assert_eq!(open.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
        }
        assert_eq!(text.matches("# TYPE ").count(), FAMILIES.len());
    }

    #[test]
    fn a_point_at_fault_is_named() {
        assert_eq!(faults(&[up("a", 1.0), up("b", 1.0)]), []);
        assert_eq!(
            faults(&[point("modeldeployment_upp", &[], 1.0)]),
            [Fault::UnknownFamily("modeldeployment_upp".to_owned())]
        );
        assert!(matches!(faults(&[up("a", 1.0), up("a", 2.0)])[..], [Fault::Duplicate { .. }]));
        assert!(matches!(faults(&[up("a", f64::NAN)])[..], [Fault::NotFinite { .. }]));
        let without_pod = point("modeldeployment_up", &[("namespace", "team"), ("modeldeployment", "chat")], 1.0);
        assert!(matches!(faults(&[without_pod])[..], [Fault::Labels { .. }]));
        assert!(matches!(
            faults(&[point("modeldeployment_exporter_rounds_total", &[("pod", "")], 1.0)])[..],
            [Fault::Labels { .. }]
        ));
        let histogram = point("modeldeployment_exporter_round_duration_seconds", &[], 1.0);
        assert!(matches!(faults(&[histogram])[..], [Fault::UnknownFamily(_)]));
    }

    #[test]
    #[should_panic(expected = "Duplicate")]
    fn a_duplicate_stops_a_debug_build() {
        encode([up("a", 1.0), up("a", 1.0)].into(), Vec::new(), Format::Text);
    }

    #[test]
    fn a_role_may_be_absent() {
        let labels =
            [("namespace", "team"), ("modeldeployment", "chat"), ("pod", "chat-router-0"), ("scope", "router")];
        let text = encode([point("modeldeployment_pod_up", &labels, 1.0)].into(), Vec::new(), Format::Text);
        assert!(text.contains("pod=\"chat-router-0\",scope=\"router\"} 1\n"), "{text}");
    }

    #[test]
    fn help_is_escaped_for_openmetrics() {
        assert_eq!(escaped_help("a \\ \" \n"), "a \\\\ \\\" \\n");
        assert_eq!(escaped_help("plain"), "plain");
    }

    #[test]
    fn names_are_unique_and_of_their_kind() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|f| f.name.strip_suffix("_total").unwrap_or(f.name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter, "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains("  "), "{}", family.name);
        }
    }

    #[test]
    fn every_field_of_the_catalogue_has_its_families() {
        let fields: Vec<Definition> = serde_saphyr::from_str(FIELDS.1).unwrap();
        let kind_of = |name: &str| {
            let name = format!("modeldeployment_{name}");
            FAMILIES.iter().find(|family| family.name == name).map(|family| family.kind)
        };
        assert!(!fields.is_empty());
        for field in fields {
            assert_eq!(kind_of(&field.gauge), Some(Kind::Gauge), "{}", field.gauge);
            for window in field.window.iter().flat_map(|window| [&window.hits, &window.queries]) {
                assert_eq!(kind_of(window), Some(Kind::Gauge), "{window}");
            }
            for total in field.totals {
                assert_eq!(kind_of(&total.family), Some(Kind::Counter), "{}", total.family);
            }
        }
    }

    #[test]
    fn promtool_has_nothing_to_say() {
        let text = encode(fixture::points().into(), vec![fixture::distribution()], Format::Text);
        let (status, said) = fixture::run("promtool", &["check", "metrics"], text.as_bytes());
        assert!(status && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }
}
