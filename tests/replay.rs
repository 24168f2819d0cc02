//! Replays captured expositions through the whole program and judges the whole object it prints.
//!
//! Each case file under `fixtures/expected` holds a deployment, what each Pod answers to its first and later reads,
//! and every entry of the object with the arithmetic over the fixtures' numbers. Nothing here knows a rule: rates
//! are compared as increases (value × window) because the window is a real one.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

mod support_replay;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support_replay::{
    Answer, Case, Fleet, Gauge, Missing, Number, SECRET, Windowed, calculate, case, case_names, program,
};

/// The sentences of a case's missing entries, by what tells them apart.
type Reasons = BTreeMap<String, String>;

/// Runs one case and compares everything that the program printed.
async fn replay(name: &str) -> Reasons {
    let case = case(name);
    let fleet = Fleet::start(&case);
    let started = Instant::now();
    let before = unix_seconds();
    let output = program(&fleet.file).args(["snapshot", "--format", "json", "--wait", "1s"]).envs(&case.env).output();
    let output = tokio::time::timeout(Duration::from_secs(40), output).await.expect("snapshot ends in time");
    let output = output.expect("the program runs");
    let elapsed = started.elapsed().as_secs_f64();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!stdout.contains(SECRET) && !stderr.contains(SECRET), "an argument was printed:\n{stdout}\n{stderr}");
    let object: Value = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}\nstdout: {stdout}\nstderr: {stderr}"));
    let judge = Judge { case: &case, object: &object, before, elapsed };
    let (mut wrong, reasons) = judge.judge();
    if output.status.code() != Some(case.exit) {
        wrong.push(format!("exit status {:?}, expected {}", output.status.code(), case.exit));
    }
    wrong.extend(check_requests(&case, &fleet));
    assert!(wrong.is_empty(), "{name}: {}\n{}\nobject: {object:#}\nstderr: {stderr}", case.about, wrong.join("\n"));
    reasons
}

/// What the program asked the Pods (contract, section 4).
fn check_requests(case: &Case, fleet: &Fleet) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, server) in &fleet.pods {
        for head in server.heads() {
            let lower = head.to_lowercase();
            let accept: Vec<&str> =
                lower.lines().filter_map(|line| line.strip_prefix("accept:")).map(str::trim).collect();
            if !head.starts_with("GET /metrics HTTP/1.1\r\n") {
                wrong.push(format!("{name} was asked {head:?}"));
            }
            if accept != ["text/plain;version=0.0.4"] {
                wrong.push(format!("{name} was asked for {accept:?}"));
            }
            if lower.contains("accept-encoding:") {
                wrong.push(format!("{name} was asked to compress"));
            }
        }
        let answer = case.pods.iter().find(|pod| pod.name == *name).map(|pod| pod.answer);
        let omitted = server.heads().is_empty();
        // A connection whose answer is no exposition is not kept.
        let readable = !case.expected.missing.iter().any(|entry| entry.pod == *name && entry.source == "scrape");
        if answer == Some(Answer::Reads)
            && readable
            && !omitted
            && (server.heads().len(), server.connections()) != (2, 1)
        {
            let (reads, connections) = (server.heads().len(), server.connections());
            wrong.push(format!("{name} was asked {reads} times on {connections} connections, not twice on one"));
        }
    }
    wrong
}

/// Compares an object with what a case expects.
struct Judge<'a> {
    case: &'a Case,
    object: &'a Value,
    /// When the program was started, in Unix seconds.
    before: u64,
    /// How long it ran.
    elapsed: f64,
}

