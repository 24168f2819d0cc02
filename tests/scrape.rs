//! Reading Pods: every way in which a Pod can fail, alone among neighbours that do not.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use modeldeployment_exporter::clock::{Clock, SystemClock};
use modeldeployment_exporter::config::{ScrapeLimits, TlsFiles};
use modeldeployment_exporter::deployment::{Deployment, RoleKind};
use modeldeployment_exporter::scrape::connector::{Connect, Network};
use modeldeployment_exporter::scrape::tls::Tls;
use modeldeployment_exporter::scrape::{Cause, Round, Scraper};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use support::{BODY, Builder, Memory, Request, Server, Step, deployment, limits, ok, ok_with, send};
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

fn network() -> Arc<dyn Connect> {
    Arc::new(Network::new(Tls::from_files(&TlsFiles::default()).unwrap()))
}

fn scraper(limits: ScrapeLimits) -> Scraper {
    Scraper::new(network(), Arc::new(SystemClock::start()), limits)
}

fn servers() -> Builder {
    deployment().role("server", RoleKind::Server, 1)
}

fn one(server: &Server) -> Arc<Deployment> {
    servers().pod("p", "server", &server.url()).build()
}

/// `ok` or the cause, for each Pod by name.
fn causes(round: &Round) -> Vec<(String, &'static str)> {
    let word = |result: &Result<_, modeldeployment_exporter::scrape::Unreadable>| match result {
        Ok(_) => "ok",
        Err(unreadable) => unreadable.cause.as_str(),
    };
    round.scraped.iter().map(|s| (s.pod.name.clone(), word(&s.result))).collect()
}

fn reasons(round: &Round) -> Vec<String> {
    let reason = |s: &modeldeployment_exporter::scrape::Scraped| match &s.result {
        Ok(_) => "ok".to_owned(),
        Err(unreadable) => format!("{}: {}", unreadable.cause.as_str(), unreadable.reason),
    };
    round.scraped.iter().map(reason).collect()
}

fn only(round: &Round) -> String {
    assert_eq!(round.scraped.len(), 1);
    reasons(round).remove(0)
}

fn redirect(status: &str, location: &str) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"))]
}

fn status(line: &str) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n"))]
}

/// Reads the servers of a table in one round with a healthy neighbour of each, twice, and checks
/// every outcome and that the sentences stay equal.
async fn read_table(limits: ScrapeLimits, table: Vec<(&str, Vec<Step>, &str)>) {
    let healthy = Server::http(|_| ok(BODY)).await;
    let mut faulty = Vec::new();
    let mut builder = servers();
    for (index, (_, steps, _)) in table.iter().enumerate() {
        let steps = steps.clone();
        let server = Server::http(move |_| steps.clone()).await;
        builder = builder.pod(&format!("{index:02}-faulty"), "server", &server.url()).pod(
            &format!("{index:02}-healthy"),
            "server",
            &healthy.url(),
        );
        faulty.push(server);
    }
    let deployment = builder.build();
    let mut scraper = scraper(limits);
    let mut previous = None;
    for _ in 0..2 {
        let round = scraper.round(&deployment).await;
        let found = reasons(&round);
        let mut expected = Vec::new();
        for (_, _, reason) in &table {
            expected.extend([(*reason).to_owned(), "ok".to_owned()]);
        }
        for ((name, _, _), (found, expected)) in table.iter().zip(found.chunks(2).zip(expected.chunks(2))) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(round.scraped.len(), table.len() * 2);
        assert!(previous.is_none_or(|p| p == found), "the sentences stay equal");
        previous = Some(found);
    }
}

