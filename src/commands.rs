//! What each command does, from a parsed command line to an exit status.
//!
//! It wires parts and prints; the rules are in the parts.

use crate::catalogue::Catalogue;
use crate::check;
use crate::cli::{Command, Format};
use crate::clock::{Clock, SystemClock};
use crate::config::{ClientFiles, Config, Environment, TlsFiles, show_duration};
use crate::demo;
use crate::discovery::file;
use crate::discovery::{Discovery, FileDiscovery};
use crate::logging;
use crate::pipeline::Pipeline;
use crate::scrape::Scraper;
use crate::scrape::connector::Network;
use crate::scrape::tls::Tls;
use crate::server::{Limits, Server, Tcp};
use crate::state::{State, Times};
use anyhow::{Context, bail};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The exit status of bad usage and bad configuration (contract, section 1).
const BAD_CONFIGURATION: u8 = 2;

/// The exit status of `snapshot` when no Pod could be read.
const NO_POD_READABLE: u8 = 1;

/// The exit status of `snapshot` when a required source did not contribute.
const PARTIAL: u8 = 3;

/// What `demo` takes for variables that are not given: loopback, and rounds short enough to watch.
const DEMO_DEFAULTS: [(&str, &str); 3] =
    [("LISTEN_ADDRESS", "127.0.0.1:9850"), ("SCRAPE_INTERVAL", "5s"), ("WINDOW", "30s")];

/// A configuration that cannot be used, with everything that is wrong in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct BadConfiguration(Vec<String>);

impl fmt::Display for BadConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, plural) = (self.0.len(), if self.0.len() == 1 { "" } else { "s" });
        write!(f, "the configuration has {count} error{plural}")?;
        self.0.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Runs a command; its result is the process' exit status.
///
/// # Errors
/// What kept a command from doing its work, other than its configuration.
pub fn run(command: Command, environment: &Environment) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Check => run_check(environment),
        Command::Serve => with_deployment(environment, None, serve),
        // What a log would say is in the object; stderr stays empty unless RUST_LOG asks for it.
        Command::Snapshot { format, wait } => {
            with_deployment(environment, Some("off"), |config, discovery| snapshot(config, discovery, format, wait))
        }
        Command::Demo { scenario, list } => run_demo(environment, scenario, list),
    };
    match done {
        Err(error) if error.is::<BadConfiguration>() => {
            eprintln!("{error}");
            Ok(ExitCode::from(BAD_CONFIGURATION))
        }
        done => done,
    }
}

/// Reads everything that a command needs before it starts, and reports all that is wrong at once.
fn with_deployment(
    environment: &Environment,
    quiet: Option<&str>,
    command: impl FnOnce(Config, FileDiscovery) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let catalogue = Arc::new(Catalogue::embedded()?);
    let (config, discovery) = usable(environment, |path| FileDiscovery::start(path, catalogue))?;
    let filter = quiet.filter(|_| environment.given("RUST_LOG").is_none()).unwrap_or(&config.log_filter);
    logging::init(config.log_format, filter)?;
    start_log(environment, &discovery);
    command(config, discovery)
}

/// Says what starts, over which deployment and with which settings.
fn start_log(environment: &Environment, discovery: &FileDiscovery) {
    if let Some(deployment) = &discovery.subscribe().borrow().deployment {
        tracing::info!(
            version = crate::VERSION,
            revision = crate::REVISION,
            namespace = %deployment.namespace,
            name = %deployment.name,
            pods = deployment.pods.len(),
            "starting"
        );
    }
    let settings =
        environment.effective().filter_map(|(variable, value, _)| Some(format!("{}={}", variable.name, value?)));
    tracing::info!("settings: {}", settings.collect::<Vec<_>>().join(" "));
}

