//! The rules of windows, resets, first-seen series, folding and totals, one table each.

mod common;

use common::{Answer, Fleet, wall, yaml};
use modeldeployment_exporter::scrape::Cause;
use modeldeployment_exporter::snapshot::Code;
use std::time::Duration;

const TTFT: &str = "vllm:time_to_first_token_seconds";

/// A vLLM exposition with a TTFT histogram and the local cache's counters.
fn vllm(ttft: (f64, f64), cache: (f64, f64)) -> String {
    format!(
        "vllm:time_to_first_token_seconds_count{{engine=\"0\"}} {}\n\
         vllm:time_to_first_token_seconds_sum{{engine=\"0\"}} {}\n\
         vllm:prefix_cache_queries_total{{engine=\"0\"}} {}\n\
         vllm:prefix_cache_hits_total{{engine=\"0\"}} {}\n",
        ttft.0, ttft.1, cache.1, cache.0
    )
}

/// An exposition with one TTFT count per engine.
fn engines(counts: &[f64]) -> String {
    let line = |(engine, count): (usize, &f64)| {
        format!("{TTFT}_count{{engine=\"{engine}\"}} {count}\n{TTFT}_sum{{engine=\"{engine}\"}} {}\n", count / 2.0)
    };
    counts.iter().enumerate().map(line).collect()
}

#[test]
fn the_baseline_is_the_youngest_read_old_enough() {
    // Old enough is WINDOW − SCRAPE_INTERVAL/2 = 52.5 s: (times of reads, expected window).
    let cases: &[(&[f64], f64)] = &[
        (&[0.0, 15.0, 30.0, 45.0, 60.0], 60.0),
        (&[0.0, 15.0, 30.0, 45.0, 60.0, 75.0], 60.0),
        (&[0.0, 52.4], 52.4),
        (&[0.0, 10.0, 62.5], 52.5),
        (&[0.0, 10.0, 62.4], 62.4),
        (&[0.0, 100.0, 110.0], 110.0),
    ];
    for (reads, expected) in cases {
        let mut fleet = Fleet::vllm();
        let mut last = None;
        for (index, at) in reads.iter().enumerate() {
            last = fleet.round(*at, &[("a", &engines(&[index as f64]))]).window("a", "ttft");
        }
        assert_eq!(last.map(|(_, _, seconds)| seconds), Some(*expected), "{reads:?}");
    }
}

#[test]
fn the_baseline_is_the_oldest_read_while_none_is_old_enough() {
    let mut fleet = Fleet::vllm();
    for at in [0.0, 15.0, 30.0] {
        fleet.round(at, &[("a", &engines(&[at]))]);
    }
    let now = fleet.round(45.0, &[("a", &engines(&[45.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 45.0, 45.0)));
}

#[test]
fn a_window_of_zero_goes_from_one_read_to_the_next() {
    let mut fleet = Fleet::vllm();
    fleet.times.window = Duration::ZERO;
    for at in [0.0, 15.0, 30.0] {
        fleet.round(at, &[("a", &engines(&[at]))]);
    }
    let now = fleet.round(46.0, &[("a", &engines(&[50.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 20.0, 16.0)));
}

#[test]
fn an_older_read_than_the_counter_age_is_no_baseline() {
    for (gap, expected) in [(300.0, Some(7.0)), (300.001, None)] {
        let mut fleet = Fleet::vllm();
        fleet.round(0.0, &[("a", &engines(&[0.0]))]);
        let now = fleet.round(gap, &[("a", &engines(&[7.0]))]);
        assert_eq!(now.window("a", "ttft").map(|(_, samples, _)| samples), expected, "after {gap} s");
        let code = expected.is_none().then_some(Code::FirstSample);
        assert_eq!(now.code("a", TTFT), code, "after {gap} s");
        // The totals grow by it whatever its age.
        assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(7.0));
        let next = fleet.round(gap + 15.0, &[("a", &engines(&[9.0]))]);
        assert!(next.window("a", "ttft").is_some());
    }
}

#[test]
fn a_sliding_window_stays_its_length_while_reads_jitter() {
    let mut fleet = Fleet::vllm();
    let jitter = [0.0, 3.0, -2.0, 5.0, 1.0, -4.0, 0.0, 2.0, -1.0, 4.0, -3.0, 0.0];
    for (index, jitter) in jitter.iter().enumerate() {
        let at = 10.0 + index as f64 * 15.0 + jitter;
        let now = fleet.round(at, &[("a", &engines(&[index as f64]))]);
        if index >= 5 {
            let (_, _, seconds) = now.window("a", "ttft").unwrap();
            assert!((52.5..=69.0).contains(&seconds), "{seconds} at read {index}");
        }
    }
}

#[test]
fn failed_reads_leave_the_window_and_the_totals_whole() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[10.0]))]);
    for at in [15.0, 30.0, 45.0] {
        let now = fleet.answers(at, &[("a", Answer::Fails(Cause::Timeout))]);
        assert_eq!(now.window("a", "ttft"), None);
        assert_eq!(now.code("a", "scrape"), Some(Code::Unreadable));
        assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(0.0));
        assert_eq!(now.series("ttft_mean_seconds", &[("pod", "a")]), None);
    }
    let now = fleet.round(60.0, &[("a", &engines(&[16.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 6.0, 60.0)));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(6.0));
    assert_eq!(now.series("pod_scrape_failures_total", &[("pod", "a"), ("cause", "timeout")]), Some(3.0));
    assert_eq!(now.series("pod_scrape_failures_total", &[("pod", "a"), ("cause", "refused")]), Some(0.0));
}

