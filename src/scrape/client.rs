//! Reads one Pod: one GET over a connection that is kept from round to round.
//!
//! It owns its connections, so that which bytes arrived on which one decides what may be tried
//! again. It collects no body, adds no header beyond the contract's, and knows no limit of a round.

use super::connector::{self, BoxedStream, Connect, host_and_port};
use super::{Cause, Reading, Unreadable};
use crate::clock::Clock;
use crate::exposition::{self, Names, Reader};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::error::Error as _;
use std::io;
use std::iter::successors;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;

/// What a connection buffers at most, and so the longest head that is read. Larger buffers read no
/// faster, and there is one per Pod.
const BUFFER_BYTES: usize = 64 * 1024;

/// Engines rename their series for any other value (contract, section 4).
const ACCEPTED: HeaderValue = HeaderValue::from_static("text/plain;version=0.0.4");

const AGENT: HeaderValue = HeaderValue::from_static(concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")));

/// How far a read has come. It outlives the read, which may be cut off at any point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// Bytes of the body so far.
    pub(super) body_bytes: u64,
}

/// The part of a read that it is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no connection yet.
    #[default]
    Connecting,
    /// The request is sent and its answer has not begun.
    Waiting,
    /// The body is arriving.
    Body,
}

/// An open HTTP connection to a Pod. Dropping it closes it.
pub(super) struct Connection {
    origin: Origin,
    sender: SendRequest<Empty<Bytes>>,
    /// Set when a byte arrives; cleared before each request.
    heard: Arc<AtomicBool>,
    driver: Driver,
}

/// The task that moves a connection's bytes; it ends with the connection.
struct Driver(JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What must be equal for a connection to serve a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &Uri) -> Option<Origin> {
        let (host, port) = host_and_port(url)?;
        Some(Origin { https: url.scheme_str() == Some("https"), host: host.to_ascii_lowercase(), port })
    }
}

/// What all reads share.
pub(super) struct Client {
    pub(super) connector: Arc<dyn Connect>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) max_body_bytes: u64,
}

impl Client {
    /// Reads a Pod's metrics. `kept` holds its connection of an earlier round, and afterwards the
    /// one that can be used again: none but after a whole answer.
    pub(super) async fn read(
        &self,
        endpoint: &Uri,
        names: &Names,
        kept: &mut Option<Connection>,
        progress: &mut Progress,
    ) -> Result<Reading, Unreadable> {
        let origin = Origin::of(endpoint);
        let mut connection = kept.take().filter(|connection| Some(&connection.origin) == origin.as_ref());
        let mut target = endpoint.clone();
        let mut redirected = false;
        let (answer, connection) = loop {
            let (answer, used) = self.exchange(&target, connection, progress).await?;
            if !is_redirect(answer.status()) {
                break (answer, used);
            }
            if redirected {
                return Err(unreadable(Cause::Redirect, "the Pod answered a redirect with another redirect"));
            }
            redirected = true;
            target = redirection(&target, answer.headers())?;
            // A redirect with a body is rare and not worth reading to its end.
            connection = answer.body().is_end_stream().then_some(used);
        };
        let (at, observed) = (self.clock.now(), self.clock.wall());
        progress.stage = Stage::Body;
        let (head, body) = answer.into_parts();
        if head.status != StatusCode::OK {
            return Err(unreadable(Cause::Status, format!("the Pod answered with status {}", head.status)));
        }
        if head.headers.get_all(CONTENT_ENCODING).iter().any(|value| !is_identity(value)) {
            return Err(unreadable(
                Cause::NotExposition,
                "the answer has a Content-Encoding although the request accepts none",
            ));
        }
        let samples = self.body(body, names, &mut progress.body_bytes).await?;
        *kept = Some(connection);
        Ok(Reading { at, observed, samples })
    }