fn run_check(environment: &Environment) -> anyhow::Result<ExitCode> {
    let catalogue = Catalogue::embedded()?;
    let (config, deployment) = usable(environment, |path| file::load(&path, &catalogue))?;
    // A reader that closes the pipe early has read enough.
    let _ = std::io::stdout().write_all(check::report(environment, &config, &deployment).as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn run_demo(environment: &Environment, scenario: Option<String>, list: bool) -> anyhow::Result<ExitCode> {
    if list {
        let _ = io::stdout().write_all(demo::list().as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let environment = environment.clone().with_defaults(&DEMO_DEFAULTS);
    let config = Config::read_without_source(&environment).map_err(|error| BadConfiguration(lines(&error)))?;
    logging::init(config.log_format, &config.log_filter)?;
    run_fleet(config, scenario)
}

/// The validated configuration and what `load` makes of the deployment file, or the errors of both.
fn usable<T>(
    environment: &Environment,
    load: impl FnOnce(PathBuf) -> Result<T, file::Error>,
) -> Result<(Config, T), BadConfiguration> {
    let config = Config::read(environment).map_err(|error| lines(&error));
    let loaded = environment.given("DEPLOYMENT_FILE").map(|path| {
        load(PathBuf::from(path)).map_err(|error| {
            let path = Path::new(path).display();
            error.lines().iter().map(|line| format!("DEPLOYMENT_FILE {path}: {line}")).collect::<Vec<_>>()
        })
    });
    let wrong_tls = wrong_tls_files(environment);
    match (config, loaded) {
        (Ok(config), Some(Ok(loaded))) if wrong_tls.is_empty() => Ok((config, loaded)),
        (config, loaded) => {
            let wrong_values = config.err().unwrap_or_default();
            let wrong_file = loaded.and_then(Result::err).unwrap_or_default();
            Err(BadConfiguration([wrong_values, wrong_tls, wrong_file].concat()))
        }
    }
}

/// What is wrong with the files for Pods that serve HTTPS: they are values too, and reported with
/// the others.
fn wrong_tls_files(environment: &Environment) -> Vec<String> {
    let path = |name: &str| environment.given(name).map(PathBuf::from);
    let mut wrong = Vec::new();
    let mut ca = path("SCRAPE_CA_FILE");
    if ca.is_some()
        && let Err(error) = Tls::from_files(&TlsFiles { ca: ca.clone(), client: None })
    {
        wrong.push(format!("SCRAPE_CA_FILE {error}; accepted: a file with PEM certificates"));
        ca = None;
    }
    if let (Some(certificate), Some(key)) = (path("SCRAPE_CLIENT_CERT_FILE"), path("SCRAPE_CLIENT_KEY_FILE"))
        && let Err(error) = Tls::from_files(&TlsFiles { ca, client: Some(ClientFiles { certificate, key }) })
    {
        let accepted = "a file with a PEM certificate and one with its PEM key";
        wrong.push(format!("SCRAPE_CLIENT_CERT_FILE and SCRAPE_CLIENT_KEY_FILE {error}; accepted: {accepted}"));
    }
    wrong
}

fn lines(error: &crate::config::Error) -> Vec<String> {
    error.0.iter().map(ToString::to_string).collect()
}

/// A pipeline and what it publishes to, over a running discovery.
fn pipeline(
    config: &Config,
    clock: &Arc<dyn Clock>,
    discovery: watch::Receiver<Discovery>,
) -> Result<(Pipeline, Arc<State>), BadConfiguration> {
    let tls = Tls::from_files(&config.tls).map_err(|error| BadConfiguration(vec![error.to_string()]))?;
    let connector = Arc::new(Network::new(tls));
    let scraper = Scraper::new(connector, Arc::clone(clock), config.scrape.clone());
    let times = Times { interval: config.scrape.interval, round_timeout: config.scrape.round_timeout };
    let state = Arc::new(State::new(Arc::clone(clock), times));
    let pipeline = Pipeline::new(scraper, Arc::clone(clock), config.scrape.clone(), config.window, discovery);
    Ok((pipeline, state))
}

/// One thread runs everything: measured, a second one saved no CPU.
fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("the runtime could not be started")
}

/// `serve`: scrapes and serves until SIGTERM or SIGINT.
fn serve(config: Config, discovery: FileDiscovery) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let published = discovery.subscribe();
        let (listener, address) = listen(&config.listen).await?;
        tokio::spawn(discovery.run());
        serve_on(listener, &config, published, || tracing::info!("listening on http://{address}")).await
    })
}

