//! The reader's allocations do not grow with the lines it skips: a body is read as it streams, never collected.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

use allocation_counter::AllocationInfo;
use modeldeployment_exporter::exposition::{Names, Reader};

const CHUNK: usize = 16 * 1024;
const WANTED: usize = 40;

/// A body with this many unwanted lines, a comment among each ten, and the wanted ones spread among them.
fn body(skipped: usize) -> String {
    let every = skipped / WANTED;
    let mut body = String::new();
    for line in 0..skipped {
        if line % 10 == 0 {
            body.push_str("# HELP vllm:other_seconds Wanted names in a comment: vllm:wanted_total 1\n");
        } else {
            // Lengths that differ, so that chunks end at every place of a line.
            let pad = "0".repeat(line % 37);
            body.push_str(&format!(
                "vllm:other_seconds_bucket{{engine=\"0\",le=\"{line}.{pad}\",model=\"m\"}} {line}\n"
            ));
        }
        if line % every == 0 {
            body.push_str(&format!("vllm:wanted_total{{engine=\"{:04}\",model=\"m\"}} 5\n", line / every));
        }
    }
    body
}

/// What reading a body in chunks allocates; the samples are dropped inside.
fn allocations(names: &Names, body: &str) -> AllocationInfo {
    allocation_counter::measure(|| {
        let mut reader = Reader::new(names);
        for chunk in body.as_bytes().chunks(CHUNK) {
            reader.push(chunk).expect("the body is valid");
        }
        let samples = reader.finish().expect("the body is whole");
        assert_eq!(samples.of(0).len(), WANTED);
    })
}

#[test]
fn allocations_do_not_grow_with_the_lines_skipped() {
    let names = Names::new(["vllm:wanted_total", "vllm:wanted_seconds_sum"]);
    let of = |skipped: usize| {
        let body = body(skipped);
        assert!(body.len() > 2 * CHUNK, "the body has several chunks");
        allocations(&names, &body)
    };
    let once = of(1000);
    assert!(once.count_total > WANTED as u64, "the wanted samples are allocated");
    for times in [2, 3, 10] {
        assert_eq!(of(1000 * times), once, "{times} times as many lines");
    }
}
