//! What a router writes into its exposition when a request arrives, answers, ends or fails.
//!
//! What each router counts for which failure was read off real ones: vllm-router 0.1.17,
//! sglang-router 0.3.2 and smg 1.13.0. llm-d-router's label sets are those of its endpoint
//! picker's sources. It routes nothing.

use super::fleet::{Job, Pod};
use super::scenario::Router;

/// How a request fails at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Status 500.
    Internal,
    /// Status 503.
    Unavailable,
    /// Status 400.
    BadRequest,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 3] = [Fault::Internal, Fault::Unavailable, Fault::BadRequest];
}

fn endpoint(job: &Job) -> &'static str {
    if job.chat { "chat" } else { "completions" }
}

/// Counts an event and the fact that goes with it.
fn count(router: &mut Pod, key: &str, field: &'static str) {
    router.add(key, 1.0);
    router.did(field, "value", 1.0);
}

/// Counts an error in the counter of the router's errors, and the 5xx answers of a gateway.
fn gateway_answer(router: &mut Pod, key: &str, status: u16) {
    router.add(key, 1.0);
    if status >= 500 {
        router.did("http-5xx-responses", "value", 1.0);
    }
}

/// The router is ready.
pub(super) fn started(kind: Router, router: &mut Pod) {
    router.set("one", 1.0);
    if matches!(kind, Router::Sglang0 | Router::Sglang1) {
        // The readiness probe was answered with 503 once while the workers were registered.
        let (not_ready, ready) = if kind == Router::Sglang0 {
            ("responses/503/", "responses/200/")
        } else {
            ("readiness/503", "readiness/200")
        };
        gateway_answer(router, not_ready, 503);
        gateway_answer(router, ready, 200);
        router.add("readiness_both", 2.0);
        router.observe("readiness_seconds", 0.000_13, 2);
    }
}

/// A request arrives and is sent on.
pub(super) fn arrived(kind: Router, router: &mut Pod, engines: &[Pod], job: &Job) {
    let endpoint = endpoint(job);
    let (front, back) = job.route;
    let workers = [front, back].into_iter().filter_map(|pod| engines.get(pod - 1)).map(|pod| pod.address.as_str());
    match kind {
        Router::LlmD => {
            count(router, "requests", "requests");
            router.observe("input", job.prompt as f64, 1);
            router.observe("plugin", 0.000_15, 1);
            router.observe("match_ratio", job.shared as f64 / job.prompt as f64, 1);
        }
        Router::Vllm => {
            router.add("attempts", 1.0);
            router.add("attempts_twice", 2.0);
            for worker in workers.take(1) {
                router.add(&format!("processed/{worker}"), 1.0);
            }
        }
        Router::Sglang0 | Router::Sglang1 => {
            count(router, &format!("requests/{endpoint}/{}", job.streaming), "requests");
            router.add(&format!("http/{endpoint}"), 1.0);
            router.add("http_all", 1.0);
            router.add("attempts", 1.0);
            router.add("selected", 1.0);
            router.add("selected/prefill", 1.0);
            router.add("selected/decode", 1.0);
            router.add(if job.shared * 2 > job.prompt { "branch_tree" } else { "branch_wait" }, 1.0);
            router.observe("match_ratio", job.shared as f64 / job.prompt as f64, 1);
            for worker in workers.take(if kind == Router::Sglang1 { 1 } else { 2 }) {
                router.add(&format!("selected/{worker}"), 1.0);
            }
        }
    }
}

/// The client gets its first token.
pub(super) fn first_token(kind: Router, router: &mut Pod, job: &Job) {
    // Only this router times it: the gateways' histogram belongs to their gRPC mode.
    if kind == Router::LlmD && job.streaming {
        let seconds = job.first_token - job.at_router + 0.002;
        router.observe("ttft", seconds, 1);
        router.did("ttft", "sum", seconds);
        router.did("ttft", "count", 1.0);
    }
}

/// A request ends well.
pub(super) fn ended(kind: Router, router: &mut Pod, engines: &[Pod], job: &Job) {
    let endpoint = endpoint(job);
    let seconds = job.done - job.at_router + 0.002;
    match kind {
        Router::LlmD => {
            router.observe("output", job.output as f64, 1);
            router.observe("duration", seconds, 1);
        }
        Router::Vllm => {
            count(router, &format!("ok/{endpoint}"), "successful-requests");
            router.observe("duration", seconds, 1);
        }
        Router::Sglang0 => {
            gateway_answer(router, "responses/200/", 200);
            timed(router, endpoint, seconds);
        }
        Router::Sglang1 => {
            gateway_answer(router, &format!("responses/{endpoint}/200/"), 200);
            router.add("upstream/200", 1.0);
            timed(router, endpoint, seconds);
        }
    }
    outcome(router, engines, job, "success");
}

