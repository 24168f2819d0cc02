//! Plays a scenario in fixed steps: requests arrive, are routed, queue, run and end, and events befall Pods.
//!
//! Everything follows from the scenario, the seed and the time asked for; the same question has the
//! same answer whatever was asked before. No clock, no I/O.

use super::Error;
use super::engines;
use super::routers::{self, Fault};
use super::scenario::{CYCLE, Engine, Event, EventKind, Parallel, PodPlan, Router, Scenario, Stage};
use super::template::{Book, Template, Variables};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The simulation's step.
const STEP: Duration = Duration::from_millis(250);
/// Seconds of one swing of the traffic.
const SWING: f64 = 120.0;
/// Requests that one rank runs at once.
pub(super) const SLOTS: usize = 12;
/// Prefixes that requests share.
const GROUPS: usize = 24;
/// Prefixes that fit on a device, in its host's memory and in the pool.
const DEVICE_PREFIXES: usize = 10;
const HOST_PREFIXES: usize = 16;
const POOL_PREFIXES: usize = 20;
/// The model's name.
const MODEL: &str = "qwen3-8b";
/// The start of time unless another is given: 1 January 2026, in seconds since the Unix epoch.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// What a Pod answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Its exposition.
    Exposition(String),
    /// It refuses the connection.
    Refuse,
    /// It accepts the connection and does not answer.
    Hang,
}

/// Something that is about to be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// When.
    pub at: Duration,
    /// The Pod.
    pub pod: String,
    /// What happens.
    pub kind: EventKind,
    /// What should be seen, as a sentence without a full stop.
    pub sentence: String,
}

/// What a Pod really did since the fleet began, over all its processes.
///
/// By the catalogue's field and the part of it that a total sums (`value`, `sum`, `count`, `hits`,
/// `queries`), in the series' own unit; ranks that repeat the same requests count once, and of a
/// transfer's size the sum is over all of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Truth {
    facts: BTreeMap<(&'static str, &'static str), f64>,
}

impl Truth {
    /// One fact; zero when nothing happened.
    pub fn get(&self, field: &str, part: &str) -> f64 {
        self.iter().find(|(name, of, _)| *name == field && *of == part).map_or(0.0, |(_, _, value)| value)
    }

    /// Every fact: field, part and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        self.facts.iter().map(|((field, part), value)| (*field, *part, *value))
    }
}

/// One request on its way.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// When it reached this Pod, and the router; in seconds.
    pub arrived: f64,
    pub at_router: f64,
    /// Its prompt: a prefix shared with others of its group, and tokens of its own.
    pub group: usize,
    pub shared: u64,
    pub prompt: u64,
    /// The tokens that it generates here.
    pub output: u64,
    /// The tokens that the client asked for.
    pub wanted: u64,
    pub streaming: bool,
    pub chat: bool,
    /// When it can be admitted: a decode half waits for its blocks.
    pub ready: f64,
    /// Of a pair, the Pod that computes the prompt and the one that generates.
    pub route: (usize, usize),
    pub admitted: f64,
    pub first_token: f64,
    pub done: f64,
    /// Tokens of the prompt that were found: on the device, in the host's memory, in the pool, and
    /// those sent by the other half.
    pub found: Found,
    pub answered: bool,
    /// Its KV transfer fails.
    pub broken: bool,
}

/// Where tokens of a prompt were found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub device: u64,
    pub host: u64,
    pub pool: u64,
    pub sent: u64,
}

/// Prefixes in the order of their last use, newest first.
#[derive(Debug, Clone, Default)]
struct Prefixes(VecDeque<usize>);

impl Prefixes {
    /// Whether a prefix is there; afterwards it is.
    fn touch(&mut self, group: usize, room: usize) -> bool {
        let at = self.0.iter().position(|known| *known == group);
        if let Some(at) = at {
            self.0.remove(at);
        }
        self.0.push_front(group);
        self.0.truncate(room);
        at.is_some()
    }
}

/// One rank that serves requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Rank {
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    device: Prefixes,
    host: Prefixes,
    /// Whether it has run anything since its start.
    pub used: bool,
    /// Tokens that its running requests generate per second.
    pub throughput: f64,
}

