//! What an engine writes into its exposition when a request is admitted, answers and ends.
//!
//! Each engine has its own rules for what it counts where; they were read off real servers
//! (vLLM 0.32.0) and off the engine's own collectors (SGLang 0.5.23). It schedules nothing.

use super::fleet::{Found, Job, Pod, SLOTS};
use super::routers::Fault;
use super::scenario::{Engine, Parallel, Scenario, Stage};

/// Tokens of a block: only whole blocks of a prompt are found.
const BLOCK: u64 = 128;
/// MiB of KV cache of one token (8 KV heads of 128, 36 layers, 2 bytes, keys and values).
const MIB_PER_TOKEN: f64 = 0.140_625;

/// Where the tokens of a prompt are found, given where its shared prefix is.
pub(super) fn found(engine: Engine, stage: Option<Stage>, job: &Job, [device, host, pool]: [bool; 3]) -> Found {
    let shared = job.shared / BLOCK * BLOCK;
    let mut found = Found::default();
    match (engine, stage) {
        // An SGLang decode half never prefills.
        (Engine::Sglang, Some(Stage::Decode)) => {}
        _ if device => found.device = shared,
        (Engine::Sglang, _) if host => found.host = shared,
        _ if pool => found.pool = shared,
        _ => {}
    }
    // A vLLM decode half is sent every token that it lacks.
    if engine == Engine::Vllm && stage == Some(Stage::Decode) {
        found.sent = job.prompt - found.device;
    }
    found
}

/// When a request that is admitted now gets its first token and when it ends.
pub(super) fn schedule(stage: Option<Stage>, job: &mut Job, now: f64, rng: &mut fastrand::Rng) {
    let computed = match stage {
        Some(Stage::Decode) => 0,
        _ => job.prompt - job.found.device - job.found.host - job.found.pool,
    };
    let per_token = 0.018 + 0.012 * rng.f64();
    job.admitted = now;
    job.first_token = now + 0.012 + computed as f64 * 1.3e-4 + 0.01 * rng.f64();
    job.done = job.first_token + job.output.saturating_sub(1) as f64 * per_token;
}

/// A process is ready to serve.
pub(super) fn started(engine: Engine, pod: &mut Pod) {
    // SGLang answers a request of its own before it says that it is ready; a pair's halves take
    // theirs from each other and are left out.
    if engine == Engine::Sglang && pod.stage == Some(Stage::Server) {
        sglang_first_token(pod, false, 0.35);
        pod.add("requests/false", 1.0);
        pod.add("prompt_tokens/false", 4.0);
        pod.add("generation_tokens/false", 8.0);
        pod.observe("e2e/false", 0.52, 1);
        pod.observe("tpot/false", 0.024, 1);
        pod.observe("prompt", 4.0, 1);
        pod.observe("uncached", 4.0, 1);
        pod.observe("generated", 8.0, 1);
        pod.add("effective_input/0", 4.0);
        effective(pod, 4.0, [0.0; 3]);
    }
}

/// A request is admitted into the running batch of a rank.
pub(super) fn admitted(scenario: &Scenario, pod: &mut Pod, rank: usize, job: &Job) {
    match scenario.engine {
        Engine::Vllm => vllm_admitted(scenario, pod, rank, job),
        Engine::Sglang => sglang_admitted(pod, rank, job),
    }
}

/// A request gets its first token.
pub(super) fn first_token(engine: Engine, pod: &mut Pod, rank: usize, job: &Job) {
    let seconds = job.first_token - job.arrived;
    match engine {
        Engine::Vllm => {
            pod.observe(&format!("ttft/{rank}"), seconds, 1);
            pod.did("ttft", "sum", seconds);
            pod.did("ttft", "count", 1.0);
        }
        Engine::Sglang if pod.stage != Some(Stage::Prefill) => sglang_first_token(pod, job.streaming, seconds),
        Engine::Sglang => {}
    }
}

/// A request ends.
pub(super) fn ended(engine: Engine, pod: &mut Pod, rank: usize, job: &Job, rng: &mut fastrand::Rng) {
    match engine {
        Engine::Vllm => vllm_ended(pod, rank, job, rng),
        Engine::Sglang => sglang_ended(pod, rank, job, rng),
    }
}

