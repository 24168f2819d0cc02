//! The memory promise: `serve` reading 64 Pods of 1 MiB each stays within 32 MiB.
//!
//! Meaningful for release builds alone: a debug build's numbers are not judged.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

mod support_replay;

use std::sync::Arc;
use std::time::Duration;
use support_replay::{Answer, PodServer, Served, fixture};

const PODS: usize = 64;
const BODY: usize = 1_048_576;
const LIMIT_KIB: u64 = 32 * 1024;
const ROUNDS: usize = 8;

/// A body of just 1 MiB: the fixture's lines once for each of eight data-parallel engines, then its neighbours (lines
/// that no field reads) with distinct labels until the size is reached.
fn large_body(name: &str) -> Arc<Vec<u8>> {
    let text = String::from_utf8(fixture(name).to_vec()).expect("UTF-8");
    let (plain, labelled): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.contains("engine=\"0\""));
    let mut body = plain.join("\n") + "\n";
    for engine in 0..8 {
        for line in &labelled {
            body.push_str(&line.replace("engine=\"0\"", &format!("engine=\"{engine}\"")));
            body.push('\n');
        }
    }
    let wanted = ["num_requests", "prefix_cache", "time_to_first", "inter_token", "time_per_output"];
    let neighbours: Vec<&str> =
        labelled.into_iter().filter(|line| !wanted.iter().any(|name| line.contains(name))).collect();
    assert!(neighbours.len() > 20, "the fixture has neighbours");
    for copy in 0.. {
        let mut copied = String::new();
        for line in &neighbours {
            copied.push_str(&line.replace("tiny-llama", &format!("tiny-llama-{copy}")));
            copied.push('\n');
        }
        if body.len() + copied.len() > BODY {
            break;
        }
        body.push_str(&copied);
    }
    let padding = BODY - body.len();
    if padding > 2 {
        body.push_str(&format!("# {}\n", "x".repeat(padding - 3)));
    }
    assert!(body.len() <= BODY && body.len() > BODY - 3, "{} bytes", body.len());
    Arc::new(body.into_bytes())
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn peak_memory_with_64_pods_of_1_mib() {
    let bodies =
        [large_body("vllm-0.32.0/server_busy_first"), large_body("vllm-0.32.0/server_busy_second")].map(|body| body);
    let pods: Vec<PodServer> = (0..PODS).map(|_| PodServer::start(Answer::Reads, bodies.to_vec())).collect();
    let entries: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| serde_json::json!({"name": format!("chat-server-{index}"), "role": "server", "url": pod.url()}))
        .collect();
    let document = serde_json::json!({
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"engine": {"name": "vLLM"}, "roles": [{"name": "server", "replicas": PODS}]},
        "pods": entries,
    });
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("deployment.yaml");
    std::fs::write(&file, document.to_string()).expect("the deployment file");
    let env = [("SCRAPE_INTERVAL", "1s"), ("WINDOW", "4s"), ("COUNTER_MAX_AGE", "1m")];
    let served = Served::start(&file, &env);
    for pod in &pods {
        pod.wait_for_reads(ROUNDS, Duration::from_secs(120));
    }
    // Scrapes of both formats and of the object belong to the peak.
    let (_, _, text) = served.get("/metrics", "text/plain");
    let (_, _, open) = served.get("/metrics", "application/openmetrics-text");
    let (status, _, object) =
        served.get("/apis/worker.gpustack.ai/v1/namespaces/team/modeldeployments/chat/metrics", "application/json");
    assert_eq!(status, 200, "{object}");
    assert!(text.contains("modeldeployment_running_requests{") && open.ends_with("# EOF\n"));
    let readable =
        text.lines().filter(|line| line.starts_with("modeldeployment_pod_up{") && line.ends_with(" 1")).count();
    assert_eq!(readable, PODS, "every Pod was read");
    let peak = peak_kib(served.child.id());
    println!("peak resident memory after {ROUNDS} rounds of {PODS} Pods of {BODY} bytes: {peak} KiB");
    if cfg!(debug_assertions) {
        println!("a debug build; its memory is not judged");
    } else {
        assert!(peak <= LIMIT_KIB, "{peak} KiB, at most {LIMIT_KIB}");
    }
}
