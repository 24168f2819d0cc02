//! The command line: four commands; settings stay in the environment.
//!
//! It parses and explains; it runs nothing.

use crate::config::{self, Help};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::time::Duration;

/// The command line's name of the program.
pub const NAME: &str = env!("CARGO_PKG_NAME");

/// The command line.
#[derive(Debug, Parser)]
#[command(name = NAME, about = env!("CARGO_PKG_DESCRIPTION"))]
pub struct Cli {
    /// What to do; `serve` without one.
    #[command(subcommand)]
    command: Option<Command>,
}

/// What the exporter is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Scrape the Pods and serve until SIGTERM or SIGINT (the default)
    Serve,
    /// Read the Pods twice, print one object and exit: 0 complete, 3 partial, 1 no Pod readable
    Snapshot {
        /// How the object is printed
        #[arg(long, value_enum, default_value_t = Format::Json)]
        format: Format,
        /// From the first round to the second
        #[arg(long, default_value = "5s", value_parser = wait)]
        wait: Duration,
    },
    /// Print the effective configuration, or every error in it, and exit: 0 or 2
    Check,
    /// Serve against a simulated fleet inside the process: no cluster, no engine, no file
    Demo {
        /// What the fleet goes through
        #[arg(long, value_name = "NAME")]
        scenario: Option<String>,
        /// List the scenarios and exit
        #[arg(long)]
        list: bool,
    },
}

/// How `snapshot` prints its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

fn wait(text: &str) -> Result<Duration, String> {
    config::positive_duration(text).map_err(|accepted| format!("accepted: {accepted}"))
}

/// Parses a command line, the program's name first.
///
/// # Errors
/// What is wrong with it, or the text of `--help` or `--version`: `exit()` prints either and ends
/// the process with 2 or 0.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let environment = Help.to_string();
    let mut command = Cli::command()
        .version(format!("{} (revision {})", crate::VERSION, crate::REVISION))
        .after_help(environment.clone())
        .mut_subcommands(|command| command.after_help(environment.clone()));
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
    Ok(cli.command.unwrap_or(Command::Serve))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::VARIABLES;

    fn parsed(arguments: &[&str]) -> Result<Command, clap::Error> {
        parse([NAME].iter().chain(arguments).map(OsString::from))
    }

    #[test]
    fn commands() {
        let snapshot = |format, seconds| Command::Snapshot { format, wait: Duration::from_secs(seconds) };
        let demo = |scenario: Option<&str>, list| Command::Demo { scenario: scenario.map(str::to_owned), list };
        let cases: &[(&[&str], Command)] = &[
            (&[], Command::Serve),
            (&["serve"], Command::Serve),
            (&["snapshot"], snapshot(Format::Json, 5)),
            (&["snapshot", "--format", "yaml", "--wait=2m"], snapshot(Format::Yaml, 120)),
            (&["check"], Command::Check),
            (&["demo"], demo(None, false)),
            (&["demo", "--scenario", "restart"], demo(Some("restart"), false)),
            (&["demo", "--list"], demo(None, true)),
        ];
        for (arguments, expected) in cases {
            assert_eq!(parsed(arguments).unwrap(), *expected, "{arguments:?}");
        }
    }

    #[test]
    fn bad_usage_ends_with_2_and_help_with_0() {
        let bad: &[&[&str]] = &[
            &["run"],
            &["--port", "1"],
            &["snapshot", "--format", "xml"],
            &["snapshot", "--wait", "0s"],
            &["check", "x"],
        ];
        for arguments in bad {
            assert_eq!(parsed(arguments).unwrap_err().exit_code(), 2, "{arguments:?}");
        }
        let good: &[&[&str]] = &[&["--help"], &["-h"], &["--version"], &["serve", "--help"], &["help", "check"]];
        for arguments in good {
            assert_eq!(parsed(arguments).unwrap_err().exit_code(), 0, "{arguments:?}");
        }
        let wait = parsed(&["snapshot", "--wait", "5"]).unwrap_err().to_string();
        assert!(wait.contains("accepted: one whole number and one of ms, s, m, h"), "{wait}");
    }

    #[test]
    fn help_lists_every_variable_with_its_default() {
        for arguments in [&["--help"][..], &["serve", "--help"], &["-h"]] {
            let help = parsed(arguments).unwrap_err().to_string();
            for variable in VARIABLES {
                let line = help.lines().find(|line| line.split_whitespace().next() == Some(variable.name));
                let line = line.unwrap_or_else(|| panic!("{arguments:?} does not list {}", variable.name));
                assert_eq!(line.split_whitespace().nth(1), Some(variable.default.unwrap_or("-")), "{line}");
            }
        }
    }
}
