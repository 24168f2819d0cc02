//! Real Prometheus judges `/metrics`: `promtool check metrics` on every case's text, and a server that scrapes both
//! formats over HTTP and answers queries about what it stored.
//!
//! Prometheus 2.42 (Debian 12) always asks for OpenMetrics first and has no `scrape_protocols`, so the text format
//! reaches it through a proxy on loopback that replaces the `Accept` header.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

mod support_replay;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support_replay::{Case, Fleet, Served, announced_address, calculate, case, case_names, get};

const TEXT: &str = "text/plain;version=0.0.4";
const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
/// Prometheus and promtool come from Debian's package.
const INSTALL: &str = "is missing; install it with: apt-get install --no-install-recommends prometheus";
/// Rounds follow each other fast, and the first read stays the baseline for as long as a test can last.
const FAST: [(&str, &str); 3] = [("SCRAPE_INTERVAL", "200ms"), ("WINDOW", "5m"), ("COUNTER_MAX_AGE", "5m")];

fn tool(name: &str) -> String {
    let path = format!("/usr/bin/{name}");
    assert!(std::path::Path::new(&path).exists(), "{path} {INSTALL}");
    path
}

fn serve(case: &Case, fleet: &Fleet) -> Served {
    let mut env: Vec<(&str, &str)> = FAST.to_vec();
    env.extend(case.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Served::start(&fleet.file, &env)
}

/// What promtool says of an exposition: nothing, if it is sound.
fn promtool(text: &str) -> String {
    let mut child = Command::new(tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    child.stdin.take().expect("its stdin").write_all(text.as_bytes()).expect("the text is taken");
    let output = child.wait_with_output().expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { said } else { format!("{}: {said}", output.status) }
}

/// The value of a series in an exposition, its labels given in any order.
fn series(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labelled, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let all = labels.iter().all(|(label, value)| labelled.contains(&format!("{label}=\"{value}\"")));
        all.then(|| value.split(' ').next()?.parse().ok())?
    })
}

/// Whether each family has one TYPE line: a family that is split over two places has two.
fn families_in_one_block(text: &str) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next())
            && !seen.insert(name.to_owned())
        {
            return Err(format!("{name} has two TYPE lines"));
        }
    }
    Ok(())
}

fn check_case(name: &str) -> Result<(), String> {
    let case = case(name);
    let fleet = Fleet::start(&case);
    let served = serve(&case, &fleet);
    served.wait_for_rounds(3.0, Duration::from_secs(30));
    let (status, head, text) = served.get("/metrics", TEXT);
    let head = head.to_lowercase();
    if status != 200 || !head.contains("content-type: text/plain") {
        return Err(format!("{name}: the text was answered with {head}"));
    }
    let said = promtool(&text);
    if !said.is_empty() {
        return Err(format!("{name}: promtool says {said}\n{text}"));
    }
    families_in_one_block(&text).map_err(|error| format!("{name}: {error}\n{text}"))?;
    let (status, head, open) = served.get("/metrics", OPENMETRICS);
    if status != 200 || !head.to_lowercase().contains("content-type: application/openmetrics-text") {
        return Err(format!("{name}: OpenMetrics was answered with {head}"));
    }
    if !open.ends_with("# EOF\n") || open.matches("# EOF").count() != 1 {
        return Err(format!("{name}: OpenMetrics does not end with its end mark"));
    }
    families_in_one_block(&open).map_err(|error| format!("{name}: {error}\n{open}"))?;
    check_against_case(&case, &text).map_err(|error| format!("{name}: {error}\n{text}"))
}

