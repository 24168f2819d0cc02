//! The points of a round for `/metrics` (contract, section 8). It decides no value: what the rules
//! left missing has no point.

use super::{Outcome, PodRound, RoundView, Snapshot, Value, provides};
use crate::catalogue::List;
use crate::deployment::{Deployment, Member};
use crate::export::Point;
use crate::scrape::Cause;
use smol_str::SmolStr;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

type Labels = Vec<(&'static str, SmolStr)>;

/// Makes points of one deployment.
struct Maker<'a> {
    deployment: &'a Deployment,
    /// Its namespace and name as label values.
    namespace: SmolStr,
    name: SmolStr,
    points: Vec<Point>,
}

fn boolean(value: bool) -> SmolStr {
    SmolStr::new_static(if value { "true" } else { "false" })
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Maker<'_> {
    fn new(deployment: &Deployment) -> Maker<'_> {
        let (namespace, name) = (deployment.namespace.as_str().into(), deployment.name.as_str().into());
        Maker { deployment, namespace, name, points: Vec::new() }
    }

    fn add(
        &mut self,
        family: impl Into<Cow<'static, str>>,
        pod: &SmolStr,
        labels: &[(&'static str, SmolStr)],
        value: f64,
    ) {
        let mut all = Vec::with_capacity(3 + labels.len());
        all.extend([
            ("namespace", self.namespace.clone()),
            ("modeldeployment", self.name.clone()),
            ("pod", pod.clone()),
        ]);
        all.extend_from_slice(labels);
        self.points.push(Point { family: family.into(), labels: all, value });
    }

    fn role(&self, member: Member) -> Labels {
        self.deployment.role(member).map(|role| ("role", role.into())).into_iter().collect()
    }

    /// `scope`, and `role` where the part is one.
    fn part(&self, member: Member) -> Labels {
        let scope = if member == Member::Router { "router" } else { "engine" };
        let mut labels = vec![("scope", SmolStr::new_static(scope))];
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
            labels.push(("cache", name.into()));
        }
        labels.push(("source", source.into()));
        labels
    }

    fn up(&mut self, up: bool) {
        self.add("modeldeployment_up", &SmolStr::default(), &[], f64::from(u8::from(up)));
    }

    fn info(&mut self) {
        let deployment = self.deployment;
        let router = deployment.router.as_ref().map_or("", |router| &router.name);
        let labels = [
            ("engine", deployment.engine_name.as_str().into()),
            ("router", router.into()),
            ("kv_cache", boolean(deployment.pool)),
            ("pair", boolean(deployment.is_pair())),
        ];
        self.add("modeldeployment_info", &SmolStr::default(), &labels, 1.0);
    }

    fn totals(&mut self, round: &RoundView<'_>, pod: &PodRound<'_>) {
        let (name, member) = (&SmolStr::new(&pod.pod.name), pod.pod.member);
        let Some(history) = pod.history else { return };
        let mut part = self.part(member);
        self.add("modeldeployment_pod_resets_total", name, &part, history.resets() as f64);
        for (cause, failures) in Cause::ALL.iter().zip(pod.failures) {
            part.push(("cause", SmolStr::new_static(cause.as_str())));
            self.add("modeldeployment_pod_scrape_failures_total", name, &part, failures as f64);
            part.pop();
        }
        for (index, field) in history.software().fields.iter().enumerate() {
            let definition = &field.definition;
            let Some(specified) = field.alternatives.first() else { continue };
            if definition.totals.is_empty() || !provides(round.deployment, pod.pod, history, &round.times, field) {
                continue;
            }
            let labels = self.field(member, definition.list, &definition.name, &specified.source);
            for total in &definition.totals {
                let Some(sum) = history.total(index, total.part, total.ranks) else { continue };
                let factor = match total.part {
                    crate::catalogue::TotalPart::Sum => definition.factor,
                    _ => 1.0,
                };
                self.add(format!("modeldeployment_{}", total.family), name, &labels, sum * factor);
            }
        }
    }
}

/// Of a round's points what stays true when it is too old: what the deployment is, that it is not
/// up any more, and the counters.
pub fn lasting(points: &[Point]) -> Vec<Point> {
    let lasts = |point: &&Point| match &*point.family {
        "modeldeployment_info" | "modeldeployment_up" => true,
        family => family.ends_with("_total"),
    };
    let mut lasting: Vec<Point> = points.iter().filter(lasts).cloned().collect();
    for up in lasting.iter_mut().filter(|point| point.family == "modeldeployment_up") {
        up.value = 0.0;
    }
    lasting
}

/// Every point of a finished round.
pub fn points(round: &RoundView<'_>, snapshot: &Snapshot) -> Vec<Point> {
    let mut maker = Maker::new(round.deployment);
    maker.up(snapshot.readable);
    maker.info();
    let object = &snapshot.object;
    let whole = SmolStr::default();
    maker.add("modeldeployment_partial", &whole, &[], f64::from(u8::from(object.partial)));
    maker.add("modeldeployment_snapshot_timestamp_seconds", &whole, &[], unix_seconds(object.timestamp));
    for entry in &object.missing {
        let labels = [
            ("source", entry.source.as_str().into()),
            ("code", SmolStr::new_static(entry.code.as_str())),
            ("partial", boolean(entry.code.is_partial())),
        ];
        maker.add("modeldeployment_missing", &entry.pod.as_str().into(), &labels, 1.0);
    }
    for &(member, expected) in &round.expected {
        let of_part = || round.pods.iter().filter(|pod| pod.pod.member == member);
        let readable = of_part().filter(|pod| matches!(pod.outcome, Outcome::Read { .. })).count();
        let states =
            [("expected", expected as f64), ("discovered", of_part().count() as f64), ("readable", readable as f64)];
        for (state, count) in states {
            let mut labels = maker.part(member);
            labels.push(("state", SmolStr::new_static(state)));
            maker.add("modeldeployment_pods", &whole, &labels, count);
        }
    }
    for pod in &round.pods {
        pod_points(&mut maker, round, pod);
        maker.totals(round, pod);
    }
    for (index, field) in &snapshot.values {
        let pod = round.pods[*index].pod;
        let name = &SmolStr::new(&pod.name);
        let definition = &field.definition;
        let labels = maker.field(pod.member, definition.list, &definition.name, &field.source);
        if let (Value::Ratio { hits, queries, .. }, Some(window)) = (&field.value, &definition.window) {
            maker.add(format!("modeldeployment_{}", window.hits), name, &labels, *hits);
            maker.add(format!("modeldeployment_{}", window.queries), name, &labels, *queries);
        }
        maker.add(format!("modeldeployment_{}", definition.gauge), name, &labels, field.value.gauge());
    }
    maker.points
}

/// What a round says of a Pod itself.
fn pod_points(maker: &mut Maker<'_>, round: &RoundView<'_>, pod: &PodRound<'_>) {
    let name = &SmolStr::new(&pod.pod.name);
    let part = maker.part(pod.pod.member);
    let mut add = |family: &'static str, value: f64| maker.add(family, name, &part, value);
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
