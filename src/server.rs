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

use crate::state::State;
use connection::{Watch, Watched};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use routes::Routes;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::ErrorKind;
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
            // The peer left before it was accepted: nothing to wait for.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::state::Times;
    use std::future::{Ready, ready};
    use std::io;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    /// Connections in memory, so that the contract's own limits run in virtual time.
    struct Memory(mpsc::Receiver<DuplexStream>);

    impl Listener for Memory {
        type Io = DuplexStream;
        type Opening = Ready<io::Result<DuplexStream>>;

        async fn accept(&mut self) -> io::Result<Self::Opening> {
            match self.0.recv().await {
                Some(stream) => Ok(ready(Ok(stream))),
                None => std::future::pending().await,
            }
        }
    }

    struct Running {
        connections: mpsc::Sender<DuplexStream>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<()>,
    }

    fn start() -> Running {
        // No round begins here, and `/healthz` stays well.
        let hour = Duration::from_secs(3600);
        let times = Times { interval: hour, round_timeout: hour };
        let state = State::new(Arc::new(SystemClock::start()), times);
        let (connections, accepted) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(Arc::new(state), Limits::default());
        let task = tokio::spawn(server.serve(Memory(accepted), async {
            let _ = stopped.await;
        }));
        Running { connections, stop, task }
    }

    impl Running {
        /// A connection that holds this many bytes which the client has not read.
        async fn connect(&self, holds: usize) -> DuplexStream {
            let (client, server) = duplex(holds);
            self.connections.send(server).await.unwrap();
            client
        }
    }

    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

    async fn answered(client: &mut DuplexStream) -> bool {
        client.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            let Ok(byte) = client.read_u8().await else { return false };
            answer.push(byte);
        }
        answer.starts_with(b"HTTP/1.1 200 ")
    }

    /// How long it takes until the server closes a connection.
    async fn closed_after(client: &mut DuplexStream) -> Duration {
        let start = Instant::now();
        client.read_to_end(&mut Vec::new()).await.unwrap();
        start.elapsed()
    }

    /// Virtual timers have this resolution.
    fn about(found: Duration, seconds: u64) -> bool {
        let expected = Duration::from_secs(seconds);
        found >= expected && found < expected + Duration::from_millis(10)
    }

    #[tokio::test(start_paused = true)]
    async fn ninety_seconds_for_a_head_from_the_start_and_from_the_last_answer() {
        let server = start();
        let mut silent = server.connect(1 << 16).await;
        let found = closed_after(&mut silent).await;
        assert!(about(found, 90), "{found:?}");
        let mut half = server.connect(1 << 16).await;
        half.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        let found = closed_after(&mut half).await;
        assert!(about(found, 90), "{found:?}");
        let mut kept = server.connect(1 << 16).await;
        for _ in 0..3 {
            sleep(Duration::from_secs(80)).await;
            assert!(answered(&mut kept).await);
        }
        let found = closed_after(&mut kept).await;
        assert!(about(found, 90), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn ten_seconds_to_take_an_answer() {
        let server = start();
        let mut client = server.connect(64).await;
        client.write_all(REQUEST).await.unwrap();
        sleep(Duration::from_secs(9)).await;
        assert!(answered(&mut client).await, "it reads in time");
        let mut client = server.connect(64).await;
        client.write_all(REQUEST).await.unwrap();
        sleep(Duration::from_secs(11)).await;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 64, "no more than was held");
    }

    #[tokio::test(start_paused = true)]
    async fn of_512_silent_connections_the_oldest_makes_room() {
        let server = start();
        let mut silent = Vec::new();
        for _ in 0..512 {
            silent.push(server.connect(1 << 16).await);
            sleep(Duration::from_millis(10)).await;
        }
        let start = Instant::now();
        let mut scraper = server.connect(1 << 16).await;
        assert!(answered(&mut scraper).await);
        assert_eq!(closed_after(&mut silent[0]).await, Duration::ZERO);
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(answered(&mut silent[1]).await, "only one had to go");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_within_five_seconds() {
        let server = start();
        let mut idle = server.connect(1 << 16).await;
        assert!(answered(&mut idle).await);
        let mut stuck = server.connect(64).await;
        stuck.write_all(REQUEST).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        server.stop.send(()).unwrap();
        assert_eq!(closed_after(&mut idle).await, Duration::ZERO);
        server.task.await.unwrap();
        assert!(start.elapsed() > Duration::from_secs(4) && start.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_without_open_answers_is_at_once() {
        let server = start();
        let mut half = server.connect(1 << 16).await;
        half.write_all(b"GET /").await.unwrap();
        let start = Instant::now();
        server.stop.send(()).unwrap();
        server.task.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
