//! What the tests that run the whole program share: Pods that replay fixtures on loopback, the case
//! files, and starting the program in a clean environment.
//!
//! It knows no rule of the program: what is expected stands in the case files.

// Each test file uses its part of this; a failed expectation is how a test ends.
#![allow(dead_code, clippy::expect_used)]

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A key that every Pod with arguments carries: it must never be seen again.
pub const SECRET: &str = "sk-never-to-be-printed";

/// How a Pod answers a GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The Pod's bodies: the first to the first GET, and so on; the last to all later ones.
    Reads,
    /// Status 200 and no body.
    Empty,
    /// Status 200 and a web page.
    Html,
    /// Status 500 with an exposition as its body.
    Status500,
    /// A redirect to another port.
    RedirectElsewhere,
    /// A redirect to another path of the same Pod, which answers with the bodies.
    RedirectHere,
    /// A redirect to another path of the same Pod, which redirects again.
    RedirectTwice,
    /// The bodies under a `Content-Encoding` that nobody asked for.
    ContentEncoding,
    /// Status 500 to the first GET, then the bodies.
    FailsFirst,
    /// Half of the body that the head announces, then the end of the connection.
    CutShort,
    /// A whole answer whose last line has no newline.
    NoNewline,
    /// 1 MiB and one byte.
    Oversized,
    /// A connection that is taken and never answered.
    Hang,
    /// A connection that is taken and closed without an answer.
    Close,
    /// Nobody listens.
    Refused,
    /// The bodies, each on a connection that the Pod closes right after it without saying so.
    CloseAfterEach,
}

/// What a replaying Pod has seen.
#[derive(Default)]
struct Seen {
    heads: Vec<String>,
    connections: usize,
}

/// One replaying Pod: a listener on loopback with a thread per connection.
pub struct PodServer {
    address: Option<SocketAddr>,
    seen: Arc<(Mutex<Seen>, Condvar)>,
}

impl PodServer {
    /// Starts a Pod that answers in one way with these bodies.
    pub fn start(answer: Answer, bodies: Vec<Arc<Vec<u8>>>) -> PodServer {
        let seen = Arc::new((Mutex::new(Seen::default()), Condvar::new()));
        if answer == Answer::Refused {
            return PodServer { address: None, seen };
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("the listener's address");
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, bodies) = (Arc::clone(&shared), bodies.clone());
                shared.0.lock().expect("seen").connections += 1;
                // A client that goes away ends its thread; that is no failure of the Pod.
                std::thread::spawn(move || converse(stream, answer, &bodies, &shared));
            }
        });
        PodServer { address: Some(address), seen }
    }

    /// Where the Pod's metrics are. Nothing listens on port 1 of loopback (tcpmux).
    pub fn url(&self) -> String {
        match self.address {
            Some(address) => format!("http://{address}/metrics"),
            None => "http://127.0.0.1:1/metrics".to_owned(),
        }
    }

    /// The request heads so far.
    pub fn heads(&self) -> Vec<String> {
        self.seen.0.lock().expect("seen").heads.clone()
    }

    /// The connections so far.
    pub fn connections(&self) -> usize {
        self.seen.0.lock().expect("seen").connections
    }

    /// Waits until the Pod was asked this many times.
    pub fn wait_for_reads(&self, reads: usize, limit: Duration) {
        let seen = self.seen.0.lock().expect("seen");
        let (seen, timeout) =
            self.seen.1.wait_timeout_while(seen, limit, |seen| seen.heads.len() < reads).expect("seen");
        assert!(!timeout.timed_out(), "the Pod was asked {} times within {limit:?}, not {reads}", seen.heads.len());
    }
}

fn converse(
    mut stream: TcpStream,
    answer: Answer,
    bodies: &[Arc<Vec<u8>>],
    shared: &(Mutex<Seen>, Condvar),
) -> Option<()> {
    if answer == Answer::Close {
        return None;
    }
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let head = read_head(&mut reader)?;
        let asked_elsewhere = head.starts_with("GET /moved ");
        let before = {
            let mut seen = shared.0.lock().expect("seen");
            // A followed redirect belongs to the read that it started.
            if !asked_elsewhere {
                seen.heads.push(head);
            }
            shared.1.notify_all();
            seen.heads.len() - 1
        };
        let body = bodies.get(before).or(bodies.last()).map_or(&[] as &[u8], |body| body.as_slice());
        match answer {
            Answer::Reads | Answer::CloseAfterEach => respond(&mut stream, "200 OK", "", body)?,
            Answer::Empty => respond(&mut stream, "200 OK", "", b"")?,
            Answer::Html => {
                respond(&mut stream, "200 OK", "", b"<html>\n<body>\n<h1>It works!</h1>\n</body>\n</html>\n")?
            }
            Answer::Status500 => respond(&mut stream, "500 Internal Server Error", "", body)?,
            Answer::RedirectElsewhere => {
                respond(&mut stream, "302 Found", "Location: http://127.0.0.1:1/metrics\r\n", b"")?;
            }
            Answer::RedirectHere if !asked_elsewhere => {
                respond(&mut stream, "302 Found", "Location: /moved\r\n", b"")?;
            }
            Answer::RedirectHere => respond(&mut stream, "200 OK", "", body)?,
            Answer::RedirectTwice => respond(&mut stream, "302 Found", "Location: /moved\r\n", b"")?,
            Answer::ContentEncoding => respond(&mut stream, "200 OK", "Content-Encoding: gzip\r\n", body)?,
            Answer::FailsFirst if before == 0 => respond(&mut stream, "500 Internal Server Error", "", b"")?,
            Answer::FailsFirst => respond(&mut stream, "200 OK", "", body)?,
            Answer::CutShort => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).ok()?;
                stream.write_all(&body[..body.len() / 2]).ok()?;
                return None;
            }
            Answer::NoNewline => respond(&mut stream, "200 OK", "", body.trim_ascii_end())?,
            Answer::Oversized => respond(&mut stream, "200 OK", "", &oversized(body))?,
            Answer::Hang => {
                // Until the client gives up.
                let _ = reader.read(&mut [0]);
                return None;
            }
            Answer::Close | Answer::Refused => return None,
        }
        if answer == Answer::CloseAfterEach {
            return None;
        }
    }
}

fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some(head);
        }
        head.push_str(&line);
    }
}

fn respond(stream: &mut TcpStream, status: &str, more: &str, body: &[u8]) -> Option<()> {
    // vLLM's content type, whatever was asked for.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=1.0.0; charset=utf-8\r\n{more}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}

/// An exposition of 1 MiB and one byte.
fn oversized(body: &[u8]) -> Vec<u8> {
    let mut grown = body.to_vec();
    while grown.len() < 1_048_577 {
        grown.extend_from_slice(b"# a comment that an exposition may hold anywhere, repeated until it is too large\n");
    }
    grown.truncate(1_048_576);
    grown.push(b'\n');
    grown
}

/// A case: a deployment, what its Pods answer, and what the program must say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What the case is about.
    pub about: String,
    /// The deployment file's `spec`.
    pub spec: serde_json::Value,
    /// The Pods.
    #[serde(default)]
    pub pods: Vec<CasePod>,
    /// The environment beside `DEPLOYMENT_FILE`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The exit status of `snapshot`.
    pub exit: i32,
    /// The object.
    pub expected: Expected,
}

/// A Pod of a case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CasePod {
    pub name: String,
    pub role: Option<String>,
    #[serde(default)]
    pub router: bool,
    pub args: Option<Vec<String>>,
    /// Fixtures in the order of the reads.
    #[serde(default)]
    pub reads: Vec<String>,
    #[serde(default = "reads")]
    pub answer: Answer,
}

fn reads() -> Answer {
    Answer::Reads
}

/// The object that a case expects, in the order in which the program must write it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Expected {
    #[serde(default)]
    pub processing: Vec<Gauge>,
    #[serde(default)]
    pub queueing: Vec<Gauge>,
    #[serde(default)]
    pub cache_hits: Vec<CacheHit>,
    #[serde(default)]
    pub latency: Vec<Windowed>,
    #[serde(default)]
    pub traffic: Vec<Windowed>,
    #[serde(default)]
    pub transfer: Vec<Windowed>,
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// A number, or the arithmetic over a fixture's numbers that gives it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Number {
    Value(f64),
    Sum(String),
}

