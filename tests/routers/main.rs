//! The exporter behind real routers: every kind of event that they count is made to happen, and each must move
//! exactly the series that `events` names, by exactly that much, from the first one on.
//!
//! Nothing here stands in for a router: the pinned packages are installed and started. Only the workers behind them
//! are fake. Everything runs on loopback. See `README.md` beside this file.

mod backend;
mod client;
mod events;
mod exporter;
mod exposition;
mod object;
mod process;
mod router;

use backend::Backend;
use events::{First, Phase, Row, Scenario, Workers};
use exporter::{Exporter, Reading};
use process::{free_address, until};
use router::Router;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_router_is_counted() {
    run(&events::VLLM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_router_is_counted_in_front_of_a_pair() {
    run(&events::VLLM_PAIR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_router_is_counted_with_its_default_policy() {
    run(&events::VLLM_CACHE_AWARE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_router_is_counted_with_its_default_policy() {
    run(&events::SGLANG_CACHE_AWARE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_router_is_counted() {
    run(&events::SGLANG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_router_is_counted_in_front_of_a_pair() {
    run(&events::SGLANG_PAIR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smg_is_counted() {
    run(&events::SMG_ORDINARY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smg_is_counted_in_front_of_a_pair() {
    run(&events::SMG_PAIR).await;
}

/// How often the router would look after workers that it is not to miss: once in an hour.
const NEVER: u32 = 3600;

/// What each family has counted, by its name.
type Counts = BTreeMap<&'static str, f64>;

/// One router with its workers and the exporter that watches it.
struct Bench {
    scenario: &'static Scenario,
    /// The permits of the streams that break off.
    cuts: Arc<Semaphore>,
    backends: Vec<Backend>,
    router: Router,
    exporter: Exporter,
    client: reqwest::Client,
    /// What the exporter must have counted since its start.
    totals: Counts,
    /// What the router has counted since its last start.
    phase: Counts,
    /// What was wrong: a run goes on to its end and reports everything.
    wrong: Vec<String>,
}

async fn run(scenario: &'static Scenario) {
    let directory = tempfile::tempdir().unwrap();
    let cuts = Arc::new(Semaphore::new(0));
    let mut backends = Vec::new();
    for role in scenario.workers {
        backends.push(Backend::start(*role, free_address(), Arc::clone(&cuts)).await);
    }
    let mut router = Router::install(scenario.software, scenario.policy, directory.path()).await;
    start(&mut router, &backends, &scenario.phases[0]).await;
    let exporter = Exporter::start(scenario, &router, directory.path()).await;
    let nothing: Counts = scenario.exported.iter().map(|exported| (exported.family, 0.0)).collect();
    let (totals, phase, wrong) = (nothing.clone(), nothing.clone(), Vec::new());
    let mut bench = Bench { scenario, cuts, backends, router, exporter, client: client(), totals, phase, wrong };
    bench.check_families().await;
    for (restarts, phase) in scenario.phases.iter().enumerate() {
        if restarts > 0 {
            bench.phase = nothing.clone();
            bench.restart(restarts, phase).await;
        }
        for row in phase.rows {
            bench.play(phase, row).await;
        }
        let object = bench.exporter.object().await;
        for gauge in phase.gauges {
            bench.wrong.extend(object::gauge(&object, *gauge).map(|wrong| format!("{}: {wrong}", phase.name)));
        }
    }
    let wrong = bench.wrong;
    let log = bench.router.tail();
    assert!(wrong.is_empty(), "{}:\n\n{}\n\nthe router's last lines:\n{log}", scenario.software.name, wrong.join("\n"));
}

async fn start(router: &mut Router, backends: &[Backend], phase: &Phase) {
    match phase.workers {
        Workers::Unwatched => router.start(backends, NEVER).await,
        Workers::Watched => router.start(backends, 1).await,
        Workers::None => router.start(&[], NEVER).await,
    }
}

impl Bench {
    /// From the first good read on there are this router's families, each at zero, and no other.
    async fn check_families(&mut self) {
        let totals = self.exporter.next_round().await.totals();
        let expected = self.scenario.exported.iter();
        let expected = expected.map(|e| (e.family.to_owned(), (e.source.to_owned(), 0.0))).collect();
        if totals != expected {
            self.wrong.push(format!("before any event: the families are {totals:?}, not {expected:?}"));
        }
    }

    /// A router that starts again forgets what it counted; the exporter notices once, and its totals stay.
    async fn restart(&mut self, restarts: usize, phase: &Phase) {
        for backend in &mut self.backends {
            backend.resume().await;
        }
        start(&mut self.router, &self.backends, phase).await;
        let what = "the router's restart to be noticed and the router to be read again";
        self.exporter.await_reading(what, |now| now.pod("resets_total") >= Some(restarts as f64)).await;
        let reading = self.exporter.next_round().await;
        let resets = reading.pod("resets_total");
        if resets != Some(restarts as f64) {
            self.wrong.push(format!("{}: {resets:?} resets after {restarts} restarts", phase.name));
        }
        self.compare(&format!("{}: after the restart", phase.name), &reading).await;
    }

    /// Makes a row's events happen and compares what the exporter then says.
    async fn play(&mut self, phase: &Phase, row: &Row) {
        let name = format!("{}: {}", phase.name, row.event);
        match row.first {
            First::Nothing => {}
            First::Stop(role) => {
                for backend in self.backends.iter_mut().filter(|backend| backend.role == role) {
                    backend.stop().await;
                }
            }
            First::StopAllAndNotice => {
                for backend in &mut self.backends {
                    backend.stop().await;
                }
                self.router.await_unhealthy(self.backends.len()).await;
            }
        }
        for _ in 0..row.times {
            match client::send(&self.client, self.router.api, row.request, &self.cuts).await {
                Ok(status) if status == row.status => {}
                Ok(status) => self.wrong.push(format!("{name}: answered {status}, not {}", row.status)),
                Err(error) => self.wrong.push(format!("{name}: {error}")),
            }
        }
        for (family, per_request) in row.moves {
            let moved = f64::from(per_request * row.times);
            for counts in [&mut self.totals, &mut self.phase] {
                *counts.get_mut(family).unwrap_or_else(|| panic!("{name}: {family} is not exported")) += moved;
            }
        }
        // The router may count after it has answered. Once the right numbers are there, they must also stay.
        let expected = self.totals.clone();
        let _ = until("the numbers", Duration::from_secs(10), async || {
            let reading = self.exporter.reading().await?;
            if counts(&reading, &expected) == expected { Ok(()) } else { Err(String::new()) }
        })
        .await;
        let reading = self.exporter.next_round().await;
        self.compare(&name, &reading).await;
    }

    /// Compares both formats with what must have been counted; notes every difference and goes on from what is there.
    async fn compare(&mut self, name: &str, reading: &Reading) {
        let now = counts(reading, &self.totals);
        let mut differs = false;
        for (family, expected) in &mut self.totals {
            let is = now.get(family).copied().unwrap_or(f64::NAN);
            if is != *expected {
                differs = true;
                self.wrong.push(format!("{name}: {family} is {is}, not {expected}"));
                *self.phase.get_mut(family).unwrap() += is - *expected;
                *expected = is;
            }
        }
        let router = self.router.samples().await.unwrap_or_default();
        let object = self.exporter.object().await;
        let wrong = object::check(&object, self.scenario, &self.phase, &router);
        differs |= !wrong.is_empty();
        self.wrong.extend(wrong.into_iter().map(|wrong| format!("{name}: JSON: {wrong}")));
        if differs {
            let sources = self.scenario.exported.iter().map(|exported| exported.source);
            let series = router.iter().filter(|sample| sources.clone().any(|source| source == sample.name));
            self.wrong.extend(series.map(|s| format!("    the router has {} {:?} {}", s.name, s.labels, s.value)));
        }
    }
}

/// The totals of a reading of the families that are counted here.
fn counts(reading: &Reading, of: &Counts) -> Counts {
    let totals = reading.totals();
    of.keys().filter_map(|family| Some((*family, totals.get(*family)?.1))).collect()
}

/// A client that uses no proxy, keeps no connection and waits for nothing longer than 20 s.
fn client() -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(Duration::from_secs(20));
    client.build().unwrap()
}
