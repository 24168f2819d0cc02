//! Every family of `/metrics` (contract, section 8), one row each.
//!
//! Data only: the rows' order is the order of the exposition, and a label's place in its row is
//! its place in the exposition.

/// What a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value of now.
    Gauge,
    /// A monotonic sum; its name ends in `_total`.
    Counter,
    /// Observations in buckets.
    Histogram,
}

/// One family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The full name, of counters with `_total`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it counts, in which unit.
    pub help: &'static str,
    /// The names of its labels. Every series has all of them; only `role` may be absent.
    pub labels: &'static [&'static str],
}

/// The only label that a series may lack: a router has no role.
pub const OPTIONAL_LABEL: &str = "role";

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help, labels }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help, labels }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Histogram, help, labels }
}

/// About the deployment as a whole; `pod` is empty.
const DEPLOYMENT: &[&str] = &["namespace", "modeldeployment", "pod"];
const INFO: &[&str] = &["namespace", "modeldeployment", "pod", "engine", "router", "kv_cache", "pair"];
const MISSING: &[&str] = &["namespace", "modeldeployment", "pod", "source", "code", "partial"];
const PODS: &[&str] = &["namespace", "modeldeployment", "pod", "scope", "role", "state"];
const MEMBER: &[&str] = &["namespace", "modeldeployment", "pod", "scope", "role"];
const FAILURES: &[&str] = &["namespace", "modeldeployment", "pod", "scope", "role", "cause"];
const FIELD: &[&str] = &["namespace", "modeldeployment", "pod", "scope", "role", "source"];
const CACHE: &[&str] = &["namespace", "modeldeployment", "pod", "role", "cache", "source"];
const ROUTER: &[&str] = &["namespace", "modeldeployment", "pod", "source"];
const TRANSFER: &[&str] = &["namespace", "modeldeployment", "pod", "role", "source"];
/// About the exporter itself.
const OWN: &[&str] = &[];