/// What two reads 15 s apart are, and whether the second is a reset.
#[test]
fn a_reset_is_known_by_value_created_or_process_start() {
    let created = |seconds: f64| format!("{}{TTFT}_created{{engine=\"0\"}} {seconds}\n", vllm((10.0, 5.0), (4.0, 9.0)));
    let cache_created = |seconds: f64| {
        format!("{}vllm:prefix_cache_hits_created{{engine=\"0\"}} {seconds}\n", vllm((10.0, 5.0), (4.0, 9.0)))
    };
    let process = |seconds: f64| format!("{}process_start_time_seconds {seconds}\n", vllm((10.0, 5.0), (4.0, 9.0)));
    let cases: &[(&str, String, String, bool)] = &[
        ("nothing moved", vllm((10.0, 5.0), (4.0, 9.0)), vllm((10.0, 5.0), (4.0, 9.0)), false),
        ("a counter fell", vllm((10.0, 5.0), (4.0, 9.0)), vllm((10.0, 5.0), (3.0, 9.0)), true),
        ("a count fell", vllm((10.0, 5.0), (4.0, 9.0)), vllm((9.0, 5.0), (4.0, 9.0)), true),
        ("only a histogram's sum fell", vllm((10.0, 5.0), (4.0, 9.0)), vllm((11.0, 4.0), (4.0, 9.0)), false),
        ("_created moved by 6 s", created(1000.0), created(1006.0), true),
        ("_created moved back by 6 s", created(1006.0), created(1000.0), true),
        ("_created moved by 5 s", created(1000.0), created(1005.0), false),
        ("a counter's _created moved", cache_created(1000.0), cache_created(2000.0), true),
        ("_created appeared", vllm((10.0, 5.0), (4.0, 9.0)), created(1006.0), false),
        ("the process start moved by 6 s", process(1000.0), process(1006.0), true),
        ("the process start moved by 4 s", process(1000.0), process(1004.0), false),
        ("one engine fell while the sum rose", engines(&[100.0, 100.0]), engines(&[10.0, 300.0]), true),
    ];
    for (what, first, second, reset) in cases {
        let mut fleet = Fleet::vllm();
        fleet.round(0.0, &[("a", first)]);
        let now = fleet.round(15.0, &[("a", second)]);
        assert_eq!(now.code("a", TTFT) == Some(Code::CounterReset), *reset, "{what}: {:?}", now.missing());
        assert_eq!(now.series("pod_resets_total", &[("pod", "a")]), Some(f64::from(u8::from(*reset))), "{what}");
    }
}