impl Rank {
    /// Requests that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait, and those of them whose blocks are still on their way.
    pub fn waiting(&self, now: f64) -> (usize, usize) {
        (self.waiting.len(), self.waiting.iter().filter(|job| job.ready > now).count())
    }

    /// Tokens that its running requests hold.
    pub fn held(&self) -> u64 {
        self.running.iter().map(|job| job.prompt + job.output).sum()
    }
}

/// One Pod at work.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub plan: PodPlan,
    pub stage: Option<Stage>,
    template: Arc<Template>,
    book: Book,
    truth: Truth,
    pub ranks: Vec<Rank>,
    pub alive: bool,
    pub idle: bool,
    /// What the router calls it.
    pub address: String,
}

impl Pod {
    /// Adds to a value of its exposition.
    pub fn add(&mut self, key: &str, by: f64) {
        self.template.add(&mut self.book, key, by);
    }

    /// Sets a value of its exposition.
    pub fn set(&mut self, key: &str, value: f64) {
        self.template.set(&mut self.book, key, value);
    }

    /// Observes a value in a histogram of its exposition.
    pub fn observe(&mut self, key: &str, value: f64, times: u64) {
        self.template.observe(&mut self.book, key, value, times);
    }

    /// Adds to what the Pod really did.
    pub fn did(&mut self, field: &'static str, part: &'static str, by: f64) {
        *self.truth.facts.entry((field, part)).or_insert(0.0) += by;
    }

    /// The number of ranks that its label sets tell apart.
    pub fn labelled_ranks(&self) -> usize {
        match self.plan.parallel {
            Parallel::None => 1,
            Parallel::Data(ranks) | Parallel::Tensor(ranks) => ranks,
        }
    }

    /// Puts a request into the queue of the rank that has least to do.
    fn queue(&mut self, job: Job) {
        let rank = self.ranks.iter_mut().min_by_key(|rank| rank.waiting.len() + rank.running.len());
        if let Some(rank) = rank {
            rank.waiting.push_back(job);
        }
    }

    fn load(&self) -> usize {
        self.ranks.iter().map(|rank| rank.waiting.len() + rank.running.len()).sum()
    }
}

#[derive(Debug, Clone)]
struct State {
    /// Steps taken.
    steps: u64,
    rng: fastrand::Rng,
    pods: Vec<Pod>,
    pool: Prefixes,
}

/// A simulated fleet.
#[derive(Debug)]
pub struct Fleet {
    scenario: Scenario,
    seed: u64,
    epoch: Duration,
    beginning: State,
    state: State,
    /// The events that begin in `known`, at hand.
    events: Vec<Event>,
    known: Range<Duration>,
}

impl Fleet {
    /// A fleet at the beginning of a scenario.
    pub fn new(scenario: Scenario, seed: u64) -> Result<Fleet, Error> {
        let beginning = begin(&scenario, seed, EPOCH)?;
        let state = beginning.clone();
        let (events, known) = (Vec::new(), Duration::ZERO..Duration::ZERO);
        Ok(Fleet { scenario, seed, epoch: EPOCH, beginning, state, events, known })
    }

    /// The fleet from its beginning, at this time since the Unix epoch.
    pub fn starting_at(self, epoch: Duration) -> Result<Fleet, Error> {
        let beginning = begin(&self.scenario, self.seed, epoch)?;
        let state = beginning.clone();
        Ok(Fleet { epoch, beginning, state, ..self })
    }

    /// What is played.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The number of Pods; they are numbered as in [`Scenario::pods`].
    pub fn pods(&self) -> usize {
        self.state.pods.len()
    }

    /// What a Pod answers at a time. Time is cut into steps of 250 ms; a time before the last one
    /// asked for plays everything again from the beginning.
    pub fn answer(&mut self, pod: usize, at: Duration) -> Answer {
        self.advance(at);
        if !self.is_up(pod, at) {
            return Answer::Refuse;
        }
        if self.befalls(pod, EventKind::Hang, step_start(at)) {
            return Answer::Hang;
        }
        let order = self.seed ^ (self.state.steps << 8) ^ pod as u64;
        match self.state.pods.get(pod) {
            Some(pod) => Answer::Exposition(pod.template.render(&pod.book, order)),
            None => Answer::Refuse,
        }
    }