impl Judge<'_> {
    fn judge(&self) -> (Vec<String>, Reasons) {
        let expected = &self.case.expected;
        let mut wrong = Vec::new();
        let object = self.object;
        for (key, value) in [("apiVersion", "worker.gpustack.ai/v1"), ("kind", "ModelDeploymentMetrics")] {
            if object[key] != value {
                wrong.push(format!("{key} is {}", object[key]));
            }
        }
        if object["metadata"] != serde_json::json!({"name": "chat", "namespace": "team"}) {
            wrong.push(format!("metadata is {}", object["metadata"]));
        }
        let mut keys = BTreeSet::from(["apiVersion", "kind", "metadata", "timestamp", "partial"]);
        let lists = [
            ("processing", expected.processing.len()),
            ("queueing", expected.queueing.len()),
            ("cacheHits", expected.cache_hits.len()),
            ("latency", expected.latency.len()),
            ("traffic", expected.traffic.len()),
            ("transfer", expected.transfer.len()),
            ("missing", expected.missing.len()),
        ];
        keys.extend(lists.iter().filter(|(_, length)| *length > 0).map(|(name, _)| *name));
        let found: BTreeSet<&str> = object.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        if found != keys {
            wrong.push(format!("the object has {found:?}, expected {keys:?}"));
        }
        for (name, length) in lists {
            let entries = self.list(name);
            if entries.len() != length {
                wrong.push(format!("{name} has {} entries, expected {length}", entries.len()));
            }
        }
        let timestamp = self.time(&object["timestamp"], "timestamp", &mut wrong);
        let latest = |entry: &Value| seconds(entry["observedAt"].as_str().unwrap_or_default());
        for (name, _) in lists {
            if self.list(name).iter().filter_map(latest).max() > timestamp {
                wrong.push(format!("{name} has an entry that was read after the object was assembled"));
            }
        }

        for (list, gauges) in [("processing", &expected.processing), ("queueing", &expected.queueing)] {
            for (index, gauge) in gauges.iter().enumerate() {
                self.gauge(list, index, gauge, &mut wrong);
            }
        }
        for (index, hit) in expected.cache_hits.iter().enumerate() {
            let entry = self.entry("cacheHits", index);
            let mut check = Check::new(format!("cacheHits[{index}]"), entry, &mut wrong);
            check.keys(&[
                "pod",
                "source",
                "scope",
                "unit",
                "hits",
                "queries",
                "rate",
                "windowSeconds",
                "podCount",
                "observedAt",
            ]);
            check.texts(&[("pod", &hit.pod), ("source", &hit.source), ("scope", &hit.scope), ("unit", "tokens")]);
            let (hits, queries) = (hit.hits.get(), hit.queries.get());
            check.number("hits", hits);
            check.number("queries", queries);
            check.number("rate", hits / queries);
            check.number("podCount", 1.0);
            self.window(&mut check);
            self.time(&entry["observedAt"], "observedAt", &mut wrong);
        }
        for (list, entries) in
            [("latency", &expected.latency), ("traffic", &expected.traffic), ("transfer", &expected.transfer)]
        {
            for (index, windowed) in entries.iter().enumerate() {
                self.windowed(list, index, windowed, &mut wrong);
            }
        }
        let reasons = self.missing(&mut wrong);
        let partial = expected
            .missing
            .iter()
            .any(|entry| !matches!(entry.code.as_str(), "not-exported-yet" | "unsupported-source" | "idle"));
        if object["partial"] != Value::Bool(partial) {
            wrong.push(format!("partial is {}, expected {partial}", object["partial"]));
        }
        assert_eq!(
            partial,
            self.case.exit != 0,
            "the case file's exit status does not follow from its missing entries"
        );
        (wrong, reasons)
    }

    fn gauge(&self, list: &str, index: usize, gauge: &Gauge, wrong: &mut Vec<String>) {
        let entry = self.entry(list, index);
        let mut check = Check::new(format!("{list}[{index}]"), entry, wrong);
        check.keys(&["name", "source", "scope", "unit", "value", "podCount", "observedAt"]);
        check.texts(&[
            ("name", &gauge.name),
            ("source", &gauge.source),
            ("scope", &gauge.scope),
            ("unit", &gauge.unit),
        ]);
        check.number("value", gauge.value.get());
        check.number("podCount", gauge.pod_count as f64);
        self.time(&entry["observedAt"], "observedAt", wrong);
    }

    fn windowed(&self, list: &str, index: usize, windowed: &Windowed, wrong: &mut Vec<String>) {
        let entry = self.entry(list, index);
        let mut check = Check::new(format!("{list}[{index}]"), entry, wrong);
        check.keys(&["name", "pod", "source", "scope", "unit", "value", "samples", "windowSeconds", "observedAt"]);
        check.texts(&[
            ("name", &windowed.name),
            ("pod", &windowed.pod),
            ("source", &windowed.source),
            ("scope", &windowed.scope),
            ("unit", &windowed.unit),
        ]);
        self.window(&mut check);
        match (&windowed.increase, &windowed.value, &windowed.samples) {
            (Some(increase), None, None) => {
                let increase = increase.get();
                check.number("samples", increase);
                let window = entry["windowSeconds"].as_f64().unwrap_or(f64::NAN);
                check.number("value", increase / window);
            }
            (None, Some(value), Some(samples)) => {
                check.number("value", value.get());
                check.number("samples", samples.get());
            }
            _ => panic!("a case gives an increase, or a value and samples: {windowed:?}"),
        }
        self.time(&entry["observedAt"], "observedAt", wrong);
    }

    fn missing(&self, wrong: &mut Vec<String>) -> Reasons {
        let mut reasons = Reasons::new();
        for (index, expected) in self.case.expected.missing.iter().enumerate() {
            let entry = self.entry("missing", index);
            let mut check = Check::new(format!("missing[{index}]"), entry, wrong);
            let keys: &[&str] = &["pod", "source", "reason", "code", "cause"];
            check.keys(&keys[..if expected.cause.is_some() { 5 } else { 4 }]);
            check.texts(&[("pod", &expected.pod), ("source", &expected.source), ("code", &expected.code)]);
            if let Some(cause) = &expected.cause {
                check.texts(&[("cause", cause)]);
            }
            let reason = entry["reason"].as_str().unwrap_or_default();
            if reason.trim().is_empty() {
                wrong.push(format!("missing[{index}] has no reason"));
            }
            for word in &expected.says {
                if !reason.contains(word.as_str()) {
                    wrong.push(format!("missing[{index}] does not say {word:?}: {reason}"));
                }
            }
            reasons.insert(distinction(expected), reason.to_owned());
        }
        for (one, first) in &reasons {
            for (other, second) in
                reasons.range::<String, _>((std::ops::Bound::Excluded(one), std::ops::Bound::Unbounded))
            {
                if first == second {
                    wrong.push(format!("{one} and {other} have one sentence: {first}"));
                }
            }
        }
        reasons
    }

    fn list(&self, name: &str) -> &[Value] {
        self.object[name].as_array().map_or(&[], Vec::as_slice)
    }

    fn entry(&self, list: &str, index: usize) -> &Value {
        self.list(list).get(index).unwrap_or(&Value::Null)
    }

    /// A window lasts from one read to the next, which are `--wait` apart.
    fn window(&self, check: &mut Check) {
        let window = check.entry["windowSeconds"].as_f64().unwrap_or(f64::NAN);
        if !(0.5..=self.elapsed).contains(&window) {
            let place = &check.place;
            check.wrong.push(format!("{place} has a window of {window} s in a run of {} s", self.elapsed));
        }
    }

    /// RFC 3339 in UTC with whole seconds, from within the run.
    fn time(&self, value: &Value, what: &str, wrong: &mut Vec<String>) -> Option<u64> {
        let time = value.as_str().and_then(seconds);
        match time {
            Some(time) if (self.before..=unix_seconds()).contains(&time) => {}
            _ => wrong.push(format!("{what} is {value}")),
        }
        time
    }
}

