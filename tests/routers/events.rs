//! What is done to each router and what the exporter must have counted for it: the tables of this test, as data.
//!
//! One row is one kind of event: what the client sends, how often, the status it gets, and by how much each of the
//! exporter's `modeldeployment_router_<family>_total` families moves for each time. A family that a row does not
//! name must not move. The numbers were taken from the pinned versions, not derived from their documentation.

use crate::backend::Role::{self, Decode, Prefill, Server};
use crate::router::{SGLANG_ROUTER, SMG, Software, VLLM_ROUTER};

/// A router in one mode: its workers, what the exporter has of it, and what happens to it.
pub struct Scenario {
    pub software: &'static Software,
    pub workers: &'static [Role],
    /// The router's policy, in its arguments and in the deployment file.
    pub policy: &'static str,
    /// Every `modeldeployment_router_*_total` family there is, no more and no fewer.
    pub exported: &'static [Exported],
    /// Whether `error-ratio` is a field of this router.
    pub ratio: bool,
    /// Gauges that this router does not have in this mode and with this policy.
    pub unsupported: &'static [&'static str],
    pub phases: &'static [Phase],
}

/// One family of the exporter and the router's series behind it.
pub struct Exported {
    /// Without `modeldeployment_router_` and `_total`.
    pub family: &'static str,
    pub source: &'static str,
    /// The series beside which its absence means that nothing happened yet.
    pub beside: Option<&'static str>,
}

/// One life of the router's process, from nothing counted to its end. Each but the first begins with its restart.
pub struct Phase {
    pub name: &'static str,
    pub workers: Workers,
    /// Gauges of `processing[]` and their values at the end.
    pub gauges: &'static [(&'static str, f64)],
    pub rows: &'static [Row],
}

/// The router's workers in a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// All are there; the router would look an hour later whether they still are.
    Unwatched,
    /// All are there; the router looks each second.
    Watched,
    /// The router knows none.
    None,
}

/// One kind of event.
pub struct Row {
    pub event: &'static str,
    /// What happens before the requests.
    pub first: First,
    pub request: Request,
    pub times: u32,
    /// The status the client gets.
    pub status: u16,
    /// By how much a family moves for each time.
    pub moves: &'static [(&'static str, u32)],
}

/// What happens before a row's requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum First {
    Nothing,
    /// Workers of this role refuse connections from now on.
    Stop(Role),
    /// Every worker does, and the router has noticed.
    StopAllAndNotice,
}