    /// Whether a Pod accepts connections at a time.
    pub fn is_up(&mut self, pod: usize, at: Duration) -> bool {
        let at = step_start(at);
        pod < self.pods() && !self.befalls(pod, EventKind::Restart, at) && !self.befalls(pod, EventKind::Dead, at)
    }

    /// What a Pod really did up to a time.
    pub fn truth(&mut self, pod: usize, at: Duration) -> Truth {
        self.advance(at);
        self.state.pods.get(pod).map(|pod| pod.truth.clone()).unwrap_or_default()
    }

    /// What is about to be seen from events that begin in a range of time.
    pub fn announcements(&self, range: Range<Duration>) -> Vec<Announcement> {
        let pods = self.scenario.pods();
        let events = self.scenario.events_between(range.start, range.end).into_iter();
        let announce = |event: Event| Announcement {
            at: event.from,
            pod: pods.get(event.pod).map(|pod| pod.name.clone()).unwrap_or_default(),
            kind: event.kind,
            sentence: event.expect,
        };
        events.map(announce).collect()
    }

    /// The `Content-Type` of a Pod's answers.
    pub fn content_type(&self, pod: usize) -> &'static str {
        let router = self.state.pods.get(pod).is_none_or(|pod| pod.stage.is_none());
        match (router, self.scenario.engine, self.scenario.router) {
            (true, _, Router::Vllm | Router::Sglang0) => "text/plain",
            (false, Engine::Vllm, _) => "text/plain; version=1.0.0; charset=utf-8",
            _ => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Whether a Pod is an engine: those close kept connections that are idle for 5 s.
    pub fn is_engine(&self, pod: usize) -> bool {
        self.state.pods.get(pod).is_some_and(|pod| pod.stage.is_some())
    }

    fn befalls(&mut self, pod: usize, kind: EventKind, at: Duration) -> bool {
        self.learn_events(at);
        self.events.iter().any(|event| event.pod == pod && event.kind == kind && event.from <= at && at < event.until)
    }

    /// Keeps the events around a time at hand; none lasts longer than a cycle.
    fn learn_events(&mut self, at: Duration) {
        let needed = at.saturating_sub(CYCLE)..at + CYCLE;
        if needed.start < self.known.start || needed.end > self.known.end {
            self.known = needed.start..needed.end + CYCLE;
            self.events = self.scenario.events_between(self.known.start, self.known.end);
        }
    }

    /// Takes the steps up to a time.
    fn advance(&mut self, at: Duration) {
        let steps = steps(at);
        if steps < self.state.steps {
            self.state = self.beginning.clone();
        }
        while self.state.steps < steps {
            self.state.steps += 1;
            let now = time(self.state.steps);
            self.learn_events(now);
            let (before, events) = (now.saturating_sub(STEP), std::mem::take(&mut self.events));
            self.state.step(&self.scenario, &events, before, now, self.epoch);
            self.events = events;
        }
    }

    /// Whether each key of each Pod's template has been written, for the tests of this module.
    #[cfg(test)]
    pub(super) fn unwritten(&self) -> Vec<(usize, String)> {
        let pods = self.state.pods.iter().enumerate();
        let keys = pods.flat_map(|(index, pod)| {
            let unwritten = pod.template.keys().into_iter().filter(|key| !pod.template.is_written(&pod.book, key));
            unwritten.map(move |key| (index, key.to_owned())).collect::<Vec<_>>()
        });
        keys.collect()
    }
}

fn steps(at: Duration) -> u64 {
    u64::try_from(at.as_millis() / STEP.as_millis()).unwrap_or(u64::MAX)
}

fn time(steps: u64) -> Duration {
    Duration::from_millis(steps.saturating_mul(STEP.as_millis() as u64))
}

fn step_start(at: Duration) -> Duration {
    time(steps(at))
}

fn begin(scenario: &Scenario, seed: u64, epoch: Duration) -> Result<State, Error> {
    let plans = scenario.pods();
    let address = |index: usize| format!("http://10.42.{}.{}:8000", index / 250, index % 250 + 1);
    let workers: Vec<String> = (1..plans.len()).map(address).collect();
    let mut pods = Vec::with_capacity(plans.len());
    // Pods of one role with the same ranks share a template: at most two per role.
    let mut compiled: HashMap<_, Arc<Template>> = HashMap::new();
    for (index, plan) in plans.into_iter().enumerate() {
        let key = (plan.role, plan.parallel);
        let template = match compiled.get(&key) {
            Some(template) => Arc::clone(template),
            None => {
                let template = Arc::new(compile(scenario, &plan, &workers)?);
                compiled.insert(key, Arc::clone(&template));
                template
            }
        };
        let stage = plan.role.and_then(|role| scenario.roles.get(role)).map(|role| role.stage);
        let ranks = match (stage, plan.parallel) {
            (None, _) => 0,
            (Some(_), Parallel::Data(ranks)) => ranks,
            (Some(_), _) => 1,
        };
        let mut pod = Pod {
            plan,
            stage,
            book: template.book(0.0, 0.0),
            template,
            truth: Truth::default(),
            ranks: vec![Rank::default(); ranks],
            alive: true,
            idle: false,
            address: address(index),
        };
        start(scenario, &mut pod, epoch, Duration::ZERO);
        pods.push(pod);
    }
    Ok(State { steps: 0, rng: fastrand::Rng::with_seed(seed), pods, pool: Prefixes::default() })
}

fn compile(scenario: &Scenario, plan: &PodPlan, workers: &[String]) -> Result<Template, Error> {
    let one = |text: &str| vec![text.to_owned()];
    let many = |ranks: usize| (0..ranks).map(|rank| rank.to_string()).collect::<Vec<_>>();
    let (ranks, data) = match plan.parallel {
        Parallel::None => (1, false),
        Parallel::Data(ranks) => (ranks, true),
        Parallel::Tensor(ranks) => (ranks, false),
    };
    let stage = plan.role.and_then(|role| scenario.roles.get(role)).map(|role| role.stage);
    let (file, text, variables): (_, _, Variables) = match (stage, scenario.engine, scenario.router) {
        (None, _, router) => {
            let (file, text) = match router {
                Router::LlmD => ("llm-d-router.txt", include_str!("templates/llm-d-router.txt")),
                Router::Vllm => ("vllm-router.txt", include_str!("templates/vllm-router.txt")),
                Router::Sglang0 => ("sglang-gateway-0.txt", include_str!("templates/sglang-gateway-0.txt")),
                Router::Sglang1 => ("sglang-gateway-1.txt", include_str!("templates/sglang-gateway-1.txt")),
            };
            (file, text, vec![("model", one(MODEL)), ("worker", workers.to_vec())])
        }
        (Some(_), Engine::Vllm, _) => {
            let variables = vec![("model", one(MODEL)), ("engine", many(ranks))];
            ("vllm.txt", include_str!("templates/vllm.txt"), variables)
        }
        (Some(stage), Engine::Sglang, _) => {
            let kind = match stage {
                Stage::Server => "unified",
                Stage::Prefill => "prefill",
                Stage::Decode => "decode",
            };
            let variables = vec![
                ("model", one(MODEL)),
                ("type", one(kind)),
                ("dp", one(if data { "dp_rank=\"{rank}\"," } else { "" })),
                ("moe", one(if data { "{rank}" } else { "0" })),
                ("pid", one("3{rank}7")),
                ("streaming", vec!["true".to_owned(), "false".to_owned()]),
                ("rank", many(ranks)),
            ];
            ("sglang.txt", include_str!("templates/sglang.txt"), variables)
        }
    };
    let multiprocess = scenario.engine == Engine::Vllm && data;
    Template::compile(text, &variables, multiprocess).map_err(|error| Error::Template { file, error })
}

/// A Pod's process starts: its book is new, its ranks are empty.
fn start(scenario: &Scenario, pod: &mut Pod, epoch: Duration, at: Duration) {
    let made = (epoch + at).as_secs_f64();
    // Loading a model takes the time between the process' start and that of its series.
    let process = made - if pod.stage.is_some() { 5.0 } else { 0.0 };
    pod.book = pod.template.book(process, made);
    pod.alive = true;
    for rank in &mut pod.ranks {
        *rank = Rank::default();
    }
    if pod.stage.is_some() {
        engines::started(scenario.engine, pod);
    } else {
        routers::started(scenario.router, pod);
    }
}

impl State {
    fn step(&mut self, scenario: &Scenario, events: &[Event], before: Duration, now: Duration, epoch: Duration) {
        self.befall(scenario, events, before, now, epoch);
        let burst = |event: &Event| event.kind == EventKind::Errors && event.from <= now && now < event.until;
        let failing = events.iter().any(burst);
        self.arrive(scenario, failing, before.as_secs_f64(), now.as_secs_f64());
        self.work(scenario, now.as_secs_f64());
        self.look(scenario, now.as_secs_f64());
    }

