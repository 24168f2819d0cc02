//! The rules of values and of `missing[]`: who is read, what a source measures, which code its
//! absence has, and what sets `partial`.

mod common;

use common::{Answer, Fleet, Now, yaml};
use modeldeployment_exporter::scrape::Cause;
use modeldeployment_exporter::snapshot::Code;
use std::collections::HashSet;

const TTFT: &str = "vllm:time_to_first_token_seconds";
const ITL: &str = "vllm:inter_token_latency_seconds";
const SGLANG_TTFT: &str = "sglang:time_to_first_token_seconds";
const SGLANG_ITL: &str = "sglang:inter_token_latency_seconds";

fn histogram(name: &str, count: f64, sum: f64) -> String {
    format!("{name}_count{{engine=\"0\"}} {count}\n{name}_sum{{engine=\"0\"}} {sum}\n")
}

fn counter(name: &str, value: f64) -> String {
    format!("{name}{{l=\"x\"}} {value}\n")
}

fn cache(name: &str, hits: f64, queries: f64) -> String {
    counter(&format!("{name}_hits_total"), hits) + &counter(&format!("{name}_queries_total"), queries)
}

/// Everything that a plain vLLM server is read for, after `n` requests.
fn server(n: f64) -> String {
    ["vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n".to_owned()]
        .into_iter()
        .chain([cache("vllm:prefix_cache", n, 2.0 * n), cache("vllm:external_prefix_cache", 0.0, 0.0)])
        .chain([TTFT, ITL, "vllm:request_time_per_output_token_seconds"].map(|name| histogram(name, n, n)))
        .collect()
}

/// Rounds at 0 s and 15 s of one Pod.
fn two(fleet: &mut Fleet, pod: &str, first: &str, second: &str) -> Now {
    fleet.round(0.0, &[(pod, first)]);
    fleet.round(15.0, &[(pod, second)])
}

fn codes(now: &Now) -> Vec<(&str, &str, Code)> {
    now.missing().iter().map(|entry| (entry.pod.as_str(), entry.source.as_str(), entry.code)).collect()
}

#[test]
fn a_busy_server_lacks_only_what_its_configuration_does_not_provide() {
    let now = two(&mut Fleet::vllm(), "a", &server(1.0), &server(5.0));
    assert_eq!(codes(&now), [("a", "external-store", Code::UnsupportedSource)]);
    assert!(!now.is_partial());
    assert_eq!(now.gauge("running", "engine/server"), Some(1.0));
    assert_eq!(now.gauge("waiting", "engine/server"), Some(0.0), "a measured 0 is present as zero");
    assert_eq!(now.window("a", "tpot"), Some((1.0, 4.0, 15.0)));
    assert_eq!(now.cache("a", "local-prefix"), Some((4.0, 8.0)));
    assert_eq!(now.series("cache_hit_ratio", &[("pod", "a"), ("cache", "local-prefix")]), Some(0.5));
    assert_eq!(now.series("partial", &[]), Some(0.0));
    assert_eq!(now.series("missing", &[("code", "unsupported-source"), ("partial", "false")]), Some(1.0));
}

#[test]
fn a_first_read_has_first_samples_and_is_partial() {
    let now = Fleet::vllm().round(0.0, &[("a", &server(1.0))]);
    let first = |source| if source == "external-store" { Code::UnsupportedSource } else { Code::FirstSample };
    for source in ["external-store", "local-prefix", TTFT, ITL, "vllm:request_time_per_output_token_seconds"] {
        assert_eq!(now.code("a", source), Some(first(source)), "{source}");
    }
    assert!(now.is_partial());
}

#[test]
fn an_absent_series_is_metric_absent() {
    let now = Fleet::vllm().round(0.0, &[("a", "")]);
    for source in ["vllm:num_requests_running", "vllm:num_requests_waiting", "local-prefix", TTFT, ITL] {
        assert_eq!(now.code("a", source), Some(Code::MetricAbsent), "{source}");
    }
    assert_eq!(now.gauge("running", "engine/server"), None);
}

#[test]
fn an_idle_pod_is_idle_and_not_partial() {
    let now = two(&mut Fleet::vllm(), "a", &server(5.0), &server(5.0));
    for source in ["local-prefix", TTFT, ITL, "vllm:request_time_per_output_token_seconds"] {
        assert_eq!(now.code("a", source), Some(Code::Idle), "{source}");
    }
    assert!(!now.is_partial());
    assert_eq!(now.cache("a", "local-prefix"), None);
    assert_eq!(now.window("a", "ttft"), None);
}

#[test]
fn what_records_nothing_while_ttft_moved_is_partial() {
    let first = histogram(TTFT, 1.0, 1.0) + &histogram(ITL, 1.0, 1.0) + &cache("vllm:prefix_cache", 1.0, 2.0);
    let second = histogram(TTFT, 2.0, 2.0) + &histogram(ITL, 1.0, 1.0) + &cache("vllm:prefix_cache", 1.0, 2.0);
    let now = two(&mut Fleet::vllm(), "a", &first, &second);
    assert_eq!(now.code("a", ITL), Some(Code::NoObservations));
    assert_eq!(now.code("a", "local-prefix"), Some(Code::NoQueries));
    assert!(now.is_partial());
}

#[test]
fn without_a_ttft_window_a_pod_is_not_known_to_be_idle() {
    // TTFT came back one read ago: its window does not cover that of the others.
    let others = histogram(ITL, 1.0, 1.0);
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &(histogram(TTFT, 1.0, 1.0) + &others))]);
    fleet.round(15.0, &[("a", &others)]);
    let all = histogram(TTFT, 1.0, 1.0) + &others;
    let now = fleet.round(30.0, &[("a", &all)]);
    assert_eq!(now.code("a", ITL), Some(Code::NoObservations));
    let now = fleet.round(45.0, &[("a", &all)]);
    assert_eq!(now.code("a", TTFT), Some(Code::Idle));
    assert_eq!(now.code("a", ITL), Some(Code::NoObservations));
}

