//! A deployment whose reads a test writes by hand: time is an argument, nothing is scraped.
#![allow(dead_code)]

use modeldeployment_exporter::catalogue::Catalogue;
use modeldeployment_exporter::config::WindowTimes;
use modeldeployment_exporter::deployment::Deployment;
use modeldeployment_exporter::discovery::file;
use modeldeployment_exporter::export::Point;
use modeldeployment_exporter::exposition::Reader;
use modeldeployment_exporter::scrape::{Cause, Unreadable};
use modeldeployment_exporter::snapshot::{self, Code, Missing, Outcome, PodRound, RoundView, Snapshot, Windowed};
use modeldeployment_exporter::window::History;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What one Pod answers in a round.
#[derive(Clone, Copy)]
pub enum Answer<'a> {
    /// This exposition.
    Body(&'a str),
    /// Nothing readable, for this cause.
    Fails(Cause),
    /// It is past the Pod limit.
    Omitted,
}

/// A deployment with what is kept of its Pods.
pub struct Fleet {
    pub deployment: Deployment,
    pub times: WindowTimes,
    histories: HashMap<String, (History, [u64; Cause::ALL.len()])>,
    /// The container's start, by Pod name.
    pub started: HashMap<String, SystemTime>,
    /// The wall-clock time of a read where it is not the round's, by Pod name.
    pub observed: HashMap<String, SystemTime>,
}

/// One assembled round.
pub struct Now {
    pub snapshot: Snapshot,
    pub points: Vec<Point>,
    pub lasting: Vec<Point>,
}

pub fn wall(at: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(1_790_000_000.0 + at)
}

impl Fleet {
    /// A fleet of a deployment file's deployment with a window of 60 s and an interval of 15 s.
    pub fn new(yaml: &str) -> Fleet {
        let catalogue = Catalogue::embedded().unwrap();
        let deployment = file::parse(yaml.as_bytes(), &catalogue).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
        let times = WindowTimes {
            window: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            max_age: Duration::from_secs(300),
        };
        Fleet { deployment, times, histories: HashMap::new(), started: HashMap::new(), observed: HashMap::new() }
    }

    /// A vLLM deployment with one Pod `a` of the role `server`.
    pub fn vllm() -> Fleet {
        Fleet::new(&yaml(
            "engine: {name: vLLM}, roles: [{name: server}]",
            &["{name: a, role: server, url: 'http://a'}"],
        ))
    }

    /// An SGLang deployment with one Pod `a` of the role `server`.
    pub fn sglang() -> Fleet {
        Fleet::new(&yaml(
            "engine: {name: SGLang}, roles: [{name: server}]",
            &["{name: a, role: server, url: 'http://a'}"],
        ))
    }

    /// A router Pod `r` of this kind beside no engine Pod.
    pub fn router(name: &str, args: &str) -> Fleet {
        Fleet::new(&yaml(
            &format!("engine: {{name: vLLM}}, router: {{name: {name}}}, roles: [{{name: server, replicas: 0}}]"),
            &[&format!("{{name: r, router: true, url: 'http://r', args: {args}}}")],
        ))
    }

