//! The rules of the contract's section 6: a field's value, or the code and sentence of its absence.

use super::{Code, Missing, Outcome, RoundView};
use crate::catalogue::{Absent, AbsentCode, Definition, Field, HalfName, Kind, Read, Software, Unsupported, When};
use crate::config::WindowTimes;
use crate::deployment::{Deployment, Half, Member, Pod};
use crate::window::{History, Increase, NoWindow};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One field's value in one Pod.
#[derive(Debug, Clone)]
pub struct FieldValue {
    /// What the field is.
    pub definition: Arc<Definition>,
    /// The series it was read from.
    pub source: String,
    /// Its value.
    pub value: Value,
}

/// A value, with what its list needs of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A gauge of now.
    Gauge(f64),
    /// Hits and queries of a window; there were queries, and no more hits than those.
    Ratio {
        /// Hits.
        hits: f64,
        /// Queries, more than 0.
        queries: f64,
        /// The window's seconds.
        seconds: f64,
    },
    /// The mean of a histogram's window.
    Mean {
        /// In the JSON's unit.
        json: f64,
        /// In the base unit, for `/metrics`.
        base: f64,
        /// Observations, more than 0.
        samples: f64,
        /// The window's seconds.
        seconds: f64,
    },
    /// A counter's increase; the rate is this over the seconds.
    Rate {
        /// The increase.
        increase: f64,
        /// The window's seconds.
        seconds: f64,
    },
    /// One counter's increase over another's.
    Share {
        /// The increase above the line.
        of: f64,
        /// The increase below the line, more than 0.
        over: f64,
        /// The window's seconds.
        seconds: f64,
    },
}

impl Value {
    /// Value, samples and seconds of an entry of `latency[]`, `traffic[]` or `transfer[]`.
    pub fn windowed(&self) -> Option<(f64, f64, f64)> {
        match *self {
            Value::Mean { json, samples, seconds, .. } => Some((json, samples, seconds)),
            Value::Rate { increase, seconds } => Some((increase / seconds, increase, seconds)),
            Value::Share { of, over, seconds } => Some((of / over, over, seconds)),
            Value::Gauge(_) | Value::Ratio { .. } => None,
        }
    }

    /// The gauge on `/metrics`.
    pub fn gauge(&self) -> f64 {
        match *self {
            Value::Gauge(value) => value,
            Value::Ratio { hits, queries, .. } => hits / queries,
            Value::Mean { base, .. } => base,
            Value::Rate { increase, seconds } => increase / seconds,
            Value::Share { of, over, .. } => of / over,
        }
    }
}

fn entry(pod: &str, source: impl Into<String>, code: Code, reason: impl Into<String>) -> Missing {
    Missing { pod: pod.to_owned(), source: source.into(), reason: reason.into(), code, cause: None }
}

/// `1 Pod` or `2 Pods`.
fn pods(count: u64) -> String {
    format!("{count} {}", if count == 1 { "Pod" } else { "Pods" })
}

fn part_name(deployment: &Deployment, member: Member) -> String {
    deployment.role(member).map_or_else(|| "the router".to_owned(), |role| format!("role {role}"))
}

/// The entries about Pods and parts of the deployment rather than series.
pub fn parts(round: &RoundView<'_>) -> Vec<Missing> {
    let deployment = round.deployment;
    let mut missing = Vec::new();
    for &(member, expected) in &round.expected {
        let owned = round.pods.iter().filter(|pod| pod.pod.member == member).count() as u64;
        let scope = deployment.scope(member);
        let part = part_name(deployment, member);
        if owned == 0 && expected > 0 {
            missing.push(entry(
                "",
                scope,
                Code::NoPod,
                format!("{part} has no owned Pod; {} expected", pods(expected)),
            ));
        } else if owned < expected {
            let reason = format!("{part} has {} of {expected} expected", pods(owned));
            missing.push(entry("", scope, Code::ReplicasMissing, reason));
        }
    }
    let mut omitted: BTreeMap<Member, u64> = BTreeMap::new();
    for pod in &round.pods {
        let name = &pod.pod.name;
        match &pod.outcome {
            Outcome::Read { .. } => {}
            Outcome::Failed { why, .. } => missing.push(Missing {
                cause: Some(why.cause.as_str()),
                ..entry(name, "scrape", Code::Unreadable, &why.reason)
            }),
            Outcome::NoEndpoint(reason) => missing.push(entry(name, "scrape", Code::NoEndpoint, *reason)),
            Outcome::Omitted => *omitted.entry(pod.pod.member).or_default() += 1,
        }
    }
    if !omitted.is_empty() {
        let of_part =
            |(member, count): (&Member, &u64)| format!("{} of {}", pods(*count), part_name(deployment, *member));
        let list: Vec<String> = omitted.iter().map(of_part).collect();
        let total: u64 = omitted.values().sum();
        let reason = format!("{} past MAX_PODS ({}) not read: {}", pods(total), round.max_pods, list.join(", "));
        missing.push(entry("", "pod-discovery", Code::PodLimit, reason));
    }
    if round.discovery_stale {
        let reason = "discovery has not been heard for too long; the Pods known before are read on";
        missing.push(entry("", "pod-discovery", Code::DiscoveryStale, reason));
    }
    missing
}

