//! What is simulated, as data: the deployment, its Pods, its traffic and what befalls it when.
//!
//! Nothing here runs: the fleet plays a scenario, and the announcements are read off its schedule.

use super::Error;
use std::fmt::Write;
use std::time::Duration;

/// How the ranks of an engine share its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parallel {
    /// One rank.
    None,
    /// Ranks that serve requests of their own.
    Data(usize),
    /// Ranks that work on the same requests.
    Tensor(usize),
}

/// What a role's Pods do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Whole requests.
    Server,
    /// The prompts of a pair.
    Prefill,
    /// The tokens of a pair.
    Decode,
}

impl Stage {
    fn kind(self) -> &'static str {
        match self {
            Stage::Server => "Server",
            Stage::Prefill => "Prefill",
            Stage::Decode => "Decode",
        }
    }
}

/// One role of engine Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Its name; Pods are `chat-<name>-<index>`.
    pub name: &'static str,
    /// What its Pods do.
    pub stage: Stage,
    /// How many Pods it has.
    pub replicas: usize,
    /// The ranks of its first Pod; every other has one.
    pub first: Parallel,
    /// The arguments of its Pods.
    pub args: &'static [&'static str],
}

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.32.0.
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
}

/// A router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// llm-d-router's endpoint picker.
    LlmD,
    /// vllm-router 0.1.17 with its default policy.
    Vllm,
    /// sglang-router 0.3.2 in its prefill/decode mode.
    Sglang0,
    /// smg 1.13.0, its successor, in regular mode.
    Sglang1,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
        }
    }
}

impl Router {
    fn name(self) -> &'static str {
        match self {
            Router::LlmD => "llm-d-router",
            Router::Vllm => "vllm-router",
            Router::Sglang0 | Router::Sglang1 => "sglang-gateway",
        }
    }
}

/// What can befall a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A share of the requests fails.
    Errors,
    /// An engine is gone for some seconds and starts again with every counter at zero.
    Restart,
    /// One rank's counters fall to zero while the others go on.
    RankReset,
    /// A Pod gets no requests.
    Idle,
    /// A Pod accepts connections and does not answer.
    Hang,
    /// A Pod refuses connections until it is replaced.
    Dead,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [EventKind; 6] = [
        EventKind::Errors,
        EventKind::Restart,
        EventKind::RankReset,
        EventKind::Idle,
        EventKind::Hang,
        EventKind::Dead,
    ];

    /// Whose turn it is in a cycle: never an idle Pod's to die, and only a role's first Pod has ranks.
    fn turn(self, cycle: u32) -> usize {
        match self {
            EventKind::RankReset => 0,
            EventKind::Errors | EventKind::Idle => cycle as usize,
            EventKind::Restart | EventKind::Hang | EventKind::Dead => cycle as usize + 1,
        }
    }

    /// How long it lasts, in seconds. A Pod has to be idle for longer than the exporter's window.
    fn seconds(self) -> u64 {
        match self {
            EventKind::Errors => 15,
            EventKind::Restart => 6,
            EventKind::RankReset => 0,
            EventKind::Idle => 110,
            EventKind::Hang => 20,
            EventKind::Dead => 35,
        }
    }
}

/// One event of a scenario's cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Seconds from the cycle's start.
    pub at: u64,
    /// What happens.
    pub kind: EventKind,
    /// To which role: in turn to each of its Pods, a rank's reset to the first.
    pub role: &'static str,
    /// What should be seen; `{pod}` stands for the Pod.
    pub expect: &'static str,
}

/// An event at its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it begins.
    pub from: Duration,
    /// When it is over.
    pub until: Duration,
    /// What happens.
    pub kind: EventKind,
    /// The index of the Pod in [`Scenario::pods`].
    pub pod: usize,
    /// What should be seen.
    pub expect: String,
}

/// One simulated Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlan {
    /// Its name.
    pub name: String,
    /// The index of its role; none for the router.
    pub role: Option<usize>,
    /// Its ranks.
    pub parallel: Parallel,
}

/// One simulated deployment and what befalls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub description: &'static str,
    /// The engine of every role.
    pub engine: Engine,
    /// The router in front.
    pub router: Router,
    /// Whether a KV cache pool is attached.
    pub pool: bool,
    /// The roles.
    pub roles: Vec<Role>,
    /// The mean of requests per second for each Pod that takes prompts; traffic swings around it.
    pub requests_per_second: f64,
    /// The events of one cycle, in order.
    pub events: Vec<Planned>,
}

/// The length of a scenario's cycle of events.
pub const CYCLE: Duration = Duration::from_secs(225);