#[test]
fn more_hits_than_queries_are_incompatible() {
    let first = cache("vllm:prefix_cache", 0.0, 0.0);
    for (hits, queries) in [(9.0, 8.0), (1.0, 0.0)] {
        let now = two(&mut Fleet::vllm(), "a", &first, &cache("vllm:prefix_cache", hits, queries));
        assert_eq!(now.code("a", "local-prefix"), Some(Code::IncompatibleDenominator), "{hits} of {queries}");
        assert!(now.is_partial());
    }
    let now = two(&mut Fleet::vllm(), "a", &first, &cache("vllm:prefix_cache", 8.0, 8.0));
    assert_eq!(now.cache("a", "local-prefix"), Some((8.0, 8.0)));
}

#[test]
fn samples_that_are_no_measurement_are_left_out() {
    let now = Fleet::vllm().round(
        0.0,
        &[("a", "vllm:num_requests_running NaN\nvllm:num_requests_waiting{e=\"0\"} 3\nvllm:num_requests_waiting{e=\"1\"} -1\n")],
    );
    assert_eq!(now.code("a", "vllm:num_requests_running"), Some(Code::MetricAbsent));
    assert_eq!(now.gauge("waiting", "engine/server"), Some(3.0));
}

fn gateway(args: &str) -> Fleet {
    Fleet::router("sglang-gateway", args)
}

#[test]
fn an_error_ratio_needs_the_same_window_and_a_request() {
    let both = |requests: f64, errors: f64| {
        counter("smg_router_requests_total", requests) + &counter("smg_router_request_errors_total", errors)
    };
    let source = "smg_router_requests_total+smg_router_request_errors_total";
    let cases = [
        ((10.0, 1.0), (20.0, 2.0), None, Some((0.1, 10.0, 15.0))),
        ((10.0, 1.0), (20.0, 1.0), None, Some((0.0, 10.0, 15.0))),
        ((10.0, 1.0), (10.0, 1.0), Some(Code::NoRequests), None),
        ((10.0, 1.0), (11.0, 3.0), Some(Code::ErrorsExceedRequests), None),
        ((10.0, 1.0), (10.0, 2.0), Some(Code::ErrorsExceedRequests), None),
    ];
    for (first, second, code, ratio) in cases {
        let now = two(&mut gateway("[]"), "r", &both(first.0, first.1), &both(second.0, second.1));
        assert_eq!(now.code("r", source), code, "{first:?} {second:?}");
        assert_eq!(now.window("r", "error-ratio"), ratio, "{first:?} {second:?}");
        assert!(code.is_none() || now.is_partial());
        let entry = now.windowed("r", "error-ratio");
        assert!(entry.is_none_or(|entry| entry.source == source && entry.unit == "fraction"));
    }
}

#[test]
fn different_windows_give_no_error_ratio() {
    let requests = |n: f64| counter("smg_router_requests_total", n);
    let errors = |n: f64| counter("smg_router_request_errors_total", n);
    let mut fleet = gateway("[]");
    fleet.round(0.0, &[("r", &(requests(1.0) + &errors(1.0)))]);
    fleet.round(15.0, &[("r", &requests(2.0))]);
    fleet.round(30.0, &[("r", &(requests(3.0) + &errors(1.0)))]);
    let now = fleet.round(45.0, &[("r", &(requests(9.0) + &errors(2.0)))]);
    let source = "smg_router_requests_total+smg_router_request_errors_total";
    assert_eq!(now.code("r", source), Some(Code::WindowsDiffer));
    assert_eq!(now.window("r", "errors").map(|(_, _, seconds)| seconds), Some(15.0));
    assert_eq!(now.window("r", "requests").map(|(_, _, seconds)| seconds), Some(45.0));
}

#[test]
fn without_a_window_of_both_counters_there_is_no_ratio_and_no_entry() {
    let requests = |n: f64| counter("smg_router_requests_total", n);
    let now = two(&mut gateway("[]"), "r", &requests(1.0), &requests(5.0));
    assert_eq!(now.code("r", "smg_router_request_errors_total"), Some(Code::NotExportedYet));
    assert!(!now.missing().iter().any(|entry| entry.source.contains('+')));
    assert_eq!(now.window("r", "error-ratio"), None);
    let first = gateway("[]").round(0.0, &[("r", &(requests(1.0) + &counter("smg_router_request_errors_total", 1.0)))]);
    assert!(!first.missing().iter().any(|entry| entry.source.contains('+')));
}

#[test]
fn the_first_burst_of_errors_has_a_ratio() {
    let requests = |n: f64| counter("smg_router_requests_total", n);
    let second = requests(20.0) + &counter("smg_router_request_errors_total", 4.0);
    let now = two(&mut gateway("[]"), "r", &requests(10.0), &second);
    assert_eq!(now.window("r", "error-ratio"), Some((0.4, 10.0, 15.0)));
}

#[test]
fn a_labelled_counter_beside_its_pair_is_not_exported_yet() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("llm-d-router", "llm_d_epp_request_total", &["llm_d_epp_request_error_total"]),
        (
            "vllm-router",
            "vllm_router_requests_total",
            &["vllm_router_request_errors_total", "vllm_router_retries_exhausted_total"],
        ),
        ("sglang-gateway", "smg_router_requests_total", &["smg_router_request_errors_total"]),
    ];
    for (router, requests, labelled) in cases {
        for labelled in *labelled {
            let with = Fleet::router(router, "[]").round(0.0, &[("r", &counter(requests, 1.0))]);
            assert_eq!(with.code("r", labelled), Some(Code::NotExportedYet), "{router}");
            // Without the pair in the same read it is absent like any other series.
            let without = Fleet::router(router, "[]").round(0.0, &[("r", "")]);
            assert_eq!(without.code("r", labelled), Some(Code::MetricAbsent), "{router}");
            assert!(without.is_partial());
            // Once seen it has been exported.
            let both = counter(requests, 1.0) + &counter(labelled, 1.0);
            let gone = two(&mut Fleet::router(router, "[]"), "r", &both, &counter(requests, 2.0));
            assert_eq!(gone.code("r", labelled), Some(Code::MetricAbsent), "{router}");
        }
    }
}