#[test]
fn a_set_made_anew_after_a_reset_is_no_second_reset() {
    let created = |engine: u32, seconds: f64| format!("{TTFT}_created{{engine=\"{engine}\"}} {seconds}\n");
    let process = "process_start_time_seconds 1000\n";
    let mut fleet = Fleet::vllm();
    let both = engines(&[10.0, 10.0]) + &created(0, 1000.0) + &created(1, 1000.0) + process;
    fleet.round(0.0, &[("a", &both)]);
    // Restarted; its second engine has no request yet, and the process' start is not exported.
    fleet.round(15.0, &[("a", &(engines(&[1.0]) + &created(0, 2000.0)))]);
    let now = fleet
        .round(30.0, &[("a", &(engines(&[1.0, 3.0]) + &created(1, 2020.0) + "process_start_time_seconds 1990\n"))]);
    assert_eq!(now.series("pod_resets_total", &[("pod", "a")]), Some(1.0));
    assert_eq!(now.window("a", "ttft"), Some((0.5, 3.0, 15.0)));
}

#[test]
fn a_reset_is_known_by_the_container_start() {
    for (started, reset) in [(-100.0, false), (5.0, true)] {
        let mut fleet = Fleet::vllm();
        fleet.started.insert("a".to_owned(), wall(-100.0));
        fleet.round(0.0, &[("a", &engines(&[10.0]))]);
        fleet.started.insert("a".to_owned(), wall(started));
        let now = fleet.round(15.0, &[("a", &engines(&[20.0]))]);
        assert_eq!(now.code("a", TTFT) == Some(Code::CounterReset), reset, "started at {started}");
        let total = if reset { 20.0 } else { 10.0 };
        assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(total));
    }
}

#[test]
fn a_reset_is_known_by_the_absence_of_everything() {
    let mut fleet = Fleet::router("vllm-router", "[]");
    let busy = "vllm_router_requests_total{route=\"/v1\"} 40\nvllm_router_active_workers 2\n";
    fleet.round(0.0, &[("r", busy)]);
    let now = fleet.round(15.0, &[("r", "vllm_router_active_workers 2\n")]);
    assert_eq!(now.code("r", "vllm_router_requests_total"), Some(Code::CounterReset));
    assert_eq!(now.series("pod_resets_total", &[("pod", "r")]), Some(1.0));
    // Never seen since: it is absent, and its first burst counts from zero.
    let now = fleet.round(30.0, &[("r", "vllm_router_active_workers 2\n")]);
    assert_eq!(now.code("r", "vllm_router_requests_total"), Some(Code::MetricAbsent));
    let now =
        fleet.round(45.0, &[("r", "vllm_router_requests_total{route=\"/v1\"} 60\nvllm_router_active_workers 2\n")]);
    assert_eq!(now.window("r", "successful-requests"), Some((2.0, 60.0, 30.0)));
    assert_eq!(now.series("router_successful_requests_total", &[("pod", "r")]), Some(60.0));
    assert_eq!(now.series("pod_resets_total", &[("pod", "r")]), Some(1.0));
}

#[test]
fn a_reset_concerns_every_counter_and_histogram_of_the_pod() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &vllm((10.0, 5.0), (4.0, 9.0)))]);
    // The cache's counters have overtaken their old values, the histogram has not.
    let now = fleet.round(15.0, &[("a", &vllm((2.0, 1.0), (50.0, 90.0)))]);
    assert_eq!(now.code("a", TTFT), Some(Code::CounterReset));
    assert_eq!(now.code("a", "local-prefix"), Some(Code::CounterReset));
    assert!(now.is_partial());
    // That read is the new baseline of all of them.
    let now = fleet.round(30.0, &[("a", &vllm((4.0, 2.0), (60.0, 110.0)))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 2.0, 15.0)));
    assert_eq!(now.cache("a", "local-prefix"), Some((10.0, 20.0)));
}

