//! Sets up the log on stderr as `LOG_FORMAT` and `RUST_LOG` say.
//!
//! It is the process' only global, set once by `main`.

use crate::config::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directives are not valid; the configuration's are.
    #[error("RUST_LOG: {0}")]
    Filter(#[from] ParseError),
    /// The process has a log already.
    #[error("the log is set up already: {0}")]
    Twice(#[from] TryInitError),
}

/// Sets the process' log up. Colours are for terminals, and not where `NO_COLOR` is set.
///
/// # Errors
/// When the directives are not valid, or the process has a log already.
pub fn init(format: LogFormat, filter: &str) -> Result<(), Error> {
    let filter = EnvFilter::builder().parse(filter)?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => subscriber.finish().try_init()?,
        LogFormat::Json => subscriber.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}