/// Binds `LISTEN_ADDRESS`; port 0 picks one.
async fn listen(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let refused = |error: io::Error| {
        let what = match error.kind() {
            io::ErrorKind::AddrInUse => "another process listens there already; give another port, or 0 to pick one",
            io::ErrorKind::PermissionDenied => "the process may not listen there; ports below 1024 need a privilege",
            io::ErrorKind::AddrNotAvailable => "this machine has no such address; 0.0.0.0 listens on all that it has",
            _ => "give host:port of this machine",
        };
        BadConfiguration(vec![format!("LISTEN_ADDRESS {address}: {error}; {what}")])
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

/// Runs rounds and answers requests until a signal; `started` is called once both run.
async fn serve_on(
    listener: TcpListener,
    config: &Config,
    discovery: watch::Receiver<Discovery>,
    started: impl FnOnce(),
) -> anyhow::Result<ExitCode> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (pipeline, state) = pipeline(config, &clock, discovery)?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    };
    let limits = Limits::default();
    let server = Server::new(Arc::clone(&state), limits).serve(Tcp::new(listener, limits.stall), stop);
    let rounds = tokio::spawn(async move { pipeline.run(&state).await });
    started();
    tokio::select! {
        () = server => Ok(ExitCode::SUCCESS),
        // An exporter whose rounds have ended would answer with what is no longer true.
        ended = rounds => {
            ended.context("the rounds failed")?;
            bail!("the rounds have ended")
        }
    }
}

/// `snapshot`: two rounds, printed once.
fn snapshot(config: Config, discovery: FileDiscovery, format: Format, wait: Duration) -> anyhow::Result<ExitCode> {
    let progress = |what: &str| {
        if io::stderr().is_terminal() {
            eprintln!("{what}");
        }
    };
    let finished = runtime()?.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let (mut pipeline, state) = pipeline(&config, &clock, discovery.subscribe())?;
        let second = Instant::now() + wait;
        progress("reading the Pods");
        pipeline.round(&state).await;
        progress(&format!("reading them again {} after the first time", show_duration(wait)));
        sleep_until(second).await;
        let finished = pipeline.round(&state).await;
        finished.context("the deployment does not exist any more")
    })?;
    let object = &finished.object;
    let text = match format {
        Format::Json => serde_json::to_string_pretty(object)? + "\n",
        Format::Yaml => serde_saphyr::to_string(object)?,
    };
    io::stdout().write_all(text.as_bytes()).context("the object could not be printed")?;
    Ok(ExitCode::from(match (finished.readable, object.partial) {
        (false, _) => NO_POD_READABLE,
        (true, true) => PARTIAL,
        (true, false) => 0,
    }))
}

/// `demo`: serves against a simulated fleet inside the process.
fn run_fleet(config: Config, scenario: Option<String>) -> anyhow::Result<ExitCode> {
    let catalogue = Catalogue::embedded()?;
    runtime()?.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let seed = clock.wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let demo = demo::start(scenario.as_deref(), seed, Arc::clone(&clock)).await.map_err(|error| match error {
            demo::Error::Scenario { .. } => anyhow::Error::new(BadConfiguration(vec![format!("--scenario: {error}")])),
            other => anyhow::Error::new(other),
        })?;
        let deployment = file::parse(demo.deployment.as_bytes(), &catalogue).context("the demo's deployment")?;
        let discovery = Discovery { deployment: Some(Arc::new(deployment)), synced: true, ..Discovery::default() };
        let (_keep, discovery) = watch::channel(discovery);
        let (listener, address) = listen(&config.listen).await?;
        let welcome = || {
            let _ = io::stdout().write_all(demo.welcome(address).as_bytes());
        };
        let announce = demo.announce(clock, |announcement| eprintln!("demo: {}", announcement.sentence));
        tokio::select! {
            ended = serve_on(listener, &config, discovery, welcome) => ended,
            () = announce => Ok(ExitCode::SUCCESS),
        }
    })
}