    /// Pods die, come back, lose a rank's counters, or are left alone.
    fn befall(&mut self, scenario: &Scenario, events: &[Event], before: Duration, now: Duration, epoch: Duration) {
        let during = |event: &Event| event.from <= now && now < event.until;
        let gone = |kind| matches!(kind, EventKind::Restart | EventKind::Dead);
        let mut lost = Vec::new();
        for (index, pod) in self.pods.iter_mut().enumerate() {
            let own = || events.iter().filter(|event| event.pod == index);
            pod.idle = own().any(|event| event.kind == EventKind::Idle && during(event));
            let alive = !own().any(|event| gone(event.kind) && during(event));
            if pod.alive && !alive {
                pod.alive = false;
                for rank in &mut pod.ranks {
                    lost.extend(rank.running.drain(..).chain(rank.waiting.drain(..)));
                }
            } else if alive && !pod.alive {
                start(scenario, pod, epoch, now);
            }
            if own().any(|event| event.kind == EventKind::RankReset && before < event.from && event.from <= now) {
                let last = pod.labelled_ranks().saturating_sub(1);
                pod.template.reset(&mut pod.book, &format!("/{last}"));
            }
        }
        // The other half of a lost request goes with it.
        for pod in &mut self.pods {
            for rank in &mut pod.ranks {
                let is_lost = |job: &Job| lost.iter().any(|other| other.at_router == job.at_router);
                rank.running.retain(|job| !is_lost(job));
                rank.waiting.retain(|job| !is_lost(job));
            }
        }
        lost.sort_by(|a, b| a.at_router.total_cmp(&b.at_router));
        lost.dedup_by(|a, b| a.at_router == b.at_router);
        let (router, engines) = self.pods.split_at_mut(1);
        for job in &lost {
            if let Some(router) = router.first_mut() {
                routers::lost(scenario.router, router, engines, job);
            }
        }
    }