/// A request is refused by the engine's HTTP layer.
pub(super) fn refused(engine: Engine, pod: &mut Pod, fault: Fault) {
    if engine == Engine::Vllm && fault == Fault::BadRequest {
        pod.add("http_4xx", 1.0);
    }
}

/// A KV transfer fails: every rank of the half counts it.
pub(super) fn transfer_failed(pod: &mut Pod) {
    for rank in 0..pod.labelled_ranks() {
        pod.add(&format!("transfer_failed/{rank}"), 1.0);
        pod.add(&format!("bootstrap_failed/{rank}"), 1.0);
    }
    pod.add("aborted", 1.0);
    if pod.stage == Some(Stage::Prefill) {
        pod.did("transfer-failures", "value", 1.0);
    }
}

/// Gauges and the counters of a process' time are written.
pub(super) fn look(engine: Engine, pod: &mut Pod, now: f64, step: f64) {
    for rank in 0..pod.ranks.len() {
        let state = &pod.ranks[rank];
        let (running, held, used, throughput) = (state.running(), state.held(), state.used, state.throughput);
        let (waiting, deferred) = state.waiting(now);
        let busy = running > 0;
        match engine {
            Engine::Vllm => {
                pod.set(&format!("running/{rank}"), running as f64);
                pod.set(&format!("waiting/{rank}"), waiting as f64);
                pod.set(&format!("waiting_capacity/{rank}"), (waiting - deferred) as f64);
                pod.set(&format!("waiting_deferred/{rank}"), deferred as f64);
                pod.set(&format!("kv_usage/{rank}"), held as f64 / 262_144.0);
                if pod.stage == Some(Stage::Decode) {
                    pod.set(&format!("fetching/{rank}"), deferred as f64);
                    pod.set(&format!("fetch_idle/{rank}"), 0.0);
                }
                if busy {
                    pod.observe(&format!("iteration/{rank}"), running as f64, (step * 40.0) as u64);
                    pod.add("cpu_seconds", step * 0.6);
                }
            }
            Engine::Sglang => {
                pod.add(&format!("{}_seconds/{rank}", if busy { "cpu" } else { "idle" }), step);
                // The scheduler's gauges are written from its first batch on.
                if !used {
                    continue;
                }
                let decode = pod.stage == Some(Stage::Decode);
                let queues = if decode { (waiting - deferred, deferred) } else { (waiting, 0) };
                let gauges = [
                    ("running", running as f64),
                    ("waiting", queues.0 as f64),
                    ("transfer_waiting", queues.1 as f64),
                    ("bootstrap_queue", 0.0),
                    ("inflight_queue", 0.0),
                    ("prealloc_queue", 0.0),
                    ("throughput", throughput),
                    ("kv_usage", held as f64 / 1e6),
                    ("kv_used", held as f64),
                    ("kv_free", 1e6 - held as f64),
                    ("kv_evictable", 0.0),
                    ("utilization", running as f64 / SLOTS as f64),
                    ("occupancy", if busy { 83.5 } else { f64::NAN }),
                    ("one", f64::from(u8::from(busy))),
                    ("zero", 0.0),
                ];
                for (key, value) in gauges {
                    pod.set(&format!("{key}/{rank}"), value);
                }
            }
        }
    }
    if engine == Engine::Vllm {
        pod.add("cpu_seconds", step * 0.02);
        for (generation, per_second) in [(0, 40.0), (1, 9.0), (2, 1.0)] {
            pod.add(&format!("gc_objects_{generation}"), (per_second * step * 4.0_f64).floor());
            pod.add(&format!("gc_collections_{generation}"), (per_second * step / 5.0_f64).floor());
        }
    }
}