#[test]
fn not_exported_yet_leaves_partial_unset() {
    let body = |n: f64| {
        counter("vllm_router_requests_total", n) + "vllm_router_running_requests 0\nvllm_router_active_workers 2\n"
    };
    let now = two(&mut Fleet::router("vllm-router", "[]"), "r", &body(1.0), &body(2.0));
    let expected = ["vllm_router_request_errors_total", "vllm_router_retries_exhausted_total"];
    assert_eq!(codes(&now), expected.map(|source| ("r", source, Code::NotExportedYet)));
    assert!(!now.is_partial());
}

#[test]
fn an_absent_inter_token_histogram_depends_on_ttft() {
    let ttft = |n: f64| histogram(SGLANG_TTFT, n, n);
    // Idle but for its warmup request.
    let now = two(&mut Fleet::sglang(), "a", &ttft(1.0), &ttft(1.0));
    assert_eq!(now.code("a", SGLANG_ITL), Some(Code::NotExportedYet));
    assert_eq!(now.code("a", SGLANG_TTFT), Some(Code::Idle));
    // TTFT moved.
    let now = two(&mut Fleet::sglang(), "a", &ttft(1.0), &ttft(2.0));
    assert_eq!(now.code("a", SGLANG_ITL), Some(Code::MetricAbsent));
    // TTFT absent: it vouches for nothing.
    let now = two(&mut Fleet::sglang(), "a", "", "");
    assert_eq!(now.code("a", SGLANG_ITL), Some(Code::MetricAbsent));
    assert_eq!(now.code("a", SGLANG_TTFT), Some(Code::MetricAbsent));
    // It was exported before.
    let now = two(&mut Fleet::sglang(), "a", &(ttft(1.0) + &histogram(SGLANG_ITL, 1.0, 1.0)), &ttft(1.0));
    assert_eq!(now.code("a", SGLANG_ITL), Some(Code::MetricAbsent));
}

const PAIR: &str = "roles: [{name: prefill, kind: Prefill}, {name: decode, kind: Decode}]";
const CONNECTOR: &str = "[--kv-transfer-config, '{}']";

fn pair(spec: &str, args: &str) -> Fleet {
    let pods = ["prefill", "decode"]
        .map(|role| format!("{{name: {role}-0, role: {role}, url: 'http://{role}', args: {args}}}"));
    Fleet::new(&yaml(&format!("{spec}, {PAIR}"), &[&pods[0], &pods[1]]))
}

#[test]
fn external_store_is_read_where_it_measures_the_store_and_says_why_not() {
    let moved = cache("vllm:external_prefix_cache", 3.0, 4.0);
    let still = cache("vllm:external_prefix_cache", 0.0, 0.0);
    let pool = "engine: {name: vLLM}, kvCache: {poolRef: {name: p}}";
    let mut reasons = HashSet::new();
    let mut unsupported = |fleet: &mut Fleet, pod: &str, body: &str| {
        let now = fleet.round(0.0, &[(pod, body)]);
        let entry = now.entry(pod, "external-store").unwrap();
        assert_eq!(entry.code, Code::UnsupportedSource, "{entry:?}");
        assert!(!entry.code.is_partial());
        reasons.insert(entry.reason.clone());
        assert_eq!(now.series("cache_query_tokens_total", &[("cache", "external-store")]), None);
    };
    // No connector, and the counter at zero or absent.
    unsupported(&mut pair(pool, "[]"), "prefill-0", &still);
    unsupported(&mut pair(pool, "[]"), "prefill-0", "");
    unsupported(&mut pair(pool, "[]"), "decode-0", &still);
    // No pool.
    unsupported(&mut pair("engine: {name: vLLM}", CONNECTOR), "prefill-0", &moved);
    unsupported(&mut pair("engine: {name: vLLM}", CONNECTOR), "decode-0", &moved);
    unsupported(&mut pair("engine: {name: vLLM}", "[]"), "prefill-0", &moved);
    // The decode half.
    unsupported(&mut pair(pool, CONNECTOR), "decode-0", &moved);
    let server = |spec: &str, args: &str| {
        let pod = format!("{{name: a, role: server, url: 'http://a', args: {args}}}");
        Fleet::new(&yaml(&format!("{spec}, roles: [{{name: server}}]"), &[&pod]))
    };
    unsupported(&mut server("engine: {name: vLLM}", CONNECTOR), "a", &moved);
    assert_eq!(reasons.len(), 3, "no connector, no pool and decode half are three sentences");
    // Read: queries that found nothing, without a connector, are a measured zero.
    let missed = |n: f64| cache("vllm:external_prefix_cache", 0.0, n);
    let now = two(&mut server(pool, "[]"), "a", &missed(1.0), &missed(5.0));
    assert_eq!(now.cache("a", "external-store"), Some((0.0, 4.0)));
    // Read: a pool, a connector, the prefill half.
    let now = two(&mut pair(pool, CONNECTOR), "prefill-0", &still, &moved);
    assert_eq!(now.cache("prefill-0", "external-store"), Some((3.0, 4.0)));
    assert_eq!(now.snapshot.object.cache_hits[0].source, "vllm:external_prefix_cache");
    // Also when no connector shows but the counter has moved.
    let now = two(&mut pair(pool, "[]"), "prefill-0", &still, &moved);
    assert_eq!(now.cache("prefill-0", "external-store"), Some((3.0, 4.0)));
    // Counters absent behind a connector.
    let now = pair(pool, CONNECTOR).round(0.0, &[("prefill-0", "")]);
    assert_eq!(now.code("prefill-0", "external-store"), Some(Code::MetricAbsent));
}

fn tokens(input: f64, device: f64, host: f64, storage: f64) -> String {
    let modes = [("input", input), ("device_hit", device), ("host_hit", host), ("storage_hit", storage)];
    modes.map(|(mode, value)| format!("sglang:prefill_effective_tokens_total{{mode=\"{mode}\"}} {value}\n")).concat()
}

