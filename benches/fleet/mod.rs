//! Targets for benches: servers on loopback whose bodies are made from a capture and move with every read.
//!
//! It serves any number of clients at once and counts what each of them was sent. It measures nothing.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::net::TcpListener;

/// Every family that a field reads and some of the rest, as one vLLM engine with a connector serves them.
const CAPTURE: &str = include_str!("../../tests/fixtures/vllm-0.32.0/kvconnector_after.prom");
const ENGINE: &str = "engine=\"0\"";
const MODEL: &str = "model_name=\"tiny-llama\"";

/// The families that the catalogue's vLLM fields read; only they are not repeated to fill a body.
const WANTED: [&str; 6] = [
    "vllm:num_requests_",
    "vllm:prefix_cache_",
    "vllm:external_prefix_cache_",
    "vllm:time_to_first_token_seconds_",
    "vllm:inter_token_latency_seconds_",
    "vllm:request_time_per_output_token_seconds_",
];

/// Copies of an engine's other families for each of its wanted ones. The fixture is a part of a
/// capture of which a fifth of the lines are of wanted families; with these copies it is so again.
const COPIES: usize = 9;

/// By how much a counter's values are scaled up, so that every read can add a whole number to each.
const SCALE: f64 = 1_000_000.0;

/// A part of a body's text.
#[derive(Debug)]
enum Part {
    Fixed(String),
    /// A counter's value at the start, before scaling.
    Moving(f64),
}

/// One exposition whose counters and histograms grow with every version; each version has just its size.
#[derive(Debug)]
pub struct Body {
    parts: Vec<Part>,
    size: usize,
}