#[tokio::test]
async fn each_failure_has_its_cause_and_leaves_the_neighbours_alone() {
    let gzip = ok_with("Content-Encoding: gzip\r\n", BODY);
    let identity = ok_with("Content-Encoding: identity\r\n", BODY);
    let big = "x 1\n".repeat(512 * 1024);
    let big_chunk = format!("{:x}\r\n{big}\r\n0\r\n\r\n", big.len());
    let full_body = "# comment\n".repeat(104_857) + "# abc\n";
    assert_eq!(full_body.len(), 1024 * 1024);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let with_length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len() + 1);
    let closed = "reset: the Pod closed the connection before it answered";
    let cut = "truncated: the Pod closed the connection before the answer's body was whole";
    let no_http =
        "other: the Pod's answer is not HTTP/1.1 (is the port, or the scheme of its metrics URL, the right one?)";
    let encoded = "not-exposition: the answer has a Content-Encoding although the request accepts none";
    let too_large = "too-large: the answer's body is larger than MAX_BODY_BYTES (1048576 bytes)";
    let elsewhere = "redirect: the Pod answered with a redirect to another scheme, host or port, which is not followed";
    let table = vec![
        ("no content", status("204 No Content"), "status: the Pod answered with status 204 No Content"),
        ("partial content", status("206 Partial Content"), "status: the Pod answered with status 206 Partial Content"),
        ("not modified", status("304 Not Modified"), "status: the Pod answered with status 304 Not Modified"),
        ("unauthorized", status("401 No"), "status: the Pod answered with status 401 Unauthorized"),
        ("unavailable", status("503 x"), "status: the Pod answered with status 503 Service Unavailable"),
        (
            "an error page that never ends",
            vec![send("HTTP/1.1 500 x\r\nContent-Length: 9\r\n\r\nx"), Step::Hang],
            "status: the Pod answered with status 500 Internal Server Error",
        ),
        ("redirect to another port", redirect("302 Found", "http://127.0.0.1:1/metrics"), elsewhere),
        ("redirect to another host", redirect("301 Moved", "//localhost/metrics"), elsewhere),
        ("redirect to https", redirect("308 x", "https://127.0.0.1/metrics"), elsewhere),
        ("redirect loop", redirect("307 x", "/metrics"), "redirect: the Pod answered a redirect with another redirect"),
        ("redirect to nowhere", status("302 Found"), "redirect: the Pod answered with a redirect that names no target"),
        ("gzip", gzip, encoded),
        ("identity", identity, "ok"),
        ("length over the cap", ok(&big), too_large),
        (
            "length over the cap, no body",
            vec![send("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n"), Step::Hang],
            too_large,
        ),
        ("chunks over the cap", vec![send(chunked), send(big_chunk), Step::Hang], too_large),
        ("until close over the cap", vec![send("HTTP/1.1 200 OK\r\n\r\n"), send(big.clone()), Step::Close], too_large),
        ("exactly the cap", ok(&full_body), "ok"),
        ("an empty body", ok(""), "ok"),
        ("until close", vec![send("HTTP/1.1 200 OK\r\n\r\n"), send(BODY), Step::Close], "ok"),
        ("HTTP/1.0", vec![send("HTTP/1.0 200 OK\r\n\r\n"), send(BODY), Step::Close], "ok"),
        ("chunked", vec![send(chunked), send(format!("{:x}\r\n{BODY}\r\n", BODY.len())), send("0\r\n\r\n")], "ok"),
        ("interim answer", vec![send("HTTP/1.1 103 Early Hints\r\n\r\n"), ok(BODY).remove(0)], "ok"),
        ("shorter than its length", vec![send(with_length.clone()), Step::Close], cut),
        ("reset in the body", vec![send(with_length), Step::Reset], cut),
        ("cut in a chunk", vec![send(chunked), send(format!("{:x}\r\n{BODY}", BODY.len() + 9)), Step::Close], cut),
        ("cut between chunks", vec![send(chunked), send(format!("{:x}\r\n{BODY}\r\n", BODY.len())), Step::Close], cut),
        (
            "a chunk size that is no number",
            vec![send(chunked), send("pod\r\n"), Step::Hang],
            "other: the answer's body is not framed as its head says",
        ),
        ("reset before the answer", vec![Step::Reset], closed),
        ("closed before the answer", vec![Step::Close], closed),
        ("closed in the head", vec![send("HTTP/1.1 200 OK\r\nContent-"), Step::Close], closed),
        ("HTTP/0.9", vec![send(BODY), Step::Close], no_http),
        ("another protocol", vec![send("SSH-2.0-OpenSSH_9.2p1\r\n"), Step::Hang], no_http),
        ("a TLS alert", vec![Step::Send(b"\x15\x03\x01\x00\x02\x02\x46".to_vec()), Step::Close], no_http),
        (
            "a huge head",
            vec![send(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(300_000))), Step::Hang],
            "other: the answer's head is larger than 64 KiB or has too many headers",
        ),
        (
            "too many headers",
            vec![send(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: x\r\n".repeat(500))), Step::Hang],
            "other: the answer's head is larger than 64 KiB or has too many headers",
        ),
    ];
    read_table(ScrapeLimits { max_pods: 1000, ..limits() }, table).await;
}

