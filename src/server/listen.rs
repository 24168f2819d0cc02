//! Where connections come from: the server does not care who listens.
//!
//! A listener only accepts; what a connection needs before HTTP starts (a TLS handshake) is the
//! future that comes with it and runs inside the connection's own limits.

use socket2::SockRef;
use std::future::{Ready, ready};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// A source of connections.
pub trait Listener: Send + 'static {
    /// The connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// What comes before HTTP.
    type Opening: Future<Output = io::Result<Self::Io>> + Send + 'static;

    /// Waits for the next connection. Dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The connection could not be accepted; a later one may be.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Opening>> + Send;
}

/// Plain TCP.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    stall: Duration,
}

impl Tcp {
    /// Connections of a bound listener whose peers take what is sent within `stall`.
    pub fn new(listener: TcpListener, stall: Duration) -> Tcp {
        Tcp { listener, stall }
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        // Answers leave in one write; waiting for more would only delay them.
        stream.set_nodelay(true)?;
        // An answer that fits the kernel's buffer is written at once; only the kernel can tell
        // that the peer does not take it.
        SockRef::from(stream).set_tcp_user_timeout(Some(self.stall))
    }
}

impl Listener for Tcp {
    type Io = TcpStream;
    type Opening = Ready<io::Result<TcpStream>>;

    async fn accept(&mut self) -> io::Result<Self::Opening> {
        let (stream, _) = self.listener.accept().await?;
        if let Err(error) = self.prepare(&stream) {
            // Of a peer that is gone already; serving it shows that too.
            tracing::debug!(%error, "a connection's options were not set");
        }
        Ok(ready(Ok(stream)))
    }
}