/// One Pod with what the conditions of the catalogue ask about.
struct Subject<'a> {
    deployment: &'a Deployment,
    pod: &'a Pod,
    software: &'a Software,
    history: &'a History,
    times: &'a WindowTimes,
}

/// Every field's value of a Pod that was read, and an entry for every one that is missing.
pub fn fields(
    deployment: &Deployment,
    pod: &Pod,
    history: &History,
    times: &WindowTimes,
) -> (Vec<FieldValue>, Vec<Missing>) {
    let software = history.software();
    let subject = Subject { deployment, pod, software, history, times };
    let mut values = Vec::new();
    let mut missing = Vec::new();
    for (index, field) in software.fields.iter().enumerate() {
        if !subject.is_read(field.read) {
            continue;
        }
        let result = match subject.unsupported(field) {
            Some(rule) => Err(Some((Code::UnsupportedSource, rule.reason.clone()))),
            None => subject.value(index, field),
        };
        match result {
            Ok(value) => values.push(FieldValue {
                definition: Arc::clone(&field.definition),
                source: subject.source(index, field),
                value,
            }),
            // A cache entry is named by its scope, any other by its series.
            Err(Some((code, reason))) => missing.push(match field.definition.kind {
                Kind::Ratio => entry(&pod.name, &field.definition.name, code, reason),
                _ => entry(&pod.name, subject.source(index, field), code, reason),
            }),
            Err(None) => {}
        }
    }
    (values, missing)
}

/// Whether the configuration provides a field in a Pod, whatever the newest read has.
pub fn provides(deployment: &Deployment, pod: &Pod, history: &History, times: &WindowTimes, field: &Field) -> bool {
    let subject = Subject { deployment, pod, software: history.software(), history, times };
    subject.is_read(field.read) && subject.unsupported(field).is_none()
}

/// A field without a value: its code and sentence, or no entry at all.
type Nothing = Option<(Code, String)>;

fn nothing<T>(code: Code, reason: &str) -> Result<T, Nothing> {
    Err(Some((code, reason.to_owned())))
}

