//! Rounds in virtual time over a network in memory: their cadence, and what a deployment that
//! changes meanwhile does to them.

mod support;

use modeldeployment_exporter::clock::{Clock, SystemClock};
use modeldeployment_exporter::config::{ScrapeLimits, WindowTimes};
use modeldeployment_exporter::deployment::{Deployment, RoleKind};
use modeldeployment_exporter::discovery::Discovery;
use modeldeployment_exporter::pipeline::Pipeline;
use modeldeployment_exporter::scrape::Scraper;
use modeldeployment_exporter::snapshot::Code;
use modeldeployment_exporter::state::{State, Times};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{BODY, Memory, Step, deployment, limits, ok};
use tokio::sync::watch;
use tokio::time::Instant;

fn discovery(deployment: &Arc<Deployment>) -> Discovery {
    Discovery { deployment: Some(Arc::clone(deployment)), synced: true, ..Discovery::default() }
}

/// A pipeline over a network in memory, and the state that it publishes to.
fn pipeline(memory: Memory, limits: ScrapeLimits, discovery: watch::Receiver<Discovery>) -> (Pipeline, Arc<State>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let times = Times { interval: limits.interval, round_timeout: limits.round_timeout };
    let window =
        WindowTimes { window: Duration::from_secs(60), interval: limits.interval, max_age: Duration::from_secs(300) };
    let scraper = Scraper::new(Arc::new(memory), Arc::clone(&clock), limits.clone());
    let state = Arc::new(State::new(Arc::clone(&clock), times));
    (Pipeline::new(scraper, clock, limits, window, discovery), state)
}

/// Runs rounds of one Pod until this many have been asked for, and gives the seconds at which they were.
/// The Pod answers the rounds of these numbers only after this long.
async fn asked_at(interval: f64, rounds: usize, slow: &'static [usize], seconds: f64) -> Vec<f64> {
    let start = Instant::now();
    let times: Arc<Mutex<Vec<f64>>> = Arc::default();
    let asked = Arc::clone(&times);
    let memory = Memory::default().host("a", move |_| {
        let mut asked = asked.lock().unwrap();
        asked.push(start.elapsed().as_secs_f64());
        let number = asked.len() - 1;
        let late = tokio::sync::Semaphore::new(0);
        let late = Arc::new(late);
        let open = Arc::clone(&late);
        let wait = if slow.contains(&number) { seconds } else { 0.0 };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs_f64(wait)).await;
            open.add_permits(1);
        });
        [vec![Step::Gate(late)], ok(BODY)].concat()
    });
    let one = deployment().role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build();
    let (_sender, receiver) = watch::channel(discovery(&one));
    let limits = ScrapeLimits { interval: Duration::from_secs_f64(interval), ..limits() };
    let (pipeline, state) = pipeline(memory, limits, receiver);
    let task = tokio::spawn(async move { pipeline.run(&state).await });
    while times.lock().unwrap().len() < rounds {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.abort();
    let times = times.lock().unwrap();
    times[..rounds].iter().map(|at| (at * 10.0).round() / 10.0).collect()
}