/// What a case expects of the object, found again among the series.
fn check_against_case(case: &Case, text: &str) -> Result<(), String> {
    let expect = |name: &str, labels: &[(&str, &str)], value: Option<f64>| {
        let found = series(text, name, labels);
        let same = match (found, value) {
            (Some(found), Some(value)) => (found - value).abs() <= 1e-9 * value.abs().max(1e-3),
            (found, value) => found.is_none() && value.is_none(),
        };
        if same { Ok(()) } else { Err(format!("{name}{labels:?} is {found:?}, expected {value:?}")) }
    };
    let expected = &case.expected;
    let known = [("namespace", "team"), ("modeldeployment", "chat")];
    let readable = case.exit != 1;
    expect("modeldeployment_up", &known, Some(f64::from(u8::from(readable))))?;
    expect("modeldeployment_info", &known, Some(1.0))?;
    expect("modeldeployment_exporter_deployment_found", &[], Some(1.0))?;
    // A reset and a first sample are one round's; the later rounds have windows again.
    let has = |code: &str| expected.missing.iter().any(|missing| missing.code == code);
    if has("counter-reset") {
        return expect("modeldeployment_pod_resets_total", &[("pod", &case.pods[0].name)], Some(1.0));
    }
    if has("first-sample") {
        let failed = [("pod", case.pods[0].name.as_str()), ("cause", "status")];
        expect("modeldeployment_pod_scrape_failures_total", &failed, Some(1.0))?;
        return expect("modeldeployment_pod_up", &[("pod", &case.pods[0].name)], Some(1.0));
    }
    expect("modeldeployment_partial", &known, Some(f64::from(u8::from(case.exit != 0))))?;
    for missing in &expected.missing {
        let partial = !matches!(missing.code.as_str(), "not-exported-yet" | "unsupported-source" | "idle");
        let labels = [
            ("pod", missing.pod.as_str()),
            ("source", missing.source.as_str()),
            ("code", missing.code.as_str()),
            ("partial", if partial { "true" } else { "false" }),
        ];
        expect("modeldeployment_missing", &labels, Some(1.0))?;
    }
    let entries = text.lines().filter(|line| line.starts_with("modeldeployment_missing{")).count();
    if entries != expected.missing.len() {
        return Err(format!("{entries} missing series, expected {}", expected.missing.len()));
    }
    for hit in &expected.cache_hits {
        let labels = [("pod", hit.pod.as_str()), ("cache", hit.scope.as_str()), ("source", hit.source.as_str())];
        let (hits, queries) = (hit.hits.get(), hit.queries.get());
        expect("modeldeployment_cache_hit_ratio", &labels, Some(hits / queries))?;
        expect("modeldeployment_cache_window_hit_tokens", &labels, Some(hits))?;
        expect("modeldeployment_cache_window_query_tokens", &labels, Some(queries))?;
        // From 0 at the first read, the sums have grown by the one increase.
        expect("modeldeployment_cache_hit_tokens_total", &labels, Some(hits))?;
        expect("modeldeployment_cache_query_tokens_total", &labels, Some(queries))?;
    }
    for latency in &expected.latency {
        let scope = latency.scope.split('/').next().unwrap_or_default();
        // `source` of the sums is always the specification's name, of the mean the one that was read.
        let labels = [("pod", latency.pod.as_str()), ("scope", scope), ("source", latency.source.as_str())];
        let (value, samples) = (number(&latency.value), number(&latency.samples));
        expect(&format!("modeldeployment_{}_mean_seconds", latency.name), &labels, Some(value))?;
        expect(&format!("modeldeployment_{}_observations_total", latency.name), &labels[..2], Some(samples))?;
        expect(&format!("modeldeployment_{}_seconds_total", latency.name), &labels[..2], Some(value * samples))?;
    }
    for rate in expected.traffic.iter().filter(|entry| entry.increase.is_some()) {
        let name = format!("modeldeployment_router_{}_total", rate.name.replace('-', "_"));
        expect(&name, &[("pod", rate.pod.as_str())], Some(number(&rate.increase)))?;
    }
    for share in expected.traffic.iter().filter(|entry| entry.name == "error-ratio") {
        expect("modeldeployment_router_error_ratio", &[("pod", share.pod.as_str())], Some(number(&share.value)))?;
    }
    for transfer in &expected.transfer {
        let pod = [("pod", transfer.pod.as_str())];
        match transfer.name.as_str() {
            "transfer-latency" => {
                let value = number(&transfer.value) * 0.001;
                expect("modeldeployment_kv_transfer_latency_mean_seconds", &pod, Some(value))?;
            }
            "transfer-speed" => {
                let value = number(&transfer.value) * calculate("1024 * 1024 * 1024");
                expect("modeldeployment_kv_transfer_speed_mean_bytes_per_second", &pod, Some(value))?;
            }
            "transfer-failures" => {
                expect("modeldeployment_kv_transfer_failures_total", &pod, Some(number(&transfer.increase)))?;
            }
            _ => {
                // Bytes are every rank's, whatever their number.
                let bytes = number(&transfer.value) * number(&transfer.samples) * calculate("1024 * 1024");
                expect("modeldeployment_kv_transfer_bytes_total", &pod, Some(bytes))?;
            }
        }
    }
    // A value that is missing in the round has no series at all.
    for missing in expected.missing.iter().filter(|missing| missing.source.ends_with("-prefix")) {
        let labels = [("pod", missing.pod.as_str()), ("cache", missing.source.as_str())];
        expect("modeldeployment_cache_hit_ratio", &labels, None)?;
    }
    if expected.processing.iter().all(|gauge| gauge.name != "running")
        && text.contains("\nmodeldeployment_running_requests{")
    {
        return Err("running requests that no Pod exports".to_owned());
    }
    Ok(())
}

