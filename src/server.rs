//! The HTTP server: sockets, limits, graceful stop (contract, section 9).
//!
//! It answers from what rounds published and never makes one happen. It does not care who
//! listens: [`listen::Listener`] is the seam for anything around TCP.

mod connection;
mod landing;
pub mod listen;
mod negotiation;
mod requests;
mod routes;
mod status;

pub use listen::{Listener, Tcp};
pub use routes::{REVISION, VERSION};

use crate::state::State;
use connection::{Watch, Watched};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use routes::Routes;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{sleep, timeout};

/// What clients may take up; the default is the contract's section 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Within this time of its start or last answer a connection has a complete request head.
    pub head: Duration,
    /// A request head is smaller than this; at least 8192 bytes.
    pub head_bytes: usize,
    /// A client that takes none of its answer for this long is cut.
    pub stall: Duration,
    /// Open connections.
    pub connections: usize,
    /// Open answers have this long to finish once the server stops.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(90),
            head_bytes: 16 * 1024,
            stall: Duration::from_secs(10),
            connections: 512,
            // `serve` stops within 5 s (section 1); the rest of the process needs a part of them.
            stop: Duration::from_millis(4500),
        }
    }
}

/// Pause after a connection could not be accepted: out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The smallest buffer that hyper takes.
const SMALLEST_BUFFER: usize = 8192;

/// Serves a state's rounds.
#[derive(Debug)]
pub struct Server {
    routes: Arc<Routes>,
    limits: Limits,
}

/// The open connections.
struct Open {
    tasks: JoinSet<()>,
    watches: HashMap<Id, Arc<Watch>>,
}

impl Open {
    /// Forgets a connection that has ended.
    fn ended(&mut self, joined: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match joined {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "a connection's task failed");
                error.id()
            }
        };
        self.watches.remove(&id);
    }

    /// Asks the connection that has waited longest for a head to close, if one waits.
    fn make_room(&self) {
        let waiting = self.watches.values().filter_map(|watch| Some((watch.waiting_since()?, watch)));
        if let Some((_, watch)) = waiting.min_by_key(|(since, _)| *since) {
            watch.make_room.notify_one();
        }
    }
}

impl Server {
    /// A server of this state.
    pub fn new(state: Arc<State>, limits: Limits) -> Server {
        Server { routes: Arc::new(Routes::new(state)), limits }
    }

    /// Serves until `stop` ends; then accepts no more, finishes open answers and returns within
    /// [`Limits::stop`].
    pub async fn serve<L: Listener>(self, mut listener: L, stop: impl Future<Output = ()> + Send) {
        let mut stop = pin!(stop);
        let (stopping, stopped) = watch::channel(false);
        let idle = Arc::new(Notify::new());
        let mut open = Open { tasks: JoinSet::new(), watches: HashMap::new() };
        // An accepted connection that has no room yet.
        let mut next: Option<L::Opening> = None;
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(joined) = open.tasks.join_next_with_id() => open.ended(joined),
                opening = accept(&mut listener), if next.is_none() => next = Some(opening),
                // Only a connection that begins to wait can make room.
                () = idle.notified(), if next.is_some() => {}
            }
            if open.watches.len() < self.limits.connections {
                if let Some(opening) = next.take() {
                    let watch = Arc::new(Watch::new(Arc::clone(&idle)));
                    let task = connection::<L>(
                        opening,
                        Arc::clone(&self.routes),
                        Arc::clone(&watch),
                        self.limits,
                        stopped.clone(),
                    );
                    open.watches.insert(open.tasks.spawn(task).id(), watch);
                }
            } else if next.is_some() {
                open.make_room();
            }
        }
        drop((listener, next));
        stopping.send_replace(true);
        let finished = timeout(self.limits.stop, async { while open.tasks.join_next().await.is_some() {} }).await;
        if finished.is_err() {
            tracing::warn!(connections = open.tasks.len(), "answers were still open at the stop");
        }
    }
}

/// The next connection; a failure to accept one is no end.
async fn accept<L: Listener>(listener: &mut L) -> L::Opening {
    loop {
        match listener.accept().await {
            Ok(opening) => return opening,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection to its end.
async fn connection<L: Listener>(
    opening: L::Opening,
    routes: Arc<Routes>,
    watch: Arc<Watch>,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let closing = stopped.clone();
    let http = async {
        let io = match opening.await {
            Ok(io) => io,
            Err(error) => {
                tracing::debug!(%error, "a connection did not open");
                return;
            }
        };
        let service = service_fn(|request| {
            watch.head();
            let routes = Arc::clone(&routes);
            async move { Ok::<_, Infallible>(routes.answer(&request).await) }
        });
        let mut builder = http1::Builder::new();
        let buffer = limits.head_bytes.max(SMALLEST_BUFFER);
        // The time for a head is watched below, from the connection's start and with what opens it.
        builder.max_header_size(limits.head_bytes).max_buf_size(buffer).header_read_timeout(None);
        let io = TokioIo::new(Watched::new(io, Arc::clone(&watch), limits.stall));
        let mut serving = pin!(builder.serve_connection(io, service));
        let served = tokio::select! {
            biased;
            served = serving.as_mut() => served,
            () = stop_of(&mut stopped) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended with an error");
        }
    };
    tokio::select! {
        biased;
        () = http => {}
        () = closed_while_waiting(&watch, limits.head, closing) => {}
    }
}

/// Ends when a connection that waits for a head is to be closed: it waited for too long, its room
/// is needed, or the server stops.
async fn closed_while_waiting(watch: &Watch, limit: Duration, mut stopped: watch::Receiver<bool>) {
    let asked = async {
        loop {
            tokio::select! {
                () = watch.make_room.notified() => {}
                () = stop_of(&mut stopped) => break,
            }
            if watch.waiting_since().is_some() {
                return;
            }
        }
        // An answer that is open at the stop is finished; the connection ends by itself after it.
        if watch.waiting_since().is_none() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = watch.silent_for(limit) => tracing::debug!("a connection sent no request head in time"),
        () = asked => {}
    }
}

/// Ends when the server stops.
async fn stop_of(stopped: &mut watch::Receiver<bool>) {
    // The sender outlives the connections; without it the server is gone as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
