//! The whole program as its user runs it: a deployment file that changes, Pods that come and go,
//! signals, and what it says on the way.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

mod support_replay;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support_replay::{Answer, PodServer, announced_address, get};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);
const FAST: [(&str, &str); 2] = [("SCRAPE_INTERVAL", "100ms"), ("WINDOW", "1s")];
const RUNNING: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n";

/// A deployment file in a directory of its own.
struct Deployment {
    directory: TempDir,
}

impl Deployment {
    fn new(text: &str) -> Deployment {
        let deployment = Deployment { directory: tempfile::tempdir().expect("a directory") };
        deployment.write(text);
        deployment
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("deployment.yaml")
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).expect("the file");
    }
}

fn text(name: &str, pods: &[(&str, &str)]) -> String {
    let replicas = pods.len();
    let pods: String =
        pods.iter().map(|(pod, url)| format!("  - {{name: {pod}, role: server, url: '{url}'}}\n")).collect();
    format!(
        "metadata: {{name: {name}, namespace: team}}\nspec: {{engine: {{name: vLLM}}, roles: [{{name: server, replicas: {replicas}}}]}}\npods:\n{pods}"
    )
}

/// The program, its log in a file.
struct Program {
    child: Child,
    log: PathBuf,
    address: std::net::SocketAddr,
}

fn command(file: &Path, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"));
    command.env_clear().env("DEPLOYMENT_FILE", file).env("LISTEN_ADDRESS", "127.0.0.1:0").envs(env.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A log that is being written, read to its end again and again.
struct Follow(fs::File, Instant);

impl Read for Follow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let read = self.0.read(buffer)?;
            if read > 0 || self.1.elapsed() > LIMIT {
                return Ok(read);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Program {
    fn start(deployment: &Deployment, env: &[(&str, &str)]) -> Program {
        let log = deployment.directory.path().join("log");
        let stderr = fs::File::create(&log).expect("the log");
        let child = command(&deployment.path(), env).stderr(stderr).spawn().expect("the program starts");
        let follow = Follow(fs::File::open(&log).expect("the log"), Instant::now());
        let address = announced_address(follow, "listening", LIMIT).expect("the address in the log");
        Program { child, log, address }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = get(self.address, path, "*/*");
        (status, body)
    }

    fn json(&self, name: &str) -> (u16, String) {
        self.get(&format!("/apis/worker.gpustack.ai/v1/namespaces/team/modeldeployments/{name}/metrics"))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits until something holds, or says what was waited for.
    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < LIMIT,
                "waited for {what}\nlog:\n{}\nmetrics:\n{}",
                self.log(),
                self.get("/metrics").1
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn rounds(&self) -> f64 {
        let metrics = self.get("/metrics").1;
        let line = metrics.lines().find_map(|line| line.strip_prefix("modeldeployment_exporter_rounds_total "));
        line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    }

    fn wait_rounds(&self, more: f64) {
        let from = self.rounds();
        self.until("further rounds", || self.rounds() >= from + more);
    }

    fn signal(&mut self, signal: &str) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child's status") {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(6), "it stops within 5 s");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pod(body: &str) -> PodServer {
    PodServer::start(Answer::Reads, vec![Arc::new(body.as_bytes().to_vec())])
}

#[test]
fn a_changed_file_is_served_and_a_broken_one_is_not_taken() {
    let (a, b) = (pod(RUNNING), pod(RUNNING));
    let deployment = Deployment::new(&text("chat", &[("a", &a.url())]));
    let program = Program::start(&deployment, &FAST);
    program.until("the first round", || program.json("chat").0 == 200);
    deployment.write(&text("chat", &[("a", &a.url()), ("b", &b.url())]));
    program.until("the second Pod", || program.json("chat").1.contains("\"podCount\":2"));
    deployment.write("metadata: {name: chat");
    program.until("the failure to be counted", || {
        program.get("/metrics").1.contains("\nmodeldeployment_exporter_deployment_reload_failures_total 1\n")
    });
    assert!(program.json("chat").1.contains("\"podCount\":2"), "the last good version stays");
    assert!(program.log().contains("last good version stays"));
    // Renamed: the old name is not found, the new one is.
    deployment.write(&text("other", &[("a", &a.url())]));
    program.until("the new name", || program.json("other").0 == 200);
    let (status, body) = program.json("chat");
    assert_eq!(status, 404);
    assert!(body.contains("\"reason\":\"NotFound\""), "{body}");
    assert!(!program.get("/metrics").1.contains("modeldeployment=\"chat\""));
}

#[test]
fn a_pods_change_is_logged_once_and_not_every_round() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let a = pod(RUNNING);
    let dead = format!("http://127.0.0.1:{port}/metrics");
    let deployment = Deployment::new(&text("chat", &[("a", &a.url()), ("dead", &dead)]));
    let mut program = Program::start(&deployment, &FAST);
    program.wait_rounds(8.0);
    let log = program.log();
    assert_eq!(log.matches("pod=dead").count(), 1, "{log}");
    assert_eq!(log.matches("pod=a").count(), 1, "{log}");
    assert!(log.contains("SCRAPE_INTERVAL=100ms") && log.contains("starting"), "start and settings: {log}");
    assert_eq!(program.signal("-TERM").code(), Some(0));
}

#[test]
fn without_a_readable_pod_the_json_is_unavailable_and_the_probes_are_well() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let deployment = Deployment::new(&text("chat", &[("dead", &format!("http://127.0.0.1:{port}/"))]));
    let program = Program::start(&deployment, &FAST);
    program.wait_rounds(1.0);
    let (status, body) = program.json("chat");
    assert_eq!(status, 503);
    assert!(body.contains("\"reason\":\"ServiceUnavailable\"") && body.contains("no Pod"), "{body}");
    assert_eq!(program.get("/readyz").0, 200);
    assert_eq!(program.get("/healthz").0, 200);
    let metrics = program.get("/metrics").1;
    let up = "modeldeployment_up{namespace=\"team\",modeldeployment=\"chat\",pod=\"\"} 0";
    assert!(metrics.contains(up), "{metrics}");
}

#[test]
fn a_signal_ends_it_with_success() {
    for signal in ["-TERM", "-INT"] {
        let a = pod(RUNNING);
        let deployment = Deployment::new(&text("chat", &[("a", &a.url())]));
        let mut program = Program::start(&deployment, &FAST);
        program.wait_rounds(1.0);
        assert_eq!(program.signal(signal).code(), Some(0), "{signal}");
    }
}

#[test]
fn an_address_that_cannot_be_listened_on_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let deployment = Deployment::new(&text("chat", &[]));
    let output = command(&deployment.path(), &[]).env("LISTEN_ADDRESS", &address).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("LISTEN_ADDRESS {address}")) && said.contains("another port"), "{said}");
}

#[test]
fn requests_make_it_read_no_pod() {
    let a = pod(RUNNING);
    let deployment = Deployment::new(&text("chat", &[("a", &a.url())]));
    let program = Program::start(&deployment, &[("SCRAPE_INTERVAL", "1m")]);
    program.until("the first round", || program.json("chat").0 == 200);
    for path in ["/metrics", "/", "/readyz", "/healthz"] {
        for _ in 0..5 {
            assert_eq!(program.get(path).0, 200, "{path}");
        }
    }
    assert_eq!(a.heads().len(), 1);
}
