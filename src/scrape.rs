//! Runs one round: reads every Pod within its limits, one reading or one typed error per Pod.
//!
//! It never stops a round for one Pod, keeps no samples between rounds (only connections), and
//! knows no field.

mod client;
pub mod connector;
pub mod tls;

use crate::catalogue::Software;
use crate::clock::Clock;
use crate::config::ScrapeLimits;
use crate::deployment::{Deployment, Pod};
use crate::exposition::Samples;
use client::{Client, Connection, Progress, Stage};
use connector::Connect;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout_at};

/// One Pod's good read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Monotonic time at which the answer's head arrived: engines render the body before they send it.
    pub at: Duration,
    /// The same moment on the wall clock.
    pub observed: SystemTime,
    /// The wanted samples.
    pub samples: Samples,
}

/// Why a Pod is unreadable: the `cause` of the contract's section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// No whole answer in time.
    Timeout,
    /// The connection was refused.
    Refused,
    /// The connection was reset or closed before an answer.
    Reset,
    /// A status other than 200.
    Status,
    /// A redirect that is not followed.
    Redirect,
    /// A body over the cap.
    TooLarge,
    /// A body cut short.
    Truncated,
    /// A body that is not the text exposition.
    NotExposition,
    /// A certificate that is not trusted or does not match, or a client certificate that is asked for.
    Tls,
    /// Anything else.
    Other,
}

impl Cause {
    /// Every cause, in the contract's order.
    pub const ALL: [Cause; 10] = [
        Cause::Timeout,
        Cause::Refused,
        Cause::Reset,
        Cause::Status,
        Cause::Redirect,
        Cause::TooLarge,
        Cause::Truncated,
        Cause::NotExposition,
        Cause::Tls,
        Cause::Other,
    ];

    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Timeout => "timeout",
            Cause::Refused => "refused",
            Cause::Reset => "reset",
            Cause::Status => "status",
            Cause::Redirect => "redirect",
            Cause::TooLarge => "too-large",
            Cause::Truncated => "truncated",
            Cause::NotExposition => "not-exposition",
            Cause::Tls => "tls",
            Cause::Other => "other",
        }
    }
}

/// A Pod that could not be read in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Which kind of failure.
    pub cause: Cause,
    /// The sentence for people; without addresses of this process, tokens or URLs.
    pub reason: String,
}

/// One Pod's part of a round. A Pod without an endpoint is not scraped and has none.
#[derive(Debug, Clone)]
pub struct Scraped {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// What was read.
    pub result: Result<Reading, Unreadable>,
    /// How long the read took, from its start to its end.
    pub took: Duration,
    /// Bytes of the body that were read.
    pub body_bytes: u64,
}

/// One finished round.
#[derive(Debug, Clone)]
pub struct Round {
    /// The Pods that were read or tried, in reading order.
    pub scraped: Vec<Scraped>,
    /// The Pods past `MAX_PODS`, in reading order.
    pub omitted: Vec<Arc<Pod>>,
    /// How long the round took.
    pub took: Duration,
}

/// Reads a deployment's Pods, round after round, over connections that it keeps.
pub struct Scraper {
    client: Arc<Client>,
    limits: ScrapeLimits,
    /// The connections that wait for the next round, by the Pods' identity.
    kept: HashMap<String, Connection>,
}

impl Scraper {
    /// A scraper that opens its connections with `connector` and takes the time from `clock`.
    pub fn new(connector: Arc<dyn Connect>, clock: Arc<dyn Clock>, limits: ScrapeLimits) -> Scraper {
        let client = Arc::new(Client { connector, clock, max_body_bytes: limits.max_body_bytes });
        Scraper { client, limits, kept: HashMap::new() }
    }