#[tokio::test]
async fn bodies_that_are_no_exposition_have_a_cause_of_their_own() {
    let cut_line = format!("{BODY}vllm:num_requests_waiting{{engine=\"0\"}} 1");
    let table = vec![
        (
            "a web page",
            ok("<html>\n<body>\n</html>\n"),
            "not-exposition: line 1 is no sample or comment of the text exposition, and no other line is",
        ),
        ("a last line without its newline", ok(&cut_line), "truncated: the body ends in the middle of line 4"),
    ];
    read_table(limits(), table).await;
}

#[tokio::test]
async fn a_refused_connection_is_refused() {
    // Bound and not listening: nobody else can take the port meanwhile.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/metrics", socket.local_addr().unwrap());
    let healthy = Server::http(|_| ok(BODY)).await;
    let deployment = servers().pod("a", "server", &url).pod("b", "server", &healthy.url()).build();
    let round = scraper(limits()).round(&deployment).await;
    assert_eq!(reasons(&round), ["refused: the Pod refuses connections on its metrics port", "ok"]);
}

#[tokio::test]
async fn every_address_of_a_host_is_tried() {
    let server = Server::http(|_| ok(BODY)).await;
    let url = format!("http://localhost:{}/metrics", server.port());
    let deployment = servers().pod("p", "server", &url).build();
    assert_eq!(only(&scraper(limits()).round(&deployment).await), "ok");
}

#[tokio::test]
async fn a_pod_that_hangs_is_a_timeout_and_the_others_are_read() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    let limits = ScrapeLimits { timeout: Duration::from_secs(2), ..limits() };
    let no_answer = "timeout: SCRAPE_TIMEOUT (2s) was over before the Pod answered";
    let no_end = "timeout: SCRAPE_TIMEOUT (2s) was over before the answer's body was whole";
    let table = vec![
        ("before the head", vec![Step::Hang], no_answer),
        ("in the head", vec![send("HTTP/1.1 200 OK\r\nCont"), Step::Hang], no_answer),
        ("in the body", vec![send(head), send(BODY), Step::Hang], no_end),
        ("drips", vec![send(head), Step::Drip(b"#\n".to_vec(), Duration::from_millis(100))], no_end),
        (
            "drips heads",
            vec![Step::Drip(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), Duration::from_millis(100))],
            no_answer,
        ),
    ];
    read_table(limits, table).await;
}