#[tokio::test(start_paused = true)]
async fn rounds_begin_one_interval_apart_and_do_not_drift() {
    let times = asked_at(15.0, 6, &[], 0.0).await;
    assert_eq!(times, [0.0, 15.0, 30.0, 45.0, 60.0, 75.0]);
    // A round that takes part of the interval moves none of the others.
    let times = asked_at(15.0, 6, &[1, 2, 4], 9.0).await;
    assert_eq!(times, [0.0, 15.0, 30.0, 45.0, 60.0, 75.0]);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_overruns_is_followed_at_once_and_none_piles_up() {
    // The second and third take 7 s of an interval of 3 s; then the cadence goes on from there.
    let times = asked_at(3.0, 7, &[1, 2], 7.0).await;
    assert_eq!(times, [0.0, 3.0, 10.0, 17.0, 20.0, 23.0, 26.0]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_gone_by_the_end_of_the_round_yields_nothing() {
    let before = deployment()
        .role("server", RoleKind::Server, 2)
        .pod("a", "server", "http://a/metrics")
        .pod("b", "server", "http://b/metrics")
        .build();
    let mut after = (*before).clone();
    after.pods.retain(|pod| pod.name == "a");
    after.roles[0].expected = 1;
    let (sender, receiver) = watch::channel(discovery(&before));
    let after = Arc::new(after);
    // It scales down while the Pod is being read.
    let memory = Memory::default().host("a", |_| ok(BODY)).host("b", move |_| {
        sender.send_replace(discovery(&after));
        ok(BODY)
    });
    let (mut pipeline, state) = pipeline(memory, limits(), receiver);
    let finished = pipeline.round(&state).await.unwrap();
    let object = &finished.object;
    assert_eq!(object.processing.iter().map(|gauge| (gauge.value, gauge.pod_count)).collect::<Vec<_>>(), [(3.0, 1)]);
    assert!(!object.missing.iter().any(|entry| entry.pod == "b" || entry.code == Code::ReplicasMissing));
    let points = finished.points(modeldeployment_exporter::state::Age::Fresh);
    let of_b = points.iter().filter(|point| point.labels.contains(&("pod", "b".into())));
    assert_eq!(of_b.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_pod_that_was_gone_for_a_round() {
    let both = deployment()
        .role("server", RoleKind::Server, 2)
        .pod("a", "server", "http://a/metrics")
        .pod("b", "server", "http://b/metrics")
        .build();
    let mut one = (*both).clone();
    one.pods.retain(|pod| pod.name == "a");
    let one = Arc::new(one);
    let (sender, receiver) = watch::channel(discovery(&both));
    let answers = std::sync::atomic::AtomicUsize::new(0);
    let memory = Memory::default().host("a", |_| ok(BODY)).host("b", move |_| {
        let first = answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if first { vec![Step::Close] } else { ok(BODY) }
    });
    let (mut pipeline, state) = pipeline(memory, limits(), receiver);
    let mut failures = Vec::new();
    for now in [&both, &one, &both] {
        sender.send_replace(discovery(now));
        let finished = pipeline.round(&state).await.unwrap();
        let points = finished.points(modeldeployment_exporter::state::Age::Fresh);
        let of_b = points.iter().filter(|point| {
            point.family == "modeldeployment_pod_scrape_failures_total" && point.labels.contains(&("pod", "b".into()))
        });
        failures.push(of_b.map(|point| point.value).collect::<Vec<_>>());
    }
    assert_eq!(failures[0].iter().sum::<f64>(), 1.0);
    assert_eq!(failures[1], Vec::<f64>::new());
    assert_eq!(failures[2], vec![0.0; 10], "a Pod that comes back starts afresh");
}

#[tokio::test(start_paused = true)]
async fn scaling_up_meanwhile_is_no_missing_replica() {
    let before = deployment().role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build();
    let mut after = (*before).clone();
    after.roles[0].expected = 2;
    let (sender, receiver) = watch::channel(discovery(&before));
    let after = Arc::new(after);
    let memory = Memory::default().host("a", move |_| {
        sender.send_replace(discovery(&after));
        ok(BODY)
    });
    let (mut pipeline, state) = pipeline(memory, limits(), receiver);
    let first = pipeline.round(&state).await.unwrap();
    assert!(!first.object.missing.iter().any(|entry| entry.code == Code::ReplicasMissing));
    let second = pipeline.round(&state).await.unwrap();
    assert!(second.object.missing.iter().any(|entry| entry.code == Code::ReplicasMissing));
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_gone_or_renamed_meanwhile_is_not_published() {
    let one = deployment().role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build();
    let mut renamed = (*one).clone();
    renamed.name = "other".to_owned();
    for after in [None, Some(Arc::new(renamed))] {
        let (sender, receiver) = watch::channel(discovery(&one));
        let gone = Discovery { deployment: after, synced: true, ..Discovery::default() };
        let memory = Memory::default().host("a", move |_| {
            sender.send_replace(gone.clone());
            ok(BODY)
        });
        let (mut pipeline, state) = pipeline(memory, limits(), receiver);
        assert!(pipeline.round(&state).await.is_none());
        assert!(state.current().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_deployment_a_round_is_one_and_publishes_nothing() {
    let nothing = Discovery { deployment: None, synced: true, ..Discovery::default() };
    let (_sender, receiver) = watch::channel(nothing);
    let (mut pipeline, state) = pipeline(Memory::default(), limits(), receiver);
    assert!(pipeline.round(&state).await.is_none());
    assert!(state.current().is_none() && state.readiness().is_ok());
}

#[tokio::test(start_paused = true)]
async fn rounds_wait_for_discovery() {
    let one = deployment().role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build();
    let (sender, receiver) = watch::channel(Discovery::default());
    let (pipeline, state) = pipeline(Memory::default().host("a", |_| ok(BODY)), limits(), receiver);
    let published = Arc::clone(&state);
    let task = tokio::spawn(async move { pipeline.run(&state).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(published.current().is_none());
    sender.send_replace(discovery(&one));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(published.current().is_some());
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_an_endpoint_and_a_stale_discovery_are_named() {
    let one = deployment()
        .role("server", RoleKind::Server, 2)
        .pod("a", "server", "http://a/metrics")
        .pod_with("b", Some("server"), Err("the Pod advertises no metrics port"), &[])
        .build();
    let stale = Discovery { stale: true, ..discovery(&one) };
    let (_sender, receiver) = watch::channel(stale);
    let (mut pipeline, state) = pipeline(Memory::default().host("a", |_| ok(BODY)), limits(), receiver);
    let finished = pipeline.round(&state).await.unwrap();
    let of = |code: Code| finished.object.missing.iter().find(|entry| entry.code == code).unwrap();
    let endpoint = of(Code::NoEndpoint);
    assert_eq!((endpoint.pod.as_str(), endpoint.source.as_str()), ("b", "scrape"));
    assert_eq!(endpoint.reason, "the Pod advertises no metrics port");
    let stale = of(Code::DiscoveryStale);
    assert_eq!((stale.pod.as_str(), stale.source.as_str()), ("", "pod-discovery"));
    assert!(finished.object.partial);
}

/// vLLM's TTFT histogram after `n` requests.
fn ttft(n: usize) -> String {
    let name = "vllm:time_to_first_token_seconds";
    format!("{name}_count {n}\n{name}_sum {n}\n")
}

#[tokio::test(start_paused = true)]
async fn windows_are_kept_while_a_reload_leaves_the_pod_as_it_is() {
    let before = deployment().role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build();
    let mut grown = (*before).clone();
    grown.roles[0].expected = 3;
    let mut recreated = (*before).clone();
    let mut pod = (*recreated.pods[0]).clone();
    pod.uid = "another".to_owned();
    recreated.pods = vec![Arc::new(pod)];
    let (sender, receiver) = watch::channel(discovery(&before));
    let memory = Memory::default().host("a", |request| ok(&ttft(request.number + request.connection * 100)));
    let (mut pipeline, state) = pipeline(memory, limits(), receiver);
    let mut seen = Vec::new();
    for next in [None, Some(grown), None, Some(recreated), None] {
        if let Some(next) = next {
            sender.send_replace(discovery(&Arc::new(next)));
        }
        let object = pipeline.round(&state).await.unwrap().object.clone();
        seen.push(object.latency.first().map(|entry| entry.samples));
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    assert_eq!(seen, [None, Some(1.0), Some(2.0), None, Some(1.0)], "a Pod with another identity starts afresh");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_other_software_after_a_reload_starts_afresh() {
    let of = |engine: &str| {
        deployment().engine(engine).role("server", RoleKind::Server, 1).pod("a", "server", "http://a/metrics").build()
    };
    let (sender, receiver) = watch::channel(discovery(&of("vLLM")));
    let memory = Memory::default().host("a", |_| ok("vllm:num_requests_running 1\nsglang:num_running_reqs 2\n"));
    let (mut pipeline, state) = pipeline(memory, limits(), receiver);
    let mut read = Vec::new();
    for next in [None, Some("SGLang")] {
        if let Some(engine) = next {
            sender.send_replace(discovery(&of(engine)));
        }
        let gauge = pipeline.round(&state).await.unwrap().object.processing[0].clone();
        read.push((gauge.source, gauge.value));
    }
    assert_eq!(read, [("vllm:num_requests_running".to_owned(), 1.0), ("sglang:num_running_reqs".to_owned(), 2.0)]);
}
