//! The simulated fleet: that it is the same for the same seed, that its expositions are shaped like
//! the real ones, that its counters are what really happened, and that everything announced happens.
//!
//! The fixtures are cut from expositions captured from the software in their names.

// The lints allow these in test functions only, and their helpers are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use modeldeployment_exporter::catalogue::{Catalogue, FamilyKind, Filter, Software, SoftwareKind, TotalPart};
use modeldeployment_exporter::clock::Clock;
use modeldeployment_exporter::demo::{self, Answer, EventKind, Fleet, Scenario, serve_fleet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SIX_MINUTES: u64 = 360;

type Labels = Vec<(String, String)>;

#[derive(Debug, Default)]
struct Exposition {
    samples: Vec<(String, Labels, f64)>,
    kinds: BTreeMap<String, String>,
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.chars().next().is_some_and(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// `a="b",c="d"` in order; panics on anything else. No value of the fleet has an escape.
fn labels(text: &str) -> Labels {
    let mut labels = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("label without value: {text}"));
        assert!(is_name(name), "label name {name}");
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("open label value: {text}"));
        assert!(!value.contains('\\'), "escape in {text}");
        labels.push((name.to_owned(), value.to_owned()));
        rest = match after.strip_prefix(',') {
            Some(more) => more,
            None => {
                assert!(after.is_empty(), "after a label: {after}");
                after
            }
        };
    }
    labels
}

/// A strict reading of the text exposition 0.0.4: what `promtool check metrics` takes for well-formed.
fn parse(text: &str) -> Exposition {
    let mut exposition = Exposition::default();
    let mut family = String::new();
    let mut seen = BTreeSet::new();
    assert!(text.is_empty() || text.ends_with('\n'));
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            assert!(words.len() == 3 && is_name(words[1]), "{line}");
            match words[0] {
                "HELP" => {}
                "TYPE" => {
                    assert!(["counter", "gauge", "histogram", "summary"].contains(&words[2]), "{line}");
                    let before = exposition.kinds.insert(words[1].to_owned(), words[2].to_owned());
                    assert!(before.is_none(), "a second TYPE: {line}");
                    family = words[1].to_owned();
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, set) = match series.split_once('{') {
            Some((name, set)) => (name, labels(set.strip_suffix('}').unwrap_or_else(|| panic!("{line}")))),
            None => (series, Vec::new()),
        };
        assert!(is_name(name), "{line}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let kind = exposition.kinds.get(&family).unwrap_or_else(|| panic!("no TYPE before {line}"));
        let ending = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{name} inside {family}"));
        let endings: &[&str] = match kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["", "_sum", "_count"],
            _ => &[""],
        };
        assert!(endings.contains(&ending), "{line} in a {kind}");
        let mut sorted = set.clone();
        sorted.sort();
        assert!(seen.insert((name.to_owned(), sorted)), "twice: {line}");
        exposition.samples.push((name.to_owned(), set, value));
    }
    for (name, _) in exposition.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
        check_histogram(&exposition, name);
    }
    exposition
}

fn without(set: &Labels, name: &str) -> Labels {
    let mut set: Labels = set.iter().filter(|(label, _)| label != name).cloned().collect();
    set.sort();
    set
}

fn check_histogram(exposition: &Exposition, name: &str) {
    let mut below: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, set, value) in exposition.of(&format!("{name}_bucket")) {
        let le = set.iter().find(|(label, _)| label == "le").unwrap().1.parse().unwrap();
        below.entry(without(set, "le")).or_default().push((le, *value));
    }
    for (_, set, count) in exposition.of(&format!("{name}_count")) {
        let buckets = &below[&without(set, "le")];
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{name} {buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}");
    }
}

impl Exposition {
    fn of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a (String, Labels, f64)> {
        self.samples.iter().filter(move |(of, _, _)| of == name)
    }