#[test]
fn sglang_tiers_are_read_where_they_are_built() {
    // (arguments, pool, host tier, storage tier)
    let cases = [
        ("[]", false, false, false),
        ("[]", true, true, true),
        ("[--enable-hierarchical-cache]", false, true, false),
        ("[--enable-lmcache]", false, true, false),
        ("[--enable-flexkv]", false, true, false),
        ("[--radix-cache-backend, flexkv]", false, true, false),
        ("[--radix-cache-backend, other]", false, false, false),
        ("[--hicache-storage-backend, file]", false, false, true),
    ];
    for (args, pool, host, storage) in cases {
        let pool_spec = if pool { ", kvCache: {poolRef: {name: p}}" } else { "" };
        let spec = format!("engine: {{name: SGLang}}, roles: [{{name: server}}]{pool_spec}");
        let pod = format!("{{name: a, role: server, url: 'http://a', args: {args}}}");
        let now = two(
            &mut Fleet::new(&yaml(&spec, &[&pod])),
            "a",
            &tokens(0.0, 0.0, 0.0, 0.0),
            &tokens(70.0, 20.0, 6.0, 4.0),
        );
        assert_eq!(now.cache("a", "device-prefix"), Some((20.0, 100.0)), "{args}");
        assert_eq!(now.cache("a", "host-prefix"), host.then_some((6.0, 100.0)), "{args}");
        assert_eq!(now.cache("a", "storage-prefix"), storage.then_some((4.0, 100.0)), "{args}");
        let code = |built: bool| (!built).then_some(Code::UnsupportedSource);
        assert_eq!(now.code("a", "host-prefix"), code(host), "{args}");
        assert_eq!(now.code("a", "storage-prefix"), code(storage), "{args}");
        if let (Some(host), Some(storage)) = (now.entry("a", "host-prefix"), now.entry("a", "storage-prefix")) {
            assert_ne!(host.reason, storage.reason);
        }
    }
}

#[test]
fn a_filter_without_a_match_is_a_measured_zero() {
    // One mode only: the others are zero.
    let body = |n: f64| format!("sglang:prefill_effective_tokens_total{{mode=\"input\"}} {n}\n");
    let now = two(&mut Fleet::sglang(), "a", &body(1.0), &body(9.0));
    assert_eq!(now.cache("a", "device-prefix"), Some((0.0, 8.0)));
    // No 5xx yet.
    let body = |n: f64| format!("smg_http_responses_total{{status_code=\"200\"}} {n}\n");
    let now = two(&mut gateway("[]"), "r", &body(1.0), &body(9.0));
    assert_eq!(now.window("r", "http-5xx-responses"), Some((0.0, 0.0, 15.0)));
    // The family itself is absent.
    let now = gateway("[]").round(0.0, &[("r", "")]);
    assert_eq!(now.code("r", "smg_http_responses_total"), Some(Code::MetricAbsent));
}

#[test]
fn only_5xx_responses_count_and_codes_that_are_none_are_left_out() {
    let body = |n: f64| -> String {
        let codes = ["200", "499", "500", "503", "599", "600", "5xx", "050", ""];
        codes.map(|code| format!("smg_http_responses_total{{status_code=\"{code}\",error_code=\"\"}} {n}\n")).concat()
    };
    let now = two(&mut gateway("[]"), "r", &body(0.0), &body(5.0));
    assert_eq!(now.window("r", "http-5xx-responses"), Some((1.0, 15.0, 15.0)));
    // Nothing else in the family: it is absent.
    let now = gateway("[]").round(0.0, &[("r", "smg_http_responses_total{status_code=\"oops\"} 4\n")]);
    assert_eq!(now.code("r", "smg_http_responses_total"), Some(Code::MetricAbsent));
}

#[test]
fn older_names_are_read_one_at_a_time_and_named() {
    // (router, first names, both names, field, JSON source, the source of the totals)
    let now = two(
        &mut Fleet::vllm(),
        "a",
        &cache("vllm:gpu_prefix_cache", 0.0, 0.0),
        &cache("vllm:gpu_prefix_cache", 3.0, 6.0),
    );
    assert_eq!(now.cache("a", "local-prefix"), Some((3.0, 6.0)));
    assert_eq!(now.snapshot.object.cache_hits[0].source, "vllm:gpu_prefix_cache");
    let total = now.series("cache_hit_tokens_total", &[("pod", "a"), ("source", "vllm:prefix_cache")]);
    assert_eq!(total, Some(3.0), "totals keep the specification's name");
    // Both present: the newer name is read, and they are never added.
    let both = |n: f64| cache("vllm:gpu_prefix_cache", n, n) + &cache("vllm:prefix_cache", n, 2.0 * n);
    let now = two(&mut Fleet::vllm(), "a", &both(0.0), &both(3.0));
    assert_eq!(now.cache("a", "local-prefix"), Some((3.0, 6.0)));
    assert_eq!(now.snapshot.object.cache_hits[0].source, "vllm:prefix_cache");
    for (old, field) in [
        ("inference_objective_request_total", "requests"),
        ("inference_objective_request_error_total", "request-errors"),
    ] {
        let now = two(&mut Fleet::router("llm-d-router", "[]"), "r", &counter(old, 1.0), &counter(old, 31.0));
        assert_eq!(now.window("r", field), Some((2.0, 30.0, 15.0)));
        assert_eq!(now.windowed("r", field).unwrap().source, old);
    }
    let now = Fleet::router("llm-d-router", "[]")
        .round(0.0, &[("r", "inference_pool_ready_pods 3\ninference_objective_running_requests 2\n")]);
    assert_eq!(now.gauge("router-backends", "router"), Some(3.0));
    assert_eq!(now.gauge("router-running", "router"), Some(2.0));
    assert_eq!(now.series("router_backends", &[("source", "inference_pool_ready_pods")]), Some(3.0));
}

#[test]
fn another_name_of_a_series_starts_with_a_first_sample_and_adds_nothing() {
    let (new, old) = ("llm_d_epp_request_total", "inference_objective_request_total");
    let mut fleet = Fleet::router("llm-d-router", "[]");
    two(&mut fleet, "r", &counter(old, 10.0), &counter(old, 20.0));
    // The newer name appears beside the older one: what it holds is no increase.
    let now = fleet.round(30.0, &[("r", &(counter(old, 30.0) + &counter(new, 500.0)))]);
    assert_eq!(now.code("r", new), Some(Code::FirstSample));
    assert_eq!(now.series("router_requests_total", &[("pod", "r")]), Some(10.0));
    let now = fleet.round(45.0, &[("r", &(counter(old, 40.0) + &counter(new, 530.0)))]);
    assert_eq!(now.window("r", "requests"), Some((2.0, 30.0, 15.0)));
    assert_eq!(now.series("router_requests_total", &[("pod", "r")]), Some(40.0));
}

