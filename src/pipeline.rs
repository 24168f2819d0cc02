//! Runs rounds: discovery's deployment in, one published snapshot out, on a fixed cadence.
//!
//! It owns what is kept of each Pod between rounds. It opens no socket and decides no value.

use crate::clock::Clock;
use crate::config::{ScrapeLimits, WindowTimes};
use crate::deployment::{Deployment, Member};
use crate::discovery::Discovery;
use crate::scrape::{Cause, Scraped, Scraper};
use crate::snapshot::{self, Outcome, PodRound, RoundView};
use crate::state::{DeploymentName, Discovered, Published, State};
use crate::window::History;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What is kept of one Pod between rounds.
#[derive(Debug)]
struct Kept {
    history: History,
    failures: [u64; Cause::ALL.len()],
    /// How its last read ended, so that a change is logged once: none before the first.
    last: Option<Result<(), Cause>>,
}

/// One deployment's rounds.
pub struct Pipeline {
    scraper: Scraper,
    clock: Arc<dyn Clock>,
    limits: ScrapeLimits,
    times: WindowTimes,
    discovery: watch::Receiver<Discovery>,
    /// By the Pod's identity.
    pods: HashMap<String, Kept>,
}

impl Pipeline {
    /// A pipeline over what `discovery` publishes.
    pub fn new(
        scraper: Scraper,
        clock: Arc<dyn Clock>,
        limits: ScrapeLimits,
        times: WindowTimes,
        discovery: watch::Receiver<Discovery>,
    ) -> Pipeline {
        Pipeline { scraper, clock, limits, times, discovery, pods: HashMap::new() }
    }

    /// Runs rounds for ever: from one round's start to the next is the interval, a round that
    /// overruns is followed at once, and none overlaps another. Returns when discovery has ended.
    pub async fn run(mut self, state: &State) {
        let mut scheduled = Instant::now();
        loop {
            if !self.discovery.borrow().synced && self.discovery.wait_for(|d| d.synced).await.is_err() {
                return;
            }
            self.round(state).await;
            scheduled += self.limits.interval;
            let now = Instant::now();
            if scheduled < now {
                scheduled = now;
            }
            sleep_until(scheduled).await;
        }
    }

    /// Runs one round and publishes it; none if the deployment does not exist.
    pub async fn round(&mut self, state: &State) -> Option<Arc<Published>> {
        state.round_begun();
        let begun = self.clock.now();
        let before = self.discovery.borrow_and_update().clone();
        // Before the Pods are read: which deployment is meant tells a 404 from a 503.
        state.discovery(discovered(&before));
        let Some(deployment) = before.deployment.clone() else {
            self.pods.clear();
            state.no_deployment(self.clock.now().saturating_sub(begun));
            return None;
        };
        let round = self.scraper.round(&deployment).await;
        let after = self.discovery.borrow().clone();
        state.discovery(discovered(&after));
        let still = after.deployment.filter(|now| now.namespace == deployment.namespace && now.name == deployment.name);
        let Some(still) = still else {
            // Another deployment, or none: what was read is of something that is gone.
            self.pods.clear();
            state.no_deployment(self.clock.now().saturating_sub(begun));
            return None;
        };
        let alive: HashSet<&str> = still.pods.iter().map(|pod| pod.uid.as_str()).collect();
        for scraped in &round.scraped {
            if alive.contains(scraped.pod.uid.as_str()) {
                self.keep(&deployment, scraped);
            }
        }
        self.pods.retain(|uid, _| alive.contains(uid.as_str()));
        let scraped: HashMap<&str, &Scraped> = round.scraped.iter().map(|s| (s.pod.uid.as_str(), s)).collect();
        let pods = deployment.pods.iter().filter(|pod| alive.contains(pod.uid.as_str()));
        let pods = pods.map(|pod| {
            let kept = self.pods.get(&pod.uid);
            let outcome = match (&pod.endpoint, scraped.get(pod.uid.as_str())) {
                (Err(reason), _) => Outcome::NoEndpoint(reason),
                (Ok(_), None) => Outcome::Omitted,
                (Ok(_), Some(Scraped { result: Ok(reading), took, body_bytes, .. })) => {
                    Outcome::Read { observed: reading.observed, took: *took, body_bytes: *body_bytes }
                }
                (Ok(_), Some(Scraped { result: Err(why), took, body_bytes, .. })) => {
                    Outcome::Failed { why, took: *took, body_bytes: *body_bytes }
                }
            };
            let failures = kept.map_or([0; Cause::ALL.len()], |kept| kept.failures);
            PodRound { pod, history: kept.map(|kept| &kept.history), failures, outcome }
        });
        let view = RoundView {
            deployment: &deployment,
            expected: expected(&deployment, &still),
            pods: pods.collect(),
            times: self.times,
            max_pods: self.limits.max_pods,
            discovery_stale: after.stale,
            now: self.clock.wall(),
        };
        let snapshot = snapshot::assemble(&view);
        let points = snapshot::points(&view, &snapshot);
        let published = Published::new(snapshot.object, snapshot.readable, self.clock.now(), points);
        let published = Arc::new(published);
        state.round_finished(self.clock.now().saturating_sub(begun), Arc::clone(&published));
        Some(published)
    }

