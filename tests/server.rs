//! The server over real sockets on loopback: paths, headers, limits and the graceful stop.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use modeldeployment_exporter::clock::Clock;
use modeldeployment_exporter::export::Point;
use modeldeployment_exporter::server::{Limits, Server, Tcp};
use modeldeployment_exporter::snapshot::{Code, Metadata, Missing, ModelDeploymentMetrics};
use modeldeployment_exporter::state::{DeploymentName, Discovered, Published, State, Times};
use smol_str::SmolStr;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const JSON_PATH: &str = "/apis/worker.gpustack.ai/v1/namespaces/team/modeldeployments/chat/metrics";
/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A clock that a test moves.
#[derive(Default)]
struct Hand(Mutex<Duration>);

impl Hand {
    fn advance(&self, seconds: u64) {
        *self.0.lock().unwrap() += Duration::from_secs(seconds);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

/// A running server and what moves it.
struct Running {
    clock: Arc<Hand>,
    state: Arc<State>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start() -> Running {
        Running::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> Running {
        let clock = Arc::new(Hand::default());
        let times = Times { interval: Duration::from_secs(15), round_timeout: Duration::from_secs(8) };
        let state = Arc::new(State::new(Arc::clone(&clock) as Arc<dyn Clock>, times));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(Arc::clone(&state), limits);
        let task = tokio::spawn(server.serve(Tcp::new(listener, limits.stall), async {
            let _ = stopped.await;
        }));
        Running { clock, state, address, stop: Some(stop), task }
    }

    /// A round of `series` Pods finishes now.
    fn round(&self, series: usize, readable: bool) -> Arc<Published> {
        self.known();
        self.state.round_begun();
        let published = Arc::new(published(series, readable, self.clock.now()));
        self.state.round_finished(Duration::from_millis(30), Arc::clone(&published));
        published
    }

    fn known(&self) {
        let name = DeploymentName { namespace: "team".to_owned(), name: "chat".to_owned() };
        self.state.discovery(Discovered { synced: true, deployment: Some(name), reload_failures: 0 });
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// One request on a connection of its own.
    async fn ask(&self, request: &str) -> Answer {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        answer(&mut stream).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(&get(path)).await
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

struct Answer {
    code: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let line = self
            .head
            .lines()
            .find(|line| line.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(name)))?;
        Some(line.split_once(':').unwrap().1.trim())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("an answer in time").expect("a whole head");
        head.push(byte);
    }
    String::from_utf8(head).unwrap()
}

/// The next answer to a GET on a connection.
async fn answer(stream: &mut TcpStream) -> Answer {
    let head = head(stream).await;
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { code, head, body: Vec::new() };
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    answer.body.resize(length, 0);
    timeout(PATIENCE, stream.read_exact(&mut answer.body)).await.expect("a body in time").unwrap();
    answer
}

/// Whether the server ends a connection, after which many further bytes.
async fn closed(stream: &mut TcpStream) -> usize {
    let mut rest = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the connection is closed in time") {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    rest.len()
}

fn labels(pod: &str) -> Vec<(&'static str, SmolStr)> {
    vec![("namespace", "team".into()), ("modeldeployment", "chat".into()), ("pod", pod.into())]
}

fn published(series: usize, readable: bool, finished: Duration) -> Published {
    let mut object = ModelDeploymentMetrics {
        api_version: "worker.gpustack.ai/v1",
        kind: "ModelDeploymentMetrics",
        metadata: Metadata { name: "chat".to_owned(), namespace: "team".to_owned() },
        timestamp: SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000),
        processing: Vec::new(),
        queueing: Vec::new(),
        cache_hits: Vec::new(),
        latency: Vec::new(),
        traffic: Vec::new(),
        transfer: Vec::new(),
        missing: Vec::new(),
        partial: true,
    };
    object.missing.push(Missing {
        pod: "chat-server-1".to_owned(),
        source: "scrape".to_owned(),
        reason: "the Pod answered <b>500</b>".to_owned(),
        code: Code::Unreadable,
        cause: Some("status"),
    });
    let up = |value| Point { family: "modeldeployment_up".into(), labels: labels(""), value };
    let mut points = vec![up(f64::from(readable))];
    for at in 0..series {
        let pod = format!("chat-server-{at:05}");
        let mut labels = labels(&pod);
        labels.extend([("scope", "engine".into()), ("role", "server".into())]);
        let family = "modeldeployment_pod_up".into();
        points.push(Point { family, labels: labels.clone(), value: 1.0 });
        let family = "modeldeployment_pod_resets_total".into();
        points.push(Point { family, labels, value: at as f64 });
    }
    Published::new(object, readable, finished, points)
}

fn run(program: &str, args: &[&str], input: &[u8]) -> (bool, Vec<u8>) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut out).unwrap();
    writer.join().unwrap().unwrap();
    (child.wait().unwrap().success(), out)
}

fn unzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

#[tokio::test]
async fn every_path_and_method_has_its_status() {
    let server = Running::start().await;
    server.round(2, true);
    let other_name = JSON_PATH.replace("chat", "other");
    let other_namespace = JSON_PATH.replace("team", "other");
    let paths = [
        ("/metrics", 200),
        ("/metrics?name[]=x", 200),
        (JSON_PATH, 200),
        ("/apis/worker.gpustack.ai/v1/namespaces/t%65am/modeldeployments/chat/metrics?pretty", 200),
        ("/healthz", 200),
        ("/readyz?verbose", 200),
        ("/", 200),
        ("/nothing", 404),
        ("/metrics/", 404),
        (other_name.as_str(), 404),
        (other_namespace.as_str(), 404),
        ("/apis/worker.gpustack.ai/v1/namespaces/team/modeldeployments/chat", 404),
    ];
    for (path, code) in paths {
        let answer = server.get(path).await;
        assert_eq!(answer.code, code, "{path}");
        assert!(!answer.body.is_empty(), "{path}");
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
            let answer = server.ask(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
            assert_eq!((answer.code, answer.header("allow")), (405, Some("GET, HEAD")), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let server = Running::start().await;
    server.round(2, true);
    for path in ["/", "/healthz", "/readyz", "/metrics", JSON_PATH, "/nothing", "/apis/x"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
        let get = server.ask(&request).await;
        let mut stream = server.connect().await;
        let closing = request.replace("GET", "HEAD").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        stream.write_all(closing.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        assert_eq!(closed(&mut stream).await, 0, "{path}");
        // The exporter's own counts move between the two; the length is compared where they are not in it.
        let names = |head: &str| -> Vec<String> {
            let kept = head.lines().filter(|line| !line.is_empty() && !line.starts_with("connection:"));
            let own = path == "/metrics";
            let moving = |line: &str| line.starts_with("date:") || own && line.starts_with("content-length:");
            kept.filter(|line| !moving(line)).map(str::to_owned).collect()
        };
        assert_eq!(names(&get.head), names(&head), "{path}");
        assert!(head.contains("content-length: "), "{path}");
    }
}

#[tokio::test]
async fn a_connection_is_kept() {
    let server = Running::start().await;
    server.round(2, true);
    let mut stream = server.connect().await;
    for path in ["/metrics", JSON_PATH, "/nothing", "/healthz", "/metrics"] {
        stream.write_all(get(path).as_bytes()).await.unwrap();
        answer(&mut stream).await;
    }
    // Two requests at once are answered in order.
    stream.write_all([get(JSON_PATH), get("/healthz")].concat().as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.header("content-type"), Some("application/json"));
    assert_eq!(answer(&mut stream).await.text(), "ok\n");
}

#[tokio::test]
async fn a_common_client_reads_it() {
    let server = Running::start().await;
    server.round(2, true);
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let url = format!("http://{}{JSON_PATH}", server.address);
    let object: serde_json::Value =
        serde_json::from_str(&client.get(url).send().await.unwrap().text().await.unwrap()).unwrap();
    assert_eq!(object["kind"], "ModelDeploymentMetrics");
    assert_eq!(object["missing"][0]["code"], "unreadable");
    let metrics = client.get(format!("http://{}/metrics", server.address)).send().await.unwrap();
    assert_eq!(metrics.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.text().await.unwrap().contains("\nmodeldeployment_up{"));
}

#[tokio::test]
async fn metrics_come_in_two_formats_plain_and_compressed() {
    let server = Running::start().await;
    server.round(3, true);
    let ask = |accept: &'static str, encoding: &'static str| {
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nAccept-Encoding: {encoding}\r\n\r\n");
        async {
            let request = request;
            server.ask(&request).await
        }
    };
    let text = ask("*/*", "identity").await;
    assert_eq!(text.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(text.header("vary"), Some("Accept, Accept-Encoding"));
    assert_eq!(text.header("content-encoding"), None);
    assert!(!text.text().contains("# EOF"));
    assert!(text.text().contains("# TYPE modeldeployment_pod_resets_total counter\n"));
    let (status, said) = run("promtool", &["check", "metrics"], &text.body);
    assert!(status && said.is_empty(), "{}", String::from_utf8_lossy(&said));

    let open = ask("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4", "").await;
    assert_eq!(open.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.text().ends_with("\n# EOF\n"));
    assert_eq!(open.text().matches("# EOF").count(), 1);
    assert!(open.text().contains("# TYPE modeldeployment_pod_resets counter\n"));

    for (accept, plain) in [("text/plain", &text), ("application/openmetrics-text", &open)] {
        let zipped = ask(accept, "gzip").await;
        assert_eq!(zipped.header("content-encoding"), Some("gzip"));
        let (status, gunzipped) = run("gzip", &["-dc"], &zipped.body);
        assert!(status);
        assert_eq!(gunzipped, unzip(&zipped.body));
        let of_the_round = |text: &str| -> Vec<String> {
            text.lines().take_while(|line| !line.contains("_exporter_")).map(str::to_owned).collect()
        };
        let gunzipped = String::from_utf8(gunzipped).unwrap();
        assert_eq!(of_the_round(&gunzipped), of_the_round(plain.text()));
        assert!(of_the_round(&gunzipped).len() > 6);
        assert!(gunzipped.contains("modeldeployment_exporter_build_info{version="));
    }
}

#[tokio::test]
async fn every_family_is_written_once_over_all_parts() {
    let server = Running::start().await;
    server.round(2, true);
    server.get("/metrics").await;
    let metrics = server.get("/metrics").await;
    let mut types: Vec<&str> = metrics.text().lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count);
    for family in [
        "modeldeployment_exporter_build_info{version=\"",
        "modeldeployment_exporter_deployment_found 1\n",
        "modeldeployment_exporter_rounds_total 1\n",
        "modeldeployment_exporter_deployment_reload_failures_total 0\n",
        "modeldeployment_exporter_http_requests_total{path=\"/metrics\",code=\"200\"} 1\n",
        "modeldeployment_exporter_http_requests_total{path=\"/readyz\",code=\"200\"} 0\n",
        "modeldeployment_exporter_round_duration_seconds_bucket{le=\"0.05\"} 1\n",
        "modeldeployment_exporter_round_duration_seconds_count 1\n",
        "process_start_time_seconds ",
        "process_cpu_seconds_total ",
    ] {
        assert!(metrics.text().contains(family), "{family}");
    }
}

#[tokio::test]
async fn a_round_is_encoded_once_per_form_and_on_the_first_request() {
    let server = Running::start().await;
    let round = server.round(700, true);
    assert_eq!(round.encodings(), 0);
    let first = server.get(JSON_PATH).await;
    assert_eq!(round.encodings(), 1);
    let second = server.get(JSON_PATH).await;
    assert_eq!(first.body, second.body);
    assert_eq!(round.encodings(), 1);
    let zipped = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n";
    let open = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n";
    for (request, encodings) in [(zipped, 3), (zipped, 3), (&get("/metrics"), 3), (open, 4), (open, 4)] {
        server.ask(request).await;
        assert_eq!(round.encodings(), encodings);
    }
    // Many clients at once share one encoding.
    let round = server.round(700, true);
    let (a, b, c) = tokio::join!(server.ask(zipped), server.ask(zipped), server.get("/metrics"));
    assert!(a.code == 200 && b.code == 200 && c.code == 200);
    assert_eq!(round.encodings(), 2);
}

#[tokio::test]
async fn the_json_path_says_what_there_is_to_wait_for() {
    let server = Running::start().await;
    let status = |answer: &Answer, code: u16, reason: &str, message: &str| {
        let status = answer.json();
        assert_eq!(answer.code, code, "{status}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!((&status["kind"], &status["apiVersion"]), (&"Status".into(), &"v1".into()));
        assert_eq!((&status["status"], &status["code"]), (&"Failure".into(), &code.into()));
        assert_eq!(status["reason"], reason);
        assert!(status["message"].as_str().unwrap().contains(message), "{status}");
        assert_eq!(status["details"]["group"], "worker.gpustack.ai");
        assert_eq!(status["details"]["kind"], "modeldeployments");
        status["details"]["name"].as_str().unwrap().to_owned()
    };
    let json = || server.get(JSON_PATH);
    status(&json().await, 503, "ServiceUnavailable", "no round");
    server.known();
    status(&json().await, 503, "ServiceUnavailable", "no round");
    server.round(1, false);
    assert_eq!(status(&json().await, 503, "ServiceUnavailable", "could be read"), "chat");
    server.round(1, true);
    assert_eq!(json().await.code, 200);
    server.clock.advance(45);
    assert_eq!(json().await.code, 200);
    server.clock.advance(1);
    status(&json().await, 503, "ServiceUnavailable", "too old");
    server.round(1, true);
    let other = server.get(&JSON_PATH.replace("chat", "other")).await;
    assert_eq!(status(&other, 404, "NotFound", "modeldeployments.worker.gpustack.ai \"other\" not found"), "other");
    server.state.discovery(Discovered { synced: true, deployment: None, reload_failures: 0 });
    server.state.no_deployment(Duration::ZERO);
    status(&json().await, 404, "NotFound", "not found");
}

#[tokio::test]
async fn an_old_round_leaves_what_is_still_true() {
    let server = Running::start().await;
    let round = server.round(2, true);
    let fresh = server.get("/metrics").await;
    assert!(fresh.text().contains("pod=\"\"} 1\n") && fresh.text().contains("modeldeployment_pod_up{"));
    server.clock.advance(46);
    let old = server.get("/metrics").await;
    assert_eq!(old.code, 200);
    assert!(old.text().contains("modeldeployment_up{namespace=\"team\",modeldeployment=\"chat\",pod=\"\"} 0\n"));
    assert!(old.text().contains("modeldeployment_pod_resets_total{"));
    assert!(!old.text().contains("modeldeployment_pod_up{"));
    assert!(old.text().contains("modeldeployment_exporter_rounds_total 1\n"));
    assert_eq!(round.encodings(), 2);
    assert_eq!(server.get("/readyz").await.code, 503);
    assert!(server.get("/").await.text().contains("too old"));
    server.round(2, true);
    assert!(server.get("/metrics").await.text().contains("modeldeployment_pod_up{"));
}

#[tokio::test]
async fn without_a_round_only_up_and_the_exporters_own_are_there() {
    let server = Running::start().await;
    let families = |answer: &Answer| -> Vec<String> {
        let types = answer.text().lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let own = |family: &String| family.starts_with("modeldeployment_exporter_") || family.starts_with("process_");
    let unknown = families(&server.get("/metrics").await);
    assert!(unknown.iter().all(own) && unknown.len() > 8, "{unknown:?}");
    server.known();
    let metrics = server.get("/metrics").await;
    assert!(metrics.text().contains("modeldeployment_up{namespace=\"team\",modeldeployment=\"chat\",pod=\"\"} 0\n"));
    let zipped = server.ask("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n").await;
    assert!(unzip(&zipped.body).starts_with(b"# HELP modeldeployment_up "));
    server.state.discovery(Discovered { synced: true, deployment: None, reload_failures: 0 });
    let gone = server.get("/metrics").await;
    assert!(families(&gone).iter().all(own));
    assert!(gone.text().contains("modeldeployment_exporter_deployment_found 0\n"));
}

#[tokio::test]
async fn probes_follow_the_rounds() {
    let server = Running::start().await;
    assert_eq!(server.get("/healthz").await.code, 200);
    assert_eq!(server.get("/readyz").await.code, 503);
    server.known();
    assert_eq!(server.get("/readyz").await.code, 503);
    server.round(0, false);
    assert_eq!(server.get("/readyz").await.code, 200);
    server.clock.advance(46);
    assert_eq!(server.get("/readyz").await.code, 503);
    server.clock.advance(104);
    assert_eq!(server.get("/healthz").await.code, 200);
    server.clock.advance(1);
    assert_eq!(server.get("/healthz").await.code, 503);
    server.round(0, false);
    assert_eq!(server.get("/healthz").await.code, 200);
}

#[tokio::test]
async fn the_landing_page_escapes_what_it_shows() {
    let server = Running::start().await;
    server.round(1, true);
    let page = server.get("/").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.text().contains("the Pod answered &lt;b&gt;500&lt;/b&gt;"));
    assert!(page.text().contains(&format!("<a href=\"{}\">", JSON_PATH.trim_start_matches('/'))));
    assert!(!page.text().contains("<script") && !page.text().contains("<b>"));
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let server = Running::start().await;
    for (bytes, code) in [(15_000, 200), (17_000, 431), (100_000, 431)] {
        let mut stream = server.connect().await;
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(bytes));
        // The server may close before it has read all of it.
        let _ = stream.write_all(request.as_bytes()).await;
        assert!(head(&mut stream).await.starts_with(&format!("HTTP/1.1 {code} ")), "{bytes}");
        if code != 200 {
            closed(&mut stream).await;
        }
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let server = Running::start().await;
    let mut stream = server.connect().await;
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 400 "));
    closed(&mut stream).await;
}

#[tokio::test]
async fn a_request_with_a_body_is_answered_without_reading_it() {
    let server = Running::start().await;
    let request = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    assert_eq!(server.ask(request).await.code, 405);
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed() {
    let limits = Limits { head: Duration::from_secs(1), ..Limits::default() };
    let server = Running::with(limits).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let mut idle = server.connect().await;
    idle.write_all(get("/healthz").as_bytes()).await.unwrap();
    let start = Instant::now();
    answer(&mut idle).await;
    for stream in [&mut silent, &mut half, &mut idle] {
        assert_eq!(closed(stream).await, 0);
    }
    // The one that was answered last waited from then on.
    assert!(start.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn a_head_may_come_in_pieces() {
    let server = Running::start().await;
    let mut stream = server.connect().await;
    stream.set_nodelay(true).unwrap();
    for piece in get("/healthz").as_bytes().chunks(7) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(answer(&mut stream).await.code, 200);
}

#[tokio::test]
async fn pieces_of_a_head_do_not_extend_its_time() {
    let limits = Limits { head: Duration::from_millis(400), ..Limits::default() };
    let server = Running::with(limits).await;
    let mut stream = server.connect().await;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
    let ended = async {
        loop {
            tick.tick().await;
            if stream.write_all(b"a").await.is_err() {
                break;
            }
        }
    };
    timeout(PATIENCE, ended).await.expect("dripping bytes keep no connection open");
}

#[tokio::test]
async fn silent_clients_do_not_lock_a_scraper_out() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let server = Running::with(limits).await;
    server.round(1, true);
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(server.connect().await);
    }
    for _ in 0..3 {
        assert_eq!(server.get("/metrics").await.code, 200);
    }
    // Of silent ones, those that waited longest made room.
    for stream in &mut silent[..8] {
        assert_eq!(closed(stream).await, 0);
    }
}

#[tokio::test]
async fn the_longest_waiting_connection_makes_room() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let server = Running::with(limits).await;
    let mut first = server.connect().await;
    first.write_all(get("/healthz").as_bytes()).await.unwrap();
    answer(&mut first).await;
    let mut second = server.connect().await;
    second.write_all(get("/healthz").as_bytes()).await.unwrap();
    answer(&mut second).await;
    // Now the second one has waited longest.
    first.write_all(get("/healthz").as_bytes()).await.unwrap();
    answer(&mut first).await;
    assert_eq!(server.get("/healthz").await.code, 200);
    assert_eq!(closed(&mut second).await, 0);
}

/// A connection whose client takes little without reading.
async fn narrow(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Asks for more than the kernel's buffers take, and waits until the answer has begun.
async fn ask_without_reading(stream: &mut TcpStream) {
    let requests = get("/metrics").repeat(100);
    stream.write_all(requests.as_bytes()).await.unwrap();
    timeout(PATIENCE, stream.peek(&mut [0])).await.expect("an answer in time").unwrap();
}

/// Whether the server's end of a connection is open.
fn is_open(server: &Running, stream: &TcpStream) -> bool {
    let ends = format!(":{:04X} 0100007F:{:04X} 01 ", server.address.port(), stream.local_addr().unwrap().port());
    std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&ends)
}

/// Waits until the server's end of a connection is open no more. The client cannot see it: what was
/// sent to it before stays in its buffer.
async fn cut(server: &Running, stream: &TcpStream) {
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let gone = async {
        while is_open(server, stream) {
            tick.tick().await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it is cut in time");
}

/// Reads what a cut connection still has.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // The client may learn of the cut by an end or by a reset.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the connection is closed in time");
    rest
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
    let server = Running::with(limits).await;
    server.round(2000, true);
    let mut stream = narrow(&server).await;
    assert!(is_open(&server, &stream));
    ask_without_reading(&mut stream).await;
    cut(&server, &stream).await;
    let whole = server.get("/metrics").await.body.len();
    assert!(rest(&mut stream).await.len() < 100 * whole);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_whose_answer_the_kernel_holds_is_cut_too() {
    let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
    let server = Running::with(limits).await;
    server.round(300, true);
    let mut stream = narrow(&server).await;
    assert!(is_open(&server, &stream));
    stream.write_all(get("/metrics").as_bytes()).await.unwrap();
    timeout(PATIENCE, stream.peek(&mut [0])).await.expect("an answer in time").unwrap();
    cut(&server, &stream).await;
    let whole = server.get("/metrics").await.body.len();
    assert!(rest(&mut stream).await.len() < whole);
}

#[tokio::test]
async fn an_answering_connection_is_not_closed_to_make_room() {
    let limits = Limits { connections: 1, stall: PATIENCE, ..Limits::default() };
    let server = Running::with(limits).await;
    server.round(20_000, true);
    let mut slow = narrow(&server).await;
    slow.write_all(get("/metrics").as_bytes()).await.unwrap();
    timeout(PATIENCE, slow.peek(&mut [0])).await.expect("an answer in time").unwrap();
    let mut next = server.connect().await;
    next.write_all(get("/healthz").as_bytes()).await.unwrap();
    let whole = answer(&mut slow).await;
    assert_eq!(whole.code, 200);
    assert!(whole.text().ends_with('\n'));
    // Once it waits, it makes room.
    assert_eq!(answer(&mut next).await.code, 200);
    assert_eq!(closed(&mut slow).await, 0);
}

#[tokio::test]
async fn a_stop_finishes_open_answers_and_closes_the_rest() {
    let mut server = Running::start().await;
    server.round(20_000, true);
    let mut idle = server.connect().await;
    idle.write_all(get("/healthz").as_bytes()).await.unwrap();
    answer(&mut idle).await;
    let mut half = server.connect().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
    let mut open = narrow(&server).await;
    open.write_all(get("/metrics").as_bytes()).await.unwrap();
    timeout(PATIENCE, open.peek(&mut [0])).await.expect("an answer in time").unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    assert_eq!(closed(&mut idle).await, 0);
    assert_eq!(closed(&mut half).await, 0);
    let whole = answer(&mut open).await;
    assert!(whole.code == 200 && whole.text().contains("process_start_time_seconds"));
    assert_eq!(closed(&mut open).await, 0);
    timeout(PATIENCE, server.task).await.expect("the server stops").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_client_that_does_not_read() {
    let limits = Limits { stop: Duration::from_millis(100), ..Limits::default() };
    let mut server = Running::with(limits).await;
    server.round(2000, true);
    let mut stream = narrow(&server).await;
    ask_without_reading(&mut stream).await;
    server.stop.take().unwrap().send(()).unwrap();
    // Less than the time after which the client would be cut anyway.
    timeout(Duration::from_secs(8), server.task).await.expect("the server stops").unwrap();
}

/// A process that ends with the test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn real_prometheus_reads_openmetrics() {
    let server = Running::start().await;
    server.round(3, true);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("prometheus.yml");
    let job = |name: &str| {
        format!("- {{job_name: {name}, honor_labels: true, static_configs: [{{targets: ['{}']}}]}}\n", server.address)
    };
    std::fs::write(
        &config,
        format!("global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{}", job("chat")),
    )
    .unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _prometheus = Child(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("prometheus is needed for this test"),
    );
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let url = format!("http://127.0.0.1:{port}/api/v1/");
    let ask = async |query: &str| -> serde_json::Value {
        let answer = client.get(format!("{url}{query}")).send().await.ok();
        let Some(answer) = answer else { return serde_json::Value::Null };
        serde_json::from_str(&answer.text().await.unwrap_or_default()).unwrap_or_default()
    };
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let scraped = async {
        loop {
            tick.tick().await;
            let targets = ask("targets").await;
            let target = &targets["data"]["activeTargets"][0];
            assert_eq!(target["lastError"].as_str().unwrap_or_default(), "");
            if target["health"] == "up" {
                break;
            }
        }
    };
    timeout(3 * PATIENCE, scraped).await.expect("a scrape in time");
    let resets = ask("query?query=modeldeployment_pod_resets_total%7Bpod%3D%22chat-server-00002%22%7D").await;
    let series = &resets["data"]["result"][0];
    assert_eq!(series["value"][1], "2", "{resets}");
    assert_eq!(series["metric"]["namespace"], "team");
    // Prometheus asks for OpenMetrics, which names a counter's family without `_total`.
    let metadata = ask("metadata?metric=modeldeployment_pod_resets").await;
    assert_eq!(metadata["data"]["modeldeployment_pod_resets"][0]["type"], "counter", "{metadata}");
}
