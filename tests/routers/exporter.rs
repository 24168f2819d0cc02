//! The exporter's binary, run as a user runs it: a deployment file, an environment, and what it answers over HTTP.

use crate::events::Scenario;
use crate::exposition::{Sample, samples};
use crate::process::{Process, until};
use crate::router::Router;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The router's Pod in the deployment file.
pub const POD: &str = "chat-router-0";

/// A running exporter.
pub struct Exporter {
    process: Process,
    address: String,
    client: reqwest::Client,
}

/// What one scrape of the exporter says, all of one round.
pub struct Reading {
    samples: Vec<Sample>,
}

impl Exporter {
    /// Starts it on a router and waits for its first good read.
    pub async fn start(scenario: &Scenario, router: &Router, directory: &Path) -> Exporter {
        let file = directory.join("deployment.yaml");
        std::fs::write(&file, deployment(scenario, router)).unwrap();
        let variables = [
            ("DEPLOYMENT_FILE", file.to_str().unwrap()),
            ("LISTEN_ADDRESS", "127.0.0.1:0"),
            ("SCRAPE_INTERVAL", "200ms"),
            // Longer than the test: a window reaches back to the first read, or to the router's restart.
            ("WINDOW", "10m"),
            ("COUNTER_MAX_AGE", "20m"),
            ("LOG_FORMAT", "json"),
        ];
        let program = Path::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"));
        let mut process = Process::start(program, &["serve".to_owned()], &variables, &directory.join("exporter.log"));
        let address = until("the exporter's log to name its address", Duration::from_secs(20), async || {
            process.alive()?;
            listen_address(&process.output()).ok_or_else(|| "no such line".to_owned())
        });
        let address = match address.await {
            Ok(address) => address,
            Err(error) => panic!("{error}\n{}", process.tail()),
        };
        let exporter = Exporter { process, address, client: crate::client() };
        exporter.await_reading("its first good read of the router", |reading| reading.pod("up") == Some(1.0)).await;
        exporter
    }

    /// The newest round's series.
    pub async fn reading(&self) -> Result<Reading, String> {
        let answer = self.get("/metrics").await?;
        Ok(Reading { samples: samples(&answer) })
    }

    /// The JSON object of the newest round; waits for a round that read the router.
    pub async fn object(&self) -> Value {
        let path = "/apis/worker.gpustack.ai/v1/namespaces/team/modeldeployments/chat/metrics";
        let outcome = until("the JSON object", Duration::from_secs(20), async || {
            let answer = self.get(path).await?;
            serde_json::from_str(&answer).map_err(|e| format!("{e}: {answer}"))
        });
        outcome.await.unwrap_or_else(|error| panic!("{error}\n{}", self.process.tail()))
    }

    /// Waits for a round of which this is true.
    pub async fn await_reading(&self, what: &str, mut right: impl FnMut(&Reading) -> bool) -> Reading {
        let outcome = until(what, Duration::from_secs(20), async || {
            let reading = self.reading().await?;
            if right(&reading) { Ok(reading) } else { Err(format!("{:?}", reading.own())) }
        });
        outcome.await.unwrap_or_else(|error| panic!("{error}\n{}", self.process.tail()))
    }

    /// The first round that began after this call and read the router.
    pub async fn next_round(&self) -> Reading {
        let before = self.reading().await.map_or(0.0, |reading| reading.rounds());
        // The round after next: the next one may have begun already.
        self.await_reading("a further round", |now| now.rounds() >= before + 2.0 && now.pod("up") == Some(1.0)).await
    }

    async fn get(&self, path: &str) -> Result<String, String> {
        let url = format!("http://{}{path}", self.address);
        let answer = self.client.get(&url).send().await.map_err(|e| format!("{url}: {e:?}"))?;
        let status = answer.status();
        let body = answer.text().await.map_err(|e| format!("{url}: {e:?}"))?;
        if status.is_success() { Ok(body) } else { Err(format!("{url}: {status}: {body}")) }
    }
}

impl Reading {
    /// The router's total families by what is between `modeldeployment_router_` and `_total`, with their source.
    pub fn totals(&self) -> BTreeMap<String, (String, f64)> {
        let mut totals = BTreeMap::new();
        for sample in &self.samples {
            let family = sample.name.strip_prefix("modeldeployment_router_").and_then(|n| n.strip_suffix("_total"));
            if let Some(family) = family {
                assert_eq!(sample.label("pod"), POD, "{sample:?}");
                let value = (sample.label("source").to_owned(), sample.value);
                assert!(totals.insert(family.to_owned(), value).is_none(), "{family} has one series");
            }
        }
        totals
    }

    /// `modeldeployment_pod_<name>` of the router.
    pub fn pod(&self, name: &str) -> Option<f64> {
        self.value(&format!("modeldeployment_pod_{name}"))
    }

    fn rounds(&self) -> f64 {
        self.value("modeldeployment_exporter_rounds_total").unwrap_or(0.0)
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
    }

    /// For a failure's message: everything about the deployment.
    fn own(&self) -> Vec<String> {
        let own = self.samples.iter().filter(|sample| sample.name.starts_with("modeldeployment_"));
        own.map(|sample| format!("{} {}", sample.name, sample.value)).collect()
    }
}

/// A deployment of which only the router is observed: its roles expect no Pod.
fn deployment(scenario: &Scenario, router: &Router) -> String {
    let roles = match scenario.workers.len() {
        2 => "[{name: server, kind: Server, replicas: 0}]",
        _ => "[{name: prefill, kind: Prefill, replicas: 0}, {name: decode, kind: Decode, replicas: 0}]",
    };
    let (engine, name, policy) = (router.software.engine, router.software.router, scenario.policy);
    let url = format!("http://{}/metrics", router.metrics);
    format!(
        "metadata: {{name: chat, namespace: team}}\n\
         spec:\n  engine: {{name: {engine}}}\n  router: {{name: {name}}}\n  roles: {roles}\n\
         pods:\n  - {{name: {POD}, router: true, url: '{url}', args: [--policy, {policy}]}}\n"
    )
}

/// The address in the log's line `listening on http://…`.
fn listen_address(log: &str) -> Option<String> {
    let (_, after) = log.split_once("listening on http://")?;
    let end = after.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')?;
    Some(after[..end].to_owned())
}
