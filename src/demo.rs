//! A simulated fleet inside the process: real names, label sets and quirks, invented numbers.
//!
//! It serves the `demo` command, and the same fleet serves tests and benches with a seed and a
//! clock of their own. Each Pod's exposition has the shape of one captured from the real software;
//! what the simulated software did is kept beside it, so the exporter's sums can be checked. It
//! listens on loopback only, reads no wall clock, and knows nothing of the exporter but the words
//! of its announcements.

mod engines;
mod fleet;
mod routers;
mod scenario;
mod serve;
mod template;

pub use fleet::{Announcement, Answer, Fleet, Truth};
pub use scenario::{CYCLE, Engine, Event, EventKind, Parallel, Planned, PodPlan, Role, Router, Scenario, Stage};
pub use serve::{Servers, serve_fleet};
pub use template::Error as TemplateError;

use crate::clock::Clock;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why a demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No scenario has this name.
    #[error("no scenario is named `{name}`; there are {names}")]
    Scenario {
        /// The name asked for.
        name: String,
        /// The names that there are.
        names: String,
    },
    /// An embedded template does not compile.
    #[error("{file}: {error}")]
    Template {
        /// The template's name.
        file: &'static str,
        /// Where and why.
        error: TemplateError,
    },
    /// No loopback listener could be opened.
    #[error("cannot listen on loopback: {0}")]
    Listen(#[from] std::io::Error),
}

/// How often the announcements and the servers look at the clock.
const TICK: Duration = Duration::from_millis(50);

/// A fleet that is being served, and the deployment that it is.
#[derive(Debug)]
pub struct Demo {
    /// What is played.
    pub scenario: Scenario,
    /// The deployment file, with the URLs of the simulated Pods.
    pub deployment: String,
    /// The fleet.
    pub fleet: Arc<Mutex<Fleet>>,
    /// Its listeners; dropping them ends them.
    pub servers: Servers,
}

/// The text of `--list`: a line for each scenario, the default one first.
pub fn list() -> String {
    let all = Scenario::all();
    let width = all.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
    all.iter().map(|scenario| format!("{:width$}  {}\n", scenario.name, scenario.description)).collect()
}

/// Starts a scenario's fleet on loopback: the one of this name, or the first one.
pub async fn start(name: Option<&str>, seed: u64, clock: Arc<dyn Clock>) -> Result<Demo, Error> {
    let scenario = match name {
        Some(name) => Scenario::by_name(name)?,
        None => Scenario::all().swap_remove(0),
    };
    let epoch = clock.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().saturating_sub(clock.now());
    let fleet = Arc::new(Mutex::new(Fleet::new(scenario.clone(), seed)?.starting_at(epoch)?));
    let servers = serve_fleet(Arc::clone(&fleet), clock).await?;
    let deployment = scenario.deployment(&servers.urls);
    Ok(Demo { scenario, deployment, fleet, servers })
}

impl Demo {
    /// What is printed once the exporter listens: the URLs and three commands worth trying.
    pub fn welcome(&self, exporter: SocketAddr) -> String {
        let mut text = format!("{}: {}\n", self.scenario.name, self.scenario.description);
        for (pod, url) in self.scenario.pods().iter().zip(&self.servers.urls) {
            text.push_str(&format!("  {:16} {url}\n", pod.name));
        }
        let json = "apis/worker.gpustack.ai/v1/namespaces/demo/modeldeployments/chat/metrics";
        text.push_str(&format!(
            "  {:16} http://{exporter}/\n\
             Try, once two rounds are over:\n\
             \x20 curl -s http://{exporter}/{json}\n\
             \x20 curl -s http://{exporter}/metrics | grep -E '^modeldeployment_(cache_hit_ratio|ttft_mean_seconds)'\n\
             \x20 curl -s http://{exporter}/metrics | grep -E '^modeldeployment_(up|partial|missing|pod_resets_total)'\n",
            "the exporter"
        ));
        text
    }

    /// Writes each announcement when it is due; runs until it is dropped.
    pub async fn announce(&self, clock: Arc<dyn Clock>, mut write: impl FnMut(&Announcement)) {
        let mut from = Duration::ZERO;
        loop {
            let to = clock.now();
            let due = self.fleet.lock().unwrap_or_else(PoisonError::into_inner).announcements(from..to);
            due.iter().for_each(&mut write);
            from = to.max(from);
            tokio::time::sleep(TICK).await;
        }
    }
}