#[test]
fn a_restart_inside_a_window_never_shows_in_it() {
    let mut fleet = Fleet::vllm();
    for (at, count) in [(0.0, 100.0), (15.0, 110.0), (30.0, 5.0), (45.0, 150.0)] {
        fleet.round(at, &[("a", &engines(&[count]))]);
    }
    // Between the ends the count rose from 100 to 160; since the reset from 5.
    let now = fleet.round(60.0, &[("a", &engines(&[160.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 155.0, 30.0)));
}

#[test]
fn increases_are_added_up_between_consecutive_reads() {
    let mut fleet = Fleet::vllm();
    let reads = [[0.0, 10.0], [5.0, 10.0], [5.0, 12.0], [9.0, 20.0]];
    for (index, counts) in reads.iter().enumerate() {
        fleet.round(index as f64 * 15.0, &[("a", &engines(counts))]);
    }
    let now = fleet.round(60.0, &[("a", &engines(&[10.0, 21.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 21.0, 60.0)));
}

#[test]
fn a_family_first_seen_later_counts_from_zero_over_the_whole_window() {
    let mut fleet = Fleet::router("vllm-router", "[]");
    let requests = |n: f64| format!("vllm_router_requests_total{{route=\"/v1\"}} {n}\n");
    for at in [0.0, 15.0, 30.0, 45.0] {
        let now = fleet.round(at, &[("r", &requests(at))]);
        assert_eq!(now.code("r", "vllm_router_request_errors_total"), Some(Code::NotExportedYet));
        assert_eq!(now.series("router_errors_total", &[("pod", "r")]), Some(0.0));
    }
    let body = format!("{}vllm_router_request_errors_total{{error_type=\"x\"}} 6\n", requests(60.0));
    let now = fleet.round(60.0, &[("r", &body)]);
    assert_eq!(now.window("r", "errors"), Some((0.1, 6.0, 60.0)));
    assert_eq!(now.series("router_errors_total", &[("pod", "r")]), Some(6.0));
}

#[test]
fn a_label_set_first_seen_later_counts_from_zero() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[10.0]))]);
    fleet.round(15.0, &[("a", &engines(&[12.0]))]);
    let now = fleet.round(30.0, &[("a", &engines(&[12.0, 4.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 6.0, 30.0)));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(6.0));
}

#[test]
fn a_family_that_vanished_and_comes_back_starts_again() {
    let mut fleet = Fleet::vllm();
    let cache = "vllm:prefix_cache_queries_total 5\nvllm:prefix_cache_hits_total 1\n";
    fleet.round(0.0, &[("a", &format!("{}{cache}", engines(&[10.0])))]);
    let now = fleet.round(15.0, &[("a", cache)]);
    assert_eq!(now.code("a", TTFT), Some(Code::MetricAbsent));
    let now = fleet.round(30.0, &[("a", &format!("{}{cache}", engines(&[30.0])))]);
    assert_eq!(now.code("a", TTFT), Some(Code::FirstSample));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(0.0));
    let now = fleet.round(45.0, &[("a", &format!("{}{cache}", engines(&[33.0])))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 3.0, 15.0)));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(3.0));
}

#[test]
fn a_label_set_that_vanished_and_comes_back_adds_nothing_in_that_step() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[10.0, 50.0]))]);
    fleet.round(15.0, &[("a", &engines(&[12.0]))]);
    let now = fleet.round(30.0, &[("a", &engines(&[14.0, 90.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 4.0, 30.0)));
    let now = fleet.round(45.0, &[("a", &engines(&[14.0, 93.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 7.0, 45.0)));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(7.0));
}

#[test]
fn what_a_label_set_added_before_it_vanished_stays_in_the_window() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[10.0, 10.0]))]);
    fleet.round(15.0, &[("a", &engines(&[20.0, 20.0]))]);
    let now = fleet.round(30.0, &[("a", &engines(&[30.0]))]);
    assert_eq!(now.window("a", "ttft"), Some((0.5, 30.0, 30.0)));
}

#[test]
fn a_cache_starts_again_with_whichever_of_its_counters_comes_back() {
    for gone in ["hits", "queries"] {
        let mut fleet = Fleet::vllm();
        let whole = |n: f64| vllm((n, n), (n, 2.0 * n));
        let without = |n: f64| -> String {
            whole(n).lines().filter(|line| !line.contains(gone)).flat_map(|line| [line, "\n"]).collect()
        };
        fleet.round(0.0, &[("a", &whole(1.0))]);
        let now = fleet.round(15.0, &[("a", &without(2.0))]);
        assert_eq!(now.code("a", "local-prefix"), Some(Code::MetricAbsent), "{gone}");
        let now = fleet.round(30.0, &[("a", &whole(3.0))]);
        assert_eq!(now.code("a", "local-prefix"), Some(Code::FirstSample), "{gone}");
        assert_eq!(now.window("a", "ttft"), Some((1.0, 2.0, 30.0)));
        let now = fleet.round(45.0, &[("a", &whole(5.0))]);
        assert_eq!(now.cache("a", "local-prefix"), Some((2.0, 4.0)), "{gone}");
    }
}