#[test]
fn a_name_with_and_without_total_is_one_series() {
    for (router, name, written) in [
        ("vllm-router", "vllm_router_requests", "vllm_router_requests_total"),
        ("vllm-router", "vllm_router_requests_total", "vllm_router_requests_total"),
    ] {
        let now = two(&mut Fleet::router(router, "[]"), "r", &counter(name, 0.0), &counter(name, 15.0));
        assert_eq!(
            now.windowed("r", "successful-requests").map(|e| (e.value, e.source.as_str())),
            Some((1.0, written))
        );
    }
    // Of both the first counts.
    let both = |n: f64| counter("vllm_router_requests_total", n) + &counter("vllm_router_requests", 2.0 * n);
    let now = two(&mut Fleet::router("vllm-router", "[]"), "r", &both(0.0), &both(15.0));
    assert_eq!(now.window("r", "successful-requests"), Some((1.0, 15.0, 15.0)));
    let without = |hits: f64, queries: f64| {
        counter("vllm:prefix_cache_hits", hits) + &counter("vllm:prefix_cache_queries", queries)
    };
    let now = two(&mut Fleet::vllm(), "a", &without(0.0, 0.0), &without(1.0, 4.0));
    assert_eq!(now.cache("a", "local-prefix"), Some((1.0, 4.0)));
}

#[test]
fn roles_of_a_vllm_pair_are_read_for_what_they_do() {
    let mut fleet = pair("engine: {name: vLLM}", CONNECTOR);
    let both = |n: f64| [("prefill-0", server(n)), ("decode-0", server(n))];
    let mut now = None;
    for (at, n) in [(0.0, 1.0), (15.0, 3.0)] {
        let bodies = both(n);
        let answers: Vec<(&str, &str)> = bodies.iter().map(|(pod, body)| (*pod, body.as_str())).collect();
        now = Some(fleet.round(at, &answers));
    }
    let now = now.unwrap();
    for (pod, ttft, tpot, itl) in [("prefill-0", true, false, false), ("decode-0", true, true, true)] {
        for (field, read) in [("ttft", ttft), ("tpot", tpot), ("itl", itl)] {
            assert_eq!(now.window(pod, field).is_some(), read, "{field} of {pod}");
        }
    }
    // Neither absence is reported.
    assert!(!now.missing().iter().any(|entry| entry.pod == "prefill-0" && entry.source != "external-store"));
    // Roles stay apart, and no engine gauge is added to another role's.
    assert_eq!(now.gauge("running", "engine/prefill"), Some(1.0));
    assert_eq!(now.gauge("running", "engine/decode"), Some(1.0));
}

#[test]
fn one_half_alone_is_no_pair() {
    let spec = "engine: {name: vLLM}, roles: [{name: prefill, kind: Prefill}]";
    let mut fleet = Fleet::new(&yaml(spec, &["{name: a, role: prefill, url: 'http://a'}"]));
    let now = two(&mut fleet, "a", &server(1.0), &server(3.0));
    assert!(now.window("a", "itl").is_some());
    assert_eq!(now.series("info", &[("pair", "false"), ("kv_cache", "false"), ("engine", "vLLM")]), Some(1.0));
}

/// One rank of an SGLang prefill half after `n` transfers of 3 MiB shards, 10 ms and 2 GiB/s each.
fn transfers(rank: u32, n: f64, failed: Option<f64>) -> String {
    let histogram = |name: &str, mean: f64| {
        format!("sglang:{name}_count{{tp_rank=\"{rank}\"}} {n}\nsglang:{name}_sum{{tp_rank=\"{rank}\"}} {}\n", n * mean)
    };
    let failed = failed.map(|f| format!("sglang:num_transfer_failed_reqs_total{{tp_rank=\"{rank}\"}} {f}\n"));
    histogram("kv_transfer_latency_ms", 10.0)
        + &histogram("kv_transfer_speed_gb_s", 2.0)
        + &histogram("kv_transfer_total_mb", 3.0)
        + &failed.unwrap_or_default()
}

#[test]
fn transfers_are_shards_in_the_json_and_requests_on_metrics() {
    let both = |n: f64, failed: Option<f64>| transfers(0, n, failed) + &transfers(1, n, failed);
    let mut fleet = pair("engine: {name: SGLang}", "[]");
    fleet.round(0.0, &[("prefill-0", &both(0.0, None))]);
    let now = fleet.round(10.0, &[("prefill-0", &both(4.0, Some(5.0)))]);
    assert_eq!(now.window("prefill-0", "transfer-latency"), Some((10.0, 8.0, 10.0)));
    assert_eq!(now.window("prefill-0", "transfer-speed"), Some((2.0, 8.0, 10.0)));
    assert_eq!(now.window("prefill-0", "transfer-size"), Some((3.0, 8.0, 10.0)));
    assert_eq!(now.window("prefill-0", "transfer-failures"), Some((0.5, 5.0, 10.0)), "one rank's");
    let units: Vec<&str> = now.snapshot.object.transfer.iter().map(|entry| entry.unit.as_str()).collect();
    assert_eq!(units, ["errors/second", "milliseconds", "MB", "GB/second"]);
    let series = |family: &str| now.series(family, &[("pod", "prefill-0"), ("role", "prefill")]);
    assert_eq!(series("kv_transfer_latency_mean_seconds"), Some(0.01));
    assert_eq!(series("kv_transfer_speed_mean_bytes_per_second"), Some(2.0 * 1_073_741_824.0));
    assert_eq!(series("kv_transfer_size_mean_bytes"), Some(6.0 * 1_048_576.0), "bytes over transfers");
    assert_eq!(series("kv_transfer_failures_per_second"), Some(0.5));
    assert_eq!(series("kv_transfers_total"), Some(4.0));
    assert_eq!(series("kv_transfer_seconds_total"), Some(0.04));
    assert_eq!(series("kv_transfer_bytes_total"), Some(24.0 * 1_048_576.0), "of all ranks");
    assert_eq!(series("kv_transfer_failures_total"), Some(5.0));
}