    /// Runs one round over the deployment's Pods and always ends within its limit.
    ///
    /// Must be called on a tokio runtime; each Pod is read in a task of its own, so one that panics
    /// costs its own reading only. Dropping the future stops every read.
    pub async fn round(&mut self, deployment: &Arc<Deployment>) -> Round {
        let began = self.client.clock.now();
        let deadline = Instant::now() + self.limits.round_timeout;
        let mut pods: Vec<Arc<Pod>> = deployment.pods.iter().filter(|pod| pod.endpoint.is_ok()).cloned().collect();
        let omitted = pods.split_off(pods.len().min(self.limits.max_pods));
        self.kept.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));

        let mut results: Vec<Option<Scraped>> = vec![None; pods.len()];
        let mut tasks: JoinSet<(Scraped, Option<Connection>)> = JoinSet::new();
        let mut running: HashMap<Id, (usize, Duration)> = HashMap::new();
        let mut waiting = pods.iter().enumerate();
        loop {
            while running.len() < self.limits.concurrency.max(1)
                && Instant::now() < deadline
                && let Some((index, pod)) = waiting.next()
            {
                let read = Read {
                    client: Arc::clone(&self.client),
                    software: deployment.software(pod.member).cloned(),
                    pod: Arc::clone(pod),
                    timeout: self.limits.timeout,
                    round_timeout: self.limits.round_timeout,
                    round_deadline: deadline,
                };
                let kept = self.kept.remove(&pod.uid);
                running.insert(tasks.spawn(read.run(kept)).id(), (index, self.client.clock.now()));
            }
            let Some(ended) = tasks.join_next_with_id().await else { break };
            let id = ended.as_ref().map_or_else(|error| error.id(), |(id, _)| *id);
            let Some((index, started)) = running.remove(&id) else { continue };
            let Some(pod) = pods.get(index) else { continue };
            let scraped = match ended {
                Ok((_, (scraped, connection))) => {
                    if let (Some(connection), Entry::Vacant(entry)) = (connection, self.kept.entry(pod.uid.clone())) {
                        entry.insert(connection);
                    }
                    scraped
                }
                Err(_) => {
                    let took = self.client.clock.now().saturating_sub(started);
                    failed(pod, Cause::Other, "reading this Pod failed inside the exporter".to_owned(), took)
                }
            };
            if let Some(result) = results.get_mut(index) {
                *result = Some(scraped);
            }
        }
        let never_read = |pod: &Arc<Pod>| {
            let reason = format!("{} before this Pod's turn", round_over(self.limits.round_timeout));
            failed(pod, Cause::Timeout, reason, Duration::ZERO)
        };
        let scraped = pods.iter().zip(results).map(|(pod, result)| result.unwrap_or_else(|| never_read(pod))).collect();
        Round { scraped, omitted, took: self.client.clock.now().saturating_sub(began) }
    }
}

fn failed(pod: &Arc<Pod>, cause: Cause, reason: String, took: Duration) -> Scraped {
    Scraped { pod: Arc::clone(pod), result: Err(Unreadable { cause, reason }), took, body_bytes: 0 }
}

fn round_over(limit: Duration) -> String {
    format!("the round's limit of {} (ROUND_TIMEOUT) was reached", humantime::format_duration(limit))
}

/// One Pod's read in one round.
struct Read {
    client: Arc<Client>,
    software: Option<Arc<Software>>,
    pod: Arc<Pod>,
    timeout: Duration,
    round_timeout: Duration,
    round_deadline: Instant,
}

impl Read {
    async fn run(self, mut kept: Option<Connection>) -> (Scraped, Option<Connection>) {
        let began = self.client.clock.now();
        let mut progress = Progress::default();
        let result = self.read(&mut kept, &mut progress).await;
        let took = self.client.clock.now().saturating_sub(began);
        (Scraped { pod: self.pod, result, took, body_bytes: progress.body_bytes }, kept)
    }

    async fn read(&self, kept: &mut Option<Connection>, progress: &mut Progress) -> Result<Reading, Unreadable> {
        let other = |reason: &str| Unreadable { cause: Cause::Other, reason: reason.to_owned() };
        let endpoint = self.pod.endpoint.as_ref().map_err(|reason| other(reason))?;
        let software = self.software.as_ref();
        let software = software.ok_or_else(|| other("the deployment does not say what software this Pod runs"))?;
        let own = Instant::now() + self.timeout;
        let read = self.client.read(endpoint, &software.wanted, kept, progress);
        match timeout_at(own.min(self.round_deadline), read).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out(progress.stage, own > self.round_deadline)),
        }
    }

    fn timed_out(&self, stage: Stage, by_round: bool) -> Unreadable {
        let what = match stage {
            Stage::Connecting => "there was a connection to the Pod",
            Stage::Waiting => "the Pod answered",
            Stage::Body => "the answer's body was whole",
        };
        let limit = if by_round {
            round_over(self.round_timeout)
        } else {
            format!("SCRAPE_TIMEOUT ({}) was over", humantime::format_duration(self.timeout))
        };
        Unreadable { cause: Cause::Timeout, reason: format!("{limit} before {what}") }
    }
}