#[test]
fn a_pod_with_another_identity_starts_afresh() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[10.0]))]);
    let other = Fleet::new(&yaml(
        "engine: {name: vLLM}, roles: [{name: server}]",
        &["{name: a, role: server, url: 'http://b'}"],
    ));
    assert_ne!(fleet.deployment.pods[0].uid, other.deployment.pods[0].uid);
    fleet.deployment = other.deployment;
    let now = fleet.round(15.0, &[("a", &engines(&[20.0]))]);
    assert_eq!(now.code("a", TTFT), Some(Code::FirstSample));
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(0.0));
}

#[test]
fn a_counter_that_did_not_move_is_a_rate_of_zero() {
    let mut fleet = Fleet::router("vllm-router", "[]");
    let body = "vllm_router_requests_total 5\nvllm_router_request_errors_total 2\n";
    fleet.round(0.0, &[("r", body)]);
    let now = fleet.round(15.0, &[("r", body)]);
    assert_eq!(now.window("r", "successful-requests"), Some((0.0, 0.0, 15.0)));
    assert_eq!(now.window("r", "errors"), Some((0.0, 0.0, 15.0)));
}

#[test]
fn the_window_of_a_pod_is_that_of_a_field_every_read_has() {
    let mut fleet = Fleet::vllm();
    let now = fleet.round(0.0, &[("a", "other 1\n")]);
    assert_eq!(now.series("pod_window_seconds", &[("pod", "a")]), None);
    let now = fleet.round(15.0, &[("a", "other 1\n")]);
    assert_eq!(now.series("pod_window_seconds", &[("pod", "a")]), Some(15.0));
}

/// SGLang's cache counters of one rank.
fn tokens(labels: &str, input: f64, device: f64, host: f64) -> String {
    let line =
        |mode: &str, value: f64| format!("sglang:prefill_effective_tokens_total{{{labels}mode=\"{mode}\"}} {value}\n");
    [line("input", input), line("device_hit", device), line("host_hit", host), line("storage_hit", 0.0)].concat()
}

#[test]
fn of_ranks_that_repeat_requests_the_one_that_grew_most_counts_once() {
    let rank =
        |tp: u32, input: f64, device: f64| tokens(&format!("tp_rank=\"{tp}\",pp_rank=\"0\","), input, device, 0.0);
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(rank(0, 100.0, 10.0) + &rank(1, 100.0, 10.0)))]);
    let now = fleet.round(15.0, &[("a", &(rank(0, 160.0, 30.0) + &rank(1, 170.0, 35.0)))]);
    assert_eq!(now.cache("a", "device-prefix"), Some((25.0, 95.0)));
    // Hits come from the rank that the queries chose, also where another has more of them.
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(rank(0, 0.0, 0.0) + &rank(1, 0.0, 0.0)))]);
    let now = fleet.round(15.0, &[("a", &(rank(0, 100.0, 0.0) + &rank(1, 0.0, 60.0)))]);
    assert_eq!(now.cache("a", "device-prefix"), Some((0.0, 100.0)));
}

#[test]
fn every_rank_label_folds_and_dp_ranks_are_summed() {
    for label in ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank"] {
        let rank = |rank: u32, input: f64| tokens(&format!("{label}=\"{rank}\","), input, 0.0, 0.0);
        let mut fleet = Fleet::sglang();
        fleet.round(0.0, &[("a", &(rank(0, 0.0) + &rank(1, 0.0)))]);
        let now = fleet.round(15.0, &[("a", &(rank(0, 8.0) + &rank(1, 8.0)))]);
        assert_eq!(now.cache("a", "device-prefix"), Some((0.0, 8.0)), "{label}");
    }
    let rank = |dp: u32, input: f64| tokens(&format!("dp_rank=\"{dp}\",tp_rank=\"{dp}\","), input, 0.0, 0.0);
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(rank(0, 0.0) + &rank(1, 0.0)))]);
    let now = fleet.round(15.0, &[("a", &(rank(0, 8.0) + &rank(1, 3.0)))]);
    assert_eq!(now.cache("a", "device-prefix"), Some((0.0, 11.0)));
}