    async fn body(&self, mut body: Incoming, names: &Names, read: &mut u64) -> Result<exposition::Samples, Unreadable> {
        let limit = self.max_body_bytes;
        let too_large =
            || unreadable(Cause::TooLarge, format!("the answer's body is larger than MAX_BODY_BYTES ({limit} bytes)"));
        if body.size_hint().lower() > limit {
            return Err(too_large());
        }
        let mut reader = Reader::new(names);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| cut_short(&error))?;
            let Ok(chunk) = frame.into_data() else { continue };
            *read += chunk.len() as u64;
            if *read > limit {
                return Err(too_large());
            }
            reader.push(&chunk).map_err(|error| not_read(&error))?;
        }
        reader.finish().map_err(|error| not_read(&error))
    }

    /// Sends one request and waits for its answer's head. On a kept connection that closes before any
    /// byte of the answer the request goes out once more, on a new one: engines close idle
    /// connections whenever they like.
    async fn exchange(
        &self,
        url: &Uri,
        kept: Option<Connection>,
        progress: &mut Progress,
    ) -> Result<(Response<Incoming>, Connection), Unreadable> {
        progress.stage = Stage::Connecting;
        if let Some(mut connection) = kept
            && connection.sender.ready().await.is_ok()
        {
            progress.stage = Stage::Waiting;
            match connection.request(url).await {
                Ok(answer) => return Ok((answer, connection)),
                Err(error) if connection.heard.load(Ordering::Relaxed) => {
                    return Err(no_answer(&error, connection).await);
                }
                Err(_) => progress.stage = Stage::Connecting,
            }
        }
        let stream = self.connector.connect(url).await.map_err(|error| unreadable(error.cause(), error.to_string()))?;
        let mut connection = Connection::open(url, stream).await?;
        progress.stage = Stage::Waiting;
        match connection.request(url).await {
            Ok(answer) => Ok((answer, connection)),
            Err(error) => Err(no_answer(&error, connection).await),
        }
    }
}

impl Connection {
    async fn open(url: &Uri, stream: BoxedStream) -> Result<Connection, Unreadable> {
        let origin = Origin::of(url).ok_or_else(|| no_url(&connector::Error::Url))?;
        let heard = Arc::new(AtomicBool::new(false));
        let stream = Heard { stream, heard: Arc::clone(&heard) };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .title_case_headers(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| unreadable(Cause::Other, "no HTTP connection could be set up"))?;
        Ok(Connection { origin, sender, heard, driver: Driver(tokio::spawn(connection)) })
    }

    async fn request(&mut self, url: &Uri) -> hyper::Result<Response<Incoming>> {
        self.heard.store(false, Ordering::Relaxed);
        let mut request = Request::new(Empty::new());
        let path = url.path_and_query().cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from(path);
        let headers = request.headers_mut();
        headers.insert(HOST, host_header(url));
        headers.insert(ACCEPT, ACCEPTED);
        headers.insert(USER_AGENT, AGENT);
        self.sender.send_request(request).await
    }
}

/// The URL's authority without user information, which no Pod is sent.
fn host_header(url: &Uri) -> HeaderValue {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static(""))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn is_identity(encoding: &HeaderValue) -> bool {
    encoding.to_str().is_ok_and(|text| {
        text.split(',').map(str::trim).all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case("identity"))
    })
}

/// Where a redirect leads, if that is the same scheme, host and port.
fn redirection(from: &Uri, headers: &HeaderMap) -> Result<Uri, Unreadable> {
    let location = headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .ok_or_else(|| unreadable(Cause::Redirect, "the Pod answered with a redirect that names no target"))?;
    let to = resolve(from, location)
        .ok_or_else(|| unreadable(Cause::Redirect, "the Pod answered with a redirect whose target is no URL"))?;
    if Origin::of(&to).is_none_or(|origin| Some(origin) != Origin::of(from)) {
        return Err(unreadable(
            Cause::Redirect,
            "the Pod answered with a redirect to another scheme, host or port, which is not followed",
        ));
    }
    Ok(to)
}

/// Resolves a reference against an http URL (RFC 3986, section 5.2).
fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default().trim();
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let has_scheme = path.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    if has_scheme {
        return reference.parse().ok();
    }
    let scheme = base.scheme_str()?;
    if reference.starts_with("//") {
        return format!("{scheme}:{reference}").parse().ok();
    }
    let path_and_query = if path.is_empty() {
        match query.or(base.query()) {
            Some(query) => format!("{}?{query}", base.path()),
            None => base.path().to_owned(),
        }
    } else {
        let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        let full = if path.starts_with('/') { path.to_owned() } else { format!("{directory}/{path}") };
        let full = without_dots(&full);
        query.map_or_else(|| full.clone(), |query| format!("{full}?{query}"))
    };
    Uri::builder().scheme(scheme).authority(base.authority()?.clone()).path_and_query(path_and_query).build().ok()
}

/// An absolute path without its `.` and `..` segments.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    // A dot segment at the end names a directory.
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

fn unreadable(cause: Cause, reason: impl Into<String>) -> Unreadable {
    Unreadable { cause, reason: reason.into() }
}

fn no_url(error: &connector::Error) -> Unreadable {
    unreadable(error.cause(), error.to_string())
}

fn not_read(error: &exposition::Error) -> Unreadable {
    let cause = match error {
        exposition::Error::Truncated { .. } => Cause::Truncated,
        _ => Cause::NotExposition,
    };
    unreadable(cause, error.to_string())
}