    fn sum(&self, name: &str) -> f64 {
        self.of(name).map(|(_, _, value)| value).sum()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fleet(scenario: Scenario, seed: u64) -> Fleet {
    Fleet::new(scenario, seed).unwrap()
}

fn named(name: &str) -> Scenario {
    Scenario::by_name(name).unwrap()
}

fn pod(scenario: &Scenario, name: &str) -> usize {
    scenario.pods().iter().position(|pod| pod.name == name).unwrap()
}

fn text(answer: Answer) -> Option<String> {
    if let Answer::Exposition(text) = answer { Some(text) } else { None }
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_was_asked_before() {
    for scenario in Scenario::all() {
        let mut asked_once = fleet(scenario.clone(), 7);
        let mut asked_often = fleet(scenario.clone(), 7);
        let mut other_seed = fleet(scenario.clone(), 8);
        for second in (0..SIX_MINUTES).step_by(5) {
            asked_often.answer(second as usize % scenario.pods().len(), seconds(second));
        }
        // Back in time, and from the middle of a step.
        for at in [Duration::from_millis(61_000), Duration::from_millis(203_130), Duration::from_millis(203_249)] {
            for pod in 0..scenario.pods().len() {
                assert_eq!(asked_once.answer(pod, at), asked_often.answer(pod, at), "{} {at:?}", scenario.name);
                assert_eq!(asked_once.truth(pod, at), asked_often.truth(pod, at));
            }
        }
        assert_ne!(asked_once.truth(1, seconds(100)), other_seed.truth(1, seconds(100)));
    }
}

#[test]
fn expositions_are_well_formed_and_of_real_size() {
    for scenario in Scenario::all() {
        let mut fleet = fleet(scenario.clone(), 1);
        for second in (0..SIX_MINUTES).step_by(17) {
            for pod in 0..scenario.pods().len() {
                if let Some(text) = text(fleet.answer(pod, seconds(second))) {
                    parse(&text);
                    // An engine's exposition is 20 to 130 KB once it has served; two ranks nearly double it.
                    let engine = pod > 0 && second > 0;
                    assert!(
                        !engine || (20_000..130_000).contains(&text.len()),
                        "{} {pod} {}",
                        scenario.name,
                        text.len()
                    );
                }
            }
        }
    }
}

/// The names of a sample's family that the exporter wants, with buckets, and their labels' names.
fn shape(software: &Software, exposition: &Exposition) -> BTreeSet<(String, Vec<String>)> {
    let wanted = |name: &str| {
        let count = name.strip_suffix("_bucket").map(|base| format!("{base}_count"));
        software.wanted.id(count.as_deref().unwrap_or(name)).is_some()
    };
    let kept = exposition.samples.iter().filter(|(name, _, _)| wanted(name));
    let shape = kept.map(|(name, set, _)| {
        // A bucket's bound is part of the shape.
        let label =
            |(label, value): &(String, String)| if label == "le" { format!("le={value}") } else { label.clone() };
        let mut labels: Vec<String> = set.iter().map(label).collect();
        labels.sort();
        (name.clone(), labels)
    });
    shape.collect()
}

/// The labels of each name in the order in which they are written.
fn label_order(exposition: &Exposition) -> BTreeMap<String, Vec<String>> {
    let order =
        |(name, set, _): &(String, Labels, f64)| (name.clone(), set.iter().map(|(label, _)| label.clone()).collect());
    exposition.samples.iter().map(order).collect()
}

#[test]
fn expositions_have_the_names_labels_and_buckets_of_the_captured_ones() {
    let catalogue = Catalogue::embedded().unwrap();
    let cases: &[(&str, &str, &[&str])] = &[
        ("vllm-servers", "chat-server-1", &[include_str!("fixtures/demo/vllm-0.32.0-server.prom")]),
        ("vllm-servers", "chat-server-0", &[include_str!("fixtures/demo/vllm-0.32.0-dp2.prom")]),
        ("vllm-pair", "chat-prefill-0", &[include_str!("fixtures/demo/vllm-0.32.0-server.prom")]),
        ("sglang-servers", "chat-server-0", &[include_str!("fixtures/demo/sglang-0.5.23-server-dp2.prom")]),
        ("sglang-servers", "chat-server-1", &[include_str!("fixtures/demo/sglang-0.5.23-server.prom")]),
        ("sglang-pair", "chat-prefill-0", &[include_str!("fixtures/demo/sglang-0.5.23-prefill-tp2.prom")]),
        ("sglang-pair", "chat-decode-0", &[include_str!("fixtures/demo/sglang-0.5.23-decode.prom")]),
        (
            "vllm-servers",
            "chat-router-0",
            &[
                include_str!("fixtures/demo/vllm-router-0.1.17.prom"),
                include_str!("fixtures/demo/vllm-router-0.1.17-failures.prom"),
            ],
        ),
        ("sglang-pair", "chat-router-0", &[include_str!("fixtures/demo/sglang-router-0.3.2-pd.prom")]),
        ("sglang-servers", "chat-router-0", &[include_str!("fixtures/demo/smg-1.13.0-regular.prom")]),
    ];
    for (scenario, name, captures) in cases {
        let scenario = named(scenario);
        let (kind, of) = match name.contains("router") {
            true => {
                (SoftwareKind::Router, if scenario.name == "vllm-servers" { "vllm-router" } else { "sglang-gateway" })
            }
            false => (SoftwareKind::Engine, if scenario.name.starts_with("vllm") { "vLLM" } else { "SGLang" }),
        };
        let (software, _) = catalogue.find(kind, of).unwrap();
        let mut fleet = fleet(scenario.clone(), 3);
        let (mut simulated, mut order) = (BTreeSet::new(), BTreeMap::new());
        for second in (0..SIX_MINUTES).step_by(10) {
            if let Some(text) = text(fleet.answer(pod(&scenario, name), seconds(second))) {
                let exposition = parse(&text);
                simulated.extend(shape(software, &exposition));
                order.extend(label_order(&exposition));
            }
        }
        let mut real = BTreeSet::new();
        for capture in *captures {
            let exposition = parse(capture);
            real.extend(shape(software, &exposition));
            for (name, labels) in label_order(&exposition) {
                if let Some(simulated) = order.get(&name) {
                    assert_eq!(simulated, &labels, "order of the labels of {name}");
                }
            }
        }
        let missing: Vec<_> = real.difference(&simulated).collect();
        let invented: Vec<_> = simulated.difference(&real).collect();
        assert!(real.len() > 3 && missing.is_empty() && invented.is_empty(), "{name}: {missing:#?} {invented:#?}");
    }
}

#[test]
fn the_endpoint_picker_has_the_series_that_are_read_from_it() {
    let catalogue = Catalogue::embedded().unwrap();
    let (software, _) = catalogue.find(SoftwareKind::Router, "llm-d-router").unwrap();
    let mut fleet = fleet(named("vllm-pair"), 3);
    let exposition = parse(&text(fleet.answer(0, seconds(60))).unwrap());
    for field in &software.fields {
        let family = &software.families[field.alternatives[0].parts[0].family];
        let name = if family.kind == FamilyKind::Histogram {
            format!("{}_count", family.series)
        } else {
            family.series.clone()
        };
        // The one series of the contract that the pinned version does not export.
        let exported = family.series != "llm_d_epp_request_streaming_tpot_seconds";
        assert_eq!(exposition.of(&name).next().is_some(), exported, "{name}");
    }
}

#[test]
fn labelled_counters_begin_with_their_first_event() {
    let cases = [
        ("vllm-pair", "chat-router-0", "llm_d_epp_request_error_total"),
        ("sglang-servers", "chat-router-0", "smg_router_request_errors_total"),
        ("sglang-pair", "chat-router-0", "smg_router_request_errors_total"),
        ("sglang-pair", "chat-prefill-0", "sglang:num_transfer_failed_reqs_total"),
        ("vllm-servers", "chat-router-0", "vllm_router_request_errors_total"),
        ("vllm-servers", "chat-router-0", "vllm_router_retries_exhausted_total"),
    ];
    for (scenario, name, series) in cases {
        let scenario = named(scenario);
        let mut fleet = fleet(scenario.clone(), 5);
        let mut at = |second| parse(&text(fleet.answer(pod(&scenario, name), seconds(second))).unwrap());
        assert_eq!(at(19).of(series).count(), 0, "{series} before the burst");
        assert!(at(40).sum(series) > 0.0, "{series} after the burst");
    }
    // SGLang's modes are there from the start, and the warm-up is no stream.
    let mut fleet = fleet(named("sglang-servers"), 5);
    let fresh = parse(&text(fleet.answer(2, Duration::ZERO)).unwrap());
    assert_eq!(fresh.of("sglang:prefill_effective_tokens_total").count(), 4);
    assert_eq!(fresh.sum("sglang:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(fresh.of("sglang:inter_token_latency_seconds_count").count(), 0);
}

/// Whether a sample's name is that of a value that never falls.
fn is_monotonic(exposition: &Exposition, name: &str) -> bool {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending));
    let kind = exposition.kinds.get(name).or_else(|| exposition.kinds.get(base?));
    kind.is_some_and(|kind| kind == "counter" || kind == "histogram" || kind == "summary")
}

#[test]
fn counters_fall_only_when_that_was_announced() {
    for scenario in Scenario::all() {
        let mut fleet = fleet(scenario.clone(), 11);
        let names = scenario.pods();
        for (pod, plan) in names.iter().enumerate() {
            let mut before: BTreeMap<(String, Labels), f64> = BTreeMap::new();
            let mut last = Duration::ZERO;
            let mut resets = 0;
            for second in (0..500).step_by(5) {
                let at = seconds(second);
                let Some(text) = text(fleet.answer(pod, at)) else { continue };
                let exposition = parse(&text);
                let now: BTreeMap<_, _> = exposition
                    .samples
                    .iter()
                    .filter(|(name, _, _)| is_monotonic(&exposition, name))
                    .map(|(name, set, value)| ((name.clone(), without(set, "")), *value))
                    .collect();
                let fell = before.iter().any(|(series, value)| now.get(series).is_none_or(|now| now < value));
                let resetting = [EventKind::Restart, EventKind::Dead, EventKind::RankReset];
                let announced = fleet.announcements(last + Duration::from_millis(1)..at + Duration::from_millis(1));
                let announced = announced.iter().any(|a| a.pod == plan.name && resetting.contains(&a.kind));
                assert_eq!(fell, announced, "{} {} at {second} s", scenario.name, plan.name);
                resets += u32::from(fell);
                (before, last) = (now, at);
            }
            assert!(pod == 0 || resets > 0, "{} {} never restarted", scenario.name, plan.name);
        }
    }
}

#[test]
fn every_kind_of_event_is_announced_in_time_and_happens() {
    for scenario in Scenario::all() {
        let mut fleet = fleet(scenario.clone(), 13);
        let announced = fleet.announcements(Duration::ZERO..seconds(300));
        let kinds: BTreeSet<EventKind> = announced.iter().map(|announcement| announcement.kind).collect();
        assert_eq!(kinds, EventKind::ALL.into_iter().collect(), "{}", scenario.name);
        assert!(announced[0].at <= seconds(30));
        assert!(announced.windows(2).all(|pair| pair[1].at - pair[0].at <= seconds(50)), "{announced:#?}");
        for announcement in &announced {
            let pod = pod(&scenario, &announcement.pod);
            assert!(announcement.sentence.contains(&announcement.pod), "{}", announcement.sentence);
            let during = announcement.at + seconds(3);
            match announcement.kind {
                EventKind::Restart | EventKind::Dead => {
                    assert_ne!(fleet.answer(pod, announcement.at - seconds(1)), Answer::Refuse);
                    assert_eq!(fleet.answer(pod, during), Answer::Refuse);
                    assert!(text(fleet.answer(pod, announcement.at + seconds(36))).is_some());
                }
                EventKind::Hang => assert_eq!(fleet.answer(pod, during), Answer::Hang),
                EventKind::Idle => {
                    let settled = fleet.truth(pod, announcement.at + seconds(20));
                    assert!(settled.get("ttft", "count") > 0.0);
                    assert_eq!(settled, fleet.truth(pod, announcement.at + seconds(109)));
                    assert_ne!(settled, fleet.truth(pod, announcement.at + seconds(140)));
                }
                EventKind::Errors => {
                    let errors = |fleet: &mut Fleet, at| {
                        let truth = fleet.truth(pod, at);
                        let fields = ["errors", "request-errors", "http-5xx-responses", "retries-exhausted"];
                        fields.iter().map(|field| truth.get(field, "value")).sum::<f64>()
                    };
                    let before = errors(&mut fleet, announcement.at);
                    assert!(errors(&mut fleet, announcement.at + seconds(15)) > before + 5.0);
                }
                EventKind::RankReset => rank_reset(&mut fleet, pod, announcement.at),
            }
        }
    }
}

/// One rank's counters fall; another's go on.
fn rank_reset(fleet: &mut Fleet, pod: usize, at: Duration) {
    let before = parse(&text(fleet.answer(pod, at - seconds(1))).unwrap());
    let after = parse(&text(fleet.answer(pod, at + seconds(1))).unwrap());
    let after: BTreeMap<_, _> =
        after.samples.iter().map(|(name, set, value)| ((name, without(set, "")), value)).collect();
    let mut fell = BTreeSet::new();
    for (name, set, value) in before.samples.iter().filter(|(name, _, _)| is_monotonic(&before, name)) {
        if after[&(name, without(set, ""))] < value {
            let rank = set.iter().find(|(label, _)| label == "engine" || label == "tp_rank");
            fell.insert(rank.unwrap_or_else(|| panic!("{name} fell")).1.clone());
        }
    }
    assert_eq!(fell, BTreeSet::from(["1".to_owned()]));
}

/// The value of a total in an exposition: ranks that repeat the same requests once, but every shard of a size.
fn total(software: &Software, exposition: &Exposition, field: &str, part: &str) -> Option<f64> {
    let field = software.fields.iter().find(|candidate| candidate.definition.name == field)?;
    let total = field.definition.totals.iter().find(|total| {
        let word = match total.part {
            TotalPart::Hits => "hits",
            TotalPart::Queries => "queries",
            TotalPart::Sum => "sum",
            TotalPart::Count => "count",
            TotalPart::Value => "value",
        };
        word == part
    })?;
    let parts = &field.alternatives[0].parts;
    let input = &parts[if total.part == TotalPart::Queries { 1 } else { 0 }];
    let family = &software.families[input.family];
    let names = match total.part {
        TotalPart::Sum => vec![format!("{}_sum", family.series)],
        TotalPart::Count => vec![format!("{}_count", family.series)],
        _ => vec![family.series.clone(), format!("{}_total", family.series)],
    };
    let passes = |filter: &Option<Filter>, set: &Labels| {
        filter.as_ref().is_none_or(|filter| {
            set.iter().any(|(label, value)| *label == filter.label && filter.matches(value) && filter.is_valid(value))
        })
    };
    let mut ranks: BTreeMap<Labels, Vec<f64>> = BTreeMap::new();
    for (name, set, value) in &exposition.samples {
        if names.contains(name) && passes(&input.filter, set) {
            ranks.entry(without(set, "tp_rank")).or_default().push(*value);
        }
    }
    let all = total.ranks == modeldeployment_exporter::catalogue::Ranks::All;
    let fold =
        |values: &Vec<f64>| if all { values.iter().sum::<f64>() } else { values.iter().copied().fold(0.0, f64::max) };
    // Data-parallel ranks differ in `dp_rank` too, so that they are never folded.
    Some(ranks.values().map(fold).sum())
}

#[test]
fn counters_are_what_really_happened() {
    let catalogue = Catalogue::embedded().unwrap();
    for scenario in Scenario::all() {
        // Errors are kept: they make no process start again.
        let mut scenario = scenario;
        scenario.events.retain(|event| event.kind == EventKind::Errors);
        let mut fleet = fleet(scenario.clone(), 17);
        let at = seconds(300);
        for (index, plan) in scenario.pods().iter().enumerate() {
            let (kind, name) = match (plan.role, scenario.name) {
                (Some(_), name) => (SoftwareKind::Engine, if name.starts_with("vllm") { "vLLM" } else { "SGLang" }),
                (None, "vllm-pair") => (SoftwareKind::Router, "llm-d-router"),
                (None, "vllm-servers") => (SoftwareKind::Router, "vllm-router"),
                (None, _) => (SoftwareKind::Router, "sglang-gateway"),
            };
            let (software, _) = catalogue.find(kind, name).unwrap();
            let exposition = parse(&text(fleet.answer(index, at)).unwrap());
            let truth = fleet.truth(index, at);
            let mut facts = 0;
            for (field, part, value) in truth.iter() {
                let counted = total(software, &exposition, field, part)
                    .unwrap_or_else(|| panic!("{name} has no total {part} of {field}"));
                assert!(
                    (counted - value).abs() <= 1e-9 * value,
                    "{} {} {field} {part}: {counted} {value}",
                    scenario.name,
                    plan.name
                );
                facts += 1;
            }
            assert!(facts >= 3, "{} {} {truth:?}", scenario.name, plan.name);
        }
    }
}

#[test]
fn the_halves_of_a_pair_count_what_real_halves_count() {
    let mut vllm = fleet(named("vllm-pair").without_events(), 19);
    let scenario = vllm.scenario().clone();
    let mut at = |name: &str| parse(&text(vllm.answer(pod(&scenario, name), seconds(240))).unwrap());
    let (prefill, decode) = (at("chat-prefill-0"), at("chat-decode-1"));
    let queries = "vllm:external_prefix_cache_queries_total";
    let hits = "vllm:external_prefix_cache_hits_total";
    assert_eq!(decode.sum(queries), decode.sum(hits));
    assert!(prefill.sum(hits) > 0.0 && prefill.sum(hits) < prefill.sum(queries));
    assert_eq!(prefill.sum("vllm:request_time_per_output_token_seconds_sum"), 0.0);
    assert!(prefill.sum("vllm:request_time_per_output_token_seconds_count") > 0.0);
    assert_eq!(prefill.sum("vllm:inter_token_latency_seconds_count"), 0.0);

    let mut sglang = fleet(named("sglang-pair").without_events(), 19);
    let scenario = sglang.scenario().clone();
    let mut at = |name: &str| parse(&text(sglang.answer(pod(&scenario, name), seconds(240))).unwrap());
    let (prefill, decode) = (at("chat-prefill-0"), at("chat-decode-0"));
    assert_eq!(prefill.of("sglang:time_to_first_token_seconds_count").count(), 0);
    assert_eq!(prefill.of("sglang:inter_token_latency_seconds_count").count(), 0);
    assert_eq!(decode.sum("sglang:prefill_effective_tokens_total"), 0.0);
    assert_eq!(decode.of("sglang:kv_transfer_latency_ms_count").count(), 0);
    // Two ranks observe the same transfers.
    let transfers: Vec<f64> = prefill.of("sglang:kv_transfer_latency_ms_count").map(|sample| sample.2).collect();
    assert!(transfers.len() == 2 && transfers[0] > 0.0 && transfers[0] == transfers[1]);
    assert_eq!(prefill.of("sglang:num_running_reqs").count(), 1);

    // Without a connector the external counters are there and never move.
    let mut servers = fleet(named("vllm-servers").without_events(), 19);
    let server = parse(&text(servers.answer(1, seconds(240))).unwrap());
    assert_eq!((server.of(queries).count(), server.sum(queries)), (2, 0.0));
}

#[test]
fn traffic_rises_and_falls_and_prefixes_are_found_again() {
    for scenario in Scenario::all() {
        let mut fleet = fleet(scenario.clone().without_events(), 23);
        let mut rate = |from: u64| {
            let requests = |fleet: &mut Fleet, at| {
                let truth = fleet.truth(0, seconds(at));
                truth.get("requests", "value") + truth.get("successful-requests", "value")
            };
            requests(&mut fleet, from + 20) - requests(&mut fleet, from)
        };
        let (high, low) = (rate(140), rate(200));
        assert!(high > 2.0 * low && low > 0.0, "{} {high} {low}", scenario.name);
        let truth = fleet.truth(1, seconds(240));
        let (field, least) =
            if scenario.name.starts_with("vllm") { ("local-prefix", 0.2) } else { ("device-prefix", 0.2) };
        let ratio = truth.get(field, "hits") / truth.get(field, "queries");
        assert!((least..0.9).contains(&ratio), "{} {ratio}", scenario.name);
    }
}

#[test]
fn a_fleet_of_64_pods_plays() {
    let scenario = named("vllm-servers").with_replicas("server", 63);
    let mut fleet = fleet(scenario, 29);
    assert_eq!(fleet.pods(), 64);
    let exposition = parse(&text(fleet.answer(63, seconds(30))).unwrap());
    assert!(exposition.sum("vllm:time_to_first_token_seconds_count") > 0.0);
}

#[test]
fn the_deployment_file_names_every_pod_with_its_url() {
    for scenario in Scenario::all() {
        let pods = scenario.pods();
        let urls: Vec<String> = (0..pods.len()).map(|index| format!("http://127.0.0.1:{index}/metrics")).collect();
        let value: serde_json::Value = serde_saphyr::from_str(&scenario.deployment(&urls)).unwrap();
        assert_eq!(value["metadata"]["name"], "chat");
        assert_eq!(value["spec"]["kvCache"].is_object(), scenario.pool);
        assert_eq!(value["spec"]["roles"].as_array().unwrap().len(), scenario.roles.len());
        for (index, pod) in pods.iter().enumerate() {
            let entry = &value["pods"][index];
            assert_eq!((&entry["name"], &entry["url"]), (&pod.name.as_str().into(), &urls[index].as_str().into()));
            assert_eq!(entry["router"] == true, pod.role.is_none());
            assert_eq!(entry["role"].as_str(), pod.role.map(|role| scenario.roles[role].name));
        }
    }
    assert!(Scenario::by_name("nothing").unwrap_err().to_string().contains("vllm-pair"));
    assert_eq!(demo::list().lines().count(), Scenario::all().len());
}

/// A clock that stands still until it is set.
#[derive(Default)]
struct SetClock(AtomicU64);

impl SetClock {
    fn set(&self, at: Duration) {
        self.0.store(at.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + self.now()
    }
}

/// Asks until the answer is as awaited: text, or an error that says that nobody listens.
async fn until(client: &reqwest::Client, url: &str, alive: bool) -> Option<String> {
    let asked = async {
        loop {
            match client.get(url).send().await {
                Ok(response) if alive => return Some(response.text().await.unwrap()),
                Err(error) if !alive && error.is_connect() => return None,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(seconds(20), asked).await.expect("the Pod's listener follows the clock")
}

#[tokio::test]
async fn servers_answer_refuse_and_come_back_on_the_same_port() {
    let clock = Arc::new(SetClock::default());
    let scenario = named("vllm-servers");
    let fleet = Arc::new(Mutex::new(fleet(scenario.clone(), 31)));
    let servers = serve_fleet(Arc::clone(&fleet), Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    let events = scenario.events_between(Duration::ZERO, seconds(300));
    let event = |kind| events.iter().find(|event| event.kind == kind).unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();

    for (pod, url) in servers.urls.iter().enumerate() {
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
        let response = client.get(url).send().await.unwrap();
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(content_type, if pod == 0 { "text/plain" } else { "text/plain; version=1.0.0; charset=utf-8" });
        let expected = text(fleet.lock().unwrap().answer(pod, Duration::ZERO)).unwrap();
        assert_eq!(response.text().await.unwrap(), expected);
    }

    let dead = event(EventKind::Dead);
    let url = servers.urls[dead.pod].clone();
    // A kept connection goes with its Pod.
    let authority = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut kept = tokio::net::TcpStream::connect(authority).await.unwrap();
    kept.write_all(b"GET /metrics HTTP/1.1\r\nHost: pod\r\n\r\n").await.unwrap();
    assert!(kept.read_u8().await.is_ok());
    clock.set(dead.from + seconds(1));
    until(&client, &url, false).await;
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(seconds(20), kept.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the connection is closed");
    // Every other Pod goes on.
    for (pod, url) in servers.urls.iter().enumerate().filter(|(pod, _)| *pod != dead.pod) {
        assert!(client.get(url).send().await.unwrap().status().is_success(), "{pod}");
    }
    clock.set(dead.until + seconds(1));
    let back = until(&client, &url, true).await.unwrap();
    assert_eq!(back, text(fleet.lock().unwrap().answer(dead.pod, clock.now())).unwrap());

    servers.stop().await;
    assert!(tokio::net::TcpStream::connect(authority).await.is_err());
}

#[tokio::test]
async fn a_pod_that_hangs_accepts_and_says_nothing() {
    let clock = Arc::new(SetClock::default());
    let scenario = named("vllm-servers");
    let events = scenario.events_between(Duration::ZERO, seconds(300));
    let hang = events.iter().find(|event| event.kind == EventKind::Hang).unwrap();
    let fleet = Arc::new(Mutex::new(fleet(scenario, 37)));
    let servers = serve_fleet(fleet, Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    clock.set(hang.from + seconds(1));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(300)).build().unwrap();
    let error = client.get(&servers.urls[hang.pod]).send().await.unwrap_err();
    assert!(error.is_timeout() && !error.is_connect(), "{error}");
}

#[tokio::test]
async fn a_demo_says_where_everything_is_and_announces_what_is_due() {
    let clock = Arc::new(SetClock::default());
    let demo = demo::start(None, 1, Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    assert_eq!(demo.scenario.name, Scenario::all()[0].name);
    assert!(demo.servers.urls.iter().all(|url| demo.deployment.contains(url)));
    let welcome = demo.welcome(([127, 0, 0, 1], 9850).into());
    assert!(demo.servers.urls.iter().all(|url| welcome.contains(url)));
    assert_eq!(welcome.lines().filter(|line| line.contains("curl -s http://127.0.0.1:9850/")).count(), 3);
    // The fleet's processes started where the clock began.
    let exposition = reqwest::get(&demo.servers.urls[1]).await.unwrap().text().await.unwrap();
    assert!(exposition.contains("process_start_time_seconds 1.799999995e+09\n"), "{exposition}");

    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let announcing = demo.announce(Arc::clone(&clock) as Arc<dyn Clock>, move |announcement| {
        sender.send(announcement.clone()).unwrap();
    });
    clock.set(seconds(60));
    let heard = async {
        let first = receiver.recv().await.unwrap();
        (first, receiver.recv().await.unwrap())
    };
    let (first, second) = tokio::select! {
        heard = heard => heard,
        () = announcing => unreachable!("announcing does not end"),
    };
    assert_eq!((first.kind, second.kind), (EventKind::Errors, EventKind::Restart));
    assert!(receiver.try_recv().is_err(), "nothing before it is due");
}
