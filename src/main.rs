//! Wires the parts together; turns errors into text and exit codes.

// Here rather than in Cargo.toml: a test may unwrap.
#![warn(clippy::unwrap_used, clippy::expect_used)]

use modeldeployment_exporter::config::Environment;
use modeldeployment_exporter::{cli, commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    commands::run(command, &Environment::of_process()).unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", cli::NAME);
        ExitCode::FAILURE
    })
}