const NIXL: &[&str] = &["vllm", "serve", "qwen3-8b", "--kv-transfer-config", r#"{"kv_connector":"MultiConnector"}"#];

const RESTART: &str = "{pod} restarts: it refuses connections for 6 s, then its windows are missing as counter-reset \
    for one round and modeldeployment_pod_resets_total goes up by 1, while its _total families never fall";
const IDLE: &str = "{pod} gets no requests for 110 s: once its window is empty its latencies and cache hits are missing \
    as idle, which does not make the result partial";
const HANG: &str = "{pod} accepts connections and does not answer for 20 s: it is missing as unreadable with cause \
    timeout, modeldeployment_pod_up is 0 and every other Pod stays; there is no reset afterwards";
const DEAD: &str = "{pod} is dead for 35 s: it is missing as unreadable with cause refused, \
    modeldeployment_partial is 1 and every other Pod stays; its successor starts with a counter-reset";
const RANK: &str = "one rank of {pod} resets while the others go on: the Pod's windows are missing as counter-reset for \
    one round although the sums over its ranks hardly fall, and modeldeployment_pod_resets_total goes up by 1";

fn events(
    errors: &'static str,
    rank: &'static str,
    restart: &'static str,
    idle: &'static str,
    dead: &'static str,
) -> Vec<Planned> {
    let plan = |at, kind, role, expect| Planned { at, kind, role, expect };
    vec![
        plan(20, EventKind::Errors, "router", errors),
        plan(55, EventKind::Restart, restart, RESTART),
        plan(90, EventKind::RankReset, rank, RANK),
        plan(125, EventKind::Idle, idle, IDLE),
        plan(160, EventKind::Hang, dead, HANG),
        plan(195, EventKind::Dead, dead, DEAD),
    ]
}

impl Scenario {
    /// Every scenario; the first is the one that runs when none is named.
    pub fn all() -> Vec<Scenario> {
        let role = |name, stage, replicas, first, args| Role { name, stage, replicas, first, args };
        vec![
            Scenario {
                name: "vllm-pair",
                description: "a vLLM prefill/decode pair with a KV cache pool behind llm-d-router",
                engine: Engine::Vllm,
                router: Router::LlmD,
                pool: true,
                roles: vec![
                    role("prefill", Stage::Prefill, 2, Parallel::None, NIXL),
                    role("decode", Stage::Decode, 2, Parallel::Data(2), NIXL),
                ],
                requests_per_second: 1.5,
                events: events(
                    "requests fail at {pod} for 15 s: request-errors is not-exported-yet before the first burst, then \
                     modeldeployment_router_request_errors_per_second rises; bad requests are in it and not in \
                     requests, so there is no error ratio",
                    "decode",
                    "decode",
                    "decode",
                    "prefill",
                ),
            },
            Scenario {
                name: "sglang-servers",
                description: "SGLang servers with a host cache tier behind sglang-gateway",
                engine: Engine::Sglang,
                router: Router::Sglang1,
                pool: false,
                roles: vec![role(
                    "server",
                    Stage::Server,
                    3,
                    Parallel::Data(2),
                    &[
                        "python3",
                        "-m",
                        "sglang.launch_server",
                        "--model-path",
                        "qwen3-8b",
                        "--enable-hierarchical-cache",
                    ],
                )],
                requests_per_second: 2.0,
                events: events(
                    "requests fail at {pod} for 15 s: errors is not-exported-yet before the first burst, then errors, \
                     error-ratio and http-5xx-responses rise; answers with status 503 are in the last one only",
                    "server",
                    "server",
                    "server",
                    "server",
                ),
            },
            Scenario {
                name: "sglang-pair",
                description: "an SGLang prefill/decode pair with a KV cache pool behind sglang-gateway",
                engine: Engine::Sglang,
                router: Router::Sglang0,
                pool: true,
                roles: vec![
                    role(
                        "prefill",
                        Stage::Prefill,
                        2,
                        Parallel::Tensor(2),
                        &["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "prefill"],
                    ),
                    role(
                        "decode",
                        Stage::Decode,
                        2,
                        Parallel::None,
                        &["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "decode"],
                    ),
                ],
                requests_per_second: 1.5,
                events: events(
                    "KV transfers fail and requests with them at {pod} for 15 s: transfer-failures and errors are \
                     not-exported-yet before the first burst, then they, error-ratio and http-5xx-responses rise",
                    "prefill",
                    "decode",
                    "decode",
                    "prefill",
                ),
            },
            Scenario {
                name: "vllm-servers",
                description: "vLLM servers behind vllm-router",
                engine: Engine::Vllm,
                router: Router::Vllm,
                pool: false,
                roles: vec![role("server", Stage::Server, 3, Parallel::Data(2), &["vllm", "serve", "qwen3-8b"])],
                requests_per_second: 2.0,
                events: events(
                    "requests fail at {pod} for 15 s: errors and retries-exhausted are not-exported-yet before the \
                     first burst, then both rise while successful-requests falls; there is no error ratio",
                    "server",
                    "server",
                    "server",
                    "server",
                ),
            },
        ]
    }

    /// The scenario of this name, or the names that there are.
    pub fn by_name(name: &str) -> Result<Scenario, Error> {
        let mut all = Scenario::all();
        let names = all.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
        let found = all.iter().position(|scenario| scenario.name == name);
        let index = found.ok_or_else(|| Error::Scenario { name: name.to_owned(), names })?;
        Ok(all.swap_remove(index))
    }

    /// The scenario with another number of Pods in a role.
    #[must_use]
    pub fn with_replicas(mut self, role: &str, replicas: usize) -> Scenario {
        for named in self.roles.iter_mut().filter(|named| named.name == role) {
            named.replicas = replicas;
        }
        self
    }

    /// The scenario without events.
    #[must_use]
    pub fn without_events(mut self) -> Scenario {
        self.events.clear();
        self
    }

    /// The Pods: the router's, then each role's.
    pub fn pods(&self) -> Vec<PodPlan> {
        let router = PodPlan { name: "chat-router-0".to_owned(), role: None, parallel: Parallel::None };
        let engines = self.roles.iter().enumerate().flat_map(|(index, role)| {
            (0..role.replicas).map(move |replica| PodPlan {
                name: format!("chat-{}-{replica}", role.name),
                role: Some(index),
                parallel: if replica == 0 { role.first } else { Parallel::None },
            })
        });
        std::iter::once(router).chain(engines).collect()
    }

    /// The deployment as a deployment file, with the Pods at these URLs, in the order of [`Scenario::pods`].
    pub fn deployment(&self, urls: &[String]) -> String {
        let mut text = String::from("metadata: {name: chat, namespace: demo}\nspec:\n");
        // Writing into a String cannot fail. JSON strings are YAML, so quoting is JSON's.
        let _ = writeln!(text, "  engine: {{name: {}}}", self.engine.name());
        if self.pool {
            text.push_str("  kvCache: {poolRef: {name: pool}}\n");
        }
        let _ = writeln!(text, "  router: {{name: {}, replicas: 1}}\n  roles:", self.router.name());
        for role in &self.roles {
            let (name, kind, replicas) = (role.name, role.stage.kind(), role.replicas);
            let _ = writeln!(text, "    - {{name: {name}, kind: {kind}, replicas: {replicas}, size: 1}}");
        }
        text.push_str("pods:\n");
        for (pod, url) in self.pods().iter().zip(urls) {
            let _ = writeln!(text, "  - name: {}", pod.name);
            match pod.role {
                None => text.push_str("    router: true\n"),
                Some(index) => {
                    let _ = writeln!(text, "    role: {}", self.roles[index].name);
                    let _ = writeln!(text, "    args: {}", serde_json::json!(self.roles[index].args));
                }
            }
            let _ = writeln!(text, "    url: {}", serde_json::json!(url));
        }
        text
    }

    /// The events that begin in the cycle with this number, from 0.
    fn cycle(&self, number: u32) -> impl Iterator<Item = Event> {
        let pods = self.pods();
        self.events.iter().filter_map(move |planned| {
            let from = CYCLE * number + Duration::from_secs(planned.at);
            let of_role = |plan: &PodPlan| plan.role.map_or("router", |index| self.roles[index].name) == planned.role;
            let targets: Vec<usize> = (0..pods.len()).filter(|index| of_role(&pods[*index])).collect();
            let pod = *targets.get(planned.kind.turn(number) % targets.len().max(1))?;
            Some(Event {
                from,
                until: from + Duration::from_secs(planned.kind.seconds()),
                kind: planned.kind,
                pod,
                expect: planned.expect.replace("{pod}", &pods[pod].name),
            })
        })
    }

    /// The events that begin from `from` on and before `to`, in order.
    pub fn events_between(&self, from: Duration, to: Duration) -> Vec<Event> {
        if self.events.is_empty() || to <= from {
            return Vec::new();
        }
        let number = |at: Duration| u32::try_from(at.as_secs() / CYCLE.as_secs()).unwrap_or(u32::MAX);
        let cycles = number(from)..=number(to);
        let events = cycles.flat_map(|number| self.cycle(number).collect::<Vec<_>>());
        events.filter(|event| event.from >= from && event.from < to).collect()
    }
}