fn vllm_admitted(scenario: &Scenario, pod: &mut Pod, rank: usize, job: &Job) {
    let found = job.found;
    let external = found.pool + found.sent;
    let count = |pod: &mut Pod, key: &str, by: u64| pod.add(&format!("{key}/{rank}"), by as f64);
    count(pod, "local_queries", job.prompt);
    count(pod, "local_hits", found.device);
    pod.did("local-prefix", "queries", job.prompt as f64);
    pod.did("local-prefix", "hits", found.device as f64);
    // The external counters are there without a connector too, and never move.
    if scenario.pool || pod.stage != Some(Stage::Server) {
        count(pod, "external_queries", job.prompt - found.device);
        count(pod, "external_hits", external);
        pod.did("external-store", "queries", (job.prompt - found.device) as f64);
        pod.did("external-store", "hits", external as f64);
    }
    count(pod, "store_hits", found.pool);
    count(pod, "p2p_hits", found.sent);
    count(pod, "cached", found.device + external);
    count(pod, "prompt_tokens", job.prompt);
    count(pod, "computed", job.prompt - found.device - external);
}

fn vllm_ended(pod: &mut Pod, rank: usize, job: &Job, rng: &mut fastrand::Rng) {
    let stopped = job.output > 1 && rng.f64() < 0.6;
    pod.add(&format!("success_{}/{rank}", if stopped { "stop" } else { "length" }), 1.0);
    pod.add(&format!("generation_tokens/{rank}"), job.output as f64);
    let gaps = job.output.saturating_sub(1);
    let decode = job.done - job.first_token;
    if gaps > 0 {
        let gap = decode / gaps as f64;
        pod.observe(&format!("itl/{rank}"), gap, gaps);
        pod.did("itl", "sum", gap * gaps as f64);
        pod.did("itl", "count", gaps as f64);
    }
    // A request of one token counts with zero.
    let per_token = if gaps > 0 { decode / gaps as f64 } else { 0.0 };
    pod.did("tpot", "sum", per_token);
    pod.did("tpot", "count", 1.0);
    let found = job.found;
    let computed = job.prompt - found.device - found.pool - found.sent;
    let observations = [
        ("tpot", per_token),
        ("prompt", job.prompt as f64),
        ("generated", job.output as f64),
        ("params_n", 1.0),
        ("max_tokens", if stopped { 1024.0 } else { job.output as f64 }),
        ("e2e", job.done - job.arrived),
        ("queue", job.admitted - job.arrived),
        ("inference", job.done - job.admitted),
        ("prefill_time", job.first_token - job.admitted),
        ("decode_time", decode),
        ("preemptions", 0.0),
        ("computed_tokens", computed as f64),
    ];
    for (key, value) in observations {
        pod.observe(&format!("{key}/{rank}"), value, 1);
    }
    let handler = if job.chat { "http_chat" } else { "http_completions" };
    pod.add(handler, 1.0);
    pod.add(&format!("{handler}_in"), job.prompt as f64 * 4.0);
    pod.add(&format!("{handler}_out"), if job.streaming { 0.0 } else { job.output as f64 * 4.0 });
    pod.observe(&format!("{handler}_seconds"), job.done - job.arrived, 1);
    pod.observe("http_seconds", job.done - job.arrived, 1);
}

fn sglang_first_token(pod: &mut Pod, streaming: bool, seconds: f64) {
    pod.observe(&format!("ttft/{streaming}"), seconds, 1);
    pod.did("ttft", "sum", seconds);
    pod.did("ttft", "count", 1.0);
}

/// Each tier's share is of all tokens that were prefilled or found in any tier.
fn effective(pod: &mut Pod, input: f64, [device, host, storage]: [f64; 3]) {
    for (field, hits) in [("device-prefix", device), ("host-prefix", host), ("storage-prefix", storage)] {
        pod.did(field, "hits", hits);
        pod.did(field, "queries", input + device + host + storage);
    }
}