impl Body {
    /// A body of this many bytes, with as many engines as that takes.
    pub fn new(size: usize) -> Body {
        // Moving values may take a few more digits in a later version.
        let room = size - size / 256;
        let of_length = |lines: usize| Body { parts: parts(lines), size };
        let (mut fits, mut too_many) = (0, size / 16);
        while fits + 1 < too_many {
            let middle = fits.midpoint(too_many);
            if of_length(middle).text(0).len() < room {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        of_length(fits)
    }

    /// The exposition of a version, from 0.
    pub fn version(&self, version: u64) -> Bytes {
        let mut text = self.text(version);
        let missing = self.size.saturating_sub(text.len());
        if missing > 2 {
            let _ = writeln!(text, "# {}", "x".repeat(missing - 3));
        }
        text.into()
    }

    fn text(&self, version: u64) -> String {
        let factor = SCALE + version as f64;
        let mut text = String::with_capacity(self.size);
        for part in &self.parts {
            let _ = match part {
                Part::Fixed(fixed) => text.write_str(fixed),
                Part::Moving(value) if value.fract() == 0.0 => write!(text, "{:.1}", value * factor),
                Part::Moving(value) => write!(text, "{:.6}", value * factor),
            };
        }
        text
    }
}

/// The capture with as many engines' copies of its lines as make up this many lines, family by family.
fn parts(lines: usize) -> Vec<Part> {
    let capture: Vec<&str> = CAPTURE.lines().collect();
    let engine_lines = capture.iter().filter(|line| line.contains(ENGINE)).count();
    let copies = lines.div_ceil(engine_lines);
    let mut parts = vec![Part::Fixed(String::new())];
    let fixed = |parts: &mut Vec<Part>, text: &str| match parts.last_mut() {
        Some(Part::Fixed(last)) => last.push_str(text),
        _ => parts.push(Part::Fixed(text.to_owned())),
    };
    // Where a line stands in an engine's copy.
    let mut place = 0;
    for family in capture.chunk_by(|_, next| !next.starts_with("# HELP")) {
        let moves = family.iter().any(|line| {
            line.starts_with("# TYPE vllm:") && (line.ends_with(" counter") || line.ends_with(" histogram"))
        });
        for comment in family.iter().filter(|line| !line.contains(ENGINE)) {
            fixed(&mut parts, &format!("{comment}\n"));
        }
        let samples: Vec<&&str> = family.iter().filter(|line| line.contains(ENGINE)).collect();
        for copy in 0..copies {
            let (engine, model) = (copy / COPIES, copy % COPIES);
            for (index, line) in samples.iter().enumerate() {
                if copy * engine_lines + place + index >= lines {
                    break;
                }
                if model > 0 && is_wanted(line) {
                    continue;
                }
                let model = if model == 0 { MODEL.to_owned() } else { format!("model_name=\"tiny-llama-{model}\"") };
                let line = line.replace(ENGINE, &format!("engine=\"{engine}\"")).replace(MODEL, &model);
                match line.rsplit_once(' ') {
                    Some((series, value)) if moves => {
                        fixed(&mut parts, &format!("{series} "));
                        parts.push(Part::Moving(value.parse().expect("the capture's values are numbers")));
                        fixed(&mut parts, "\n");
                    }
                    _ => fixed(&mut parts, &format!("{line}\n")),
                }
            }
        }
        place += samples.len();
    }
    parts
}

fn is_wanted(line: &str) -> bool {
    WANTED.iter().any(|prefix| line.starts_with(prefix))
}

/// What one client was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Answers.
    pub reads: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// What all targets share.
struct Shared {
    body: Body,
    /// The newest versions, so that each is made once for all targets.
    versions: Mutex<BTreeMap<u64, Bytes>>,
    /// By the product that a client names in its User-Agent.
    sent: Mutex<HashMap<String, Sent>>,
}

/// Running targets; they end with the process.
pub struct Fleet {
    /// Where each of them listens on 127.0.0.1.
    pub ports: Vec<u16>,
    shared: Arc<Shared>,
}

impl Fleet {
    /// Starts this many targets, on one thread, with bodies of this many bytes.
    pub fn start(targets: usize, body_bytes: usize) -> Fleet {
        let shared =
            Arc::new(Shared { body: Body::new(body_bytes), versions: Mutex::default(), sent: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listeners: Vec<TcpListener> = runtime.block_on(async {
            let mut listeners = Vec::new();
            for _ in 0..targets {
                listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback"));
            }
            listeners
        });
        let ports = listeners.iter().map(|listener| listener.local_addr().expect("a bound port").port()).collect();
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            runtime.block_on(async {
                let targets: Vec<_> =
                    listeners.into_iter().map(|one| tokio::spawn(serve(one, Arc::clone(&serving)))).collect();
                for target in targets {
                    let _ = target.await;
                }
            });
        });
        Fleet { ports, shared }
    }

    /// What the client with this product name was sent so far.
    pub fn sent(&self, agent: &str) -> Sent {
        self.shared.sent.lock().expect("no panic under the lock").get(agent).copied().unwrap_or_default()
    }
}

/// Answers every request of one target with the next version of the body.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let reads = Arc::new(AtomicU64::new(0));
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let (shared, reads) = (Arc::clone(&shared), Arc::clone(&reads));
        let answer = service_fn(move |request| {
            let answer = answer(&request, &shared, &reads);
            async { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

fn answer<B>(request: &Request<B>, shared: &Shared, reads: &AtomicU64) -> Response<Full<Bytes>> {
    if request.uri().path() == "/sent" {
        return Response::new(Full::new(report(shared).into()));
    }
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let agent = agent.split('/').next().unwrap_or_default().to_owned();
    let version = reads.fetch_add(1, Ordering::Relaxed);
    let body = {
        let mut versions = shared.versions.lock().expect("no panic under the lock");
        let body = versions.entry(version).or_insert_with(|| shared.body.version(version)).clone();
        if versions.len() > 8 {
            versions.pop_first();
        }
        body
    };
    let mut sent = shared.sent.lock().expect("no panic under the lock");
    let sent = sent.entry(agent).or_default();
    sent.reads += 1;
    sent.bytes += body.len() as u64;
    let mut response = Response::new(Full::new(body));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// What every client was sent, one line each: product, answers, bytes.
fn report(shared: &Shared) -> String {
    let sent = shared.sent.lock().expect("no panic under the lock");
    sent.iter().fold(String::new(), |mut report, (agent, sent)| {
        let _ = writeln!(report, "{agent} {} {}", sent.reads, sent.bytes);
        report
    })
}
