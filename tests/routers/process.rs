//! Processes that a test starts: killed when dropped, their output kept to explain a failure. Also the one way to wait.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// A running program.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with these arguments and variables and no others of the environment but `PATH`: no proxy and
    /// no model hub, so that it talks to loopback alone. Its output is appended to this file.
    pub fn start(program: &Path, arguments: &[String], variables: &[(&str, &str)], log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(variables.iter().copied());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", log.parent().unwrap()).env("HF_HUB_OFFLINE", "1");
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|e| panic!("start {}: {e}", program.display()));
        Process { child, log: log.to_owned() }
    }

    /// Everything it wrote.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines that it wrote, for a failure's message.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// An error once it has ended by itself.
    pub fn alive(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended: {status}", self.log.display())),
            Err(e) => Err(format!("{}: {e}", self.log.display())),
        }
    }

    /// Ends it and waits until it is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Probes until it says `Ok`, at most this long; else says what was waited for and what the last probe said.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let end = Instant::now() + limit;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= end => return Err(format!("waited {limit:?} for {what}; last: {last}")),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// An address of loopback that nobody listens on, never the same twice. Below the range from which the kernel picks
/// ports for clients, so that no connection takes it between here and its use, nor while its owner is stopped.
pub fn free_address() -> SocketAddr {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let tries = (0..10_000).map(|_| TRIED.fetch_add(1, Ordering::Relaxed));
    // Test processes that run at once begin apart.
    let ports = tries.map(|tried| 20_000 + (std::process::id().wrapping_mul(97).wrapping_add(tried)) % 10_000);
    let mut addresses = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port as u16)));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a free port from 20000 to 29999")
}