#[test]
fn transfer_failures_wait_for_their_first_beside_the_size() {
    let now = pair("engine: {name: SGLang}", "[]").round(0.0, &[("prefill-0", &transfers(0, 1.0, None))]);
    let source = "sglang:num_transfer_failed_reqs_total";
    assert_eq!(now.code("prefill-0", source), Some(Code::NotExportedYet));
    assert_eq!(now.series("kv_transfer_failures_total", &[("pod", "prefill-0")]), Some(0.0));
    // Without the size there is nothing that vouches for it, whatever else is there.
    let latency = histogram("sglang:kv_transfer_latency_ms", 1.0, 10.0);
    for body in ["", &latency] {
        let now = pair("engine: {name: SGLang}", "[]").round(0.0, &[("prefill-0", body)]);
        assert_eq!(now.code("prefill-0", source), Some(Code::MetricAbsent), "{body}");
    }
}

#[test]
fn roles_of_an_sglang_pair_are_read_for_what_they_do() {
    let body = |n: f64| {
        tokens(n, n, 0.0, 0.0)
            + &histogram(SGLANG_TTFT, n, n)
            + &histogram(SGLANG_ITL, n, n)
            + &transfers(0, n, Some(n))
            + "sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\nsglang:num_decode_transfer_queue_reqs 3\n"
    };
    let mut fleet = pair("engine: {name: SGLang}", "[]");
    let (first, second) = (body(1.0), body(5.0));
    fleet.round(0.0, &[("prefill-0", &first), ("decode-0", &first)]);
    let now = fleet.round(15.0, &[("prefill-0", &second), ("decode-0", &second)]);
    for (field, prefill, decode) in [
        ("ttft", false, true),
        ("itl", false, true),
        ("transfer-latency", true, false),
        ("transfer-failures", true, false),
    ] {
        assert_eq!(now.window("prefill-0", field).is_some(), prefill, "{field}");
        assert_eq!(now.window("decode-0", field).is_some(), decode, "{field}");
    }
    assert!(now.cache("prefill-0", "device-prefix").is_some());
    assert_eq!(now.cache("decode-0", "device-prefix"), None);
    assert_eq!(now.gauge("decode-transfer-waiting", "engine/decode"), Some(3.0));
    assert_eq!(now.gauge("decode-transfer-waiting", "engine/prefill"), None);
    // A field that is not read from a role yields no entry.
    let entries: Vec<_> = codes(&now).into_iter().filter(|(pod, ..)| *pod == "decode-0").collect();
    assert_eq!(entries, []);
    let entries: Vec<_> = codes(&now).into_iter().filter(|(pod, ..)| *pod == "prefill-0").collect();
    assert_eq!(
        entries,
        [
            ("prefill-0", "host-prefix", Code::UnsupportedSource),
            ("prefill-0", "storage-prefix", Code::UnsupportedSource)
        ]
    );
}

#[test]
fn an_idle_sglang_prefill_half_is_partial() {
    let body = tokens(5.0, 1.0, 0.0, 0.0) + &transfers(0, 3.0, None);
    let now = two(&mut pair("engine: {name: SGLang}", "[]"), "prefill-0", &body, &body);
    assert_eq!(now.code("prefill-0", "device-prefix"), Some(Code::NoQueries));
    assert_eq!(now.code("prefill-0", "sglang:kv_transfer_latency_ms"), Some(Code::NoObservations));
    assert!(now.is_partial());
}

#[test]
fn a_histogram_in_another_form_is_absent_and_has_no_total() {
    // SGLang 0.5.9 exports the transfer histograms as gauges.
    let body = "sglang:kv_transfer_latency_ms{tp_rank=\"0\"} 12\nsglang:kv_transfer_total_mb{tp_rank=\"0\"} 3\n";
    let now = pair("engine: {name: SGLang}", "[]").round(0.0, &[("prefill-0", body)]);
    assert_eq!(now.code("prefill-0", "sglang:kv_transfer_latency_ms"), Some(Code::MetricAbsent));
    assert_eq!(now.series("kv_transfer_seconds_total", &[("pod", "prefill-0")]), None);
    assert_eq!(now.series("kv_transfers_total", &[("pod", "prefill-0")]), None);
    let now = pair("engine: {name: SGLang}", "[]").round(0.0, &[("prefill-0", "")]);
    assert_eq!(now.series("kv_transfers_total", &[("pod", "prefill-0")]), Some(0.0));
    // A gauge of the same name beside the histogram takes nothing from it.
    let both = format!(
        "sglang:kv_transfer_total_mb{{tp_rank=\"0\"}} 3\n{}",
        histogram("sglang:kv_transfer_total_mb", 1.0, 3.0)
    );
    let now = pair("engine: {name: SGLang}", "[]").round(0.0, &[("prefill-0", &both)]);
    assert_eq!(now.series("kv_transfers_total", &[("pod", "prefill-0")]), Some(0.0));
}

fn router_of_a_pair(name: &str, args: &str) -> Fleet {
    let router = format!("{{name: r, router: true, url: 'http://r', args: {args}}}");
    Fleet::new(&yaml(&format!("engine: {{name: vLLM}}, router: {{name: {name}}}, {PAIR}"), &[&router]))
}

#[test]
fn behind_a_pair_the_vllm_router_has_its_own_series() {
    let body = |n: f64| counter("vllm_router_pd_requests_total", n) + &counter("vllm_router_requests_total", 9.0 * n);
    let now = two(&mut router_of_a_pair("vllm-router", "[]"), "r", &body(0.0), &body(30.0));
    assert_eq!(now.window("r", "pd-requests"), Some((2.0, 30.0, 15.0)));
    assert_eq!(now.window("r", "successful-requests"), None);
    assert_eq!(now.code("r", "vllm_router_pd_errors_total"), Some(Code::NotExportedYet));
    let running = now.entry("r", "vllm_router_running_requests").unwrap();
    let workers = now.entry("r", "vllm_router_active_workers").unwrap();
    assert_eq!((running.code, workers.code), (Code::UnsupportedSource, Code::UnsupportedSource));
    assert_ne!(running.reason, workers.reason);
    assert_eq!(now.window("r", "error-ratio"), None);
    assert!(!now.missing().iter().any(|entry| entry.source == "vllm_router_requests_total"));
}

