//! Holds the reader of expositions against a plain parser that shares no code with it, against another crate's, and
//! against numbers found in real expositions with grep.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used, clippy::panic)]

#[path = "exposition/plain.rs"]
mod plain;

use modeldeployment_exporter::exposition::{Error, Names, Reader, Samples};
use plain::{Body, LabelSet, Line};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::Config;
use std::collections::BTreeMap;

const CAPTURES: [(&str, &str); 9] = [
    ("vllm-0.32.0-busy", include_str!("fixtures/exposition/vllm-0.32.0-busy.prom")),
    ("vllm-0.32.0-busy-other-families", include_str!("fixtures/exposition/vllm-0.32.0-busy-other-families.prom")),
    ("vllm-0.32.0-openmetrics", include_str!("fixtures/exposition/vllm-0.32.0-openmetrics.prom")),
    ("sglang-0.5.23-prefill-two-ranks", include_str!("fixtures/exposition/sglang-0.5.23-prefill-two-ranks.prom")),
    ("sglang-0.5.23-priority", include_str!("fixtures/exposition/sglang-0.5.23-priority.prom")),
    ("sglang-router-0.3.2-errors", include_str!("fixtures/exposition/sglang-router-0.3.2-errors.prom")),
    ("smg-1.13.0-backend-503", include_str!("fixtures/exposition/smg-1.13.0-backend-503.prom")),
    ("vllm-router-0.1.17-errors", include_str!("fixtures/exposition/vllm-router-0.1.17-errors.prom")),
    ("vllm-router-0.1.17-pd-busy", include_str!("fixtures/exposition/vllm-router-0.1.17-pd-busy.prom")),
];

/// Names that start alike, end alike, and are shorter or longer than the reader's first look.
const NAMES: [&str; 10] = [
    "x",
    "x_by_reason",
    "x_total",
    "xx",
    ":y",
    "vllm:time_to_first_token_seconds",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_firs",
    "_",
];

/// Fewer cases than the default where each is a whole capture; regressions become rows of the tables, not files.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

fn capture(name: &str) -> &'static str {
    CAPTURES.iter().find(|(of, _)| *of == name).map(|(_, text)| *text).expect("a capture of this name")
}

/// The names of a capture's samples.
fn names_in(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| match plain::read_line(line.as_bytes()) {
        Line::Sample { name, .. } => Some(name),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Reads a body whose chunks end at these places.
fn read(wanted: &[String], body: &[u8], ends: &[Index]) -> Result<Samples, Error> {
    let names = Names::new(wanted.iter().cloned());
    let mut ends: Vec<usize> = ends.iter().map(|end| end.index(body.len() + 1)).chain([body.len()]).collect();
    ends.sort_unstable();
    let mut reader = Reader::new(&names);
    let mut start = 0;
    for end in ends {
        reader.push(&body[start..end])?;
        start = end;
    }
    reader.finish()
}

/// What the reader read, in the plain parser's form.
fn as_plain(wanted: &[String], read: Result<Samples, Error>) -> Body {
    let samples = match read {
        Ok(samples) => samples,
        Err(Error::NotExposition { line }) => return Body::NotExposition(line),
        Err(Error::BadLine { line, .. }) => return Body::BadLine(line),
        Err(Error::Truncated { line }) => return Body::Truncated(line),
    };
    let names = Names::new(wanted.iter().cloned());
    let mut by_name = BTreeMap::new();
    for name in wanted {
        let mut sets = BTreeMap::new();
        for sample in samples.of(names.id(name).expect("a wanted name has an id")) {
            let labels: LabelSet =
                sample.labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(sets.insert(labels, sample.value), None, "a label set occurs twice");
        }
        if !sets.is_empty() {
            by_name.insert(name.clone(), sets);
        }
    }
    Body::Samples(by_name)
}

/// A label set as text in braces, any of the ways to write it.
fn labels() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        4 => "[a-z0-9.:/ ]{0,12}",
        1 => r#"([a-z]|\\\\|\\"|\\n|[,={}#]|x 1|é|	){0,8}"#,
        1 => select(vec![r"\", r"\t", "x 5", "\r", "# EOF", "} 1"]).prop_map(str::to_owned),
    ];
    let name = select(vec!["a", "b", "le", "engine", "_c0", "model_name"]);
    let equals = select(vec!["=", "=", "=", " = ", "\t="]);
    let pair = (name, equals, value).prop_map(|(name, equals, value)| format!("{name}{equals}\"{value}\""));
    let comma = select(vec![",", ",", ",", ", ", " ,\t"]);
    let end = select(vec!["}", "}", "}", ",}", " }", ", }"]);
    let braces = (vec(pair, 0..4), comma, end)
        .prop_filter("a comma needs a label", |(pairs, _, end)| !pairs.is_empty() || !end.contains(','))
        .prop_map(|(pairs, comma, end)| format!("{{{}{end}", pairs.join(comma)));
    prop_oneof![2 => Just(String::new()), 5 => braces, 1 => select(vec!["{", "}", "{,}", "{a}", "{a=\"b\""]).prop_map(str::to_owned)]
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0u32..1_000_000).prop_map(|n| n.to_string()),
        4 => any::<f64>().prop_map(|n| format!("{n:e}")),
        2 => "[0-9]{1,3}\\.[0-9]{0,3}",
        2 => select(vec!["NaN", "+Inf", "-Inf", "inf", "-1", "-0", "+5", "1e400", "1e-400", ".5", "."]).prop_map(str::to_owned),
        1 => "[-+.0-9eExX_nNaAiIfF]{1,6}",
    ]
}