impl Number {
    /// The number.
    pub fn get(&self) -> f64 {
        match self {
            Number::Value(value) => *value,
            Number::Sum(text) => calculate(text),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Gauge {
    pub name: String,
    pub source: String,
    pub scope: String,
    pub unit: String,
    pub value: Number,
    pub pod_count: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheHit {
    pub pod: String,
    pub source: String,
    pub scope: String,
    pub hits: Number,
    pub queries: Number,
}

/// Of a rate, `increase` is given (its value depends on the real window), else `value` and `samples`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windowed {
    pub name: String,
    pub pod: String,
    pub source: String,
    pub scope: String,
    pub unit: String,
    pub increase: Option<Number>,
    pub value: Option<Number>,
    pub samples: Option<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    #[serde(default)]
    pub pod: String,
    pub source: String,
    pub code: String,
    pub cause: Option<String>,
    /// Tells reasons with one code apart: entries with different words must have different sentences.
    pub why: Option<String>,
    /// What the sentence must contain.
    #[serde(default)]
    pub says: Vec<String>,
}

/// Where the fixtures are.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A fixture's bytes.
pub fn fixture(name: &str) -> Arc<Vec<u8>> {
    let path = fixtures().join(format!("{name}.prom"));
    Arc::new(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The names of all cases.
pub fn case_names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixtures().join("expected"))
        .expect("the case files")
        .map(|entry| entry.expect("a case file").path())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Reads a case file.
pub fn case(name: &str) -> Case {
    let path = fixtures().join(format!("expected/{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A case's Pods, running, and its deployment file.
pub struct Fleet {
    pub pods: BTreeMap<String, PodServer>,
    pub file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fleet {
    /// Starts a case's Pods and writes its deployment file.
    pub fn start(case: &Case) -> Fleet {
        let mut servers = BTreeMap::new();
        let mut entries = Vec::new();
        for pod in &case.pods {
            let server = PodServer::start(pod.answer, pod.reads.iter().map(|name| fixture(name)).collect());
            let mut entry = serde_json::json!({"name": pod.name, "url": server.url()});
            if let Some(role) = &pod.role {
                entry["role"] = role.as_str().into();
            }
            if pod.router {
                entry["router"] = true.into();
            }
            if let Some(args) = &pod.args {
                entry["args"] = args.clone().into();
            }
            entries.push(entry);
            servers.insert(pod.name.clone(), server);
        }
        let document = serde_json::json!({
            "metadata": {"name": "chat", "namespace": "team"}, "spec": case.spec, "pods": entries,
        });
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("deployment.yaml");
        std::fs::write(&file, document.to_string()).expect("the deployment file");
        Fleet { pods: servers, file, _directory: directory }
    }
}

/// The program with nothing but this deployment file in its environment.
pub fn program(file: &Path) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"));
    command.env_clear().env("DEPLOYMENT_FILE", file).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The program serving on a free port.
pub struct Served {
    pub child: std::process::Child,
    pub address: SocketAddr,
}

impl Served {
    /// Starts `serve` and waits for the line that names its address.
    pub fn start(file: &Path, env: &[(&str, &str)]) -> Served {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"))
            .arg("serve")
            .env_clear()
            .env("DEPLOYMENT_FILE", file)
            .env("LISTEN_ADDRESS", "127.0.0.1:0")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = child.stderr.take().expect("its stderr");
        let address = announced_address(stderr, "listen", Duration::from_secs(20));
        let Some(address) = address else {
            let _ = child.kill();
            panic!("no line of the program's log names the address on which it listens");
        };
        Served { child, address }
    }

    /// GETs a path: status, head and body.
    pub fn get(&self, path: &str, accept: &str) -> (u16, String, String) {
        get(self.address, path, accept)
    }

    /// Waits until this many rounds have finished.
    pub fn wait_for_rounds(&self, rounds: f64, limit: Duration) {
        let end = Instant::now() + limit;
        loop {
            let (_, _, text) = self.get("/metrics", "text/plain");
            let done = text
                .lines()
                .filter_map(|line| line.strip_prefix("modeldeployment_exporter_rounds_total "))
                .find_map(|value| value.trim().parse::<f64>().ok());
            if done >= Some(rounds) {
                return;
            }
            assert!(Instant::now() < end, "{done:?} rounds within {limit:?}, not {rounds}; /metrics was:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the first line of a log that contains a word, in any case. The log is read on.
pub fn announced_address(log: impl Read + Send + 'static, word: &'static str, limit: Duration) -> Option<SocketAddr> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let found = line.to_lowercase().contains(word).then(|| loopback_address(&line)).flatten();
            if let Some(address) = found {
                let _ = send.send(address);
            }
        }
    });
    receive.recv_timeout(limit).ok()
}

fn loopback_address(line: &str) -> Option<SocketAddr> {
    line.match_indices("127.0.0.1:")
        .map(|(at, _)| {
            line[at..]
                .find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')
                .map_or(&line[at..], |end| &line[at..at + end])
        })
        .filter_map(|text| text.parse::<SocketAddr>().ok())
        .find(|address| address.port() != 0)
}

/// GETs a path on a connection of its own: status, head and body.
pub fn get(address: SocketAddr, path: &str, accept: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut reader = BufReader::new(stream);
    let head = read_head(&mut reader).expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut body = Vec::new();
    reader.read_to_end(&mut body).expect("a body");
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = unchunk(&body);
    }
    (status, head, String::from_utf8(body).expect("UTF-8"))
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && bytes.len() >= end + 2 + size + 2) else { break };
        whole.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    whole
}

/// Works out sums, differences, products and quotients with brackets.
pub fn calculate(text: &str) -> f64 {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() {
            rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len())
        } else {
            1
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens.reverse();
    let value = sum(&mut tokens);
    assert!(tokens.is_empty(), "no arithmetic: {text}");
    value
}

fn sum(tokens: &mut Vec<&str>) -> f64 {
    let mut value = product(tokens);
    while let Some(operator) = tokens.pop_if(|token| matches!(*token, "+" | "-")) {
        let next = product(tokens);
        value = if operator == "+" { value + next } else { value - next };
    }
    value
}

fn product(tokens: &mut Vec<&str>) -> f64 {
    let mut value = factor(tokens);
    while let Some(operator) = tokens.pop_if(|token| matches!(*token, "*" | "/")) {
        let next = factor(tokens);
        value = if operator == "*" { value * next } else { value / next };
    }
    value
}

fn factor(tokens: &mut Vec<&str>) -> f64 {
    let token = tokens.pop().expect("a number or a bracket");
    if token != "(" {
        return token.parse().expect("a number");
    }
    let value = sum(tokens);
    assert_eq!(tokens.pop(), Some(")"), "a bracket is open");
    value
}