#[tokio::test]
async fn a_timed_out_read_drops_its_connection_and_is_counted() {
    let server =
        Server::http(|_| vec![send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{BODY}")), Step::Hang])
            .await;
    let limits = ScrapeLimits { timeout: Duration::from_secs(1), ..limits() };
    let mut scraper = scraper(limits);
    let round = scraper.round(&one(&server)).await;
    assert_eq!(causes(&round), [("p".to_owned(), "timeout")]);
    assert_eq!(round.scraped[0].body_bytes, BODY.len() as u64);
    assert!(round.scraped[0].took >= Duration::from_secs(1), "{:?}", round.scraped[0].took);
    server.until(|stats| stats.ended == 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_read_limit_covers_connecting_and_its_sentence_says_so() {
    let memory = Memory::default().black_hole("hole").host("fine", |_| ok(BODY));
    let deployment =
        servers().pod("a", "server", "http://hole/metrics").pod("b", "server", "http://fine/metrics").build();
    let limits = ScrapeLimits { timeout: Duration::from_secs(2), ..limits() };
    let mut scraper = Scraper::new(Arc::new(memory), Arc::new(SystemClock::start()), limits);
    let round = scraper.round(&deployment).await;
    let expected = "timeout: SCRAPE_TIMEOUT (2s) was over before there was a connection to the Pod";
    assert_eq!(reasons(&round), [expected, "ok"]);
    assert_eq!(round.scraped[0].took.as_secs(), 2);
    assert_eq!(round.took.as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_round_limit_ends_the_round_and_says_so() {
    let memory = Memory::default().black_hole("hole").host("slow", |_| vec![Step::Hang]).host("fine", |_| ok(BODY));
    let deployment = servers()
        .pod("a", "server", "http://fine/metrics")
        .pod("b", "server", "http://hole/metrics")
        .pod("c", "server", "http://slow/metrics")
        .pod("d", "server", "http://fine/metrics")
        .pod("e", "server", "http://slow/metrics")
        .pod("f", "server", "http://fine/metrics")
        .build();
    let limits = ScrapeLimits {
        timeout: Duration::from_secs(5),
        round_timeout: Duration::from_secs(8),
        concurrency: 1,
        ..limits()
    };
    let mut scraper = Scraper::new(Arc::new(memory), Arc::new(SystemClock::start()), limits);
    let round = scraper.round(&deployment).await;
    assert_eq!(
        reasons(&round),
        [
            "ok",
            "timeout: SCRAPE_TIMEOUT (5s) was over before there was a connection to the Pod",
            "timeout: the round's limit of 8s (ROUND_TIMEOUT) was reached before the Pod answered",
            "timeout: the round's limit of 8s (ROUND_TIMEOUT) was reached before this Pod's turn",
            "timeout: the round's limit of 8s (ROUND_TIMEOUT) was reached before this Pod's turn",
            "timeout: the round's limit of 8s (ROUND_TIMEOUT) was reached before this Pod's turn",
        ]
    );
    assert_eq!(round.took.as_secs(), 8);
    assert_eq!(round.scraped.iter().map(|s| s.took.as_secs()).collect::<Vec<_>>(), [0, 5, 3, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_one_reading() {
    let memory = Memory::default().panicking("bad").host("fine", |_| ok(BODY));
    let deployment =
        servers().pod("a", "server", "http://bad/metrics").pod("b", "server", "http://fine/metrics").build();
    let mut scraper = Scraper::new(Arc::new(memory), Arc::new(SystemClock::start()), limits());
    for _ in 0..2 {
        let round = scraper.round(&deployment).await;
        assert_eq!(reasons(&round), ["other: reading this Pod failed inside the exporter", "ok"]);
    }
}

#[tokio::test]
async fn the_request_is_the_contract_byte_for_byte() {
    let server = Server::http(|_| ok(BODY)).await;
    let url = format!("{}?name=x&y=%20", server.url());
    let deployment = servers().pod("p", "server", &url).build();
    assert_eq!(only(&scraper(limits()).round(&deployment).await), "ok");
    let expected = format!(
        "GET /metrics?name=x&y=%20 HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAccept: text/plain;version=0.0.4\r\n\
         User-Agent: modeldeployment-exporter/{}\r\n\r\n",
        server.port(),
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(server.requests()[0].head, expected);
}

#[tokio::test]
async fn a_connection_is_kept_from_round_to_round() {
    let server = Server::http(|_| ok(BODY)).await;
    let mut scraper = scraper(limits());
    let deployment = one(&server);
    for _ in 0..4 {
        assert_eq!(only(&scraper.round(&deployment).await), "ok");
    }
    let stats = server.stats();
    assert_eq!((stats.connections, stats.requests), (1, 4));
}

#[tokio::test]
async fn a_connection_is_not_kept_after_an_answer_that_was_not_whole_or_ends_it() {
    let answers = |request: &Request| match request.connection {
        0 => status("503 Service Unavailable"),
        1 => ok_with("Connection: close\r\n", BODY),
        2 => vec![send("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")],
        _ => ok(BODY),
    };
    let server = Server::http(answers).await;
    let mut scraper = scraper(limits());
    let deployment = one(&server);
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        outcomes.push(causes(&scraper.round(&deployment).await)[0].1);
    }
    assert_eq!(outcomes, ["status", "ok", "ok", "ok", "ok"]);
    assert_eq!(server.requests().iter().map(|r| r.connection).collect::<Vec<_>>(), [0, 1, 2, 3, 3]);
}

#[tokio::test]
async fn connections_of_pods_that_are_gone_are_closed() {
    let server = Server::http(|_| ok(BODY)).await;
    let mut scraper = scraper(limits());
    scraper.round(&one(&server)).await;
    assert_eq!(server.stats().ended, 0);
    scraper.round(&servers().build()).await;
    server.until(|stats| stats.ended == 1).await;
}

#[tokio::test]
async fn a_pod_with_the_same_identity_and_another_address_gets_a_new_connection() {
    let (old, new) = (Server::http(|_| ok(BODY)).await, Server::http(|_| ok(BODY)).await);
    let mut scraper = scraper(limits());
    let first = one(&old);
    scraper.round(&first).await;
    let mut moved = Deployment::clone(&first);
    let mut pod = (*moved.pods[0]).clone();
    pod.endpoint = Ok(new.url().parse().unwrap());
    moved.pods = vec![Arc::new(pod)];
    assert_eq!(only(&scraper.round(&Arc::new(moved)).await), "ok");
    assert_eq!((old.stats().requests, new.stats().requests), (1, 1));
}

/// A server that breaks off, before any byte of the answer, each first connection's second request.
async fn read_twice_over_a_stale_connection(step: Step, then: Vec<Step>) -> (String, Vec<(usize, usize)>) {
    let server = Server::http(move |request| match (request.connection, request.number) {
        (0, 0) => ok(BODY),
        (0, _) => vec![step.clone()],
        _ => then.clone(),
    })
    .await;
    let mut scraper = scraper(limits());
    let deployment = one(&server);
    assert_eq!(only(&scraper.round(&deployment).await), "ok");
    let second = only(&scraper.round(&deployment).await);
    (second, server.requests().iter().map(|r| (r.connection, r.number)).collect())
}

#[tokio::test]
async fn a_stale_kept_connection_is_tried_once_more_on_a_new_one() {
    for step in [Step::Close, Step::Reset] {
        let (second, requests) = read_twice_over_a_stale_connection(step, ok(BODY)).await;
        assert_eq!(second, "ok");
        assert_eq!(requests, [(0, 0), (0, 1), (1, 0)]);
    }
}

#[tokio::test]
async fn a_new_connection_is_never_tried_again() {
    let (second, requests) = read_twice_over_a_stale_connection(Step::Close, vec![Step::Close]).await;
    assert_eq!(second, "reset: the Pod closed the connection before it answered");
    assert_eq!(requests, [(0, 0), (0, 1), (1, 0)]);
}

#[tokio::test]
async fn a_kept_connection_that_broke_off_inside_the_answer_is_not_tried_again() {
    let server = Server::http(|request| match request.number {
        0 => ok(BODY),
        _ => vec![send("HTTP"), Step::Close],
    })
    .await;
    let mut scraper = scraper(limits());
    let deployment = one(&server);
    assert_eq!(only(&scraper.round(&deployment).await), "ok");
    let second = only(&scraper.round(&deployment).await);
    assert_eq!(second, "reset: the Pod closed the connection before it answered");
    assert_eq!(server.stats().requests, 2);
}

#[tokio::test]
async fn a_connection_that_the_pod_closed_while_it_was_idle_costs_nothing() {
    let gate = Arc::new(Semaphore::new(0));
    let closing = Arc::clone(&gate);
    let server = Server::http(move |request| {
        let mut steps = ok(BODY);
        if request.connection == 0 {
            steps.extend([Step::Gate(Arc::clone(&closing)), Step::Close]);
        }
        steps
    })
    .await;
    let mut scraper = scraper(limits());
    let deployment = one(&server);
    assert_eq!(only(&scraper.round(&deployment).await), "ok");
    gate.add_permits(1);
    server.until(|stats| stats.ended == 1).await;
    assert_eq!(only(&scraper.round(&deployment).await), "ok");
    assert_eq!(server.requests().iter().map(|r| r.connection).collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn one_redirect_to_the_same_origin_is_followed() {
    for code in [301, 302, 303, 307, 308] {
        let server = Server::http(move |request| match request.target() {
            "/metrics" => redirect(&format!("{code} x"), "/metrics/?a=b#c"),
            "/metrics/?a=b" => ok(BODY),
            _ => status("404 Not Found"),
        })
        .await;
        let mut scraper = scraper(limits());
        let deployment = one(&server);
        for _ in 0..2 {
            assert_eq!(only(&scraper.round(&deployment).await), "ok", "{code}");
        }
        let targets: Vec<_> = server.requests().iter().map(|r| r.target().to_owned()).collect();
        assert_eq!(targets, ["/metrics", "/metrics/?a=b", "/metrics", "/metrics/?a=b"]);
        assert_eq!(server.stats().connections, 1, "all over one connection");
    }
}

#[tokio::test]
async fn a_redirect_with_a_body_or_an_absolute_target_is_followed_too() {
    let server = Server::http(|request| match (request.target(), request.head.split("Host: ").nth(1)) {
        ("/metrics", Some(host)) => {
            let host = host.split("\r\n").next().unwrap_or_default();
            let head = format!("HTTP/1.1 302 Found\r\nLocation: HTTP://{host}/other\r\nContent-Length: 9\r\n\r\n");
            vec![send(head), Step::Hang]
        }
        _ => ok(BODY),
    })
    .await;
    assert_eq!(only(&scraper(limits()).round(&one(&server)).await), "ok");
    assert_eq!(server.requests()[1].target(), "/other");
}

#[tokio::test]
async fn reads_in_flight_are_bounded_and_results_keep_their_order() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let server = Server::http(move |_| vec![Step::Gate(Arc::clone(&opened)), ok(BODY).remove(0)]).await;
    let mut builder = servers();
    for index in 0..14 {
        builder = builder.pod(&format!("p-{index:02}"), "server", &server.url());
    }
    let deployment = builder.build();
    let mut scraper = scraper(ScrapeLimits { concurrency: 4, ..limits() });
    let reading = tokio::spawn(async move { scraper.round(&deployment).await });
    for answered in 0..14 {
        // As many are held as may be in flight and are left.
        let held = 4.min(14 - answered);
        server.until(|stats| stats.in_flight == held && stats.requests == answered + held).await;
        gate.add_permits(1);
    }
    let round = reading.await.unwrap();
    let names: Vec<_> = (0..14).map(|index| (format!("p-{index:02}"), "ok")).collect();
    assert_eq!(causes(&round), names);
    assert_eq!(server.stats().most_in_flight, 4);
}

#[tokio::test]
async fn pods_past_the_limit_are_omitted_in_reading_order() {
    let server = Server::http(|_| ok(BODY)).await;
    let url = server.url();
    let deployment = deployment()
        .router("vllm-router", 1)
        .role("prefill", RoleKind::Prefill, 2)
        .role("decode", RoleKind::Decode, 2)
        .pod("d-1", "decode", &url)
        .pod("d-0", "decode", &url)
        .pod("p-1", "prefill", &url)
        .pod_with("p-0", Some("prefill"), Err("it advertises no port"), &[])
        .router_pod("r-0", &url)
        .build();
    let mut scraper = scraper(ScrapeLimits { max_pods: 2, ..limits() });
    let round = scraper.round(&deployment).await;
    assert_eq!(causes(&round), [("r-0".to_owned(), "ok"), ("p-1".to_owned(), "ok")], "p-0 takes no place");
    assert_eq!(round.omitted.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["d-0", "d-1"]);
    assert_eq!(server.stats().requests, 2);
}

#[tokio::test]
async fn a_round_over_no_pods_is_one() {
    let round = scraper(limits()).round(&servers().build()).await;
    assert!(round.scraped.is_empty() && round.omitted.is_empty());
}

#[tokio::test]
async fn sixty_four_large_pods_are_read_whole() {
    let body = Arc::new("# some comment of thirty-two b.\n".repeat(32 * 1024));
    let served = Arc::clone(&body);
    let server = Server::http(move |_| ok(&served)).await;
    let mut builder = servers();
    for index in 0..64 {
        builder = builder.pod(&format!("p-{index:02}"), "server", &server.url());
    }
    let deployment = builder.build();
    let mut scraper = scraper(limits());
    let round = scraper.round(&deployment).await;
    assert!(round.scraped.iter().all(|s| s.result.is_ok()), "{:?}", causes(&round));
    assert!(round.scraped.iter().all(|s| s.body_bytes == body.len() as u64));
}

/// A clock that says how often it was asked.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Clock for Counting {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed) as u64)
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }
}

#[tokio::test]
async fn a_reading_carries_the_clocks_times_and_the_wanted_samples() {
    let server = Server::http(|_| ok(BODY)).await;
    let deployment = one(&server);
    let mut scraper = Scraper::new(network(), Arc::new(Counting::default()), limits());
    let round = scraper.round(&deployment).await;
    let scraped = &round.scraped[0];
    let reading = scraped.result.as_ref().unwrap();
    assert_eq!(reading.observed, SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    assert!(reading.at > Duration::ZERO && reading.at < round.took);
    assert!(scraped.took > Duration::ZERO);
    assert_eq!(scraped.body_bytes, BODY.len() as u64);
    let id = deployment.engine.wanted.id("vllm:num_requests_running").unwrap();
    assert_eq!(reading.samples.of(id).iter().map(|s| s.value).collect::<Vec<_>>(), [3.0]);
}

#[tokio::test(start_paused = true)]
async fn a_reading_is_of_the_moment_its_head_arrived() {
    let gate = Arc::new(Semaphore::new(0));
    let later = Arc::clone(&gate);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len());
    let memory =
        Memory::default().host("pod", move |_| vec![send(head.clone()), Step::Gate(Arc::clone(&later)), send(BODY)]);
    let deployment = servers().pod("p", "server", "http://pod/metrics").build();
    let mut scraper = Scraper::new(Arc::new(memory), Arc::new(SystemClock::start()), limits());
    let opening = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        gate.add_permits(1);
    };
    let (round, ()) = tokio::join!(scraper.round(&deployment), opening);
    let scraped = &round.scraped[0];
    assert_eq!(scraped.result.as_ref().map(|reading| reading.at.as_secs()).ok(), Some(0));
    assert_eq!(scraped.took.as_secs(), 7);
}

#[test]
fn causes_are_the_contracts_words() {
    let words: Vec<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    let contract = "timeout refused reset status redirect too-large truncated not-exposition tls other";
    assert_eq!(words.join(" "), contract);
}