fn timed(router: &mut Pod, endpoint: &str, seconds: f64) {
    router.observe(&format!("http_seconds/{endpoint}"), seconds, 1);
    router.observe(&format!("router_seconds/{endpoint}"), seconds, 1);
}

/// The circuit breakers' view of the workers that a request used.
fn outcome(router: &mut Pod, engines: &[Pod], job: &Job, outcome: &str) {
    let (front, back) = job.route;
    let both = if front == back { vec![front] } else { vec![front, back] };
    for worker in both.into_iter().filter_map(|pod| engines.get(pod - 1)) {
        router.add(&format!("outcome_{outcome}/{}", worker.address), 1.0);
        if outcome == "success" {
            router.add(&format!("successes/{}", worker.address), 1.0);
        } else {
            router.set(&format!("successes/{}", worker.address), 0.0);
        }
    }
}

/// A request fails at an engine, twice where the router tries again.
pub(super) fn failed(kind: Router, router: &mut Pod, engines: &[Pod], job: &Job, fault: Fault) {
    // The labels of failures are simulated for one endpoint each.
    let job = &Job { chat: true, ..job.clone() };
    match (kind, fault) {
        // A bad request that names no model is an error and no request.
        (Router::LlmD, Fault::BadRequest) => count(router, "errors/BadRequest", "request-errors"),
        (Router::LlmD, _) => {
            arrived(kind, router, engines, job);
            count(router, "errors/Internal", "request-errors");
        }
        (Router::Vllm, Fault::BadRequest) => {
            arrived(kind, router, engines, job);
            count(router, "errors/non_retryable_error/chat", "errors");
        }
        (Router::Vllm, _) => {
            arrived(kind, router, engines, job);
            router.add("retries/chat", 1.0);
            router.observe("backoff", 0.02, 1);
            count(router, "retries_exhausted/chat", "retries-exhausted");
        }
        (Router::Sglang1, Fault::Internal) => {
            arrived(kind, router, engines, job);
            router.add("upstream/500", 1.0);
            router.add("worker_errors", 1.0);
            count(router, "errors/chat/backend_error", "errors");
            gateway_answer(router, "responses/chat/500/", 500);
        }
        (Router::Sglang1, Fault::Unavailable) => {
            arrived(kind, router, engines, job);
            router.add("upstream/503", 2.0);
            router.add("worker_errors", 2.0);
            router.add("retries/chat", 1.0);
            router.add("retries_exhausted/chat", 1.0);
            router.observe("backoff", 0.02, 1);
            gateway_answer(router, "responses/chat/503/", 503);
        }
        (Router::Sglang1, Fault::BadRequest) => {
            arrived(kind, router, engines, job);
            router.add("upstream/400", 1.0);
            count(router, "errors/chat/validation_error", "errors");
            gateway_answer(router, "responses/chat/400/", 400);
        }
        (Router::Sglang0, Fault::BadRequest) => {
            arrived(kind, router, engines, job);
            count(router, "errors/chat/validation_error", "errors");
            gateway_answer(router, "responses/400/decode_bad_request", 400);
        }
        (Router::Sglang0, _) => {
            arrived(kind, router, engines, job);
            exhausted(router, "chat");
            gateway_answer(router, "responses/500/decode_internal_error", 500);
        }
    }
    outcome(router, engines, job, "failure");
}

/// A request to a pair runs out of retries: both halves count it.
fn exhausted(router: &mut Pod, endpoint: &str) {
    router.add(&format!("retries/{endpoint}"), 1.0);
    router.add(&format!("retries_exhausted/{endpoint}"), 1.0);
    router.add("worker_errors", 2.0);
}

/// A request that had arrived fails because its KV transfer did.
pub(super) fn broken(kind: Router, router: &mut Pod, engines: &[Pod], job: &Job) {
    if kind == Router::Sglang0 {
        exhausted(router, endpoint(job));
        gateway_answer(router, "responses/500/prefill_internal_error", 500);
    }
    outcome(router, engines, job, "failure");
}

/// A request is lost with the engine that served it: streams are cut, others fail.
pub(super) fn lost(kind: Router, router: &mut Pod, engines: &[Pod], job: &Job) {
    let endpoint = endpoint(job);
    let cut = job.streaming && job.answered;
    match kind {
        Router::LlmD => count(router, "errors/Internal", "request-errors"),
        // A stream that was cut is a success to both.
        Router::Vllm if cut => count(router, &format!("ok/{endpoint}"), "successful-requests"),
        Router::Sglang0 if cut => gateway_answer(router, "responses/200/", 200),
        Router::Vllm => {
            router.add(&format!("retries/{endpoint}"), 1.0);
            count(router, &format!("retries_exhausted/{endpoint}"), "retries-exhausted");
        }
        Router::Sglang0 => {
            exhausted(router, endpoint);
            gateway_answer(router, "responses/500/", 500);
        }
        Router::Sglang1 if cut => {
            count(router, "errors/chat/backend_error", "errors");
            gateway_answer(router, &format!("responses/{endpoint}/200/"), 200);
        }
        Router::Sglang1 => {
            router.add(&format!("retries/{endpoint}"), 1.0);
            router.add(&format!("retries_exhausted/{endpoint}"), 1.0);
            gateway_answer(router, "responses/chat/500/", 500);
        }
    }
    outcome(router, engines, job, "failure");
}