fn sglang_admitted(pod: &mut Pod, rank: usize, job: &Job) {
    let queued = job.admitted - job.arrived;
    // Every rank of a tensor-parallel engine observes these; its tokens and gauges are the first's.
    let tensor = matches!(pod.plan.parallel, Parallel::Tensor(_));
    let ranks = if tensor { 0..pod.labelled_ranks() } else { rank..rank + 1 };
    let transferred = if pod.stage == Some(Stage::Decode) { Some(queued) } else { None };
    for rank in ranks {
        pod.observe(&format!("queue/{rank}"), queued, 1);
        if let Some(seconds) = transferred {
            pod.observe(&format!("stage_decode_transferred/{rank}"), seconds, 1);
            pod.observe(&format!("bootstrap_ms/{rank}"), 4.0 + queued, 1);
            pod.observe(&format!("alloc_ms/{rank}"), 1.0 + queued, 1);
        }
    }
    if pod.stage == Some(Stage::Decode) {
        return;
    }
    let found = job.found;
    let input = job.prompt - found.device - found.host - found.pool;
    let tokens =
        [("input", input), ("device_hit", found.device), ("host_hit", found.host), ("storage_hit", found.pool)];
    for (mode, tokens) in tokens {
        pod.add(&format!("effective_{mode}/{rank}"), tokens as f64);
    }
    effective(pod, input as f64, [found.device, found.host, found.pool].map(|tokens| tokens as f64));
    pod.add(&format!("realtime_prefill_compute/{rank}"), input as f64);
    pod.add(&format!("realtime_prefill_cache/{rank}"), (job.prompt - input) as f64);
    pod.add(&format!("forward_EXTEND/{rank}"), job.first_token - job.admitted);
    pod.set(&format!("hit_rate/{rank}"), (job.prompt - input) as f64 / job.prompt as f64);
}

fn sglang_ended(pod: &mut Pod, rank: usize, job: &Job, rng: &mut fastrand::Rng) {
    let prefill = pod.stage == Some(Stage::Prefill);
    if prefill {
        // A failed transfer aborts the request and is no observation.
        if job.broken {
            return;
        }
        sglang_transfer(pod, job, rng);
    }
    let streaming = job.streaming;
    let found = job.found;
    let cached = if pod.stage == Some(Stage::Decode) { 0 } else { found.device + found.host + found.pool };
    pod.add(&format!("requests/{streaming}"), 1.0);
    pod.add(&format!("prompt_tokens/{streaming}"), job.prompt as f64);
    pod.add(&format!("generation_tokens/{streaming}"), job.output as f64);
    pod.add("cached", cached as f64);
    pod.observe(&format!("e2e/{streaming}"), job.done - job.arrived, 1);
    pod.observe("prompt", job.prompt as f64, 1);
    pod.observe("uncached", (job.prompt - cached) as f64, 1);
    pod.observe("generated", job.output as f64, 1);
    if prefill {
        return;
    }
    let decode = job.done - job.first_token;
    let gaps = job.output.saturating_sub(1);
    pod.add(&format!("realtime_decode/{rank}"), gaps as f64);
    pod.add(&format!("forward_DECODE/{rank}"), decode);
    if gaps > 0 {
        let gap = decode / gaps as f64;
        pod.observe(&format!("tpot/{streaming}"), gap, 1);
        // Only streams are timed from token to token.
        if streaming {
            pod.observe("itl", gap, gaps);
            pod.did("itl", "sum", gap * gaps as f64);
            pod.did("itl", "count", gaps as f64);
        }
    }
}

/// A prompt's blocks are sent: each rank sends and observes its own shard.
fn sglang_transfer(pod: &mut Pod, job: &Job, rng: &mut fastrand::Rng) {
    let ranks = pod.labelled_ranks();
    let shard = job.prompt as f64 * MIB_PER_TOKEN / ranks as f64;
    let speed = 6.0 + 10.0 * rng.f64();
    let milliseconds = shard / 1024.0 / speed * 1000.0;
    for rank in 0..ranks {
        let observations = [
            ("transfer_ms", milliseconds),
            ("transfer_mb", shard),
            ("transfer_speed", speed),
            ("bootstrap_ms", 5.0 + speed),
            ("alloc_ms", 1.0 + speed / 10.0),
            ("stage_prefill_forward", job.first_token - job.admitted),
            ("stage_prefill_transfer_kv_cache", milliseconds / 1000.0),
        ];
        for (key, value) in observations {
            pod.observe(&format!("{key}/{rank}"), value, 1);
        }
        pod.did("transfer-size", "sum", shard);
    }
    pod.did("transfer-latency", "sum", milliseconds);
    pod.did("transfer-size", "count", 1.0);
}
