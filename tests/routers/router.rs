//! The real routers: where they are installed, how each is started, and when it is ready.

use crate::backend::{Backend, Role};
use crate::exposition::{Sample, samples};
use crate::process::{Process, free_address, until};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::Command;

/// What differs from one router to the next in starting it.
pub struct Software {
    /// The package, its command and its file under `requirements/`.
    pub name: &'static str,
    /// The command's subcommand.
    pub subcommand: &'static [&'static str],
    /// The flag of its prefill/decode mode.
    pub pair_flag: &'static str,
    /// What follows a prefill worker's URL.
    pub after_prefill: &'static [&'static str],
    /// Its gauge of a worker's health, 0 or 1.
    pub worker_health: &'static str,
    /// The names in the deployment file.
    pub router: &'static str,
    pub engine: &'static str,
}

pub const VLLM_ROUTER: Software = Software {
    name: "vllm-router",
    subcommand: &[],
    pair_flag: "--vllm-pd-disaggregation",
    after_prefill: &[],
    worker_health: "vllm_router_worker_health",
    router: "vllm-router",
    engine: "vLLM",
};

pub const SGLANG_ROUTER: Software = Software {
    name: "sglang-router",
    subcommand: &["launch"],
    pair_flag: "--pd-disaggregation",
    after_prefill: &["8998"],
    worker_health: "smg_worker_health",
    router: "sglang-gateway",
    engine: "SGLang",
};

pub const SMG: Software = Software { name: "smg", ..SGLANG_ROUTER };

/// Every event is answered after two attempts, and no worker is shut out for its failures; the rest is the default.
const FLAGS: [&str; 9] = [
    "--worker-startup-check-interval",
    "1",
    "--retry-max-retries",
    "2",
    "--retry-initial-backoff-ms",
    "20",
    "--health-failure-threshold",
    "1",
    "--disable-circuit-breaker",
];

/// A router that is started, ended and started again on the same two ports.
pub struct Router {
    pub software: &'static Software,
    policy: &'static str,
    program: PathBuf,
    log: PathBuf,
    pub api: SocketAddr,
    pub metrics: SocketAddr,
    process: Option<Process>,
    client: reqwest::Client,
}

impl Router {
    /// Installs it if it is not there; starts nothing.
    pub async fn install(software: &'static Software, policy: &'static str, directory: &Path) -> Router {
        let venv = install(software.name).await;
        Router {
            software,
            policy,
            program: venv.join("bin").join(software.name),
            log: directory.join(format!("{}.log", software.name)),
            api: free_address(),
            metrics: free_address(),
            process: None,
            client: crate::client(),
        }
    }

    /// Starts it in front of these workers, ends the one before it, and waits until it routes to all of them.
    pub async fn start(&mut self, backends: &[Backend], health_check_seconds: u32) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut arguments = words(self.software.subcommand);
        for (name, address) in [("", self.api), ("prometheus-", self.metrics)] {
            arguments.extend([format!("--{name}host"), address.ip().to_string()]);
            arguments.extend([format!("--{name}port"), address.port().to_string()]);
        }
        arguments.extend(words(&FLAGS));
        arguments.extend(words(&["--policy", self.policy]));
        arguments.extend(["--health-check-interval-secs".to_owned(), health_check_seconds.to_string()]);
        let (servers, halves): (Vec<_>, Vec<_>) = backends.iter().partition(|backend| backend.role == Role::Server);
        if !halves.is_empty() {
            arguments.push(self.software.pair_flag.to_owned());
        }
        for half in halves {
            let prefill = half.role == Role::Prefill;
            arguments.extend([if prefill { "--prefill" } else { "--decode" }.to_owned(), half.url()]);
            arguments.extend(words(if prefill { self.software.after_prefill } else { &[] }));
        }
        if !servers.is_empty() {
            arguments.push("--worker-urls".to_owned());
            arguments.extend(servers.iter().map(|server| server.url()));
        }
        self.process = Some(Process::start(&self.program, &arguments, &[], &self.log));
        // The API is never asked: some routers count even such an answer.
        self.await_health("it to route to every worker", backends.len(), 1.0).await;
    }

    /// Waits until its own gauges say that no worker is healthy.
    pub async fn await_unhealthy(&mut self, backends: usize) {
        self.await_health("it to notice that every worker is gone", backends, 0.0).await;
    }

    async fn await_health(&mut self, what: &str, count: usize, health: f64) {
        let what = format!("{}: {what}", self.software.name);
        let outcome = until(&what, Duration::from_secs(60), async || {
            self.process.as_mut().ok_or("not started")?.alive()?;
            TcpStream::connect(self.api).await.map_err(|e| format!("its API port: {e}"))?;
            let samples = self.samples().await?;
            let mut workers = samples.iter().filter(|sample| sample.name == self.software.worker_health);
            let right = workers.by_ref().filter(|worker| worker.value == health).count();
            if right == count { Ok(()) } else { Err(format!("{right} of {count} workers have health {health}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.tail());
        }
    }

    /// What it exports now.
    pub async fn samples(&self) -> Result<Vec<Sample>, String> {
        let url = format!("http://{}/metrics", self.metrics);
        let answer = self.client.get(url).send().await.map_err(|e| format!("its metrics port: {e:?}"))?;
        let body = answer.text().await.map_err(|e| format!("its metrics: {e:?}"))?;
        Ok(samples(&body))
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        self.process.as_ref().map(Process::tail).unwrap_or_default()
    }
}

/// The router's environment, made if it is not there. Without it the test fails: it has nothing to test against.
async fn install(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/routers/install");
    let install = Command::new(&script).arg(name).kill_on_drop(true).output();
    let limit = Duration::from_secs(900);
    let output = tokio::time::timeout(limit, install).await;
    let output = output.unwrap_or_else(|_| panic!("{} {name}: not done within {limit:?}", script.display()));
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", script.display()));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} cannot be installed, so it cannot be tested:\n{complaint}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