/// A line that is a sample, or nearly one.
fn sample_line(name: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let before = select(vec!["", "", "", "", " ", "\t "]);
    let between = select(vec![" ", " ", " ", "", "\t", "  "]);
    let exemplar = (labels(), number()).prop_map(|(labels, value)| format!(" # {labels} {value}"));
    let after = prop_oneof![
        6 => Just(String::new()),
        2 => (0u64..2_000_000_000_000).prop_map(|time| format!(" {time}")),
        1 => number().prop_map(|number| format!(" {number}")),
        1 => exemplar,
        1 => select(vec![" ", "\t", " # ", " x", "#", "\r"]).prop_map(str::to_owned),
    ];
    (before, name, labels(), between, number(), after).prop_map(|(before, name, labels, between, value, after)| {
        [before, &name, &labels, between, &value, &after].concat()
    })
}

/// A line that is anything, without its end.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        6 => select(NAMES.as_slice()).prop_map(str::to_owned),
        1 => "[a-zA-Z_:][a-zA-Z0-9_:]{0,20}",
    ];
    let other = prop_oneof![
        3 => select(NAMES.as_slice()).prop_map(|name| format!("# TYPE {name} gauge")),
        2 => select(NAMES.as_slice()).prop_map(|name| format!("# HELP {name} x 1\\n{name} 2")),
        1 => select(vec!["", " ", "\t", "\r", "#", "# EOF", "<html>", "{\"x\": 1}", "x", "x{", "0 1"]).prop_map(str::to_owned),
    ];
    prop_oneof![
        8 => sample_line(name).prop_map(String::into_bytes),
        4 => other.prop_map(String::into_bytes),
        1 => vec(any::<u8>().prop_filter("a line has no newline", |b| *b != b'\n'), 0..40),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let end = select(vec![b"\n".as_slice(), b"\n", b"\n", b"\n", b"\r\n"]);
    (vec((line(), end), 0..12), prop_oneof![4 => Just(Vec::new()), 1 => line()]).prop_map(|(lines, rest)| {
        let mut body: Vec<u8> = lines.into_iter().flat_map(|(line, end)| [line, end.to_vec()].concat()).collect();
        body.extend(rest);
        body
    })
}