/// What must have a sentence of its own: each code, each cause, and what the case tells apart.
fn distinction(missing: &Missing) -> String {
    let more = missing.why.as_deref().or(missing.cause.as_deref()).unwrap_or_default();
    // Counts differ from part to part, so do their sentences.
    let part = if missing.says.is_empty() { "" } else { missing.source.as_str() };
    format!("{} {more} {part}", missing.code).trim_end().to_owned()
}

/// One entry and where its errors go.
struct Check<'a> {
    place: String,
    entry: &'a Value,
    wrong: &'a mut Vec<String>,
}

impl<'a> Check<'a> {
    fn new(place: String, entry: &'a Value, wrong: &'a mut Vec<String>) -> Self {
        Check { place, entry, wrong }
    }

    fn keys(&mut self, expected: &[&str]) {
        let found: BTreeSet<&str> = self.entry.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let expected = expected.iter().copied().collect();
        if found != expected {
            self.wrong.push(format!("{} has the keys {found:?}, expected {expected:?}", self.place));
        }
    }

    fn texts(&mut self, expected: &[(&str, &str)]) {
        for (key, text) in expected {
            if self.entry[*key] != **text {
                self.wrong.push(format!("{}.{key} is {}, expected {text:?}", self.place, self.entry[*key]));
            }
        }
    }