#[test]
fn a_policy_without_a_running_gauge_makes_it_unsupported() {
    let vllm = "vllm_router_running_requests";
    let smg = "smg_worker_requests_active";
    let old = "smg_http_responses_total{status_code=\"200\",error_code=\"\"} 1\n";
    let new = "smg_http_responses_total{path=\"/v1\",status_code=\"200\"} 1\n";
    let (unsupported, absent) = (Code::UnsupportedSource, Code::MetricAbsent);
    let cases = [
        ("vllm-router", "[]", "", vllm, absent),
        ("vllm-router", "[--policy, cache_aware]", "", vllm, absent),
        ("vllm-router", "[--policy, power_of_two]", "", vllm, absent),
        ("vllm-router", "[--policy, random]", "", vllm, unsupported),
        ("vllm-router", "[--policy=round_robin]", "", vllm, unsupported),
        ("vllm-router", "[--policy, random, --policy, cache_aware]", "", vllm, absent),
        ("sglang-gateway", "[]", old, smg, absent),
        ("sglang-gateway", "[--policy, manual]", old, smg, absent),
        ("sglang-gateway", "[--policy, power_of_two]", old, smg, unsupported),
        ("sglang-gateway", "[--policy, random]", "", smg, unsupported),
        ("sglang-gateway", "[--policy, random]", new, smg, absent),
    ];
    for (router, args, body, gauge, code) in cases {
        let now = Fleet::router(router, args).round(0.0, &[("r", body)]);
        assert_eq!(now.code("r", gauge), Some(code), "{router} {args} {body}");
        // Where it is there it is read.
        let now = Fleet::router(router, args).round(0.0, &[("r", &format!("{gauge}{{worker=\"w\"}} 2\n{body}"))]);
        assert_eq!(now.gauge("router-running", "router"), Some(2.0), "{router} {args}");
    }
    let now = router_of_a_pair("sglang-gateway", "[--policy, random]").round(0.0, &[("r", old)]);
    assert_eq!(now.code("r", smg), Some(Code::MetricAbsent), "PD mode has the gauge");
}

#[test]
fn a_router_gauge_is_summed_over_its_workers_and_never_added_to_the_engines() {
    let spec = "engine: {name: vLLM}, router: {name: sglang-gateway}, roles: [{name: server, replicas: 2}]";
    let mut fleet = Fleet::new(&yaml(
        spec,
        &[
            "{name: a, role: server, url: 'http://a'}",
            "{name: b, role: server, url: 'http://b'}",
            "{name: r, router: true, url: 'http://r'}",
        ],
    ));
    let engine = |n: u32| format!("vllm:num_requests_running {n}\nvllm:num_requests_waiting 1\n");
    let router = "smg_worker_requests_active{worker=\"x\"} 5\nsmg_worker_requests_active{worker=\"y\"} 2\n\
                  smg_worker_pool_size{worker_type=\"regular\"} 2\n";
    let now = fleet.round(0.0, &[("a", &engine(3)), ("b", &engine(4)), ("r", router)]);
    assert_eq!(now.gauge("running", "engine/server"), Some(7.0));
    assert_eq!(now.gauge("router-running", "router"), Some(7.0));
    assert_eq!(now.gauge("router-backends", "router"), Some(2.0));
    let running = &now.snapshot.object.processing.iter().find(|g| g.name == "running").unwrap();
    assert_eq!((running.pod_count, running.unit.as_str()), (2, "requests"));
    let names: Vec<&str> = now.snapshot.object.processing.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["router-backends", "router-running", "running"], "sorted by name");
    let units: Vec<&str> = now.snapshot.object.processing.iter().map(|g| g.unit.as_str()).collect();
    assert_eq!(units, ["backends", "requests", "requests"]);
}

#[test]
fn the_llm_d_router_has_latencies_and_no_error_ratio() {
    let body = |n: f64| {
        counter("llm_d_epp_request_total", n)
            + &counter("llm_d_epp_request_error_total", n)
            + &histogram("llm_d_epp_request_ttft_seconds", n, 2.0 * n)
            + "llm_d_epp_request_running 1\nllm_d_epp_ready_endpoints 2\n"
    };
    let now = two(&mut Fleet::router("llm-d-router", "[]"), "r", &body(0.0), &body(15.0));
    assert_eq!(now.window("r", "ttft"), Some((2.0, 15.0, 15.0)));
    assert_eq!(now.window("r", "request-errors"), Some((1.0, 15.0, 15.0)));
    assert_eq!(now.window("r", "error-ratio"), None);
    assert_eq!(codes(&now), [("r", "llm_d_epp_request_streaming_tpot_seconds", Code::MetricAbsent)]);
    assert_eq!(now.windowed("r", "ttft").unwrap().scope, "router");
    // Without a request in the window it is idle.
    let now = two(&mut Fleet::router("llm-d-router", "[]"), "r", &body(15.0), &body(15.0));
    assert_eq!(now.code("r", "llm_d_epp_request_ttft_seconds"), Some(Code::Idle));
}

#[test]
fn missing_pods_and_replicas_are_named_once() {
    let spec = "engine: {name: vLLM}, router: {name: vllm-router}, \
                roles: [{name: server, replicas: 2, size: 2}, {name: empty, replicas: 0}, {name: own, command: [x]}, {name: gone}]";
    let mut fleet =
        Fleet::new(&yaml(spec, &["{name: a, role: server, url: 'http://a'}", "{name: o, role: own, url: 'http://o'}"]));
    let now = fleet.round(0.0, &[("a", &server(1.0))]);
    let parts: Vec<_> = codes(&now).into_iter().filter(|(pod, ..)| pod.is_empty()).collect();
    assert_eq!(
        parts,
        [("", "engine/gone", Code::NoPod), ("", "engine/server", Code::ReplicasMissing), ("", "router", Code::NoPod)]
    );
    let reason = &now.entry("", "engine/server").unwrap().reason;
    assert!(reason.contains('1') && reason.contains('4'), "both counts: {reason}");
    assert!(!fleet.deployment.pods.iter().any(|pod| pod.name == "o"), "a role with a command is not read");
    let pods = |role: &str, state: &str| now.series("pods", &[("role", role), ("state", state), ("scope", "engine")]);
    assert_eq!(pods("server", "expected"), Some(4.0));
    assert_eq!(pods("server", "discovered"), Some(1.0));
    assert_eq!(pods("server", "readable"), Some(1.0));
    assert_eq!(pods("own", "expected"), None);
}