#[derive(Debug, Clone)]
enum Change {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let byte = || prop_oneof![3 => select(b"\n\r\t \"\\{},=#01eNx_\xFF".as_slice()), 1 => any::<u8>()];
    let place = any::<Index>;
    vec(
        prop_oneof![
            4 => (place(), byte()).prop_map(|(at, byte)| Change::Replace(at, byte)),
            3 => (place(), byte()).prop_map(|(at, byte)| Change::Insert(at, byte)),
            2 => (place(), 1..200usize).prop_map(|(at, length)| Change::Remove(at, length)),
            2 => (place(), 1..200usize).prop_map(|(at, length)| Change::Repeat(at, length)),
            1 => place().prop_map(Change::Cut),
        ],
        0..6,
    )
}

fn changed(mut body: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for change in changes {
        let place = |at: Index| at.index(body.len() + 1);
        match change {
            Change::Replace(at, byte) => {
                let at = place(at);
                if let Some(old) = body.get_mut(at) {
                    *old = byte;
                }
            }
            Change::Insert(at, byte) => body.insert(place(at), byte),
            Change::Remove(at, length) => {
                let at = place(at);
                body.drain(at..body.len().min(at + length));
            }
            Change::Repeat(at, length) => {
                let at = place(at);
                let part = body[at..body.len().min(at + length)].to_vec();
                body.splice(at..at, part);
            }
            Change::Cut(at) => body.truncate(place(at)),
        }
    }
    body
}