    fn number(&mut self, key: &str, expected: f64) {
        let found = self.entry[key].as_f64().unwrap_or(f64::NAN);
        // Sums of the same numbers in another order differ in the last digits.
        let near = (found - expected).abs() <= 1e-9 * expected.abs().max(1e-3);
        if !near {
            self.wrong.push(format!("{}.{key} is {}, expected {expected}", self.place, self.entry[key]));
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs()
}

/// `2026-01-02T03:04:05Z` in Unix seconds; nothing for any other form.
fn seconds(text: &str) -> Option<u64> {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    if shape != "0000-00-00T00:00:00Z" {
        return None;
    }
    humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

/// Every case file is replayed by a test of its name, and every test has its case file.
#[test]
fn every_case_has_a_test() {
    let source = include_str!("replay.rs");
    let cases: BTreeSet<String> = case_names().into_iter().collect();
    let replayed: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("replay(\""))
        .filter_map(|rest| rest.strip_suffix("\").await;"))
        .map(str::to_owned)
        .collect();
    assert_eq!(cases, replayed);
    for name in &cases {
        let function = format!("async fn {}()", name.replace(['-', '.'], "_"));
        assert!(source.contains(&function), "no test is named for {name}");
    }
}

/// The case files themselves: sorted as the contract sorts, every fixture there, every number readable.
#[test]
fn case_files_are_sound() {
    let codes = [
        "unreadable",
        "no-endpoint",
        "no-pod",
        "replicas-missing",
        "pod-limit",
        "discovery-stale",
        "metric-absent",
        "first-sample",
        "counter-reset",
        "incompatible-denominator",
        "no-queries",
        "no-observations",
        "windows-differ",
        "no-requests",
        "errors-exceed-requests",
        "not-exported-yet",
        "unsupported-source",
        "idle",
    ];
    for name in case_names() {
        let case = case(&name);
        for read in case.pods.iter().flat_map(|pod| &pod.reads) {
            support_replay::fixture(read);
        }
        let expected = &case.expected;
        for gauges in [&expected.processing, &expected.queueing] {
            assert!(gauges.is_sorted_by_key(|g| (g.name.clone(), g.scope.clone(), g.source.clone())), "{name}: gauges");
            assert!(gauges.iter().all(|gauge| gauge.value.get().is_finite()), "{name}: gauges");
        }
        assert!(expected.cache_hits.is_sorted_by_key(|hit| (hit.pod.clone(), hit.scope.clone())), "{name}: cacheHits");
        for hit in &expected.cache_hits {
            assert!(hit.hits.get() <= hit.queries.get() && hit.queries.get() > 0.0, "{name}: {hit:?}");
        }
        for list in [&expected.latency, &expected.traffic, &expected.transfer] {
            assert!(list.is_sorted_by_key(|entry| (entry.pod.clone(), entry.name.clone())), "{name}: windows");
            let positive = |number: &Option<Number>| number.as_ref().is_none_or(|number| number.get() >= 0.0);
            assert!(list.iter().all(|e| positive(&e.increase) && positive(&e.value) && positive(&e.samples)), "{name}");
        }
        let key = |entry: &Missing| (entry.pod.clone(), entry.source.clone(), entry.code.clone());
        assert!(expected.missing.is_sorted_by_key(key), "{name}: missing");
        let unique: BTreeSet<_> = expected.missing.iter().map(key).collect();
        assert_eq!(unique.len(), expected.missing.len(), "{name}: missing entries are unique");
        assert!(expected.missing.iter().all(|entry| codes.contains(&entry.code.as_str())), "{name}: codes");
    }
}

#[test]
fn arithmetic_of_case_files() {
    for (text, value) in [
        ("320411 - 71440", 248971.0),
        ("(83.5 - 18.25) / (1383 - 309)", 65.25 / 1074.0),
        ("2 + 3 * 4 - 5", 9.0),
        ("(8 - 2) - (3 - 1)", 4.0),
        ("16", 16.0),
    ] {
        assert_eq!(calculate(text), value, "{text}");
    }
}

/// No connector, no pool and decode half are three sentences (contract, section 6), and so are the others that
/// share a code in different deployments.
#[tokio::test]
async fn reasons_are_their_own_sentences() {
    let mut reasons = Reasons::new();
    for name in [
        "vllm-pair-pool-prefill-without-connector",
        "vllm-connector-without-pool",
        "vllm-router-pd-busy",
        "vllm-router-random",
        "sglang-router-fresh-random",
        "sglang-server-busy",
    ] {
        for (distinction, reason) in replay(name).await {
            // A rule that a case does not tell apart by name is told apart by the case.
            let unnamed = distinction == "unsupported-source";
            reasons.insert(if unnamed { format!("{distinction} {name}") } else { distinction }, reason);
        }
    }
    let sentences: BTreeSet<&String> = reasons.values().collect();
    assert_eq!(sentences.len(), reasons.len(), "different reasons share a sentence: {reasons:#?}");
}

#[tokio::test]
async fn arguments_policy() {
    replay("arguments-policy").await;
}

#[tokio::test]
async fn arguments_sglang() {
    replay("arguments-sglang").await;
}

#[tokio::test]
async fn arguments_vllm() {
    replay("arguments-vllm").await;
}

#[tokio::test]
async fn deployment_spelling() {
    replay("deployment-spelling").await;
}

#[tokio::test]
async fn fleet_bodies() {
    replay("fleet-bodies").await;
}

#[tokio::test]
async fn fleet_expected_pods() {
    replay("fleet-expected-pods").await;
}

#[tokio::test]
async fn fleet_first_sample() {
    replay("fleet-first-sample").await;
}

#[tokio::test]
async fn fleet_none_readable() {
    replay("fleet-none-readable").await;
}

#[tokio::test]
async fn fleet_pod_limit() {
    replay("fleet-pod-limit").await;
}

#[tokio::test]
async fn fleet_proxy_ignored() {
    replay("fleet-proxy-ignored").await;
}

#[tokio::test]
async fn fleet_redirect_and_close() {
    replay("fleet-redirect-and-close").await;
}

#[tokio::test]
async fn fleet_unreadable() {
    replay("fleet-unreadable").await;
}

#[tokio::test]
async fn handmade_gateway_more_errors() {
    replay("handmade-gateway-more-errors").await;
}

#[tokio::test]
async fn handmade_gateway_without_http() {
    replay("handmade-gateway-without-http").await;
}

#[tokio::test]
async fn handmade_llm_d_both_names() {
    replay("handmade-llm-d-both-names").await;
}

#[tokio::test]
async fn handmade_sglang_unequal_ranks() {
    replay("handmade-sglang-unequal-ranks").await;
}

#[tokio::test]
async fn handmade_vllm_awkward() {
    replay("handmade-vllm-awkward").await;
}

#[tokio::test]
async fn handmade_vllm_created_4s_later() {
    replay("handmade-vllm-created-4s-later").await;
}

#[tokio::test]
async fn handmade_vllm_created_6s_later() {
    replay("handmade-vllm-created-6s-later").await;
}

#[tokio::test]
async fn handmade_vllm_more_hits() {
    replay("handmade-vllm-more-hits").await;
}

#[tokio::test]
async fn handmade_vllm_started_4s_later() {
    replay("handmade-vllm-started-4s-later").await;
}

#[tokio::test]
async fn handmade_vllm_started_6s_later() {
    replay("handmade-vllm-started-6s-later").await;
}

#[tokio::test]
async fn handmade_vllm_without_external() {
    replay("handmade-vllm-without-external").await;
}

#[tokio::test]
async fn llm_d_idle() {
    replay("llm-d-idle").await;
}

#[tokio::test]
async fn llm_d_no_errors_no_tpot() {
    replay("llm-d-no-errors-no-tpot").await;
}

#[tokio::test]
async fn llm_d_older_names() {
    replay("llm-d-older-names").await;
}

#[tokio::test]
async fn sglang_0_5_9_pair() {
    replay("sglang-0.5.9-pair").await;
}

#[tokio::test]
async fn sglang_0_5_9_server_busy() {
    replay("sglang-0.5.9-server-busy").await;
}

#[tokio::test]
async fn sglang_0_5_9_server_empty() {
    replay("sglang-0.5.9-server-empty").await;
}

#[tokio::test]
async fn sglang_0_5_9_server_first_requests() {
    replay("sglang-0.5.9-server-first-requests").await;
}

#[tokio::test]
async fn sglang_dp2() {
    replay("sglang-dp2").await;
}

#[tokio::test]
async fn sglang_pair_busy() {
    replay("sglang-pair-busy").await;
}

#[tokio::test]
async fn sglang_pair_failures() {
    replay("sglang-pair-failures").await;
}

#[tokio::test]
async fn sglang_pair_idle() {
    replay("sglang-pair-idle").await;
}

#[tokio::test]
async fn sglang_pp2() {
    replay("sglang-pp2").await;
}

#[tokio::test]
async fn sglang_prefill_tp2() {
    replay("sglang-prefill-tp2").await;
}

#[tokio::test]
async fn sglang_prefill_tp2_failures() {
    replay("sglang-prefill-tp2-failures").await;
}

#[tokio::test]
async fn sglang_priority() {
    replay("sglang-priority").await;
}

#[tokio::test]
async fn sglang_router_backends_down() {
    replay("sglang-router-backends-down").await;
}

#[tokio::test]
async fn sglang_router_busy() {
    replay("sglang-router-busy").await;
}

#[tokio::test]
async fn sglang_router_busy_after_errors() {
    replay("sglang-router-busy-after-errors").await;
}

#[tokio::test]
async fn sglang_router_failing_400() {
    replay("sglang-router-failing-400").await;
}

#[tokio::test]
async fn sglang_router_fresh() {
    replay("sglang-router-fresh").await;
}

#[tokio::test]
async fn sglang_router_fresh_random() {
    replay("sglang-router-fresh-random").await;
}

#[tokio::test]
async fn sglang_router_no_requests() {
    replay("sglang-router-no-requests").await;
}

#[tokio::test]
async fn sglang_router_no_workers() {
    replay("sglang-router-no-workers").await;
}

#[tokio::test]
async fn sglang_router_pd_busy() {
    replay("sglang-router-pd-busy").await;
}

#[tokio::test]
async fn sglang_router_pd_decode_400() {
    replay("sglang-router-pd-decode-400").await;
}

#[tokio::test]
async fn sglang_router_pd_decode_500() {
    replay("sglang-router-pd-decode-500").await;
}

#[tokio::test]
async fn sglang_router_power_of_two() {
    replay("sglang-router-power-of-two").await;
}

#[tokio::test]
async fn sglang_router_restart() {
    replay("sglang-router-restart").await;
}

#[tokio::test]
async fn sglang_router_restart_later() {
    replay("sglang-router-restart-later").await;
}

#[tokio::test]
async fn sglang_server_busy() {
    replay("sglang-server-busy").await;
}

#[tokio::test]
async fn sglang_server_busy_host_tier() {
    replay("sglang-server-busy-host-tier").await;
}

#[tokio::test]
async fn sglang_server_busy_pool() {
    replay("sglang-server-busy-pool").await;
}

#[tokio::test]
async fn sglang_server_busy_tiers() {
    replay("sglang-server-busy-tiers").await;
}

#[tokio::test]
async fn sglang_server_first_requests() {
    replay("sglang-server-first-requests").await;
}

#[tokio::test]
async fn sglang_server_fresh() {
    replay("sglang-server-fresh").await;
}

#[tokio::test]
async fn sglang_server_idle() {
    replay("sglang-server-idle").await;
}

#[tokio::test]
async fn sglang_server_idle_pool() {
    replay("sglang-server-idle-pool").await;
}

#[tokio::test]
async fn sglang_server_restart() {
    replay("sglang-server-restart").await;
}

#[tokio::test]
async fn sglang_server_warmup_only() {
    replay("sglang-server-warmup-only").await;
}

#[tokio::test]
async fn sglang_server_without_itl() {
    replay("sglang-server-without-itl").await;
}

#[tokio::test]
async fn sglang_tp2_all_schedulers() {
    replay("sglang-tp2-all-schedulers").await;
}

#[tokio::test]
async fn smg_backends_down() {
    replay("smg-backends-down").await;
}

#[tokio::test]
async fn smg_busy() {
    replay("smg-busy").await;
}

#[tokio::test]
async fn smg_busy_after_errors() {
    replay("smg-busy-after-errors").await;
}

#[tokio::test]
async fn smg_failing_400() {
    replay("smg-failing-400").await;
}

#[tokio::test]
async fn smg_fresh() {
    replay("smg-fresh").await;
}

#[tokio::test]
async fn smg_fresh_random() {
    replay("smg-fresh-random").await;
}

#[tokio::test]
async fn smg_no_requests() {
    replay("smg-no-requests").await;
}

#[tokio::test]
async fn smg_no_workers() {
    replay("smg-no-workers").await;
}

#[tokio::test]
async fn smg_pd_decode_400() {
    replay("smg-pd-decode-400").await;
}

#[tokio::test]
async fn smg_pd_decode_500() {
    replay("smg-pd-decode-500").await;
}

#[tokio::test]
async fn smg_power_of_two() {
    replay("smg-power-of-two").await;
}

#[tokio::test]
async fn smg_restart() {
    replay("smg-restart").await;
}

#[tokio::test]
async fn smg_restart_later() {
    replay("smg-restart-later").await;
}

#[tokio::test]
async fn vllm_api2_busy() {
    replay("vllm-api2-busy").await;
}

#[tokio::test]
async fn vllm_connector_with_pool() {
    replay("vllm-connector-with-pool").await;
}

#[tokio::test]
async fn vllm_connector_without_pool() {
    replay("vllm-connector-without-pool").await;
}

#[tokio::test]
async fn vllm_dp2_busy() {
    replay("vllm-dp2-busy").await;
}

#[tokio::test]
async fn vllm_moved_without_connector() {
    replay("vllm-moved-without-connector").await;
}

#[tokio::test]
async fn vllm_one_token() {
    replay("vllm-one-token").await;
}

#[tokio::test]
async fn vllm_pair_llm_d() {
    replay("vllm-pair-llm-d").await;
}

#[tokio::test]
async fn vllm_pair_pool_prefill_without_connector() {
    replay("vllm-pair-pool-prefill-without-connector").await;
}

#[tokio::test]
async fn vllm_pool_without_connector() {
    replay("vllm-pool-without-connector").await;
}

#[tokio::test]
async fn vllm_router_absent_running_gauge() {
    replay("vllm-router-absent-running-gauge").await;
}

#[tokio::test]
async fn vllm_router_backends_down() {
    replay("vllm-router-backends-down").await;
}

#[tokio::test]
async fn vllm_router_busy() {
    replay("vllm-router-busy").await;
}

#[tokio::test]
async fn vllm_router_failing_400() {
    replay("vllm-router-failing-400").await;
}

#[tokio::test]
async fn vllm_router_failing_500() {
    replay("vllm-router-failing-500").await;
}

#[tokio::test]
async fn vllm_router_failing_503() {
    replay("vllm-router-failing-503").await;
}

#[tokio::test]
async fn vllm_router_first_request() {
    replay("vllm-router-first-request").await;
}

#[tokio::test]
async fn vllm_router_fresh() {
    replay("vllm-router-fresh").await;
}

#[tokio::test]
async fn vllm_router_pd_busy() {
    replay("vllm-router-pd-busy").await;
}

#[tokio::test]
async fn vllm_router_pd_down() {
    replay("vllm-router-pd-down").await;
}

#[tokio::test]
async fn vllm_router_pd_fresh() {
    replay("vllm-router-pd-fresh").await;
}

#[tokio::test]
async fn vllm_router_power_of_two() {
    replay("vllm-router-power-of-two").await;
}

#[tokio::test]
async fn vllm_router_random() {
    replay("vllm-router-random").await;
}

#[tokio::test]
async fn vllm_router_restart() {
    replay("vllm-router-restart").await;
}

#[tokio::test]
async fn vllm_router_restart_later() {
    replay("vllm-router-restart-later").await;
}

#[tokio::test]
async fn vllm_server_busy() {
    replay("vllm-server-busy").await;
}

#[tokio::test]
async fn vllm_server_idle() {
    replay("vllm-server-idle").await;
}

#[tokio::test]
async fn vllm_server_restart() {
    replay("vllm-server-restart").await;
}

#[tokio::test]
async fn vllm_server_restart_overtaken() {
    replay("vllm-server-restart-overtaken").await;
}
