//! What each command does, from a parsed command line to an exit status.
//!
//! It wires parts and prints; the rules are in the parts.

use crate::catalogue::Catalogue;
use crate::check;
use crate::cli::{Command, Format};
use crate::config::{Config, Environment};
use crate::discovery::FileDiscovery;
use crate::discovery::file;
use crate::logging;
use anyhow::bail;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The exit status of bad usage and bad configuration (contract, section 1).
const BAD_CONFIGURATION: u8 = 2;

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
        Command::Serve => with_deployment(environment, serve),
        Command::Snapshot { format, wait } => {
            with_deployment(environment, |config, discovery| snapshot(config, discovery, format, wait))
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
    command: impl FnOnce(Config, FileDiscovery) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let catalogue = Arc::new(Catalogue::embedded()?);
    let (config, discovery) = usable(environment, |path| FileDiscovery::start(path, catalogue))?;
    logging::init(config.log_format, &config.log_filter)?;
    command(config, discovery)
}

fn run_check(environment: &Environment) -> anyhow::Result<ExitCode> {
    let catalogue = Catalogue::embedded()?;
    let (config, deployment) = usable(environment, |path| file::load(&path, &catalogue))?;
    // A reader that closes the pipe early has read enough.
    let _ = std::io::stdout().write_all(check::report(environment, &config, &deployment).as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn run_demo(environment: &Environment, scenario: Option<String>, list: bool) -> anyhow::Result<ExitCode> {
    let config = Config::read_without_source(environment).map_err(|error| BadConfiguration(lines(&error)))?;
    logging::init(config.log_format, &config.log_filter)?;
    demo(config, scenario, list)
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
    match (config, loaded) {
        (Ok(config), Some(Ok(loaded))) => Ok((config, loaded)),
        (config, loaded) => {
            let wrong_values = config.err().unwrap_or_default();
            let wrong_file = loaded.and_then(Result::err).unwrap_or_default();
            Err(BadConfiguration([wrong_values, wrong_file].concat()))
        }
    }
}

fn lines(error: &crate::config::Error) -> Vec<String> {
    error.0.iter().map(ToString::to_string).collect()
}

/// `serve`: scrapes and serves until SIGTERM or SIGINT.
fn serve(_config: Config, _discovery: FileDiscovery) -> anyhow::Result<ExitCode> {
    bail!("not built in this branch")
}

/// `snapshot`: two rounds, printed once.
fn snapshot(_config: Config, _discovery: FileDiscovery, _format: Format, _wait: Duration) -> anyhow::Result<ExitCode> {
    bail!("not built in this branch")
}

/// `demo`: serves against a simulated fleet inside the process.
fn demo(_config: Config, _scenario: Option<String>, _list: bool) -> anyhow::Result<ExitCode> {
    bail!("not built in this branch")
}
