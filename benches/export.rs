//! What it costs to encode 5000 series, and what one scrape of `/metrics` costs the exporter and its client together.
//!
//! The first scrape of a round encodes, later ones copy; both go over a real connection on loopback.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use modeldeployment_exporter::clock::{Clock, SystemClock};
use modeldeployment_exporter::export::families::{FAMILIES, Kind};
use modeldeployment_exporter::export::{Format, Point, encode, gzip};
use modeldeployment_exporter::server::{Limits, Server, Tcp};
use modeldeployment_exporter::snapshot::{Metadata, ModelDeploymentMetrics};
use modeldeployment_exporter::state::{DeploymentName, Discovered, Published, State, Times};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

const SERIES: usize = 5000;
const FORMATS: [Format; 2] = [Format::Text, Format::OpenMetrics];

fn main() {
    divan::main();
}

/// As many series as asked for, of every family about Pods in turn.
fn points(count: usize) -> Vec<Point> {
    let families: Vec<_> =
        FAMILIES.iter().filter(|family| family.kind != Kind::Histogram && family.labels.contains(&"source")).collect();
    let point = |index: usize| {
        let (family, pod) = (families[index % families.len()], index / families.len());
        let label = |name: &&'static str| {
            let value = match *name {
                "namespace" => "team".to_owned(),
                "modeldeployment" => "chat".to_owned(),
                "pod" => format!("chat-server-{pod}"),
                "source" => "vllm:request_time_per_output_token_seconds".to_owned(),
                name => format!("some-{name}"),
            };
            (*name, value.into())
        };
        Point {
            family: family.name.into(),
            labels: family.labels.iter().map(label).collect(),
            value: index as f64 * 1.37 + 0.5,
        }
    };
    (0..count).map(point).collect()
}

#[divan::bench(args = FORMATS)]
fn encode_5000_series(bencher: Bencher, format: Format) {
    let points: Arc<[Point]> = points(SERIES).into();
    bencher.counter(ItemsCount::new(SERIES)).bench(|| encode(Arc::clone(black_box(&points)), Vec::new(), format));
}

#[divan::bench]
fn compress_5000_series(bencher: Bencher) {
    let plain = encode(points(SERIES).into(), Vec::new(), Format::Text);
    bencher.counter(BytesCount::of_str(&plain)).bench(|| gzip::part(black_box(plain.as_bytes())));
}

/// A server of one deployment's rounds, and a connection to it.
struct Scraped {
    state: Arc<State>,
    clock: Arc<dyn Clock>,
    points: Vec<Point>,
    connection: TcpStream,
    request: String,
    answer: Vec<u8>,
}

impl Scraped {
    fn start(gzip: bool) -> Scraped {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let times = Times { interval: Duration::from_secs(3600), round_timeout: Duration::from_secs(8) };
        let state = Arc::new(State::new(Arc::clone(&clock), times));
        let deployment = DeploymentName { namespace: "team".to_owned(), name: "chat".to_owned() };
        state.discovery(Discovered { synced: true, deployment: Some(deployment), reload_failures: 0 });
        let address = serve(Arc::clone(&state));
        let connection = TcpStream::connect(address).expect("the server listens");
        connection.set_nodelay(true).expect("a socket");
        let encoding = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\n{encoding}\r\n");
        let scraped = Scraped { state, clock, points: points(SERIES), connection, request, answer: Vec::new() };
        scraped.state.round_finished(Duration::ZERO, scraped.round());
        scraped
    }

    /// A round of which nothing is encoded.
    fn round(&self) -> Arc<Published> {
        let object = ModelDeploymentMetrics {
            api_version: "worker.gpustack.ai/v1",
            kind: "ModelDeploymentMetrics",
            metadata: Metadata { name: "chat".to_owned(), namespace: "team".to_owned() },
            timestamp: SystemTime::UNIX_EPOCH,
            processing: Vec::new(),
            queueing: Vec::new(),
            cache_hits: Vec::new(),
            latency: Vec::new(),
            traffic: Vec::new(),
            transfer: Vec::new(),
            missing: Vec::new(),
            partial: false,
        };
        Arc::new(Published::new(object, true, self.clock.now(), self.points.clone()))
    }

    /// One scrape; the length of its body.
    fn scrape(&mut self) -> usize {
        self.connection.write_all(self.request.as_bytes()).expect("the server reads");
        self.answer.clear();
        let mut chunk = [0; 64 << 10];
        loop {
            let read = self.connection.read(&mut chunk).expect("the server answers");
            assert!(read > 0, "the server closed the connection");
            self.answer.extend_from_slice(&chunk[..read]);
            if let Some((head, length)) = head(&self.answer)
                && self.answer.len() >= head + length
            {
                return length;
            }
        }
    }
}

/// Where an answer's head ends and the length it gives its body.
fn head(answer: &[u8]) -> Option<(usize, usize)> {
    let end = answer.windows(4).take(4096).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok())?;
    Some((end + 4, length))
}

/// Serves a state on a thread of its own, which ends with the process.
fn serve(state: Arc<State>) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port on loopback");
    let address = listener.local_addr().expect("a bound port");
    thread::spawn(move || {
        let limits = Limits::default();
        runtime.block_on(Server::new(state, limits).serve(Tcp::new(listener, limits.stall), std::future::pending()));
    });
    address
}

#[divan::bench(args = [false, true])]
fn first_scrape_of_a_round(bencher: Bencher, gzip: bool) {
    let mut scraped = Scraped::start(gzip);
    bencher.bench_local(|| {
        scraped.state.round_finished(Duration::ZERO, scraped.round());
        scraped.scrape()
    });
}

/// A part of the bench above that is not the scrape's.
#[divan::bench]
fn publishing_a_round(bencher: Bencher) {
    let scraped = Scraped::start(false);
    bencher.bench_local(|| scraped.state.round_finished(Duration::ZERO, scraped.round()));
}

#[divan::bench(args = [false, true])]
fn later_scrape_of_a_round(bencher: Bencher, gzip: bool) {
    let mut scraped = Scraped::start(gzip);
    scraped.scrape();
    bencher.bench_local(|| scraped.scrape());
}