#[test]
fn of_a_histogram_the_rank_whose_count_grew_most_counts_with_its_sum() {
    let rank = |rank: u32, count: f64, sum: f64| {
        format!(
            "sglang:time_to_first_token_seconds_count{{tp_rank=\"{rank}\"}} {count}\nsglang:time_to_first_token_seconds_sum{{tp_rank=\"{rank}\"}} {sum}\n"
        )
    };
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(rank(0, 0.0, 0.0) + &rank(1, 0.0, 0.0)))]);
    let now = fleet.round(10.0, &[("a", &(rank(0, 2.0, 90.0) + &rank(1, 4.0, 8.0)))]);
    assert_eq!(now.window("a", "ttft"), Some((2.0, 4.0, 10.0)));
    assert_eq!(now.series("ttft_seconds_total", &[("pod", "a")]), Some(8.0));
}

#[test]
fn the_total_of_priorities_counts_instead_of_its_parts() {
    let with = |priority: &str, value: f64| format!("sglang:num_queue_reqs{{tp_rank=\"0\"{priority}}} {value}\n");
    let cases = [
        (vec![with(",priority=\"\"", 4.0), with(",priority=\"1\"", 1.0), with(",priority=\"2\"", 3.0)], 4.0),
        (vec![with("", 5.0), with(",priority=\"1\"", 1.0)], 5.0),
        (vec![with(",priority=\"1\"", 1.0), with(",priority=\"2\"", 3.0)], 4.0),
        (vec![with("", 7.0)], 7.0),
    ];
    for (lines, expected) in cases {
        let now = Fleet::sglang().round(0.0, &[("a", &lines.concat())]);
        assert_eq!(now.gauge("waiting", "engine/server"), Some(expected), "{lines:?}");
    }
    // Both engines mark the total alike.
    let body = "vllm:num_requests_waiting{priority=\"\"} 4\nvllm:num_requests_waiting{priority=\"1\"} 4\n";
    assert_eq!(Fleet::vllm().round(0.0, &[("a", body)]).gauge("waiting", "engine/server"), Some(4.0));
    let set = |priority: &str, input: f64| tokens(&format!("tp_rank=\"0\",priority=\"{priority}\","), input, 0.0, 0.0);
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(set("", 0.0) + &set("1", 0.0)))]);
    let now = fleet.round(15.0, &[("a", &(set("", 9.0) + &set("1", 9.0)))]);
    assert_eq!(now.cache("a", "device-prefix"), Some((0.0, 9.0)));
    assert_eq!(now.series("cache_query_tokens_total", &[("pod", "a"), ("cache", "device-prefix")]), Some(9.0));
}

#[test]
fn of_a_gauge_the_largest_rank_counts_once() {
    let running = |labels: &str, value: f64| format!("sglang:num_running_reqs{{{labels}}} {value}\n");
    let body = running("tp_rank=\"0\",dp_rank=\"0\"", 8.0)
        + &running("tp_rank=\"1\",dp_rank=\"0\"", 6.0)
        + &running("tp_rank=\"2\",dp_rank=\"1\"", 3.0);
    let now = Fleet::sglang().round(0.0, &[("a", &body)]);
    assert_eq!(now.gauge("running", "engine/server"), Some(11.0));
    assert_eq!(now.series("running_requests", &[("pod", "a"), ("role", "server"), ("scope", "engine")]), Some(11.0));
}

#[test]
fn totals_start_at_zero_with_the_first_good_read() {
    let mut fleet = Fleet::vllm();
    let now = fleet.answers(0.0, &[("a", Answer::Fails(Cause::Refused))]);
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), None);
    let now = fleet.round(15.0, &[("a", &engines(&[40.0]))]);
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a"), ("source", TTFT)]), Some(0.0));
    assert_eq!(now.series("cache_hit_tokens_total", &[("pod", "a"), ("cache", "local-prefix")]), Some(0.0));
}

