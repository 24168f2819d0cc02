//! What reading an exposition costs, beside counting the body's newlines and other parsers.
//!
//! The bodies are a real vLLM exposition with as many engines as fit into the size. The budget is six times the newline count of the same run.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use modeldeployment_exporter::catalogue::{Catalogue, Software, SoftwareKind};
use modeldeployment_exporter::exposition::Reader;
use std::sync::Arc;

#[path = "../tests/exposition/plain.rs"]
mod plain;

/// Together one whole exposition.
const FIXTURES: [&str; 2] = [
    include_str!("../tests/fixtures/exposition/vllm-0.32.0-busy.prom"),
    include_str!("../tests/fixtures/exposition/vllm-0.32.0-busy-other-families.prom"),
];
const ENGINE: &str = "engine=\"0\"";
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

fn main() {
    divan::main();
}

/// The exposition of one server with as many engines as fit into this many bytes: each family has
/// its comments once, then its samples of every engine.
fn body(size: usize) -> String {
    let lines: Vec<&str> = FIXTURES.iter().flat_map(|fixture| fixture.lines()).collect();
    let with = |engines: usize| {
        let mut body = String::with_capacity(size);
        for family in lines.chunk_by(|_, next| !next.starts_with("# HELP")) {
            for engine in 0..engines {
                for line in family.iter().filter(|line| engine == 0 || line.contains(ENGINE)) {
                    body.push_str(&line.replace(ENGINE, &format!("engine=\"{engine}\"")));
                    body.push('\n');
                }
            }
        }
        body
    };
    let fitting = (1..).map(with).take_while(|body| body.len() <= size).last();
    fitting.expect("one engine fits")
}

fn vllm() -> Arc<Software> {
    let catalogue = Catalogue::embedded().expect("the embedded catalogue loads");
    let (software, _) = catalogue.find(SoftwareKind::Engine, "vLLM").expect("the catalogue has vLLM");
    Arc::clone(software)
}

#[divan::bench(args = SIZES)]
fn newline_count(bencher: Bencher, size: usize) {
    let body = body(size);
    bencher.counter(BytesCount::of_str(&body)).bench(|| memchr::memchr_iter(b'\n', black_box(body.as_bytes())).count());
}

#[divan::bench(args = SIZES)]
fn reader(bencher: Bencher, size: usize) {
    let (body, software) = (body(size), vllm());
    bencher.counter(BytesCount::of_str(&body)).bench(|| {
        let mut reader = Reader::new(&software.wanted);
        reader.push(black_box(body.as_bytes())).expect("the body is valid");
        reader.finish().expect("the body is whole")
    });
}

#[divan::bench(args = SIZES)]
fn reader_in_16_kib_chunks(bencher: Bencher, size: usize) {
    let (body, software) = (body(size), vllm());
    bencher.counter(BytesCount::of_str(&body)).bench(|| {
        let mut reader = Reader::new(&software.wanted);
        for chunk in black_box(body.as_bytes()).chunks(16 << 10) {
            reader.push(chunk).expect("the body is valid");
        }
        reader.finish().expect("the body is whole")
    });
}

#[divan::bench(args = SIZES)]
fn plain_strict_parse(bencher: Bencher, size: usize) {
    let (body, software) = (body(size), vllm());
    let catalogue_names = software.families.iter().map(|family| family.series.clone()).collect::<Vec<_>>();
    bencher.counter(BytesCount::of_str(&body)).bench(|| plain::read(black_box(body.as_bytes()), &catalogue_names));
}

/// This crate drops every name with a colon, so it does less work than the others here.
#[divan::bench(args = SIZES, sample_count = 20)]
fn prometheus_parse(bencher: Bencher, size: usize) {
    let body = body(size);
    bencher
        .counter(BytesCount::of_str(&body))
        .bench(|| prometheus_parse::Scrape::parse(black_box(&body).lines().map(|line| Ok(line.to_owned()))));
}
