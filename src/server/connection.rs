//! What the server knows of one open connection, and the wrapper that learns it from its reads
//! and writes.
//!
//! A connection waits for a request's head or answers one. Only a waiting one is closed to make
//! room or for its silence; only an answering one for not reading.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// No complete head since then: the start or the last answer.
    Waiting { since: Instant },
    /// A head has arrived; `wrote` once a part of its answer was given to the socket.
    Answering { wrote: bool },
}

/// The phase of one connection, shared by its task and by who makes room.
#[derive(Debug)]
pub struct Watch {
    phase: Mutex<Phase>,
    /// Asks the connection to close if it waits.
    pub make_room: Notify,
    /// Told when the connection begins to wait.
    idle: Arc<Notify>,
}

impl Watch {
    /// A connection that starts now; `idle` is told whenever it has finished an answer.
    pub fn new(idle: Arc<Notify>) -> Watch {
        Watch { phase: Mutex::new(Phase::Waiting { since: Instant::now() }), make_room: Notify::new(), idle }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when no complete head has arrived; none while a request is answered.
    pub fn waiting_since(&self) -> Option<Instant> {
        match *self.phase() {
            Phase::Waiting { since } => Some(since),
            Phase::Answering { .. } => None,
        }
    }

    /// A complete head has arrived.
    pub fn head(&self) {
        *self.phase() = Phase::Answering { wrote: false };
    }

    fn write(&self) {
        let mut phase = self.phase();
        if matches!(*phase, Phase::Answering { .. }) {
            *phase = Phase::Answering { wrote: true };
        }
    }

    fn flushed(&self) {
        let mut phase = self.phase();
        if matches!(*phase, Phase::Answering { wrote: true }) {
            *phase = Phase::Waiting { since: Instant::now() };
            self.idle.notify_one();
        }
    }

    /// Ends when the connection has waited this long for a head.
    pub async fn silent_for(&self, limit: Duration) {
        loop {
            match self.waiting_since() {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => sleep_until(since + limit).await,
                // Whatever it waits for then began later than now.
                None => sleep(limit).await,
            }
        }
    }
}

/// A connection that reports its answers and fails when the peer does not take them.
#[derive(Debug)]
pub struct Watched<Io> {
    io: Io,
    watch: Arc<Watch>,
    stall: Duration,
    /// Runs while a write waits for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<Io> Watched<Io> {
    /// Fails a write that makes no progress for `stall`.
    pub fn new(io: Io, watch: Arc<Watch>, stall: Duration) -> Watched<Io> {
        Watched { io, watch, stall, stalled: None }
    }

    /// Ends the wait of a write that made progress, and fails one that waits for too long.
    fn progress<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.stall)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Watched<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.watch.write();
        let poll = Pin::new(&mut self.io).poll_write(cx, buf);
        self.progress(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.watch.write();
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.progress(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        if matches!(poll, Poll::Ready(Ok(()))) {
            self.watch.flushed();
        }
        self.progress(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.progress(cx, poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    fn watch() -> Arc<Watch> {
        Arc::new(Watch::new(Arc::new(Notify::new())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_from_its_start_and_from_its_last_answer() {
        let watch = watch();
        let start = Instant::now();
        let (io, _peer) = tokio::io::duplex(64);
        let mut io = Watched::new(io, Arc::clone(&watch), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(watch.waiting_since(), Some(start));
        watch.head();
        assert_eq!(watch.waiting_since(), None);
        io.flush().await.unwrap();
        assert_eq!(watch.waiting_since(), None, "nothing was answered yet");
        io.write_all(b"answer").await.unwrap();
        assert_eq!(watch.waiting_since(), None);
        io.flush().await.unwrap();
        assert_eq!(watch.waiting_since(), Some(start + Duration::from_secs(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_at_the_limit() {
        let watch = watch();
        let start = Instant::now();
        watch.silent_for(Duration::from_secs(90)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_progress_fails() {
        let (io, _peer) = tokio::io::duplex(4);
        let mut io = Watched::new(io, watch(), Duration::from_secs(10));
        io.write_all(b"full").await.unwrap();
        let start = Instant::now();
        assert_eq!(io.write(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_cut() {
        let (io, mut peer) = tokio::io::duplex(4);
        let mut io = Watched::new(io, watch(), Duration::from_secs(10));
        let reader = tokio::spawn(async move {
            let mut read = 0;
            while read < 16 {
                sleep(Duration::from_secs(9)).await;
                read += tokio::io::AsyncReadExt::read(&mut peer, &mut [0; 4]).await.unwrap();
            }
        });
        io.write_all(b"sixteen bytes ok").await.unwrap();
        reader.await.unwrap();
    }
}