    fn arrive(&mut self, scenario: &Scenario, failing: bool, before: f64, now: f64) {
        let fronts = self.pods.iter().filter(|pod| matches!(pod.stage, Some(Stage::Server | Stage::Prefill))).count();
        let swing = 1.0 + 0.7 * (std::f64::consts::TAU * now / SWING).sin();
        let expected = scenario.requests_per_second * fronts as f64 * swing * STEP.as_secs_f64();
        for _ in 0..poisson(&mut self.rng, expected) {
            let at = before + self.rng.f64() * (now - before);
            let job = self.request(at);
            let unlucky = failing && self.rng.f64() < 0.4;
            let fault = if unlucky { Some(Fault::ALL[self.rng.usize(..Fault::ALL.len())]) } else { None };
            self.route(scenario, job, fault);
        }
    }

    fn request(&mut self, at: f64) -> Job {
        let group = ((GROUPS as f64) * self.rng.f64().powf(2.2)) as usize;
        let shared = 512 + (group as u64 * 37 % 12) * 128;
        let output = 20 + self.rng.u64(..200);
        Job {
            arrived: at,
            at_router: at,
            group,
            shared,
            prompt: shared + 30 + self.rng.u64(..570),
            output,
            wanted: output,
            streaming: self.rng.f64() < 0.7,
            chat: self.rng.f64() < 0.6,
            ready: at,
            route: (0, 0),
            admitted: 0.0,
            first_token: 0.0,
            done: 0.0,
            found: Found::default(),
            answered: false,
            broken: false,
        }
    }

    /// The Pod of a stage that has least to do, if any can take requests.
    fn pick(&self, stage: Stage) -> Option<usize> {
        let able = |(_, pod): &(usize, &Pod)| pod.stage == Some(stage) && pod.alive && !pod.idle;
        let pods = self.pods.iter().enumerate().filter(able);
        // The earliest of those with the least load would get everything while traffic is low.
        let turn = self.rng.clone().usize(..self.pods.len().max(1));
        let key =
            |(index, pod): &(usize, &Pod)| (pod.load() / pod.ranks.len().max(1), (index + turn) % self.pods.len());
        pods.min_by_key(key).map(|(index, _)| index)
    }