impl Subject<'_> {
    fn is_read(&self, read: Read) -> bool {
        let half = self.deployment.half(self.pod.member);
        match read {
            Read::EveryRole => true,
            Read::NotPrefillHalf => half != Some(Half::Prefill),
            Read::NotDecodeHalf => half != Some(Half::Decode),
            Read::PrefillHalf => half == Some(Half::Prefill),
            Read::DecodeHalf => half == Some(Half::Decode),
            Read::OutsideAPair => !self.deployment.is_pair(),
            Read::InAPair => self.deployment.is_pair(),
        }
    }

    /// The series that a field is read from: the alternative that the Pod has, else the specification's.
    fn source(&self, index: usize, field: &Field) -> String {
        if let Some((of, over)) = field.share {
            let part = |index: usize| self.source(index, &self.software.fields[index]);
            return format!("{}+{}", part(over), part(of));
        }
        let alternative = field.alternatives.get(self.history.alternative(index));
        alternative.map_or_else(String::new, |alternative| alternative.source.clone())
    }

    fn unsupported<'f>(&self, field: &'f Field) -> Option<&'f Unsupported> {
        field.unsupported.iter().find(|rule| self.holds(&rule.when, field))
    }

    fn holds(&self, when: &When, field: &Field) -> bool {
        let half = self.deployment.half(self.pod.member).map(|half| match half {
            Half::Prefill => HalfName::Prefill,
            Half::Decode => HalfName::Decode,
        });
        when.pool.is_none_or(|pool| pool == self.deployment.pool)
            && when.pair.is_none_or(|pair| pair == self.deployment.is_pair())
            && when.half.is_none_or(|wanted| half == Some(wanted))
            && !when.without.iter().any(|argument| self.is_given(argument))
            && when.unmoved.as_ref().is_none_or(|series| self.history.is_unmoved(series))
            && when.present.as_ref().is_none_or(|series| self.history.has_series(series))
            && when.without_label.as_ref().is_none_or(|l| !self.history.has_label(&l.series, &l.label))
            && when.idle.is_none_or(|idle| idle == self.is_idle(field, None))
    }

    /// Whether an argument, written `name` or `name=value`, is given or is the default.
    fn is_given(&self, argument: &str) -> bool {
        let arguments = &self.pod.arguments;
        let Some((name, value)) = argument.split_once('=') else { return arguments.has(argument) };
        self.software.arguments.iter().any(|spec| spec.name == name && arguments.is(spec, value))
    }

    /// Whether the Pod's TTFT histogram recorded no request in the window; a field's own window,
    /// where it has one, must lie inside that one.
    fn is_idle(&self, field: &Field, window: Option<&Increase>) -> bool {
        let Some(ttft) = field.idle.filter(|&ttft| self.is_read(self.software.fields[ttft].read)) else { return false };
        self.history.increase(ttft, self.times).is_ok_and(|recorded| {
            recorded.all[0] == 0.0 && window.is_none_or(|window| recorded.baseline <= window.baseline)
        })
    }

    fn value(&self, index: usize, field: &Field) -> Result<Value, Nothing> {
        let definition = &field.definition;
        if definition.kind == Kind::Gauge {
            return self.history.gauge(index).map(Value::Gauge).ok_or_else(|| Some(self.absent(field, false)));
        }
        if let Some((of, over)) = field.share {
            return self.share(of, over);
        }
        let window = match self.history.increase(index, self.times) {
            Ok(window) => window,
            Err(NoWindow::Absent { seen }) => return Err(Some(self.absent(field, seen))),
            Err(NoWindow::FirstSample) => {
                return nothing(
                    Code::FirstSample,
                    "this is the first sample of the series; a second read gives a window",
                );
            }
            Err(NoWindow::Reset) => {
                return nothing(
                    Code::CounterReset,
                    "the Pod's counters were reset since the last read; this read is the new baseline",
                );
            }
        };
        let seconds = window.seconds;
        match definition.kind {
            Kind::Rate => Ok(Value::Rate { increase: window.one[0], seconds }),
            Kind::Ratio => {
                let [queries, hits] = window.one;
                if hits > queries {
                    return nothing(
                        Code::IncompatibleDenominator,
                        "the window has more hits than queries, so their quotient is no hit rate",
                    );
                }
                if queries > 0.0 {
                    return Ok(Value::Ratio { hits, queries, seconds });
                }
                if self.is_idle(field, Some(&window)) {
                    return nothing(Code::Idle, "the Pod served no request in the window, so there are no new queries");
                }
                nothing(Code::NoQueries, "the window has no new queries, and the Pod is not known to be idle")
            }
            _ => {
                let [count, sum] = if definition.shards { window.all } else { window.one };
                if count > 0.0 {
                    let json = sum / count;
                    let base = if definition.gauge_per_transfer { window.all[1] / window.one[0] } else { json };
                    return Ok(Value::Mean { json, base: base * definition.factor, samples: count, seconds });
                }
                if self.is_idle(field, Some(&window)) {
                    return nothing(
                        Code::Idle,
                        "the Pod served no request in the window, so there are no new observations",
                    );
                }
                nothing(Code::NoObservations, "the window has no new observations, and the Pod is not known to be idle")
            }
        }
    }

    /// One rate over another, where both have the same baseline and something happened.
    fn share(&self, of: usize, over: usize) -> Result<Value, Nothing> {
        let increase = |index| self.history.increase(index, self.times);
        let (Ok(above), Ok(below)) = (increase(of), increase(over)) else { return Err(None) };
        if above.baseline != below.baseline {
            return nothing(
                Code::WindowsDiffer,
                "the request and error counters have different baselines, so their windows differ",
            );
        }
        let (errors, requests) = (above.one[0], below.one[0]);
        if errors > requests {
            return nothing(
                Code::ErrorsExceedRequests,
                "the window has more errors than requests, so their quotient is no fraction",
            );
        }
        if requests == 0.0 {
            return nothing(Code::NoRequests, "the window has neither requests nor errors");
        }
        Ok(Value::Share { of: errors, over: requests, seconds: below.seconds })
    }

    /// Why a field's series is absent.
    fn absent(&self, field: &Field, seen: bool) -> (Code, String) {
        let applies = |rule: &&Absent| {
            // A labelled series that was seen has been exported: now it is missing.
            (rule.code != AbsentCode::NotExportedYet || !seen) && self.holds(&rule.when, field)
        };
        if let Some(rule) = field.absent.iter().find(applies) {
            let code = match rule.code {
                AbsentCode::NotExportedYet => Code::NotExportedYet,
                AbsentCode::UnsupportedSource => Code::UnsupportedSource,
            };
            return (code, rule.reason.clone());
        }
        let reason = if seen {
            "the Pod exported this series before and does not any more"
        } else {
            "the Pod does not export this series"
        };
        (Code::MetricAbsent, reason.to_owned())
    }
}