/// Every family, in the order of the exposition.
pub const FAMILIES: &[Family] = &[
    gauge(
        "modeldeployment_info",
        INFO,
        "What the model deployment is made of: its engine, its router, whether a KV cache pool is attached and \
         whether it is a prefill/decode pair. Always 1.",
    ),
    gauge(
        "modeldeployment_up",
        DEPLOYMENT,
        "Whether the newest round is recent and read at least one Pod of the deployment (1) or not (0).",
    ),
    gauge(
        "modeldeployment_partial",
        DEPLOYMENT,
        "Whether at least one required source did not contribute to the newest round (1) or all did (0).",
    ),
    gauge("modeldeployment_missing", MISSING, "A value that is missing in the newest round, and why. Always 1."),
    gauge(
        "modeldeployment_snapshot_timestamp_seconds",
        DEPLOYMENT,
        "When the newest round was assembled, in seconds since the Unix epoch.",
    ),
    gauge("modeldeployment_pods", PODS, "Pods of the deployment by state."),
    gauge("modeldeployment_pod_up", MEMBER, "Whether the Pod was read in the newest round (1) or not (0)."),
    gauge(
        "modeldeployment_pod_scrape_duration_seconds",
        MEMBER,
        "How long the newest read of the Pod took, from its start to its end, in seconds.",
    ),
    gauge("modeldeployment_pod_scrape_body_bytes", MEMBER, "Bytes of the body in the newest read of the Pod."),
    gauge(
        "modeldeployment_pod_observed_timestamp_seconds",
        MEMBER,
        "When the Pod answered in the newest round, in seconds since the Unix epoch.",
    ),
    gauge(
        "modeldeployment_pod_window_seconds",
        MEMBER,
        "Length of the sampling window behind the Pod's ratios, means and rates, in seconds.",
    ),
    counter("modeldeployment_pod_resets_total", MEMBER, "Counter resets of the Pod that the exporter has seen."),
    counter(
        "modeldeployment_pod_scrape_failures_total",
        FAILURES,
        "Rounds in which the Pod could not be read, by cause.",
    ),
    gauge("modeldeployment_running_requests", FIELD, "Requests in the engine's running batch."),
    gauge("modeldeployment_waiting_requests", FIELD, "Requests that wait in the engine's queue to be scheduled."),
    gauge(
        "modeldeployment_decode_transfer_waiting_requests",
        FIELD,
        "Requests of a decode Pod that wait for their KV blocks to arrive.",
    ),
    gauge("modeldeployment_router_running_requests", FIELD, "Requests that the router has in flight."),
    gauge("modeldeployment_router_backends", FIELD, "Backends that the router holds ready."),
    gauge(
        "modeldeployment_router_reported_workers",
        FIELD,
        "Workers that the router reports, whether or not they are reachable.",
    ),
    gauge(
        "modeldeployment_cache_hit_ratio",
        CACHE,
        "Share of the queried tokens that the cache held, over the sampling window, from 0 to 1.",
    ),
    gauge("modeldeployment_cache_window_hit_tokens", CACHE, "Tokens that the cache held in the sampling window."),
    gauge(
        "modeldeployment_cache_window_query_tokens",
        CACHE,
        "Tokens that were looked up in the cache in the sampling window.",
    ),
    gauge(
        "modeldeployment_ttft_mean_seconds",
        FIELD,
        "Mean time to the first token over the sampling window, in seconds.",
    ),
    gauge(
        "modeldeployment_tpot_mean_seconds",
        FIELD,
        "Mean time per output token of a request over the sampling window, in seconds.",
    ),
    gauge(
        "modeldeployment_itl_mean_seconds",
        FIELD,
        "Mean latency between two output tokens over the sampling window, in seconds.",
    ),
    gauge(
        "modeldeployment_router_requests_per_second",
        ROUTER,
        "Requests per second that the router took, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_successful_requests_per_second",
        ROUTER,
        "Requests per second that the router completed with success, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_pd_requests_per_second",
        ROUTER,
        "Requests per second that the router sent to a prefill/decode pair, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_request_errors_per_second",
        ROUTER,
        "Request errors per second that the router counted, over the sampling window; its errors may include \
         requests that it counts nowhere else.",
    ),
    gauge(
        "modeldeployment_router_errors_per_second",
        ROUTER,
        "Errors per second that the router counted, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_pd_errors_per_second",
        ROUTER,
        "Errors per second of the router's prefill/decode mode, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_retries_exhausted_per_second",
        ROUTER,
        "Requests per second that failed after the router's last attempt, over the sampling window.",
    ),
    gauge(
        "modeldeployment_router_http_5xx_responses_per_second",
        ROUTER,
        "HTTP responses per second with a status of 500 to 599 from the router, on any path, over the sampling \
         window.",
    ),
    gauge(
        "modeldeployment_router_error_ratio",
        ROUTER,
        "Share of the router's requests that it counted as errors, over the sampling window, from 0 to 1.",
    ),
    gauge(
        "modeldeployment_kv_transfer_latency_mean_seconds",
        TRANSFER,
        "Mean duration of a KV transfer over the sampling window, in seconds.",
    ),
    gauge(
        "modeldeployment_kv_transfer_speed_mean_bytes_per_second",
        TRANSFER,
        "Mean speed of a KV transfer over the sampling window, in bytes per second.",
    ),
    gauge(
        "modeldeployment_kv_transfer_size_mean_bytes",
        TRANSFER,
        "Mean size of a KV transfer over the sampling window, in bytes over all ranks.",
    ),
    gauge(
        "modeldeployment_kv_transfer_failures_per_second",
        TRANSFER,
        "Failed KV transfers per second over the sampling window.",
    ),
    counter(
        "modeldeployment_cache_hit_tokens_total",
        CACHE,
        "Tokens that the cache held, summed over engine restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_cache_query_tokens_total",
        CACHE,
        "Tokens that were looked up in the cache, summed over engine restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_ttft_seconds_total",
        FIELD,
        "Sum of the times to the first token in seconds, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_ttft_observations_total",
        FIELD,
        "Observations of the time to the first token, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_tpot_seconds_total",
        FIELD,
        "Sum of the times per output token in seconds, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_tpot_observations_total",
        FIELD,
        "Observations of the time per output token, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_itl_seconds_total",
        FIELD,
        "Sum of the latencies between two output tokens in seconds, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_itl_observations_total",
        FIELD,
        "Observations of the latency between two output tokens, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_requests_total",
        ROUTER,
        "Requests that the router took, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_successful_requests_total",
        ROUTER,
        "Requests that the router completed with success, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_pd_requests_total",
        ROUTER,
        "Requests that the router sent to a prefill/decode pair, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_request_errors_total",
        ROUTER,
        "Request errors that the router counted, over restarts since the Pod's first good read; they may include \
         requests that it counts nowhere else.",
    ),
    counter(
        "modeldeployment_router_errors_total",
        ROUTER,
        "Errors that the router counted, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_pd_errors_total",
        ROUTER,
        "Errors of the router's prefill/decode mode, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_retries_exhausted_total",
        ROUTER,
        "Requests that failed after the router's last attempt, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_router_http_5xx_responses_total",
        ROUTER,
        "HTTP responses with a status of 500 to 599 from the router, on any path, over restarts since the Pod's \
         first good read.",
    ),
    counter(
        "modeldeployment_kv_transfer_seconds_total",
        TRANSFER,
        "Sum of the durations of KV transfers in seconds, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_kv_transfer_bytes_total",
        TRANSFER,
        "Bytes of KV transfers over all ranks, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_kv_transfers_total",
        TRANSFER,
        "KV transfers, over restarts since the Pod's first good read.",
    ),
    counter(
        "modeldeployment_kv_transfer_failures_total",
        TRANSFER,
        "Failed KV transfers, over restarts since the Pod's first good read.",
    ),
    gauge(
        "modeldeployment_exporter_build_info",
        &["version", "revision"],
        "The exporter's version and the revision it was built from. Always 1.",
    ),
    gauge(
        "modeldeployment_exporter_deployment_found",
        OWN,
        "Whether the model deployment exists (1) or not (0); absent until the exporter knows.",
    ),
    counter("modeldeployment_exporter_rounds_total", OWN, "Finished rounds of reading the deployment's Pods."),
    counter(
        "modeldeployment_exporter_deployment_reload_failures_total",
        OWN,
        "Versions of the deployment's description that could not be read and were not taken.",
    ),
    counter(
        "modeldeployment_exporter_http_requests_total",
        &["path", "code"],
        "HTTP requests that the exporter answered, by path and status code.",
    ),
    histogram(
        "modeldeployment_exporter_round_duration_seconds",
        OWN,
        "How long a round of reading the deployment's Pods took, in seconds.",
    ),
    counter("process_cpu_seconds_total", OWN, "Total user and system CPU time spent in seconds."),
    gauge("process_open_fds", OWN, "Number of open file descriptors."),
    gauge("process_max_fds", OWN, "Maximum number of open file descriptors."),
    gauge("process_virtual_memory_bytes", OWN, "Virtual memory size in bytes."),
    gauge("process_resident_memory_bytes", OWN, "Resident memory size in bytes."),
    gauge("process_start_time_seconds", OWN, "Start time of the process since unix epoch in seconds."),
];