#[test]
fn after_a_known_restart_every_label_set_adds_its_new_value() {
    let body = |start: f64, counts: &[f64]| format!("process_start_time_seconds {start}\n{}", engines(counts));
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &body(1000.0, &[100.0, 10.0]))]);
    // Engine 1 has overtaken its old value.
    let now = fleet.round(15.0, &[("a", &body(2000.0, &[7.0, 30.0]))]);
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(37.0));
}

#[test]
fn after_a_restart_known_from_falling_values_alone_the_others_add_their_difference() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &engines(&[100.0, 10.0]))]);
    let now = fleet.round(15.0, &[("a", &engines(&[7.0, 30.0]))]);
    assert_eq!(now.series("ttft_observations_total", &[("pod", "a")]), Some(27.0));
    assert_eq!(now.series("ttft_seconds_total", &[("pod", "a")]), Some(13.5));
}

#[test]
fn totals_keep_to_one_rank_until_it_vanishes_or_the_pod_is_reset() {
    let rank = |rank: u32, count: f64| tokens(&format!("tp_rank=\"{rank}\","), count, 0.0, 0.0);
    let both = |a: f64, b: f64| rank(0, a) + &rank(1, b);
    let mut fleet = Fleet::sglang();
    let mut total = |at: f64, body: String| {
        fleet.round(at, &[("a", &body)]).series("cache_query_tokens_total", &[("pod", "a"), ("cache", "device-prefix")])
    };
    assert_eq!(total(0.0, both(5.0, 5.0)), Some(0.0));
    assert_eq!(total(15.0, both(6.0, 15.0)), Some(10.0), "rank 1 grew most");
    assert_eq!(total(30.0, both(106.0, 16.0)), Some(11.0), "and is kept");
    assert_eq!(total(45.0, rank(0, 107.0)), Some(12.0), "until it vanishes");
    assert_eq!(total(60.0, both(108.0, 90.0)), Some(13.0), "the rank chosen then is kept");
    assert_eq!(total(75.0, both(1.0, 4.0)), Some(17.0), "a reset chooses again by the new values");
    assert_eq!(total(90.0, both(50.0, 5.0)), Some(18.0));
}

#[test]
fn a_rank_that_never_grew_is_not_chosen() {
    // With plain tensor parallelism the other ranks show only their seeded zeros.
    let rank = |rank: u32, count: f64| tokens(&format!("tp_rank=\"{rank}\","), count, 0.0, 0.0);
    let mut fleet = Fleet::sglang();
    fleet.round(0.0, &[("a", &(rank(0, 0.0) + &rank(1, 0.0)))]);
    fleet.round(15.0, &[("a", &(rank(0, 0.0) + &rank(1, 0.0)))]);
    let now = fleet.round(30.0, &[("a", &(rank(0, 0.0) + &rank(1, 6.0)))]);
    assert_eq!(now.series("cache_query_tokens_total", &[("pod", "a"), ("cache", "device-prefix")]), Some(6.0));
}

#[test]
fn a_sum_that_falls_while_its_count_grows_takes_nothing_away() {
    let mut fleet = Fleet::vllm();
    fleet.round(0.0, &[("a", &vllm((10.0, 5.0), (4.0, 9.0)))]);
    fleet.round(15.0, &[("a", &vllm((12.0, 9.0), (4.0, 9.0)))]);
    let now = fleet.round(30.0, &[("a", &vllm((14.0, 6.0), (4.0, 9.0)))]);
    assert_eq!(now.window("a", "ttft"), Some((1.0, 4.0, 30.0)));
    assert_eq!(now.series("ttft_seconds_total", &[("pod", "a")]), Some(4.0));
}

#[test]
fn totals_never_fall() {
    let mut fleet = Fleet::vllm();
    let mut before = 0.0;
    let counts = [[5.0, 5.0], [9.0, 2.0], [0.0, 0.0], [3.0, 1.0], [3.0, 100.0], [1.0, 1.0]];
    for (index, counts) in counts.iter().enumerate() {
        let now = fleet.round(index as f64 * 15.0, &[("a", &engines(counts))]);
        let total = now.series("ttft_observations_total", &[("pod", "a")]).unwrap();
        assert!(total >= before, "{total} after {before}");
        before = total;
    }
}

