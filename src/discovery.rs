//! Watches where the deployment is described and publishes one immutable value of it.
//!
//! The file discovery of `DEPLOYMENT_FILE` lives here; a cluster's will publish the same type.
//! It reads no Pod and keeps no metrics.

pub mod file;

pub use file::FileDiscovery;

use crate::deployment::Deployment;
use std::sync::Arc;

/// What discovery knows now; published through a `tokio::sync::watch` channel.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// The deployment; none while it does not exist.
    pub deployment: Option<Arc<Deployment>>,
    /// Whether the source has been read once, whether or not the deployment exists.
    pub synced: bool,
    /// Set while the source has not been heard for too long.
    pub stale: bool,
    /// Versions of the source that did not parse and were not taken.
    pub reload_failures: u64,
}