fn wanted() -> impl Strategy<Value = Vec<String>> {
    subsequence(NAMES.as_slice(), 0..=NAMES.len()).prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

/// A capture and some of its names, a few cut short.
fn wanted_capture() -> impl Strategy<Value = (Vec<u8>, Vec<String>)> {
    select(CAPTURES.as_slice()).prop_flat_map(|(_, text)| {
        let names = names_in(text);
        let most = names.len().min(12);
        let wanted = vec((select(names), prop_oneof![5 => Just(0usize), 1 => 1..6usize]), 0..=most).prop_map(|names| {
            names.into_iter().map(|(name, cut)| name[..name.len().saturating_sub(cut).max(1)].to_owned()).collect()
        });
        (Just(text.as_bytes().to_vec()), wanted)
    })
}

fn chunk_ends() -> impl Strategy<Value = Vec<Index>> {
    vec(any::<Index>(), 0..8)
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn any_bytes_are_read_as_the_plain_parser_reads_them(
        body in vec(any::<u8>(), 0..300),
        wanted in wanted(),
        ends in chunk_ends(),
    ) {
        prop_assert_eq!(as_plain(&wanted, read(&wanted, &body, &ends)), plain::read(&body, &wanted));
    }

    #[test]
    fn generated_bodies_are_read_as_the_plain_parser_reads_them(body in body(), wanted in wanted(), ends in chunk_ends()) {
        prop_assert_eq!(as_plain(&wanted, read(&wanted, &body, &ends)), plain::read(&body, &wanted));
    }

    #[test]
    fn changed_bodies_are_read_as_the_plain_parser_reads_them(
        body in body(),
        changes in changes(),
        wanted in wanted(),
        ends in chunk_ends(),
    ) {
        let body = changed(body, changes);
        prop_assert_eq!(as_plain(&wanted, read(&wanted, &body, &ends)), plain::read(&body, &wanted));
    }

    #[test]
    fn chunks_make_no_difference(body in body(), wanted in wanted(), ends in chunk_ends()) {
        // The error's words too, which the plain parser does not have.
        let bytewise: Vec<Index> = Vec::new();
        let whole = read(&wanted, &body, &bytewise);
        prop_assert_eq!(&read(&wanted, &body, &ends), &whole);
        let names = Names::new(wanted.iter().cloned());
        let mut reader = Reader::new(&names);
        for byte in body.chunks(1) {
            // An error comes again at the end.
            let _ = reader.push(byte);
        }
        prop_assert_eq!(reader.finish(), whole);
    }

    #[test]
    fn a_wanted_sample_survives_any_neighbours(
        before in vec(line(), 0..8),
        after in vec(line(), 0..8),
        value in 0u32..1_000_000,
        ends in chunk_ends(),
    ) {
        let wanted = ["wanted_total".to_owned()];
        let sample = format!("wanted_total{{a=\"b\"}} {value}");
        let lines = before.iter().map(Vec::as_slice).chain([sample.as_bytes()]).chain(after.iter().map(Vec::as_slice));
        let body: Vec<u8> = lines.flat_map(|line| [line, b"\n"].concat()).collect();
        let samples = read(&wanted, &body, &ends);
        let values = samples.map(|s| s.of(0).iter().map(|s| (s.labels.get("a").map(str::to_owned), s.value)).collect());
        prop_assert_eq!(values, Ok(vec![(Some("b".to_owned()), f64::from(value))]));
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn captures_are_read_as_the_plain_parser_reads_them((body, wanted) in wanted_capture(), ends in chunk_ends()) {
        prop_assert_eq!(as_plain(&wanted, read(&wanted, &body, &ends)), plain::read(&body, &wanted));
    }

    #[test]
    fn changed_captures_are_read_as_the_plain_parser_reads_them(
        (body, wanted) in wanted_capture(),
        changes in changes(),
        ends in chunk_ends(),
    ) {
        let body = changed(body, changes);
        prop_assert_eq!(as_plain(&wanted, read(&wanted, &body, &ends)), plain::read(&body, &wanted));
    }
}

/// What another crate reads of a body without comments, in the plain parser's form.
///
/// It knows no colon in names, cuts label values at commas, and takes no escape, so it is asked only where there are
/// none; without comments every sample is untyped to it, those of histograms too.
fn read_by_prometheus_parse(body: &str) -> Body {
    let lines = body.lines().filter(|line| !line.starts_with('#')).map(|line| Ok(line.to_owned()));
    let scrape = prometheus_parse::Scrape::parse(lines).expect("lines in memory are read");
    let mut by_name: BTreeMap<String, BTreeMap<LabelSet, f64>> = BTreeMap::new();
    for sample in scrape.samples {
        let prometheus_parse::Value::Untyped(value) = sample.value else {
            panic!("a sample without a type is untyped")
        };
        let labels = sample.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        by_name.entry(sample.metric).or_default().entry(labels).or_insert(value);
    }
    for sets in by_name.values_mut() {
        sets.retain(|_, value| value.is_finite() && *value >= 0.0);
    }
    by_name.retain(|_, sets| !sets.is_empty());
    Body::Samples(by_name)
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn prometheus_parse_reads_the_same(
        lines in vec(
            (
                select(vec!["x", "x_total", "xx", "a_metric_with_quite_a_long_name_sum", "a_metric_with_quite_a_long_name"]),
                btree_map("[a-z_][a-z0-9_]{0,8}", "[a-zA-Z0-9 .:/#'é<>+-]{1,12}", 0..4),
                prop_oneof![any::<f64>().prop_map(|value| value.to_string()), (0u32..1_000_000).prop_map(|n| n.to_string())],
                proptest::option::of(0u64..2_000_000_000_000),
            ),
            1..12,
        ),
        wanted in subsequence(vec!["x", "x_total", "xx", "a_metric_with_quite_a_long_name_sum", "a_metric_with_quite_a_long_name"], 5),
    ) {
        let wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        let mut body = String::new();
        for (name, labels, value, time) in lines {
            let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
            let time = time.map(|time| format!(" {time}")).unwrap_or_default();
            body.push_str(&format!("{name}{labels} {value}{time}\n"));
        }
        prop_assert_eq!(as_plain(&wanted, read(&wanted, body.as_bytes(), &[])), read_by_prometheus_parse(&body));
    }
}

#[test]
fn prometheus_parse_reads_the_same_router_expositions() {
    let routers = [
        "sglang-router-0.3.2-errors",
        "smg-1.13.0-backend-503",
        "vllm-router-0.1.17-errors",
        "vllm-router-0.1.17-pd-busy",
    ];
    for name in routers {
        let text = capture(name);
        let wanted = names_in(text);
        let ours = as_plain(&wanted, read(&wanted, text.as_bytes(), &[]));
        assert_eq!(ours, read_by_prometheus_parse(text), "{name}");
        let Body::Samples(samples) = ours else { panic!("{name} is valid") };
        assert!(samples.len() > 10, "{name} has samples");
    }
}

#[test]
fn captures_are_read_whole_by_both_parsers() {
    for (name, text) in CAPTURES {
        let wanted = names_in(text);
        let ours = as_plain(&wanted, read(&wanted, text.as_bytes(), &[]));
        assert_eq!(ours, plain::read(text.as_bytes(), &wanted), "{name}");
        // Every line that is neither blank nor a comment is a sample; the NaN is the only one left out.
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#') && !line.ends_with(" NaN"));
        let Body::Samples(samples) = ours else { panic!("{name} is valid") };
        assert_eq!(samples.values().map(BTreeMap::len).sum::<usize>(), lines.count(), "{name}");
    }
}

#[test]
fn captures_cut_anywhere_are_truncated() {
    for (name, text) in CAPTURES {
        let wanted = names_in(text);
        for end in (0..text.len()).step_by(97).chain([text.len() - 1]) {
            let cut = &text[..end];
            let read = read(&wanted, cut.as_bytes(), &[]);
            let lines = cut.matches('\n').count();
            match read {
                Err(Error::Truncated { line }) => assert_eq!(line, lines + 1, "{name} at {end}"),
                Err(Error::NotExposition { line }) => assert_eq!((line, lines), (1, 0), "{name} at {end}"),
                Ok(_) => assert!(cut.is_empty() || cut.ends_with('\n') || cut.ends_with("# EOF"), "{name} at {end}"),
                Err(Error::BadLine { line, .. }) => panic!("{name} at {end}: line {line} is cut, not wrong"),
            }
        }
    }
}

/// A sample found with grep: its name, the labels that tell it from others, and its value.
type Known = (&'static str, &'static [(&'static str, &'static str)], f64);

#[test]
fn captures_have_the_values_that_grep_finds() {
    let captures: &[(&str, &[Known])] = &[
        (
            "vllm-0.32.0-busy",
            &[
                ("process_start_time_seconds", &[], 1.79608251502e9),
                ("vllm:num_requests_running", &[("engine", "0"), ("model_name", "tiny-llama")], 16.0),
                ("vllm:num_requests_waiting", &[("engine", "0")], 2.0),
                ("vllm:num_requests_waiting_by_reason", &[("reason", "capacity")], 2.0),
                ("vllm:num_requests_waiting_by_reason", &[("reason", "deferred")], 0.0),
                ("vllm:prefix_cache_queries_total", &[], 320_411.0),
                ("vllm:prefix_cache_hits_total", &[], 176_640.0),
                ("vllm:time_to_first_token_seconds_count", &[], 1383.0),
                ("vllm:time_to_first_token_seconds_sum", &[], 83.213_034_868_240_36),
            ],
        ),
        (
            "vllm-0.32.0-openmetrics",
            &[
                ("vllm_num_requests_waiting", &[], 0.0),
                ("vllm_prefix_cache_queries_total", &[], 761_299.0),
                ("vllm_prefix_cache_queries_created", &[], 1.796_082_573_921_627e9),
                ("vllm_time_to_first_token_seconds_count", &[], 3289.0),
                ("vllm_time_to_first_token_seconds_sum", &[], 195.972_976_922_988_9),
            ],
        ),
        (
            "sglang-0.5.23-prefill-two-ranks",
            &[
                ("sglang:num_running_reqs", &[("engine_type", "prefill"), ("tp_rank", "0")], 8.0),
                ("sglang:prefill_effective_tokens_total", &[("mode", "input"), ("tp_rank", "0")], 77_384.0),
                ("sglang:prefill_effective_tokens_total", &[("mode", "input"), ("tp_rank", "1")], 0.0),
                ("sglang:kv_transfer_latency_ms_sum", &[("tp_rank", "0")], 438.706_013_866_666_7),
                ("sglang:kv_transfer_latency_ms_sum", &[("tp_rank", "1")], 438.706_013_866_666_7),
                ("sglang:kv_transfer_total_mb_count", &[("tp_rank", "1")], 43.0),
            ],
        ),
        (
            "sglang-0.5.23-priority",
            &[
                ("sglang:num_running_reqs", &[("priority", "")], 8.0),
                ("sglang:num_running_reqs", &[("priority", "10")], 4.0),
                ("sglang:num_queue_reqs", &[("priority", "0")], 2.0),
                ("sglang:realtime_tokens_total", &[("mode", "prefill_cache"), ("priority", "")], 3272.0),
            ],
        ),
        (
            "sglang-router-0.3.2-errors",
            &[
                ("smg_router_request_errors_total", &[("error_type", "validation_error")], 4.0),
                ("smg_http_responses_total", &[("status_code", "200"), ("error_code", "")], 75.0),
                ("smg_http_responses_total", &[("status_code", "503")], 5.0),
                ("smg_worker_pool_size", &[("worker_type", "regular")], 2.0),
            ],
        ),
        (
            "smg-1.13.0-backend-503",
            &[
                ("smg_http_responses_total", &[("path", "/v1/chat/completions"), ("status_code", "503")], 4.0),
                ("smg_http_responses_total", &[("path", "other"), ("error_code", "unknown_url")], 1.0),
                ("smg_worker_requests_active", &[("worker", "http://127.0.0.1:18311")], 0.0),
            ],
        ),
        (
            "vllm-router-0.1.17-errors",
            &[
                ("vllm_router_active_workers", &[], 2.0),
                ("vllm_router_requests_total", &[("route", "/v1/chat/completions")], 47.0),
                ("vllm_router_retries_exhausted_total", &[], 12.0),
                ("vllm_router_request_errors_total", &[("error_type", "non_retryable_error")], 4.0),
            ],
        ),
        (
            "vllm-router-0.1.17-pd-busy",
            &[
                ("vllm_router_pd_requests_total", &[("route", "/v1/completions")], 327.0),
                ("vllm_router_pd_decode_errors_total", &[("worker", "http://127.0.0.1:18115")], 6.0),
                ("vllm_router_pd_decode_pending_seconds_count", &[], 699.0),
            ],
        ),
    ];
    for (of, known) in captures {
        let names = Names::new(known.iter().map(|(name, ..)| *name));
        let mut reader = Reader::new(&names);
        reader.push(capture(of).as_bytes()).expect("the capture is valid");
        let samples = reader.finish().expect("the capture is whole");
        for (name, labels, value) in *known {
            let samples = samples.of(names.id(name).expect("the name is wanted"));
            let found: Vec<f64> = samples
                .iter()
                .filter(|sample| {
                    let pairs: Vec<(&str, &str)> = sample.labels.iter().collect();
                    labels.iter().all(|label| pairs.contains(label))
                })
                .map(|sample| sample.value)
                .collect();
            assert_eq!(found, [*value], "{of}: {name}{labels:?}");
        }
    }
    // The only NaN of these captures.
    let wanted = ["sglang:fwd_occupancy".to_owned()];
    let text = capture("sglang-0.5.23-prefill-two-ranks");
    assert!(text.contains("\nsglang:fwd_occupancy{"));
    assert_eq!(as_plain(&wanted, read(&wanted, text.as_bytes(), &[])), Body::Samples(BTreeMap::new()));
}