fn number(number: &Option<support_replay::Number>) -> f64 {
    number.as_ref().map_or(f64::NAN, support_replay::Number::get)
}

/// Text and OpenMetrics of every case: nothing for promtool to say, and the values of the case.
#[test]
fn promtool_finds_nothing_to_say() {
    tool("promtool");
    let queue = Mutex::new(case_names());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("the queue").pop();
                    let Some(name) = next else { return };
                    let result = std::panic::catch_unwind(|| check_case(&name));
                    let error = match result {
                        Ok(Ok(())) => continue,
                        Ok(Err(error)) => error,
                        Err(_) => format!("{name}: panicked (see above)"),
                    };
                    failures.lock().expect("the failures").push(error);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("the failures");
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// The size histogram of two ranks: transfers are one rank's, bytes are summed, the mean is their quotient.
#[test]
fn transfers_of_two_ranks() {
    let case = case("sglang-prefill-tp2-failures");
    let fleet = Fleet::start(&case);
    let served = serve(&case, &fleet);
    served.wait_for_rounds(3.0, Duration::from_secs(30));
    let (_, _, text) = served.get("/metrics", TEXT);
    let pod = [("pod", "chat-prefill-0"), ("role", "prefill")];
    let value = |name: &str| series(&text, name, &pod);
    // prefill_tp2_busy_first → prefill_tp2_after_failures, each of both ranks: 13 → 43 transfers of
    // 1400.625 → 5045.5 MiB in 123.91078399999999 → 438.7060138666667 ms, one failure.
    assert_eq!(value("modeldeployment_kv_transfers_total"), Some(30.0), "{text}");
    let bytes = 2.0 * (5045.5 - 1400.625) * 1_048_576.0;
    assert_eq!(value("modeldeployment_kv_transfer_bytes_total"), Some(bytes));
    let mean = value("modeldeployment_kv_transfer_size_mean_bytes").expect("a mean size");
    assert!((mean - bytes / 30.0).abs() < 1.0, "{mean}");
    let seconds = value("modeldeployment_kv_transfer_seconds_total").expect("seconds");
    assert!((seconds - (438.7060138666667 - 123.91078399999999) / 1000.0).abs() < 1e-9, "{seconds}");
    assert_eq!(value("modeldeployment_kv_transfer_failures_total"), Some(1.0));
}

/// The sums go on over an engine's restart: what it counted since then is added, and never taken away.
#[test]
fn sums_over_a_restart() {
    for (name, pod, family, value) in [
        // Known from the start time: every set adds its new value. server_after_restart_4_requests: 4 answers.
        ("vllm-server-restart-overtaken", "chat-server-0", "modeldeployment_ttft_observations_total", 4.0),
        ("vllm-server-restart-overtaken", "chat-server-0", "modeldeployment_cache_query_tokens_total", 547.0),
        // Known from the start time, all of them at zero.
        ("vllm-server-restart", "chat-server-0", "modeldeployment_itl_observations_total", 0.0),
        // Known from the absence of everything.
        ("vllm-router-restart", "chat-router-0", "modeldeployment_router_successful_requests_total", 0.0),
        // Known from a fall, 10 → 3.
        ("vllm-router-restart-later", "chat-router-0", "modeldeployment_router_successful_requests_total", 3.0),
        // Known from a fall, 7 → 2 and 3 → 1 (6 → 2 and 4 → 1 in 0.3.2).
        ("smg-restart-later", "chat-router-0", "modeldeployment_router_requests_total", 3.0),
        ("sglang-router-restart-later", "chat-router-0", "modeldeployment_router_requests_total", 3.0),
        // The readiness probe's 503 stood at 1 before and after in 1.13.0: its difference is added.
        ("smg-restart-later", "chat-router-0", "modeldeployment_router_http_5xx_responses_total", 0.0),
    ] {
        let case = case(name);
        let fleet = Fleet::start(&case);
        let served = serve(&case, &fleet);
        served.wait_for_rounds(3.0, Duration::from_secs(30));
        let (_, _, text) = served.get("/metrics", TEXT);
        // Of the caches the local one: an attached pool's counters are another series of the same family.
        let cache = family.contains("_cache_").then_some(("cache", "local-prefix"));
        let labels: Vec<(&str, &str)> = [("pod", pod)].into_iter().chain(cache).collect();
        assert_eq!(series(&text, family, &labels), Some(value), "{name}: {family}\n{text}");
    }
}

/// Passes requests on with an `Accept` header that asks for the text format alone.
fn text_only_proxy(target: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let types = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&types);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || pass_on(client, target, &shared));
        }
    });
    (address, types)
}

