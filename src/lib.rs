//! One honest set of Prometheus series for an LLM model deployment.
//!
//! Data goes one way: discovery → deployment → scrape → exposition → window → snapshot → export →
//! server, with the catalogue as data beside it. `main.rs` wires the parts and nothing else.

// Here rather than in Cargo.toml: a test may unwrap.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod text;

pub mod arguments;
pub mod catalogue;
pub mod check;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod demo;
pub mod deployment;
pub mod discovery;
pub mod export;
pub mod exposition;
pub mod logging;
pub mod pipeline;
pub mod scrape;
pub mod server;
pub mod snapshot;
pub mod state;
pub mod window;

/// The crate's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The source revision that was built, where the build gave `BUILD_REVISION`.
pub const REVISION: &str = match option_env!("BUILD_REVISION") {
    Some(revision) if !revision.is_empty() => revision,
    _ => "unknown",
};