/// No engine can take a request.
pub(super) fn unavailable(kind: Router, router: &mut Pod, job: &Job) {
    let endpoint = endpoint(job);
    match kind {
        Router::LlmD => count(router, "errors/ServiceUnavailable", "request-errors"),
        Router::Vllm => {
            // It counts one error per attempt, and there are two.
            let key = format!("errors/no_available_workers/{endpoint}");
            count(router, &key, "errors");
            count(router, &key, "errors");
            count(router, &format!("retries_exhausted/{endpoint}"), "retries-exhausted");
        }
        Router::Sglang0 => {
            count(router, &format!("requests/{endpoint}/{}", job.streaming), "requests");
            gateway_answer(router, "responses/503/server_selection_failed", 503);
        }
        Router::Sglang1 => {
            count(router, &format!("requests/{endpoint}/{}", job.streaming), "requests");
            count(router, "errors/chat/unavailable", "errors");
            gateway_answer(router, "responses/chat/503/no_available_workers", 503);
        }
    }
}

/// Gauges are written.
pub(super) fn look(kind: Router, router: &mut Pod, engines: &[Pod], now: f64) {
    let alive = engines.iter().filter(|pod| pod.alive).count();
    let waiting = |pod: &Pod| pod.ranks.iter().map(|rank| rank.waiting(now).0).sum::<usize>();
    let running = |pod: &Pod| pod.ranks.iter().map(|rank| rank.running()).sum::<usize>();
    let all_running: usize = engines.iter().map(running).sum();
    let all_waiting: usize = engines.iter().map(waiting).sum();
    let count = engines.len().max(1) as f64;
    let in_flight = (all_running + all_waiting) as f64;
    router.set("connections", in_flight);
    router.set("workers", engines.len() as f64);
    // Registered workers, dead or alive; a pair's are counted for the decode half.
    let registered = match kind {
        Router::Sglang0 => engines.iter().filter(|pod| pod.stage == Some(super::Stage::Decode)).count(),
        _ => engines.len(),
    };
    router.set("pool", registered as f64);
    for worker in engines {
        let address = &worker.address;
        router.set(&format!("health/{address}"), f64::from(u8::from(worker.alive)));
        let active = (running(worker) + waiting(worker)) as f64;
        // A worker's series of requests in flight begins with its first one.
        if active > 0.0 || worker.ranks.iter().any(|rank| rank.used) {
            router.set(&format!("running/{address}"), active);
            router.set(&format!("active/{address}"), active);
            router.set(&format!("breaker/{address}"), 0.0);
        } else if !worker.alive {
            router.set(&format!("running/{address}"), 0.0);
            router.set(&format!("active/{address}"), 0.0);
        }
    }
    if now.fract() == 0.0 {
        router.observe("loop_delay", 0.0013, 12);
        router.add("parks", 180.0);
    }
    if now.rem_euclid(10.0) == 0.0 {
        router.add("health_checks", alive as f64);
        if alive < engines.len() {
            router.add("health_failures", (engines.len() - alive) as f64);
        }
        let of = |stage| engines.iter().filter(|pod: &&Pod| pod.stage == Some(stage) && pod.alive).count() as f64;
        router.add("health_checks/prefill", of(super::Stage::Prefill));
        router.add("health_checks/decode", of(super::Stage::Decode));
        for worker in engines {
            router.add(&format!("polls/{}", worker.address), 1.0);
        }
    }
    if now >= 30.0 {
        router.set("zero_age", 0.0);
    }
    if kind == Router::LlmD {
        router.set("ready", alive as f64);
        router.set("queue", all_waiting as f64 / count);
        router.set("average_running", all_running as f64 / count);
        router.set(
            "kv_usage",
            engines.iter().flat_map(|pod| &pod.ranks).map(|rank| rank.held() as f64).sum::<f64>() / 262_144.0 / count,
        );
        router.set("goroutines", 96.0 + 4.0 * in_flight);
        router.add("cpu_seconds", 0.005);
        if in_flight > 0.0 {
            router.set("running", in_flight);
        } else if now > 1.0 {
            router.set("running", 0.0);
        }
    }
}