/// The system's or the connector's error under one of hyper's.
fn io_error(error: &hyper::Error) -> Option<&io::Error> {
    successors(error.source(), |error: &&(dyn std::error::Error + 'static)| (*error).source())
        .find_map(|error| error.downcast_ref())
}

fn connector_error(error: &io::Error) -> Option<&connector::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Why a request has no answer.
async fn no_answer(error: &hyper::Error, mut connection: Connection) -> Unreadable {
    // The connection may have failed before it took the request up; then only its task knows why.
    let earlier = match io_error(error) {
        None if error.is_canceled() || error.is_closed() => (&mut connection.driver.0).await.ok().and_then(Result::err),
        _ => None,
    };
    let error = earlier.as_ref().unwrap_or(error);
    if error.is_parse_too_large() {
        let kib = BUFFER_BYTES / 1024;
        return unreadable(Cause::Other, format!("the answer's head is larger than {kib} KiB or has too many headers"));
    }
    if error.is_parse() {
        return unreadable(
            Cause::Other,
            "the Pod's answer is not HTTP/1.1 (is the port, or the scheme of its metrics URL, the right one?)",
        );
    }
    let meaning = match io_error(error) {
        Some(error) => connector_error(error).cloned().unwrap_or_else(|| connector::Error::from_io(error)),
        None => connector::Error::Reset,
    };
    unreadable(meaning.cause(), meaning.to_string())
}

/// Why a body has no end.
fn cut_short(error: &hyper::Error) -> Unreadable {
    let io = io_error(error);
    if let Some(meaning) = io.and_then(connector_error) {
        return unreadable(meaning.cause(), meaning.to_string());
    }
    if io.is_some_and(|e| matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)) {
        return unreadable(Cause::Other, "the answer's body is not framed as its head says");
    }
    unreadable(Cause::Truncated, "the Pod closed the connection before the answer's body was whole")
}

/// A stream that notes that a byte arrived.
struct Heard {
    stream: BoxedStream,
    heard: Arc<AtomicBool>,
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if buf.filled().len() > before {
            self.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_the_rfc_says() {
        let base: Uri = "http://pod:8000/a/metrics?x=1".parse().unwrap();
        let cases = [
            ("http://pod:8000/b", "http://pod:8000/b"),
            ("HTTP://pod:8000/b", "http://pod:8000/b"),
            ("https://other/b?c#d", "https://other/b?c"),
            ("//other:1/b", "http://other:1/b"),
            ("/metrics/", "http://pod:8000/metrics/"),
            ("/metrics/?y=2#z", "http://pod:8000/metrics/?y=2"),
            ("metrics/", "http://pod:8000/a/metrics/"),
            ("./b", "http://pod:8000/a/b"),
            ("../b", "http://pod:8000/b"),
            ("../../../b", "http://pod:8000/b"),
            ("..", "http://pod:8000/"),
            (".", "http://pod:8000/a/"),
            ("?y=2", "http://pod:8000/a/metrics?y=2"),
            ("", "http://pod:8000/a/metrics?x=1"),
            ("#z", "http://pod:8000/a/metrics?x=1"),
            ("b:c/d", "no URL"),
            ("/b:c", "http://pod:8000/b:c"),
            ("/a b", "no URL"),
            ("http://", "no URL"),
        ];
        for (reference, expected) in cases {
            let resolved = resolve(&base, reference).map_or("no URL".to_owned(), |uri| uri.to_string());
            assert_eq!(resolved, expected, "{reference:?}");
        }
    }

    #[test]
    fn an_origin_knows_default_ports_and_ignores_case() {
        let origin = |url: &str| Origin::of(&url.parse().unwrap());
        assert_eq!(origin("http://Pod/a"), origin("http://pod:80/b"));
        assert_eq!(origin("https://pod/a"), origin("https://pod:443/b"));
        assert_ne!(origin("http://pod:443/a"), origin("https://pod:443/a"));
        assert_eq!(origin("http://[::1]:9/a").map(|o| o.host), Some("::1".to_owned()));
        assert_eq!(origin("ftp://pod/a"), None);
    }

    #[test]
    fn user_information_is_not_sent() {
        let host = |url: &str| host_header(&url.parse().unwrap());
        assert_eq!(host("http://user:secret@pod:8000/metrics"), "pod:8000");
        assert_eq!(host("http://[::1]:8000/metrics"), "[::1]:8000");
        assert_eq!(host("http://pod/metrics"), "pod");
    }
}
