//! One honest set of Prometheus series for an LLM model deployment.
//!
//! Data goes one way: discovery → deployment → scrape → exposition → window → snapshot → export →
//! server, with the catalogue as data beside it. `main.rs` wires the parts and nothing else.

pub mod arguments;
pub mod catalogue;
pub mod clock;
pub mod config;
pub mod demo;
pub mod deployment;
pub mod discovery;
pub mod export;
pub mod exposition;
pub mod scrape;
pub mod snapshot;
pub mod window;