/// What the client sends, and how it ends.
#[derive(Clone, Copy)]
pub enum Request {
    /// A chat completion with this prompt, answered in one piece.
    Chat(&'static str),
    /// A streamed one, read to its end.
    Stream(&'static str),
    /// A streamed one that breaks off once its client has read its first bytes.
    Cut(&'static str),
    /// A streamed one whose client leaves after the first bytes.
    Leave(&'static str),
    /// Any path and body.
    Post(&'static str, &'static str),
}

use First::{Nothing, Stop, StopAllAndNotice};
use Request::{Chat, Cut, Leave, Post, Stream};

const CHAT: &str = "/v1/chat/completions";
const NO_MODEL: Request = Post(CHAT, r#"{"messages":[{"role":"user","content":"hello"}]}"#);
const UNKNOWN_MODEL: Request = Post(CHAT, r#"{"model":"nope","messages":[{"role":"user","content":"hello"}]}"#);
const NO_MESSAGES: Request = Post(CHAT, r#"{"model":"fake-model"}"#);
const BAD_JSON: Request = Post(CHAT, "{bad");
const COMPLETION: Request = Post("/v1/completions", r#"{"model":"fake-model","prompt":"hello"}"#);
const COMPLETION_NO_MODEL: Request = Post("/v1/completions", r#"{"prompt":"hello"}"#);
const GENERATE: Request = Post("/generate", r#"{"text":"hello"}"#);
const UNKNOWN_PATH: Request = Post("/v1/nothing", r#"{"a":1}"#);

const fn row(
    event: &'static str,
    request: Request,
    times: u32,
    status: u16,
    moves: &'static [(&'static str, u32)],
) -> Row {
    Row { event, first: Nothing, request, times, status, moves }
}

const fn after(first: First, row: Row) -> Row {
    Row { first, ..row }
}

pub const VLLM: Scenario = Scenario {
    software: &VLLM_ROUTER,
    workers: &[Server, Server],
    policy: "round_robin",
    exported: &[
        Exported { family: "successful_requests", source: "vllm_router_requests_total", beside: None },
        Exported {
            family: "errors",
            source: "vllm_router_request_errors_total",
            beside: Some("vllm_router_requests_total"),
        },
        Exported {
            family: "retries_exhausted",
            source: "vllm_router_retries_exhausted_total",
            beside: Some("vllm_router_requests_total"),
        },
    ],
    ratio: false,
    unsupported: &["vllm_router_running_requests"],
    phases: &[
        Phase {
            name: "two workers",
            workers: Workers::Unwatched,
            gauges: &[("router-reported-workers", 2.0)],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("successful_requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("successful_requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("successful_requests", 1)]),
                row("a generation", GENERATE, 2, 200, &[("successful_requests", 1)]),
                row("a backend's 500", Chat("500"), 4, 500, &[("retries_exhausted", 1)]),
                row("a backend's 503", Chat("503"), 3, 503, &[("retries_exhausted", 1)]),
                row("a backend's 429", Stream("429"), 2, 429, &[("retries_exhausted", 1)]),
                row("a backend's 400", Chat("400"), 3, 400, &[("errors", 1)]),
                row("a stream cut by the backend", Cut("cut"), 3, 200, &[("successful_requests", 1)]),
                row("a client that leaves mid-stream", Leave("slow"), 2, 200, &[("successful_requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 422, &[]),
                row("no model", NO_MODEL, 2, 200, &[("successful_requests", 1)]),
                row("a completion without a model", COMPLETION_NO_MODEL, 2, 200, &[("successful_requests", 1)]),
                row("an unknown model", UNKNOWN_MODEL, 2, 200, &[("successful_requests", 1)]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[("errors", 1)]),
                after(
                    Stop(Server),
                    row("workers gone, not yet noticed", Chat("hello"), 3, 500, &[("retries_exhausted", 1)]),
                ),
            ],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[("router-reported-workers", 2.0)],
            rows: &[after(
                StopAllAndNotice,
                row("every worker unhealthy", Chat("hello"), 3, 503, &[("errors", 2), ("retries_exhausted", 1)]),
            )],
        },
        Phase {
            name: "no workers",
            workers: Workers::None,
            gauges: &[("router-reported-workers", 0.0)],
            rows: &[row("no worker at all", Chat("hello"), 3, 503, &[("errors", 2), ("retries_exhausted", 1)])],
        },
    ],
};

pub const VLLM_PAIR: Scenario = Scenario {
    software: &VLLM_ROUTER,
    workers: &[Prefill, Prefill, Decode, Decode],
    policy: "round_robin",
    exported: &[
        Exported { family: "pd_requests", source: "vllm_router_pd_requests_total", beside: None },
        Exported {
            family: "pd_errors",
            source: "vllm_router_pd_errors_total",
            beside: Some("vllm_router_pd_requests_total"),
        },
    ],
    ratio: false,
    unsupported: &["vllm_router_running_requests", "vllm_router_active_workers"],
    phases: &[
        Phase {
            name: "two pairs",
            workers: Workers::Unwatched,
            gauges: &[],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("pd_requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("pd_requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("pd_requests", 1)]),
                row("a prefill's 500", Chat("prefill:500"), 4, 500, &[("pd_requests", 1)]),
                row("a prefill's 503", Chat("prefill:503"), 3, 500, &[("pd_requests", 1)]),
                row("a prefill's 429", Stream("prefill:429"), 2, 429, &[("pd_requests", 1)]),
                row("a prefill's 400", Chat("prefill:400"), 3, 400, &[("pd_requests", 1)]),
                row("a decode's 500", Chat("decode:500"), 4, 500, &[("pd_requests", 1)]),
                row("a decode's 503", Stream("decode:503"), 3, 503, &[("pd_requests", 1)]),
                row("a decode's 429", Chat("decode:429"), 2, 429, &[("pd_requests", 1)]),
                row("a decode's 400", Chat("decode:400"), 3, 400, &[("pd_requests", 1)]),
                row("a stream cut by the decode half", Cut("decode:cut"), 3, 200, &[("pd_requests", 1)]),
                row("a client that leaves mid-stream", Leave("decode:slow"), 2, 200, &[("pd_requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 422, &[]),
                row("no model", NO_MODEL, 2, 200, &[("pd_requests", 1)]),
                row("an unknown model", UNKNOWN_MODEL, 2, 200, &[("pd_requests", 1)]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[("pd_requests", 1)]),
                after(
                    Stop(Prefill),
                    row("prefill workers gone, not yet noticed", Chat("hello"), 3, 500, &[("pd_requests", 1)]),
                ),
            ],
        },
        Phase {
            name: "decode workers that vanish",
            workers: Workers::Unwatched,
            gauges: &[],
            rows: &[after(
                Stop(Decode),
                row("decode workers gone, not yet noticed", Chat("hello"), 3, 500, &[("pd_requests", 1)]),
            )],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[],
            rows: &[after(StopAllAndNotice, row("every worker unhealthy", Chat("hello"), 3, 503, &[("pd_errors", 1)]))],
        },
    ],
};

/// What the exporter has of both gateways.
const GATEWAY: &[Exported] = &[
    Exported { family: "requests", source: "smg_router_requests_total", beside: None },
    Exported { family: "errors", source: "smg_router_request_errors_total", beside: Some("smg_router_requests_total") },
    Exported { family: "http_5xx_responses", source: "smg_http_responses_total", beside: None },
];

pub const SGLANG: Scenario = Scenario {
    software: &SGLANG_ROUTER,
    workers: &[Server, Server],
    policy: "round_robin",
    exported: GATEWAY,
    ratio: true,
    unsupported: &["smg_worker_requests_active"],
    phases: &[
        Phase {
            name: "two workers",
            workers: Workers::Unwatched,
            gauges: &[("router-backends", 2.0)],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("requests", 1)]),
                row("a generation", GENERATE, 2, 200, &[("requests", 1)]),
                row("a backend's 500", Chat("500"), 4, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a backend's 503", Chat("503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a backend's 429", Stream("429"), 2, 429, &[("requests", 1)]),
                row("a backend's 400", Chat("400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a stream cut by the backend", Cut("cut"), 3, 200, &[("requests", 1)]),
                row("a client that leaves mid-stream", Leave("slow"), 2, 200, &[("requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 400, &[]),
                row("no model", NO_MODEL, 2, 200, &[("requests", 1)]),
                row("a completion without a model", COMPLETION_NO_MODEL, 2, 422, &[]),
                row("an unknown model", UNKNOWN_MODEL, 2, 200, &[("requests", 1)]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[]),
                after(
                    Stop(Server),
                    row(
                        "workers gone, not yet noticed",
                        Chat("hello"),
                        3,
                        500,
                        &[("requests", 1), ("http_5xx_responses", 1)],
                    ),
                ),
            ],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[("router-backends", 2.0)],
            rows: &[after(
                StopAllAndNotice,
                row("every worker unhealthy", Chat("hello"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
            )],
        },
        Phase {
            name: "no workers",
            workers: Workers::None,
            gauges: &[],
            rows: &[row("no worker at all", Chat("hello"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)])],
        },
    ],
};

pub const SGLANG_PAIR: Scenario = Scenario {
    software: &SGLANG_ROUTER,
    workers: &[Prefill, Prefill, Decode, Decode],
    policy: "round_robin",
    exported: GATEWAY,
    ratio: true,
    unsupported: &[],
    phases: &[
        Phase {
            name: "two pairs",
            workers: Workers::Unwatched,
            gauges: &[("router-running", 0.0)],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("requests", 1)]),
                row("a generation", GENERATE, 2, 200, &[("requests", 1)]),
                row("a prefill's 500", Chat("prefill:500"), 4, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a prefill's 503", Chat("prefill:503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a prefill's 429", Stream("prefill:429"), 2, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a prefill's 400", Chat("prefill:400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a decode's 500", Chat("decode:500"), 4, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 503", Chat("decode:503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 429", Chat("decode:429"), 2, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 400", Chat("decode:400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("both halves' 500", Chat("500"), 3, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("both halves' 503", Stream("503"), 2, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("both halves' 400", Chat("400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a stream cut by the decode half", Cut("decode:cut"), 3, 200, &[("requests", 1)]),
                row("a client that leaves mid-stream", Leave("slow"), 2, 200, &[("requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 400, &[]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[]),
                row("no model", NO_MODEL, 2, 200, &[("requests", 1)]),
                row("an unknown model", UNKNOWN_MODEL, 2, 200, &[("requests", 1)]),
                after(
                    Stop(Prefill),
                    row(
                        "prefill workers gone, not yet noticed",
                        Chat("hello"),
                        3,
                        502,
                        &[("requests", 1), ("http_5xx_responses", 1)],
                    ),
                ),
            ],
        },
        Phase {
            name: "decode workers that vanish",
            workers: Workers::Unwatched,
            gauges: &[("router-running", 0.0)],
            rows: &[after(
                Stop(Decode),
                row(
                    "decode workers gone, not yet noticed",
                    Chat("hello"),
                    3,
                    502,
                    &[("requests", 1), ("http_5xx_responses", 1)],
                ),
            )],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[],
            rows: &[after(
                StopAllAndNotice,
                row("every worker unhealthy", Chat("hello"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
            )],
        },
    ],
};

pub const SMG_ORDINARY: Scenario = Scenario {
    software: &SMG,
    workers: &[Server, Server],
    policy: "round_robin",
    exported: GATEWAY,
    ratio: true,
    unsupported: &[],
    phases: &[
        Phase {
            name: "two workers",
            workers: Workers::Unwatched,
            gauges: &[("router-running", 0.0), ("router-backends", 2.0)],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("requests", 1)]),
                row("a generation", GENERATE, 2, 200, &[("requests", 1)]),
                row(
                    "a backend's 500",
                    Chat("500"),
                    4,
                    500,
                    &[("requests", 1), ("errors", 1), ("http_5xx_responses", 1)],
                ),
                row("a backend's 503", Chat("503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a backend's 429", Stream("429"), 2, 429, &[("requests", 1)]),
                row("a backend's 400", Chat("400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a stream cut by the backend", Cut("cut"), 3, 200, &[("requests", 1), ("errors", 1)]),
                row("a client that leaves mid-stream", Leave("slow"), 2, 200, &[("requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 400, &[]),
                row("no model", NO_MODEL, 2, 400, &[]),
                row("a completion without a model", COMPLETION_NO_MODEL, 2, 400, &[]),
                row("an unknown model", UNKNOWN_MODEL, 2, 404, &[("requests", 1), ("errors", 1)]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[]),
                after(
                    Stop(Server),
                    row(
                        "workers gone, not yet noticed",
                        Chat("hello"),
                        3,
                        500,
                        &[("requests", 1), ("http_5xx_responses", 1)],
                    ),
                ),
            ],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[("router-backends", 2.0)],
            rows: &[after(
                StopAllAndNotice,
                row(
                    "every worker unhealthy",
                    Chat("hello"),
                    3,
                    503,
                    &[("requests", 1), ("errors", 1), ("http_5xx_responses", 1)],
                ),
            )],
        },
        Phase {
            name: "no workers",
            workers: Workers::None,
            gauges: &[],
            rows: &[row("no worker at all", Chat("hello"), 3, 404, &[("requests", 1), ("errors", 1)])],
        },
    ],
};

pub const SMG_PAIR: Scenario = Scenario {
    software: &SMG,
    workers: &[Prefill, Prefill, Decode, Decode],
    policy: "round_robin",
    exported: GATEWAY,
    ratio: true,
    unsupported: &[],
    phases: &[
        Phase {
            name: "two pairs",
            workers: Workers::Unwatched,
            gauges: &[("router-running", 0.0), ("router-backends", 4.0)],
            rows: &[
                row("a success", Chat("hello"), 3, 200, &[("requests", 1)]),
                row("a streamed success", Stream("hello"), 2, 200, &[("requests", 1)]),
                row("a completion", COMPLETION, 2, 200, &[("requests", 1)]),
                row("a generation", GENERATE, 2, 200, &[("requests", 1)]),
                row("a prefill's 500", Chat("prefill:500"), 4, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a prefill's 503", Chat("prefill:503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a prefill's 429", Stream("prefill:429"), 2, 429, &[("requests", 1)]),
                row("a prefill's 400", Chat("prefill:400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a decode's 500", Chat("decode:500"), 4, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 503", Chat("decode:503"), 3, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 429", Chat("decode:429"), 2, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("a decode's 400", Chat("decode:400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("both halves' 500", Chat("500"), 3, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("both halves' 503", Stream("503"), 2, 503, &[("requests", 1), ("http_5xx_responses", 1)]),
                row("both halves' 400", Chat("400"), 3, 400, &[("requests", 1), ("errors", 1)]),
                row("a stream cut by the decode half", Cut("decode:cut"), 3, 200, &[("requests", 1), ("errors", 1)]),
                row("a client that leaves mid-stream", Leave("slow"), 2, 200, &[("requests", 1)]),
                row("bad JSON", BAD_JSON, 2, 400, &[]),
                row("no messages", NO_MESSAGES, 2, 400, &[]),
                row("an unknown path", UNKNOWN_PATH, 2, 404, &[]),
                row("no model", NO_MODEL, 2, 400, &[]),
                row(
                    "an unknown model",
                    UNKNOWN_MODEL,
                    2,
                    503,
                    &[("requests", 1), ("errors", 1), ("http_5xx_responses", 1)],
                ),
                after(
                    Stop(Prefill),
                    row(
                        "prefill workers gone, not yet noticed",
                        Chat("hello"),
                        3,
                        502,
                        &[("requests", 1), ("http_5xx_responses", 1)],
                    ),
                ),
            ],
        },
        Phase {
            name: "decode workers that vanish",
            workers: Workers::Unwatched,
            gauges: &[("router-backends", 4.0)],
            rows: &[after(
                Stop(Decode),
                row(
                    "decode workers gone, not yet noticed",
                    Chat("hello"),
                    3,
                    502,
                    &[("requests", 1), ("http_5xx_responses", 1)],
                ),
            )],
        },
        Phase {
            name: "workers that vanish",
            workers: Workers::Watched,
            gauges: &[("router-backends", 4.0)],
            rows: &[after(
                StopAllAndNotice,
                row(
                    "every worker unhealthy",
                    Chat("hello"),
                    3,
                    503,
                    &[("requests", 1), ("errors", 1), ("http_5xx_responses", 1)],
                ),
            )],
        },
    ],
};

/// The default policy, with which the router exports its running requests.
pub const VLLM_CACHE_AWARE: Scenario = Scenario {
    policy: "cache_aware",
    unsupported: &[],
    phases: &[Phase {
        name: "two workers",
        workers: Workers::Unwatched,
        gauges: &[("router-running", 0.0), ("router-reported-workers", 2.0)],
        rows: &[
            row("a backend's 500", Chat("500"), 1, 500, &[("retries_exhausted", 1)]),
            row("a backend's 400", Chat("400"), 1, 400, &[("errors", 1)]),
            row("a success", Stream("hello"), 1, 200, &[("successful_requests", 1)]),
        ],
    }],
    ..VLLM
};

/// The default policy, with which the router exports its running requests.
pub const SGLANG_CACHE_AWARE: Scenario = Scenario {
    policy: "cache_aware",
    unsupported: &[],
    phases: &[Phase {
        name: "two workers",
        workers: Workers::Unwatched,
        gauges: &[("router-running", 0.0), ("router-backends", 2.0)],
        rows: &[
            row("a backend's 500", Chat("500"), 1, 500, &[("requests", 1), ("http_5xx_responses", 1)]),
            row("a backend's 400", Chat("400"), 1, 400, &[("requests", 1), ("errors", 1)]),
            row("a success", Stream("hello"), 1, 200, &[("requests", 1)]),
        ],
    }],
    ..SGLANG
};
