//! Opens the byte streams that Pods are read over.
//!
//! The trait is what a simulation replaces; [`Network`] is the real thing: TCP, with TLS where the
//! URL says https. It never uses a proxy, keeps no connection and speaks no HTTP.

use super::Cause;
use super::tls::{self, Tls};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// How much longer each further address of a host waits for the ones before it: the
/// "Connection Attempt Delay" that RFC 8305, section 5, recommends.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// A byte stream to a Pod.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An opened stream, whatever it runs over.
pub type BoxedStream = Box<dyn Stream>;

/// A stream that is being opened.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<BoxedStream, Error>> + Send + 'a>>;

/// Opens byte streams.
pub trait Connect: Send + Sync + 'static {
    /// Opens a stream to the authority of a URL, by the URL's scheme. Dropping the future gives up.
    fn connect<'a>(&'a self, url: &'a http::Uri) -> Connecting<'a>;
}

/// Why there is no stream to a Pod. A TLS stream also fails with it (inside an [`io::Error`]) where
/// TLS reports the failure only on the first read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing listens there.
    #[error("the Pod refuses connections on its metrics port")]
    Refused,
    /// The peer went away while the stream was being opened.
    #[error("the Pod closed the connection before it answered")]
    Reset,
    /// The system gave up waiting for the peer.
    #[error("the Pod did not answer the connection attempt")]
    TimedOut,
    /// The host name has no address; with the resolver's words.
    #[error("the host name of the Pod's metrics URL does not resolve: {0}")]
    Name(String),
    /// The URL names no host, or a scheme other than http and https.
    #[error("the Pod's metrics URL is not an http or https URL with a host")]
    Url,
    /// Any other failure of the network, by its kind.
    #[error("no connection to the Pod's metrics port: {0}")]
    Network(io::ErrorKind),
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

impl Error {
    /// The contract's cause for it.
    pub fn cause(&self) -> Cause {
        match self {
            Error::Refused => Cause::Refused,
            Error::Reset => Cause::Reset,
            Error::TimedOut => Cause::Timeout,
            Error::Tls(_) => Cause::Tls,
            Error::Name(_) | Error::Url | Error::Network(_) => Cause::Other,
        }
    }

    /// The error that a system call's failure stands for.
    pub(super) fn from_io(error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Error::Refused,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => Error::Reset,
            io::ErrorKind::TimedOut => Error::TimedOut,
            kind => Error::Network(kind),
        }
    }

    /// Of the failures of a host's addresses the most telling one is reported, so that the sentence
    /// does not change with the order in which a resolver lists them.
    fn rank(&self) -> u8 {
        match self {
            Error::Tls(_) => 0,
            Error::Reset => 1,
            Error::Refused => 2,
            Error::TimedOut => 3,
            Error::Network(_) => 4,
            Error::Name(_) | Error::Url => 5,
        }
    }
}

/// The host of a URL without an IPv6 literal's brackets, and its port.
pub(super) fn host_and_port(url: &http::Uri) -> Option<(&str, u16)> {
    let default = match url.scheme_str()? {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = url.host().filter(|host| !host.is_empty())?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    Some((bare, url.port_u16().unwrap_or(default)))
}

/// Streams over the machine's network: TCP, and TLS over it for https.
#[derive(Debug, Clone)]
pub struct Network {
    tls: Tls,
}

impl Network {
    /// A connector whose https streams use this trust and identity.
    pub fn new(tls: Tls) -> Network {
        Network { tls }
    }
}

impl Connect for Network {
    fn connect<'a>(&'a self, url: &'a http::Uri) -> Connecting<'a> {
        Box::pin(async move {
            let (host, port) = host_and_port(url).ok_or(Error::Url)?;
            let stream: BoxedStream = Box::new(tcp(host, port).await?);
            if url.scheme() == Some(&http::uri::Scheme::HTTPS) { self.tls.wrap(host, stream).await } else { Ok(stream) }
        })
    }
}

/// The first TCP connection to any of a host's addresses.
async fn tcp(host: &str, port: u16) -> Result<TcpStream, Error> {
    let addresses = tokio::net::lookup_host((host, port)).await.map_err(|e| Error::Name(e.to_string()))?;
    let mut attempts: FuturesUnordered<_> =
        addresses.enumerate().map(|(index, address)| attempt(address, NEXT_ADDRESS_AFTER * index as u32)).collect();
    let mut worst: Option<Error> = None;
    while let Some(outcome) = attempts.next().await {
        match outcome {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let keep = worst.take().filter(|w| w.rank() <= error.rank());
                worst = Some(keep.unwrap_or(error));
            }
        }
    }
    Err(worst.unwrap_or_else(|| Error::Name("it has no address".to_owned())))
}

async fn attempt(address: SocketAddr, delay: Duration) -> Result<TcpStream, Error> {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let stream = TcpStream::connect(address).await.map_err(|e| Error::from_io(&e))?;
    // One small request is waited for at a time: nothing is gained by holding it back.
    stream.set_nodelay(true).map_err(|e| Error::from_io(&e))?;
    Ok(stream)
}
