//! The points of a round for `/metrics` (contract, section 8). It decides no value: what the rules
//! left missing has no point.

use super::rules::finite;
use super::{Outcome, PodRound, RoundView, Snapshot, Value, provides};
use crate::catalogue::List;
use crate::deployment::{Deployment, Member};
use crate::export::Point;
use crate::scrape::Cause;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

type Labels = Vec<(&'static str, String)>;

/// Makes points of one deployment.
struct Maker<'a> {
    deployment: &'a Deployment,
    points: Vec<Point>,
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Maker<'_> {
    fn add(&mut self, family: impl Into<Cow<'static, str>>, pod: &str, labels: Labels, value: f64) {
        let mut all = vec![
            ("namespace", self.deployment.namespace.clone()),
            ("modeldeployment", self.deployment.name.clone()),
            ("pod", pod.to_owned()),
        ];
        all.extend(labels);
        self.points.push(Point { family: family.into(), labels: all, value });
    }

    fn role(&self, member: Member) -> Labels {
        self.deployment.role(member).map(|role| ("role", role.to_owned())).into_iter().collect()
    }

    /// `scope`, and `role` where the part is one.
    fn part(&self, member: Member) -> Labels {
        let scope = if member == Member::Router { "router" } else { "engine" };
        let mut labels = vec![("scope", scope.to_owned())];
        labels.extend(self.role(member));
        labels
    }

    /// The labels of a field's families, by the list that it goes to.
    fn field(&self, member: Member, list: List, name: &str, source: &str) -> Labels {
        let mut labels = match list {
            List::Processing | List::Queueing | List::Latency => self.part(member),
            List::CacheHits | List::Transfer => self.role(member),
            List::Traffic => Labels::new(),
        };
        if list == List::CacheHits {
            labels.push(("cache", name.to_owned()));
        }
        labels.push(("source", source.to_owned()));
        labels
    }

    fn up(&mut self, up: bool) {
        self.add("modeldeployment_up", "", Labels::new(), f64::from(u8::from(up)));
    }

    fn info(&mut self) {
        let deployment = self.deployment;
        let router = deployment.router.as_ref().map(|router| router.name.clone()).unwrap_or_default();
        let labels = vec![
            ("engine", deployment.engine_name.clone()),
            ("router", router),
            ("kv_cache", deployment.pool.to_string()),
            ("pair", deployment.is_pair().to_string()),
        ];
        self.add("modeldeployment_info", "", labels, 1.0);
    }

    fn totals(&mut self, round: &RoundView<'_>, pod: &PodRound<'_>) {
        let (name, member) = (&pod.pod.name, pod.pod.member);
        let Some(history) = pod.history else { return };
        let part = self.part(member);
        self.add("modeldeployment_pod_resets_total", name, part.clone(), history.resets() as f64);
        for (cause, failures) in Cause::ALL.iter().zip(pod.failures) {
            let mut labels = part.clone();
            labels.push(("cause", cause.as_str().to_owned()));
            self.add("modeldeployment_pod_scrape_failures_total", name, labels, failures as f64);
        }
        for (index, field) in history.software().fields.iter().enumerate() {
            let definition = &field.definition;
            let Some(specified) = field.alternatives.first() else { continue };
            if definition.totals.is_empty() || !provides(round.deployment, pod.pod, history, &round.times, field) {
                continue;
            }
            for total in &definition.totals {
                let Some(sum) = history.total(index, total.part, total.ranks) else { continue };
                let factor = match total.part {
                    crate::catalogue::TotalPart::Sum => definition.factor,
                    _ => 1.0,
                };
                let labels = self.field(member, definition.list, &definition.name, &specified.source);
                self.add(format!("modeldeployment_{}", total.family), name, labels, finite(sum * factor));
            }
        }
    }
}

/// What stays true when the newest round is too old: that it is, what the deployment is, and the
/// counters.
pub fn lasting(round: &RoundView<'_>) -> Vec<Point> {
    let mut maker = Maker { deployment: round.deployment, points: Vec::new() };
    maker.up(false);
    maker.info();
    for pod in &round.pods {
        maker.totals(round, pod);
    }
    maker.points
}

/// Every point of a finished round.
pub fn points(round: &RoundView<'_>, snapshot: &Snapshot) -> Vec<Point> {
    let mut maker = Maker { deployment: round.deployment, points: Vec::new() };
    maker.up(snapshot.readable);
    maker.info();
    let object = &snapshot.object;
    maker.add("modeldeployment_partial", "", Labels::new(), f64::from(u8::from(object.partial)));
    maker.add("modeldeployment_snapshot_timestamp_seconds", "", Labels::new(), unix_seconds(object.timestamp));
    for entry in &object.missing {
        let labels = vec![
            ("source", entry.source.clone()),
            ("code", entry.code.as_str().to_owned()),
            ("partial", entry.code.is_partial().to_string()),
        ];
        maker.add("modeldeployment_missing", &entry.pod, labels, 1.0);
    }
    for &(member, expected) in &round.expected {
        let of_part = || round.pods.iter().filter(|pod| pod.pod.member == member);
        let readable = of_part().filter(|pod| matches!(pod.outcome, Outcome::Read { .. })).count();
        let states =
            [("expected", expected as f64), ("discovered", of_part().count() as f64), ("readable", readable as f64)];
        for (state, count) in states {
            let mut labels = maker.part(member);
            labels.push(("state", state.to_owned()));
            maker.add("modeldeployment_pods", "", labels, count);
        }
    }
    for pod in &round.pods {
        pod_points(&mut maker, round, pod);
        maker.totals(round, pod);
    }
    for (index, field) in &snapshot.values {
        let pod = round.pods[*index].pod;
        let definition = &field.definition;
        let labels = maker.field(pod.member, definition.list, &definition.name, &field.source);
        if let (Value::Ratio { hits, queries, .. }, Some(window)) = (&field.value, &definition.window) {
            maker.add(format!("modeldeployment_{}", window.hits), &pod.name, labels.clone(), *hits);
            maker.add(format!("modeldeployment_{}", window.queries), &pod.name, labels.clone(), *queries);
        }
        maker.add(format!("modeldeployment_{}", definition.gauge), &pod.name, labels, field.value.gauge());
    }
    maker.points
}

/// What a round says of a Pod itself.
fn pod_points(maker: &mut Maker<'_>, round: &RoundView<'_>, pod: &PodRound<'_>) {
    let name = &pod.pod.name;
    let part = maker.part(pod.pod.member);
    let mut add = |family: &'static str, value: f64| maker.add(family, name, part.clone(), value);
    let (took, body_bytes) = match pod.outcome {
        Outcome::Omitted => return,
        Outcome::NoEndpoint(_) => return add("modeldeployment_pod_up", 0.0),
        Outcome::Failed { took, body_bytes, .. } => {
            add("modeldeployment_pod_up", 0.0);
            (took, body_bytes)
        }
        Outcome::Read { observed, took, body_bytes } => {
            add("modeldeployment_pod_up", 1.0);
            add("modeldeployment_pod_observed_timestamp_seconds", unix_seconds(observed));
            if let Some(seconds) = pod.history.and_then(|history| history.window_seconds(&round.times)) {
                add("modeldeployment_pod_window_seconds", seconds);
            }
            (took, body_bytes)
        }
    };
    add("modeldeployment_pod_scrape_duration_seconds", took.as_secs_f64());
    add("modeldeployment_pod_scrape_body_bytes", body_bytes as f64);
}
