//! What rounds publish and the server answers from; all that the server knows of the rest.
//!
//! The round loop and discovery write it, requests read it. It reads no Pod and decides no value:
//! it knows how old the newest round is and keeps what was encoded of it. Its lock is held for a
//! few assignments, never across an await or an encoding.

use crate::clock::Clock;
use crate::export::{self, Format, Point, gzip};
use crate::snapshot::{self, ModelDeploymentMetrics};
use bytes::Bytes;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

/// Which deployment something is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The times that say when rounds are late (`SCRAPE_INTERVAL` and `ROUND_TIMEOUT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// From one round's start to the next.
    pub interval: Duration,
    /// One whole round.
    pub round_timeout: Duration,
}

impl Times {
    /// The age from which a finished round is too old to be answered with (contract, section 7).
    pub fn too_old(&self) -> Duration {
        (self.interval.saturating_mul(3)).max(self.round_timeout.saturating_add(self.interval))
    }

    /// The time without a round's begin from which the exporter is not healthy (contract, section 9).
    pub fn hung(&self) -> Duration {
        let two_rounds = self.round_timeout.saturating_mul(2).saturating_add(self.interval);
        (self.interval.saturating_mul(10)).max(two_rounds)
    }
}

/// What discovery knows now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovered {
    /// Whether the source has been read once, whether or not the deployment exists.
    pub synced: bool,
    /// The deployment, once it is known which one it is; none when it does not exist.
    pub deployment: Option<DeploymentName>,
    /// Versions of the source that were not taken.
    pub reload_failures: u64,
}

/// Whether a round is answered with as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Its points.
    Fresh,
    /// Too old: its lasting points alone.
    TooOld,
}

/// Points encoded once, plain and compressed.
#[derive(Debug, Default)]
struct Encoded {
    plain: OnceLock<Bytes>,
    part: OnceLock<gzip::Part>,
}

/// What was encoded of a round so far.
#[derive(Debug, Default)]
struct Cache {
    /// By format and age.
    series: [[Encoded; 2]; 2],
    json: OnceLock<Bytes>,
    encodings: AtomicUsize,
}

/// One finished round, immutable.
pub struct Published {
    /// The deployment that was read.
    pub deployment: DeploymentName,
    /// The JSON object.
    pub object: ModelDeploymentMetrics,
    /// Whether at least one owned Pod was read.
    pub readable: bool,
    /// Monotonic time at which the round finished.
    pub finished: Duration,
    points: Arc<[Point]>,
    /// Made of the points when the round becomes too old, which is rare.
    lasting: OnceLock<Arc<[Point]>>,
    cache: Cache,
}

impl Published {
    /// A round that finished at a monotonic time. `points` are all families but the exporter's own.
    pub fn new(object: ModelDeploymentMetrics, readable: bool, finished: Duration, points: Vec<Point>) -> Published {
        let deployment =
            DeploymentName { namespace: object.metadata.namespace.clone(), name: object.metadata.name.clone() };
        Published {
            deployment,
            object,
            readable,
            finished,
            points: points.into(),
            lasting: OnceLock::new(),
            cache: Cache::default(),
        }
    }

    /// The round's points.
    pub fn points(&self, age: Age) -> &Arc<[Point]> {
        match age {
            Age::Fresh => &self.points,
            Age::TooOld => self.lasting.get_or_init(|| snapshot::lasting(&self.points).into()),
        }
    }

    /// The round's series without what ends an exposition; encoded on the first call.
    pub fn series(&self, format: Format, age: Age) -> &Bytes {
        self.encoded(format, age).plain.get_or_init(|| {
            self.count();
            export::encode(Arc::clone(self.points(age)), Vec::new(), format).into()
        })
    }

    /// The same, compressed; on the first call.
    pub fn compressed(&self, format: Format, age: Age) -> &gzip::Part {
        self.encoded(format, age).part.get_or_init(|| {
            let plain = self.series(format, age);
            self.count();
            gzip::part(plain)
        })
    }

    /// Whether a call of [`Published::series`] or [`Published::compressed`] only copies.
    pub fn is_encoded(&self, format: Format, age: Age, gzip: bool) -> bool {
        let encoded = self.encoded(format, age);
        if gzip { encoded.part.get().is_some() } else { encoded.plain.get().is_some() }
    }