fn pass_on(mut client: TcpStream, target: SocketAddr, types: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    for line in BufReader::new(client.try_clone()?).lines() {
        let line = line?;
        let name = line.split(':').next().unwrap_or_default().to_lowercase();
        match name.as_str() {
            "" => break,
            "accept" => request.push(format!("Accept: {TEXT}")),
            "accept-encoding" | "connection" => {}
            _ => request.push(line),
        }
    }
    request.push("Connection: close\r\n\r\n".to_owned());
    let mut server = TcpStream::connect(target)?;
    server.write_all(request.join("\r\n").as_bytes())?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(1000)]).to_lowercase();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    types.lock().expect("types").push(content_type.to_owned());
    client.write_all(&answer)
}

/// A Prometheus server that ends with its test.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(jobs: &[(String, SocketAddr)]) -> Prometheus {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = "global: {scrape_interval: 1s, scrape_timeout: 900ms}\nscrape_configs:\n".to_owned();
        for (job, address) in jobs {
            config += &format!(
                "  - {{job_name: \"{job}\", honor_labels: true, static_configs: [{{targets: [\"{address}\"]}}]}}\n"
            );
        }
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config).expect("the configuration");
        let mut child = Command::new(tool("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("prometheus starts");
        let log = child.stderr.take().expect("its log");
        let address = announced_address(log, "listening on", Duration::from_secs(30));
        let Some(address) = address else {
            let _ = child.kill();
            panic!("Prometheus does not say where it listens");
        };
        Prometheus { child, address, _directory: directory }
    }

    fn api(&self, path: &str) -> Value {
        let (status, _, body) = get(self.address, path, "application/json");
        if status != 200 {
            return Value::Null;
        }
        serde_json::from_str(&body).expect("JSON")
    }

    /// The instant vector of a query: labels and value.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.api(&format!("/api/v1/query?query={escaped}"));
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let value = |entry: &Value| entry["value"][1].as_str().and_then(|value| value.parse().ok()).unwrap_or(f64::NAN);
        results.iter().map(|entry| (entry["metric"].clone(), value(entry))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A real Prometheus scrapes both formats without an error and stores the measured labels.
#[test]
fn prometheus_reads_both_formats() {
    let names = ["sglang-pair-busy", "vllm-pair-llm-d", "smg-backends-down", "vllm-router-restart", "fleet-unreadable"];
    let cases = names.map(case);
    let fleets = cases.each_ref().map(Fleet::start);
    let served: Vec<Served> = cases.iter().zip(&fleets).map(|(case, fleet)| serve(case, fleet)).collect();
    let mut jobs = Vec::new();
    let mut types = Vec::new();
    for (name, served) in names.iter().zip(&served) {
        served.wait_for_rounds(3.0, Duration::from_secs(30));
        let (proxy, seen) = text_only_proxy(served.address);
        types.push(seen);
        jobs.push((format!("openmetrics/{name}"), served.address));
        jobs.push((format!("text/{name}"), proxy));
    }
    let prometheus = Prometheus::start(&jobs);

    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let up = prometheus.query("up");
        let scraped = prometheus.query("count by (job) (modeldeployment_info)");
        if up.len() == jobs.len() && up.iter().all(|(_, value)| *value == 1.0) && scraped.len() == jobs.len() {
            break;
        }
        let targets = prometheus.api("/api/v1/targets");
        assert!(Instant::now() < end, "up: {up:?}\ninfo: {scraped:?}\ntargets: {targets:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let targets = prometheus.api("/api/v1/targets");
    let active = targets["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
    assert_eq!(active.len(), jobs.len(), "{targets:#}");
    for target in &active {
        assert_eq!((target["health"].as_str(), target["lastError"].as_str()), (Some("up"), Some("")), "{target:#}");
    }
    for types in types {
        let types = types.lock().expect("types").clone();
        assert!(!types.is_empty() && types.iter().all(|kind| kind.starts_with("text/plain")), "{types:?}");
    }

    // sglang-0.5.23: prefill_busy_first → prefill_busy_second, device hits 715 → 2402 of 28029 → 84957 tokens;
    // decode_busy_first → decode_busy_second, TTFT sums over both is_streaming sets; gauges of the second reads.
    let ttft = calculate("(11.89784398199953 - 2.851248385609223) + (8.594560868210941 - 3.0108609656336203)");
    let source = "source=\"sglang:prefill_effective_tokens_total\"";
    let ratio = format!("modeldeployment_cache_hit_ratio{{cache=\"device-prefix\",{source}}}");
    let expected = [
        ("modeldeployment_running_requests{role=\"prefill\"}", "chat-prefill-0", 8.0),
        ("modeldeployment_running_requests{role=\"decode\",scope=\"engine\"}", "chat-decode-0", 8.0),
        ("modeldeployment_decode_transfer_waiting_requests", "chat-decode-0", 4.0),
        ("modeldeployment_router_running_requests", "chat-router-0", 22.0),
        ("modeldeployment_ttft_seconds_total", "chat-decode-0", ttft),
        ("modeldeployment_ttft_observations_total", "chat-decode-0", 30.0),
        (ratio.as_str(), "chat-prefill-0", (2402.0 - 715.0) / (84957.0 - 28029.0)),
    ];
    for (query, pod, value) in expected {
        let mut found = prometheus.query(query);
        found.retain(|(labels, _)| labels["job"].as_str().is_some_and(|job| job.ends_with("/sglang-pair-busy")));
        let mut jobs: Vec<&str> = found.iter().filter_map(|(labels, _)| labels["job"].as_str()).collect();
        jobs.sort_unstable();
        assert_eq!(jobs, ["openmetrics/sglang-pair-busy", "text/sglang-pair-busy"], "{query}: {found:?}");
        for (labels, stored) in &found {
            assert!((stored - value).abs() <= 1e-9 * value, "{query} is {stored}, expected {value}");
            let names = [&labels["pod"], &labels["namespace"], &labels["modeldeployment"]];
            assert!(names.iter().zip([pod, "team", "chat"]).all(|(name, value)| **name == *value), "{query}: {labels}");
            for reserved in ["exported_pod", "exported_namespace", "container", "endpoint", "service"] {
                assert_eq!(labels[reserved], Value::Null, "{query} has the label {reserved}");
            }
        }
    }
    // Series about no single Pod carry an empty `pod`, which Prometheus stores as no label.
    let partial = prometheus.query("modeldeployment_partial");
    assert!(
        partial.len() == jobs.len() && partial.iter().all(|(labels, _)| labels["pod"] == Value::Null),
        "{partial:?}"
    );
    let kinds = prometheus.query("modeldeployment_info{engine=\"SGLang\",router=\"sglang-gateway\",pair=\"true\"}");
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    let metadata = prometheus.api("/api/v1/targets/metadata?metric=modeldeployment_ttft_seconds_total");
    let types: Vec<&str> =
        metadata["data"].as_array().into_iter().flatten().filter_map(|m| m["type"].as_str()).collect();
    assert!(types.iter().all(|kind| *kind == "counter"), "{metadata:#}");
}