#[test]
fn what_vanished_is_remembered_within_bounds_and_never_counted_twice() {
    let mut fleet = Fleet::router("vllm-router", "[]");
    let route = |name: String, value: f64| format!("vllm_router_requests_total{{route=\"{name}\"}} {value}\n");
    let fixed = route("/v1".to_owned(), 1.0);
    fleet.round(0.0, &[("r", &fixed)]);
    for round in 1..=6 {
        let many: String = (0..3_000).map(|i| route(format!("/{round}/{i}"), 1.0)).collect();
        fleet.round(f64::from(round) * 100.0, &[("r", &(many + &fixed))]);
    }
    let before = fleet.round(700.0, &[("r", &fixed)]).series("router_successful_requests_total", &[("pod", "r")]);
    // One of the first round again: whether or not it is remembered, it adds nothing.
    let body = route("/1/7".to_owned(), 1.0) + &fixed;
    let after = fleet.round(800.0, &[("r", &body)]).series("router_successful_requests_total", &[("pod", "r")]);
    assert_eq!(before, after);
    assert!(before.unwrap() >= 12_000.0, "{before:?}");
}

#[test]
fn long_labels_of_what_vanished_are_remembered_within_bounds() {
    let mut fleet = Fleet::router("vllm-router", "[]");
    let route = |name: &str, value: f64| format!("vllm_router_requests_total{{route=\"{name}\"}} {value}\n");
    let long = |round: u32| format!("/{round}/{}", "x".repeat(300_000));
    let fixed = route("/v1", 1.0);
    fleet.round(0.0, &[("r", &fixed)]);
    for round in 1..=20 {
        fleet.round(f64::from(round) * 100.0, &[("r", &(route(&long(round), 1.0) + &fixed))]);
    }
    let remembered = fleet.remembered_bytes();
    assert!(remembered < 4_000_000, "{remembered} bytes");
    let total = fleet.round(2_100.0, &[("r", &fixed)]).series("router_successful_requests_total", &[("pod", "r")]);
    let again = route(&long(1), 1.0) + &fixed;
    let after = fleet.round(2_200.0, &[("r", &again)]).series("router_successful_requests_total", &[("pod", "r")]);
    assert_eq!(after, total, "what may have been forgotten does not count again");
}

#[test]
fn no_number_is_ever_infinite() {
    // The largest numbers that a Pod can export: each is finite, and no sum of them is.
    let huge = "1.7e308";
    let histogram = |name: &str, engine: u32, count: &str, sum: &str| {
        format!("{name}_count{{engine=\"{engine}\"}} {count}\n{name}_sum{{engine=\"{engine}\"}} {sum}\n")
    };
    let body = |count: &str, value: &str| {
        let mut body = String::new();
        for engine in [0, 1] {
            body += &format!("vllm:num_requests_running{{engine=\"{engine}\"}} {huge}\n");
            body += &format!("vllm:prefix_cache_queries_total{{engine=\"{engine}\"}} {value}\n");
            body += &format!("vllm:prefix_cache_hits_total{{engine=\"{engine}\"}} {value}\n");
            body += &histogram(TTFT, engine, count, value);
        }
        body
    };
    let mut fleet = Fleet::new(&yaml(
        "engine: {name: vLLM}, roles: [{name: server, replicas: 2}]",
        &["{name: a, role: server, url: 'http://a'}", "{name: b, role: server, url: 'http://b'}"],
    ));
    let (first, second) = (body("0", "0"), body("1e-9", huge));
    fleet.round(0.0, &[("a", &first), ("b", &first)]);
    let now = fleet.round(15.0, &[("a", &second), ("b", &second)]);
    assert_eq!(now.gauge("running", "engine/server"), Some(f64::MAX));
    assert_eq!(now.window("a", "ttft").map(|(mean, _, _)| mean), Some(f64::MAX));
    assert_eq!(now.cache("a", "local-prefix"), Some((f64::MAX, f64::MAX)));
    assert!(!serde_json::to_string(&now.snapshot.object).unwrap().contains("null"));
    let infinite: Vec<_> = now.points.iter().chain(&now.lasting).filter(|point| !point.value.is_finite()).collect();
    assert!(infinite.is_empty(), "{infinite:?}");
}