    /// The object as JSON, with a newline; encoded on the first call.
    pub fn json(&self) -> &Bytes {
        self.cache.json.get_or_init(|| {
            self.count();
            let mut json = serde_json::to_vec(&self.object).unwrap_or_else(|error| {
                // The object has string keys and numbers only, which serde_json always writes.
                tracing::error!(%error, "the object could not be written");
                Vec::new()
            });
            json.push(b'\n');
            json.into()
        })
    }

    /// How often something of the round was encoded or compressed.
    pub fn encodings(&self) -> usize {
        self.cache.encodings.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.cache.encodings.fetch_add(1, Ordering::Relaxed);
    }

    fn encoded(&self, format: Format, age: Age) -> &Encoded {
        let [text, open] = &self.cache.series;
        let [fresh, too_old] = match format {
            Format::Text => text,
            Format::OpenMetrics => open,
        };
        match age {
            Age::Fresh => fresh,
            Age::TooOld => too_old,
        }
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published")
            .field("deployment", &self.deployment)
            .field("readable", &self.readable)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

/// The newest finished round of the deployment, with its age.
#[derive(Debug, Clone)]
pub enum Newest {
    /// No round of this deployment has finished.
    None,
    /// It is answered with.
    Fresh(Arc<Published>),
    /// It is too old.
    TooOld(Arc<Published>),
}

/// All that one answer is made from, taken at one moment.
#[derive(Debug, Clone)]
pub struct View {
    /// Whether discovery has synced.
    pub synced: bool,
    /// The deployment that is known.
    pub deployment: Option<DeploymentName>,
    /// Its newest round.
    pub newest: Newest,
    /// How long ago that round finished.
    pub age: Option<Duration>,
    /// Wall-clock time of this moment.
    pub at: SystemTime,
    /// From one round's start to the next.
    pub interval: Duration,
}

/// Why `/readyz` says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Discovery has not synced.
    #[error("discovery has not synced")]
    NotSynced,
    /// No round has finished.
    #[error("no round has finished")]
    NoRound,
    /// The newest one is too old.
    #[error("the newest round is too old")]
    TooOld,
}

/// Upper bounds of the round duration's buckets in seconds, around the default `ROUND_TIMEOUT`.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug)]
struct Inner {
    newest: Option<Arc<Published>>,
    /// The last round's begin; before the first one, the start.
    begun: Duration,
    /// The last round's end, also of a round that had no deployment to read.
    finished: Option<Duration>,
    discovered: Discovered,
    rounds: u64,
    /// Seconds of all rounds.
    sum: f64,
    /// Rounds by the bucket they fell into; the last one has no bound.
    buckets: [u64; BOUNDS.len() + 1],
}

/// What the round loop and discovery know, for the server.
pub struct State {
    clock: Arc<dyn Clock>,
    times: Times,
    inner: Mutex<Inner>,
}

impl State {
    /// Nothing known yet.
    pub fn new(clock: Arc<dyn Clock>, times: Times) -> State {
        let inner = Inner {
            newest: None,
            begun: clock.now(),
            finished: None,
            discovered: Discovered::default(),
            rounds: 0,
            sum: 0.0,
            buckets: [0; BOUNDS.len() + 1],
        };
        State { clock, times, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every critical section leaves whole values behind, so a poisoned lock is as good as another.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round begins, also one that has no deployment to read.
    pub fn round_begun(&self) {
        let now = self.clock.now();
        self.inner().begun = now;
    }

    /// A round over the deployment's Pods is finished.
    pub fn round_finished(&self, took: Duration, published: Arc<Published>) {
        self.finish(took, Some(published));
    }

    /// A round that found no deployment is finished.
    pub fn no_deployment(&self, took: Duration) {
        self.finish(took, None);
    }

    fn finish(&self, took: Duration, published: Option<Arc<Published>>) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.finished = Some(published.as_ref().map_or(now, |published| published.finished));
        inner.newest = published;
        inner.rounds += 1;
        inner.sum += seconds;
        if let Some(rounds) = inner.buckets.get_mut(bucket) {
            *rounds += 1;
        }
    }

    /// What discovery knows from now on.
    pub fn discovery(&self, discovered: Discovered) {
        self.inner().discovered = discovered;
    }

    /// The newest finished round of the deployment that discovery knows, whatever its age.
    pub fn current(&self) -> Option<Arc<Published>> {
        let inner = self.inner();
        let newest = inner.newest.as_ref()?;
        // A round of a deployment that is gone or renamed since is no longer true.
        let known = match &inner.discovered {
            Discovered { deployment: Some(name), .. } => *name == newest.deployment,
            Discovered { synced, .. } => !synced,
        };
        known.then(|| Arc::clone(newest))
    }

    /// All that an answer needs, at this moment.
    pub fn view(&self) -> View {
        let current = self.current();
        let age = current.as_ref().map(|published| self.clock.now().saturating_sub(published.finished));
        let newest = match current {
            None => Newest::None,
            Some(published) if age > Some(self.times.too_old()) => Newest::TooOld(published),
            Some(published) => Newest::Fresh(published),
        };
        let discovered = self.inner().discovered.clone();
        let deployment = discovered.deployment.or_else(|| match &newest {
            Newest::Fresh(published) | Newest::TooOld(published) => Some(published.deployment.clone()),
            Newest::None => None,
        });
        let (at, interval) = (self.clock.wall(), self.times.interval);
        View { synced: discovered.synced, deployment, newest, age, at, interval }
    }

    fn is_too_old(&self, finished: Duration) -> bool {
        self.clock.now().saturating_sub(finished) > self.times.too_old()
    }

    /// Whether rounds begin (contract, section 9, `/healthz`).
    pub fn is_healthy(&self) -> bool {
        let begun = self.inner().begun;
        self.clock.now().saturating_sub(begun) <= self.times.hung()
    }

    /// Whether answers can be given (contract, section 9, `/readyz`).
    ///
    /// # Errors
    ///
    /// Says what there is to wait for.
    pub fn readiness(&self) -> Result<(), NotReady> {
        let (synced, finished) = {
            let inner = self.inner();
            (inner.discovered.synced, inner.finished)
        };
        if !synced {
            return Err(NotReady::NotSynced);
        }
        match finished {
            None => Err(NotReady::NoRound),
            Some(finished) if self.is_too_old(finished) => Err(NotReady::TooOld),
            Some(_) => Ok(()),
        }
    }

    /// The exporter's own families about rounds and discovery.
    pub fn own(&self) -> (Vec<Point>, export::Distribution) {
        let inner = self.inner();
        let mut points = vec![
            Point::bare("modeldeployment_exporter_rounds_total", inner.rounds as f64),
            Point::bare(
                "modeldeployment_exporter_deployment_reload_failures_total",
                inner.discovered.reload_failures as f64,
            ),
        ];
        if inner.discovered.synced {
            let found = f64::from(inner.discovered.deployment.is_some());
            points.push(Point::bare("modeldeployment_exporter_deployment_found", found));
        }
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let distribution = export::Distribution {
            family: "modeldeployment_exporter_round_duration_seconds",
            sum: inner.sum,
            buckets: bounds.zip(inner.buckets).collect(),
        };
        (points, distribution)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("times", &self.times).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Metadata;

    #[derive(Default)]
    struct Hand(Mutex<Duration>);

    impl Hand {
        fn set(&self, seconds: u64) {
            *self.0.lock().unwrap() = Duration::from_secs(seconds);
        }
    }

    impl Clock for Hand {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }
    }

    fn name(name: &str) -> DeploymentName {
        DeploymentName { namespace: "team".to_owned(), name: name.to_owned() }
    }

    fn known(deployment: &str) -> Discovered {
        Discovered { synced: true, deployment: Some(name(deployment)), reload_failures: 0 }
    }

    fn published(deployment: &str, finished: u64) -> Arc<Published> {
        let object = ModelDeploymentMetrics {
            api_version: "worker.gpustack.ai/v1",
            kind: "ModelDeploymentMetrics",
            metadata: Metadata { name: deployment.to_owned(), namespace: "team".to_owned() },
            timestamp: SystemTime::UNIX_EPOCH,
            processing: Vec::new(),
            queueing: Vec::new(),
            cache_hits: Vec::new(),
            latency: Vec::new(),
            traffic: Vec::new(),
            transfer: Vec::new(),
            missing: Vec::new(),
            partial: false,
        };
        Arc::new(Published::new(object, true, Duration::from_secs(finished), Vec::new()))
    }

    fn state() -> (Arc<Hand>, State) {
        let clock = Arc::new(Hand::default());
        let times = Times { interval: Duration::from_secs(15), round_timeout: Duration::from_secs(8) };
        (Arc::clone(&clock), State::new(clock, times))
    }

    #[test]
    fn limits_follow_the_longer_of_two_terms() {
        let times = |interval, round_timeout| Times {
            interval: Duration::from_secs(interval),
            round_timeout: Duration::from_secs(round_timeout),
        };
        assert_eq!(times(15, 8).too_old(), Duration::from_secs(45));
        assert_eq!(times(1, 8).too_old(), Duration::from_secs(9));
        assert_eq!(times(15, 8).hung(), Duration::from_secs(150));
        assert_eq!(times(1, 8).hung(), Duration::from_secs(17));
    }

    #[test]
    fn a_round_is_too_old_after_its_limit_and_not_before() {
        let (clock, state) = state();
        state.discovery(known("chat"));
        assert!(matches!(state.view().newest, Newest::None));
        clock.set(100);
        state.round_finished(Duration::from_secs(1), published("chat", 100));
        clock.set(145);
        assert!(matches!(state.view().newest, Newest::Fresh(_)));
        assert_eq!(state.readiness(), Ok(()));
        assert_eq!(state.view().age, Some(Duration::from_secs(45)));
        clock.set(146);
        assert!(matches!(state.view().newest, Newest::TooOld(_)));
        assert_eq!(state.readiness(), Err(NotReady::TooOld));
    }

    #[test]
    fn a_round_counts_for_the_deployment_that_discovery_knows() {
        let (_, state) = state();
        state.discovery(known("chat"));
        state.round_finished(Duration::from_secs(1), published("chat", 0));
        assert!(state.current().is_some());
        state.discovery(known("renamed"));
        assert!(state.current().is_none());
        assert_eq!(state.view().deployment, Some(name("renamed")));
        state.discovery(Discovered { synced: true, ..Discovered::default() });
        assert!(state.current().is_none());
        assert_eq!(state.view().deployment, None);
        state.discovery(known("chat"));
        assert!(state.current().is_some());
        state.no_deployment(Duration::ZERO);
        assert!(state.current().is_none());
    }

    #[test]
    fn readiness_waits_for_discovery_then_for_a_round() {
        let (_, state) = state();
        assert_eq!(state.readiness(), Err(NotReady::NotSynced));
        state.discovery(Discovered { synced: true, ..Discovered::default() });
        assert_eq!(state.readiness(), Err(NotReady::NoRound));
        state.no_deployment(Duration::ZERO);
        assert_eq!(state.readiness(), Ok(()));
    }

    #[test]
    fn health_ends_when_no_round_begins() {
        let (clock, state) = state();
        clock.set(150);
        assert!(state.is_healthy());
        clock.set(151);
        assert!(!state.is_healthy());
        state.round_begun();
        clock.set(301);
        assert!(state.is_healthy());
        clock.set(302);
        assert!(!state.is_healthy());
    }

    #[test]
    fn rounds_are_counted_by_duration() {
        let (_, state) = state();
        let (points, _) = state.own();
        assert!(points.iter().all(|point| point.family != "modeldeployment_exporter_deployment_found"));
        state.discovery(Discovered { reload_failures: 2, ..known("chat") });
        state.round_finished(Duration::from_millis(5), published("chat", 0));
        state.round_finished(Duration::from_secs(30), published("chat", 0));
        state.no_deployment(Duration::from_millis(6));
        let (points, distribution) = state.own();
        let value = |family: &str| points.iter().find(|point| point.family == family).unwrap().value;
        assert_eq!(value("modeldeployment_exporter_rounds_total"), 3.0);
        assert_eq!(value("modeldeployment_exporter_deployment_reload_failures_total"), 2.0);
        assert_eq!(value("modeldeployment_exporter_deployment_found"), 1.0);
        assert!((distribution.sum - 30.011).abs() < 1e-9);
        assert_eq!(distribution.buckets[0], (0.005, 1));
        assert_eq!(distribution.buckets[1], (0.01, 1));
        assert_eq!(distribution.buckets[11], (f64::INFINITY, 1));
    }
}