    fn route(&mut self, scenario: &Scenario, mut job: Job, fault: Option<Fault>) {
        let pair = scenario.roles.iter().any(|role| role.stage == Stage::Prefill);
        let route = if pair {
            self.pick(Stage::Prefill).zip(self.pick(Stage::Decode))
        } else {
            self.pick(Stage::Server).map(|server| (server, server))
        };
        let (router, engines) = self.pods.split_at_mut(1);
        let Some(router) = router.first_mut() else { return };
        let Some((front, back)) = route else {
            routers::unavailable(scenario.router, router, &job);
            return;
        };
        job.route = (front, back);
        if let Some(fault) = fault {
            // A transfer that fails does so after the prompt is computed.
            job.broken = scenario.router == Router::Sglang0 && fault == Fault::Internal;
            if !job.broken {
                routers::failed(scenario.router, router, engines, &job, fault);
                engines::refused(scenario.engine, &mut engines[back - 1], fault);
                return;
            }
        }
        routers::arrived(scenario.router, router, engines, &job);
        if pair {
            job.output = 1;
        }
        self.pods[front].queue(job.clone());
        // SGLang's halves get a request at the same time; vLLM's decode half after the other is done.
        if pair && scenario.engine == Engine::Sglang {
            job.output = job.wanted;
            job.ready = f64::INFINITY;
            self.pods[back].queue(job);
        }
    }

    /// Requests are admitted, get their first token and end.
    fn work(&mut self, scenario: &Scenario, now: f64) {
        for index in 1..self.pods.len() {
            for rank in 0..self.pods[index].ranks.len() {
                self.admit(scenario, index, rank, now);
                let (first, ended) = self.pods[index].ranks[rank].advance(now);
                for job in first {
                    engines::first_token(scenario.engine, &mut self.pods[index], rank, &job);
                    if self.pods[index].stage != Some(Stage::Prefill) {
                        routers::first_token(scenario.router, &mut self.pods[0], &job);
                    }
                }
                for job in ended {
                    engines::ended(scenario.engine, &mut self.pods[index], rank, &job, &mut self.rng);
                    if self.pods[index].stage == Some(Stage::Prefill) {
                        self.hand_over(scenario, job);
                    } else {
                        let (router, engines) = self.pods.split_at_mut(1);
                        routers::ended(scenario.router, &mut router[0], engines, &job);
                    }
                }
            }
        }
    }

    fn admit(&mut self, scenario: &Scenario, index: usize, rank: usize, now: f64) {
        loop {
            let pod = &mut self.pods[index];
            let stage = pod.stage;
            let state = &mut pod.ranks[rank];
            let ready = state.waiting.iter().position(|job| job.ready <= now);
            let Some(at) = ready.filter(|_| state.running.len() < SLOTS) else { return };
            let Some(mut job) = state.waiting.remove(at) else { return };
            let device = state.device.touch(job.group, DEVICE_PREFIXES);
            let host = state.host.touch(job.group, HOST_PREFIXES);
            let pool = scenario.pool && stage != Some(Stage::Decode) && self.pool.touch(job.group, POOL_PREFIXES);
            job.found = engines::found(scenario.engine, stage, &job, [device, host, pool]);
            engines::schedule(stage, &mut job, now, &mut self.rng);
            state.used = true;
            engines::admitted(scenario, pod, rank, &job);
            pod.ranks[rank].running.push(job);
        }
    }