#[test]
fn one_bad_pod_changes_nothing_for_its_neighbours() {
    let spec = "engine: {name: vLLM}, roles: [{name: server, replicas: 2}]";
    let mut fleet = Fleet::new(&yaml(
        spec,
        &["{name: a, role: server, url: 'http://a'}", "{name: b, role: server, url: 'http://b'}"],
    ));
    fleet.round(0.0, &[("a", &server(1.0)), ("b", &server(1.0))]);
    let body = server(3.0);
    let now = fleet.answers(15.0, &[("a", Answer::Body(&body)), ("b", Answer::Fails(Cause::TooLarge))]);
    assert_eq!(now.window("a", "ttft"), Some((1.0, 2.0, 15.0)));
    let entry = now.entry("b", "scrape").unwrap();
    assert_eq!((entry.code, entry.cause), (Code::Unreadable, Some("too-large")));
    assert_eq!(now.missing().iter().filter(|entry| entry.pod == "b").count(), 1);
    assert!(now.is_partial() && now.snapshot.readable);
    assert_eq!(now.series("pod_up", &[("pod", "a")]), Some(1.0));
    assert_eq!(now.series("pod_up", &[("pod", "b")]), Some(0.0));
    assert_eq!(now.series("up", &[]), Some(1.0));
    let running = now.snapshot.object.processing.iter().find(|g| g.name == "running").unwrap();
    assert_eq!(running.pod_count, 1);
}

#[test]
fn without_a_readable_pod_the_deployment_is_not_up() {
    let now = Fleet::vllm().answers(0.0, &[("a", Answer::Fails(Cause::Refused))]);
    assert!(!now.snapshot.readable);
    assert_eq!(now.series("up", &[]), Some(0.0));
}

#[test]
fn pods_past_the_limit_are_counted_by_part() {
    let spec = "engine: {name: vLLM}, roles: [{name: server, replicas: 3}]";
    let pods = ["a", "b", "c"].map(|name| format!("{{name: {name}, role: server, url: 'http://{name}'}}"));
    let mut fleet = Fleet::new(&yaml(spec, &[&pods[0], &pods[1], &pods[2]]));
    let body = server(1.0);
    let now = fleet.answers(0.0, &[("a", Answer::Body(&body)), ("b", Answer::Omitted), ("c", Answer::Omitted)]);
    let entry = now.entry("", "pod-discovery").unwrap();
    assert_eq!(entry.code, Code::PodLimit);
    assert!(entry.reason.contains("2 Pods of role server"), "{}", entry.reason);
    assert!(now.is_partial());
    assert_eq!(now.series("pod_up", &[("pod", "b")]), None);
}

#[test]
fn entries_are_sorted_and_unique() {
    let mut fleet = pair("engine: {name: SGLang}", "[]");
    let now = fleet.round(0.0, &[("prefill-0", ""), ("decode-0", "")]);
    let keys: Vec<_> = now.missing().iter().map(|e| (e.pod.clone(), e.source.clone(), e.code.as_str())).collect();
    let mut sorted = keys.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(keys, sorted);
    assert!(now.missing().iter().all(|entry| entry.reason.len() > 20 && !entry.reason.ends_with('.')));
}

#[test]
fn what_lasts_are_the_counters_and_what_the_deployment_is() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &server(1.0))]);
    let now = fleet.round(15.0, &[("a", &server(2.0))]);
    let gauges: HashSet<&str> =
        now.lasting.iter().map(|point| point.family.as_ref()).filter(|family| !family.ends_with("_total")).collect();
    assert_eq!(gauges, HashSet::from(["modeldeployment_up", "modeldeployment_info"]));
    let up = now.lasting.iter().find(|point| point.family == "modeldeployment_up").unwrap();
    assert_eq!(up.value, 0.0);
    let totals = |points: &[modeldeployment_exporter::export::Point]| {
        let mut totals: Vec<String> =
            points.iter().filter(|point| point.family.ends_with("_total")).map(|point| format!("{point:?}")).collect();
        totals.sort();
        totals
    };
    assert_eq!(totals(&now.lasting), totals(&now.points));
    assert!(!totals(&now.lasting).is_empty());
}

#[test]
fn a_gauges_time_is_its_newest_pods() {
    let spec = "engine: {name: vLLM}, roles: [{name: server, replicas: 2}]";
    let mut fleet = Fleet::new(&yaml(
        spec,
        &["{name: a, role: server, url: 'http://a'}", "{name: b, role: server, url: 'http://b'}"],
    ));
    let body = server(1.0);
    // Whether the newest one is read first or last.
    for newest in ["a", "b"] {
        fleet.observed = [(newest.to_owned(), common::wall(9.0))].into();
        let now = fleet.round(7.0, &[("a", &body), ("b", &body)]);
        let running = now.snapshot.object.processing.iter().find(|g| g.name == "running").unwrap();
        assert_eq!((running.pod_count, running.observed_at), (2, common::wall(9.0)), "{newest}");
    }
}

#[test]
fn labels_of_missing_series_stay_while_nothing_changes() {
    let labels = |now: &Now| -> Vec<String> {
        let missing = now.points.iter().filter(|point| point.family == "modeldeployment_missing");
        missing.map(|point| format!("{:?}", point.labels)).collect()
    };
    let spec = "engine: {name: vLLM}, roles: [{name: server, replicas: 4}]";
    let mut fleet = Fleet::new(&yaml(
        spec,
        &["{name: a, role: server, url: 'http://a'}", "{name: b, role: server, url: 'http://b'}"],
    ));
    let body = server(5.0);
    let answers = [("a", Answer::Body(body.as_str())), ("b", Answer::Fails(Cause::Timeout))];
    fleet.answers(0.0, &answers);
    let first = labels(&fleet.answers(15.0, &answers));
    let second = labels(&fleet.answers(300.0, &answers));
    assert_eq!(first, second);
    assert!(first.iter().all(|labels| !labels.contains("http") && !labels.contains("expected")), "{first:?}");
}