    /// Takes one Pod's read into what is kept of it, and logs when it becomes readable or ceases to be.
    fn keep(&mut self, deployment: &Deployment, scraped: &Scraped) {
        let pod = &scraped.pod;
        let Some(software) = deployment.software(pod.member) else { return };
        let kept = self.pods.entry(pod.uid.clone()).or_insert_with(|| Kept {
            history: History::new(Arc::clone(software)),
            failures: [0; Cause::ALL.len()],
            last: None,
        });
        // A reloaded deployment may run other software under the same Pod: its series start afresh.
        if !Arc::ptr_eq(kept.history.software(), software) {
            kept.history = History::new(Arc::clone(software));
        }
        let now = match &scraped.result {
            Ok(reading) => {
                let resets = kept.history.resets();
                kept.history.observe(reading.at, reading.observed, &reading.samples, pod.started, &self.times);
                if kept.history.resets() > resets {
                    tracing::info!(pod = %pod.name, "counters were reset; their windows start again");
                }
                Ok(())
            }
            Err(why) => {
                for (failures, cause) in kept.failures.iter_mut().zip(Cause::ALL) {
                    *failures += u64::from(cause == why.cause);
                }
                Err(why.cause)
            }
        };
        if kept.last != Some(now) {
            match &scraped.result {
                Ok(_) => tracing::info!(pod = %pod.name, "readable"),
                Err(why) => tracing::warn!(pod = %pod.name, cause = why.cause.as_str(), "unreadable: {}", why.reason),
            }
            kept.last = Some(now);
        }
    }
}

/// What the server says of discovery.
fn discovered(discovery: &Discovery) -> Discovered {
    let name = |deployment: &Arc<Deployment>| DeploymentName {
        namespace: deployment.namespace.clone(),
        name: deployment.name.clone(),
    };
    Discovered {
        synced: discovery.synced,
        deployment: discovery.deployment.as_ref().map(name),
        reload_failures: discovery.reload_failures,
    }
}

/// The Pods expected of each part: of two specs that a round lies between, the fewer, so that
/// neither scaling up nor down looks like missing replicas for a round.
fn expected(before: &Deployment, after: &Deployment) -> Vec<(Member, u64)> {
    let after_of = |member: Member| {
        let same = |(other, _): &&(Member, u64)| after.scope(*other) == before.scope(member);
        after.expected().iter().find(same).map_or(0, |(_, count)| *count)
    };
    before.expected().into_iter().map(|(member, count)| (member, count.min(after_of(member)))).collect()
}