    /// The prompt of a pair's request is computed: its blocks go to the decode half.
    fn hand_over(&mut self, scenario: &Scenario, job: Job) {
        let back = job.route.1;
        let arrives = job.done + 0.01 + job.prompt as f64 * 2e-5;
        if job.broken {
            for pod in [job.route.0, back] {
                engines::transfer_failed(&mut self.pods[pod]);
            }
            for rank in &mut self.pods[back].ranks {
                rank.waiting.retain(|other| other.at_router != job.at_router);
            }
            let (router, engines) = self.pods.split_at_mut(1);
            routers::broken(scenario.router, &mut router[0], engines, &job);
            return;
        }
        match scenario.engine {
            Engine::Sglang => {
                let waiting = self.pods[back].ranks.iter_mut().flat_map(|rank| &mut rank.waiting);
                for other in waiting.filter(|other| other.at_router == job.at_router) {
                    other.ready = arrives;
                }
            }
            Engine::Vllm => {
                let (output, front) = (job.wanted, job.route.0);
                let back = if self.pods[back].alive { Some(back) } else { self.pick(Stage::Decode) };
                if let Some(back) = back {
                    let route = (front, back);
                    self.pods[back].queue(Job {
                        arrived: job.done,
                        ready: arrives,
                        output,
                        route,
                        answered: false,
                        ..job
                    });
                } else {
                    let (router, engines) = self.pods.split_at_mut(1);
                    routers::lost(scenario.router, &mut router[0], engines, &job);
                }
            }
        }
    }

    /// Gauges are written.
    fn look(&mut self, scenario: &Scenario, now: f64) {
        for pod in self.pods.iter_mut().skip(1).filter(|pod| pod.alive) {
            engines::look(scenario.engine, pod, now, STEP.as_secs_f64());
        }
        let (router, engines) = self.pods.split_at_mut(1);
        routers::look(scenario.router, &mut router[0], engines, now);
    }
}

impl Rank {
    /// Requests that got their first token and requests that ended by now, each in order of time.
    fn advance(&mut self, now: f64) -> (Vec<Job>, Vec<Job>) {
        let mut first = Vec::new();
        for job in self.running.iter_mut().filter(|job| !job.answered && job.first_token <= now) {
            job.answered = true;
            first.push(job.clone());
        }
        let (mut ended, running): (Vec<Job>, Vec<Job>) = self.running.drain(..).partition(|job| job.done <= now);
        self.running = running;
        first.sort_by(|a, b| a.first_token.total_cmp(&b.first_token));
        ended.sort_by(|a, b| a.done.total_cmp(&b.done));
        self.throughput = self.running.iter().map(|job| job.output as f64 / (job.done - job.admitted)).sum();
        (first, ended)
    }
}

/// How many of something that is expected this often happened (Knuth's way).
fn poisson(rng: &mut fastrand::Rng, expected: f64) -> u64 {
    // Large expectations are drawn in parts, for the product would underflow.
    let parts = (expected / 8.0).ceil().max(1.0);
    let limit = (-expected / parts).exp();
    let mut drawn = 0;
    for _ in 0..parts as u64 {
        let mut product = rng.f64();
        while product > limit {
            drawn += 1;
            product *= rng.f64();
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_key_of_every_template_is_written_by_something() {
        let mut written: BTreeSet<(String, String)> = BTreeSet::new();
        let mut unwritten: BTreeSet<(String, String)> = BTreeSet::new();
        // With one Pod in each role there are times when no engine can take a request.
        let alone = |scenario: Scenario| {
            let roles: Vec<_> = scenario.roles.iter().map(|role| role.name).collect();
            roles.into_iter().fold(scenario, |scenario, role| scenario.with_replicas(role, 1))
        };
        let scenarios = Scenario::all().into_iter().flat_map(|scenario| [scenario.clone(), alone(scenario)]);
        for scenario in scenarios {
            let plans = scenario.pods();
            let mut fleet = Fleet::new(scenario.clone(), 1).unwrap();
            for seconds in (5..360).step_by(20) {
                fleet.answer(0, Duration::from_secs(seconds));
                let missing = fleet.unwritten();
                for (index, pod) in fleet.state.pods.iter().enumerate() {
                    let software = match plans[index].role {
                        None => format!("{:?}", scenario.router),
                        Some(_) => format!("{:?}", scenario.engine),
                    };
                    for key in pod.template.keys() {
                        // One rank's keys stand for the others'.
                        let rank = |c: char| c.is_ascii_digit();
                        let of = (software.clone(), key.trim_end_matches(rank).to_owned());
                        let is_missing = missing.iter().any(|(pod, other)| *pod == index && other == key);
                        if is_missing {
                            unwritten.insert(of)
                        } else {
                            written.insert(of)
                        };
                    }
                }
            }
        }
        let never: Vec<_> = unwritten.difference(&written).collect();
        assert!(never.is_empty(), "{never:#?}");
    }
}