    /// Reads every Pod named at this second; the others are as if they were not there.
    pub fn round(&mut self, at: f64, answers: &[(&str, &str)]) -> Now {
        let answers: Vec<(&str, Answer<'_>)> = answers.iter().map(|(pod, body)| (*pod, Answer::Body(body))).collect();
        self.answers(at, &answers)
    }

    /// A round in which Pods answer or fail.
    pub fn answers(&mut self, at: f64, answers: &[(&str, Answer<'_>)]) -> Now {
        let mut failed: Vec<(String, Unreadable)> = Vec::new();
        for (name, answer) in answers {
            let pod = self.deployment.pods.iter().find(|pod| pod.name == *name).expect("a Pod of the deployment");
            let software = self.deployment.software(pod.member).unwrap();
            let fresh = || (History::new(Arc::clone(software)), [0; Cause::ALL.len()]);
            let (history, failures) = self.histories.entry(pod.uid.clone()).or_insert_with(fresh);
            match answer {
                Answer::Body(body) => {
                    let mut reader = Reader::new(&software.wanted);
                    reader.push(body.as_bytes()).unwrap();
                    let samples = reader.finish().unwrap();
                    let started = self.started.get(*name).copied();
                    history.observe(Duration::from_secs_f64(at), wall(at), &samples, started, &self.times);
                }
                Answer::Fails(cause) => {
                    failures[Cause::ALL.iter().position(|c| c == cause).unwrap()] += 1;
                    failed.push((
                        (*name).to_owned(),
                        Unreadable { cause: *cause, reason: "it does not answer".to_owned() },
                    ));
                }
                Answer::Omitted => {}
            }
        }
        let pods = self.deployment.pods.iter().filter_map(|pod| {
            let kept = self.histories.get(&pod.uid);
            let answer = answers.iter().find(|(name, _)| *name == pod.name);
            let took = Duration::from_millis(5);
            let outcome = match (&pod.endpoint, answer?.1) {
                (Err(reason), _) => Outcome::NoEndpoint(reason),
                (_, Answer::Omitted) => Outcome::Omitted,
                (_, Answer::Body(body)) => {
                    let observed = self.observed.get(&pod.name).copied().unwrap_or_else(|| wall(at));
                    Outcome::Read { observed, took, body_bytes: body.len() as u64 }
                }
                (_, Answer::Fails(_)) => {
                    let (_, why) = failed.iter().find(|(name, _)| *name == pod.name)?;
                    Outcome::Failed { why, took, body_bytes: 0 }
                }
            };
            let failures = kept.map_or([0; Cause::ALL.len()], |(_, failures)| *failures);
            Some(PodRound { pod, history: kept.map(|(history, _)| history), failures, outcome })
        });
        let view = RoundView {
            deployment: &self.deployment,
            expected: self.deployment.expected(),
            pods: pods.collect(),
            times: self.times,
            max_pods: 64,
            discovery_stale: false,
            now: wall(at),
        };
        let snapshot = snapshot::assemble(&view);
        let points = snapshot::points(&view, &snapshot);
        let lasting = snapshot::lasting(&points);
        Now { snapshot, points, lasting }
    }
}

/// A deployment file: `chat` in `team` with this spec (a flow mapping's inside) and these Pods.
pub fn yaml(spec: &str, pods: &[&str]) -> String {
    let pods: String = pods.iter().map(|pod| format!("  - {pod}\n")).collect();
    format!("metadata: {{name: chat, namespace: team}}\nspec: {{{spec}}}\npods:\n{pods}")
}

impl Now {
    pub fn missing(&self) -> &[Missing] {
        &self.snapshot.object.missing
    }

    /// The code under which a source of a Pod is missing.
    pub fn code(&self, pod: &str, source: &str) -> Option<Code> {
        self.entry(pod, source).map(|entry| entry.code)
    }

    pub fn entry(&self, pod: &str, source: &str) -> Option<&Missing> {
        self.missing().iter().find(|entry| entry.pod == pod && entry.source == source)
    }

    /// The entry of `latency[]`, `traffic[]` or `transfer[]`.
    pub fn windowed(&self, pod: &str, name: &str) -> Option<&Windowed> {
        let object = &self.snapshot.object;
        let mut all = object.latency.iter().chain(&object.traffic).chain(&object.transfer);
        all.find(|entry| entry.pod == pod && entry.name == name)
    }

    /// Value, samples and seconds of such an entry.
    pub fn window(&self, pod: &str, name: &str) -> Option<(f64, f64, f64)> {
        self.windowed(pod, name).map(|entry| (entry.value, entry.samples, entry.window_seconds))
    }

    /// Hits and queries of a cache scope's window.
    pub fn cache(&self, pod: &str, scope: &str) -> Option<(f64, f64)> {
        let mut all = self.snapshot.object.cache_hits.iter();
        all.find(|hit| hit.pod == pod && hit.scope == scope).map(|hit| (hit.hits, hit.queries))
    }

    /// The value of a gauge in `processing[]` or `queueing[]`.
    pub fn gauge(&self, name: &str, scope: &str) -> Option<f64> {
        let object = &self.snapshot.object;
        let mut all = object.processing.iter().chain(&object.queueing);
        all.find(|gauge| gauge.name == name && gauge.scope == scope).map(|gauge| gauge.value)
    }

    /// The value of a series on `/metrics`, without `modeldeployment_`, that has these labels among others.
    pub fn series(&self, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let family = format!("modeldeployment_{family}");
        let has =
            |point: &Point, (name, value): &(&str, &str)| point.labels.iter().any(|(n, v)| n == name && v == value);
        let mut found = self.points.iter().filter(|p| p.family == family && labels.iter().all(|label| has(p, label)));
        let value = found.next().map(|point| point.value);
        assert!(found.next().is_none(), "{family} {labels:?} is one series");
        value
    }

    pub fn is_partial(&self) -> bool {
        self.snapshot.object.partial
    }
}
