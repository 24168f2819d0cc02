//! What integration tests share: servers that answer byte for byte what a script says (and so can
//! lie, hang and break off), a network in memory for virtual time, and a builder of deployments.
//!
//! Real servers listen on 127.0.0.1 only, on a port that the system picks.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use modeldeployment_exporter::arguments::Arguments;
use modeldeployment_exporter::catalogue::{Catalogue, SoftwareKind};
use modeldeployment_exporter::config::ScrapeLimits;
use modeldeployment_exporter::deployment::{Deployment, Member, Pod, Role, RoleKind, Router};
use modeldeployment_exporter::scrape::connector::{Connect, Connecting, Error};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::{TlsAcceptor, rustls, server};

/// A small exposition that every engine of the catalogue may serve.
pub const BODY: &str = "# HELP vllm:num_requests_running Number of requests in model execution batches.\n\
    # TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n";

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The connection it came on, from 0.
    pub connection: usize,
    /// Its number on that connection, from 0.
    pub number: usize,
    /// Its head, as it was received.
    pub head: String,
}

impl Request {
    /// The path and query of the request line.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

/// One thing a server does after a request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends the same bytes again and again, with a pause after each, until the client leaves.
    Drip(Vec<u8>, Duration),
    /// Waits for a permit of this gate.
    Gate(Arc<Semaphore>),
    /// Does nothing until the client leaves.
    Hang,
    /// Closes the connection.
    Close,
    /// Resets the connection (RST instead of FIN).
    Reset,
}

/// Sends this text.
pub fn send(text: impl Into<String>) -> Step {
    Step::Send(text.into().into_bytes())
}

/// A whole answer with status 200, these further header lines (each ended by `\r\n`) and this body.
pub fn ok_with(headers: &str, body: &str) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))]
}

/// A whole answer with status 200 and this body.
pub fn ok(body: &str) -> Vec<Step> {
    ok_with("Content-Type: text/plain; version=0.0.4\r\n", body)
}

/// What a server does after each request. After the last step it waits for the next one.
pub type Script = Arc<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// What a server has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub connections: usize,
    /// Connections that are over.
    pub ended: usize,
    /// Requests received.
    pub requests: usize,
    /// Requests whose last step has not begun.
    pub in_flight: usize,
    /// The most there have been of them.
    pub most_in_flight: usize,
}

struct State {
    script: Script,
    stats: watch::Sender<Stats>,
    requests: Mutex<Vec<Request>>,
}

impl State {
    fn new(script: Script) -> Arc<State> {
        Arc::new(State { script, stats: watch::Sender::default(), requests: Mutex::default() })
    }

    /// Counts a connection and serves it to its end.
    async fn serve<P: Peer>(self: Arc<State>, stream: P) {
        let mut connection = 0;
        self.stats.send_modify(|stats| {
            connection = stats.connections;
            stats.connections += 1;
        });
        self.talk(connection, stream).await;
        self.stats.send_modify(|stats| stats.ended += 1);
    }

    async fn talk<P: Peer>(&self, connection: usize, mut stream: P) {
        for number in 0.. {
            let Some(head) = read_head(&mut stream).await else { return };
            let request = Request { connection, number, head };
            self.requests.lock().unwrap().push(request.clone());
            self.stats.send_modify(|stats| {
                stats.requests += 1;
                stats.in_flight += 1;
                stats.most_in_flight = stats.most_in_flight.max(stats.in_flight);
            });
            let steps = (self.script)(&request);
            let last = steps.len().saturating_sub(1);
            for (index, step) in steps.into_iter().enumerate() {
                if index == last {
                    self.stats.send_modify(|stats| stats.in_flight -= 1);
                }
                let goes_on = match step {
                    Step::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
                    Step::Drip(bytes, pause) => {
                        while stream.write_all(&bytes).await.is_ok() {
                            tokio::time::sleep(pause).await;
                        }
                        false
                    }
                    Step::Gate(gate) => {
                        gate.acquire().await.unwrap().forget();
                        true
                    }
                    Step::Hang => {
                        while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {}
                        false
                    }
                    Step::Close => {
                        let _ = stream.shutdown().await;
                        false
                    }
                    Step::Reset => {
                        stream.reset();
                        false
                    }
                };
                if !goes_on {
                    return;
                }
            }
        }
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// A server's end of a connection.
trait Peer: AsyncRead + AsyncWrite + Send + Unpin {
    fn reset(&mut self);
}

impl Peer for TcpStream {
    fn reset(&mut self) {
        self.set_zero_linger().unwrap();
    }
}

impl Peer for server::TlsStream<TcpStream> {
    fn reset(&mut self) {
        self.get_ref().0.set_zero_linger().unwrap();
    }
}

impl Peer for DuplexStream {
    fn reset(&mut self) {}
}

/// A scripted server on a real socket; it ends when it is dropped.
pub struct Server {
    state: Arc<State>,
    port: u16,
    scheme: &'static str,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    /// Serves plain HTTP.
    pub async fn http(script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Server {
        Server::start(script, "http", |state, stream| async move { state.serve(stream).await }).await
    }

    /// Serves HTTPS.
    pub async fn https(
        config: rustls::ServerConfig,
        script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Server::start(script, "https", move |state, stream| {
            let acceptor = acceptor.clone();
            async move {
                // A failed handshake is the client's to report.
                if let Ok(stream) = acceptor.accept(stream).await {
                    state.serve(stream).await;
                }
            }
        })
        .await
    }

    async fn start<F: Future<Output = ()> + Send + 'static>(
        script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
        scheme: &'static str,
        serve: impl Fn(Arc<State>, TcpStream) -> F + Send + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State::new(Arc::new(script));
        let serving = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(Arc::clone(&serving), stream));
            }
        });
        Server { state, port, scheme, accepting }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of its metrics.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}/metrics", self.scheme, self.port)
    }

    /// What it has seen so far.
    pub fn stats(&self) -> Stats {
        *self.state.stats.borrow()
    }

    /// The requests it has received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Waits until what it has seen fits.
    pub async fn until(&self, fits: impl Fn(&Stats) -> bool) -> Stats {
        let mut stats = self.state.stats.subscribe();
        let seen = tokio::time::timeout(Duration::from_secs(20), stats.wait_for(|stats| fits(stats)));
        match seen.await {
            Ok(seen) => *seen.unwrap(),
            Err(_) => panic!("the server has only seen {:?}", self.stats()),
        }
    }
}

/// What a host of a [`Memory`] network does.
#[derive(Clone)]
enum Host {
    Serves(Arc<State>),
    NeverConnects,
    Panics,
}

/// A network in memory: no sockets, so that virtual time decides every timeout.
#[derive(Default)]
pub struct Memory {
    hosts: HashMap<String, Host>,
}

impl Memory {
    /// Adds a host that serves a script.
    pub fn host(mut self, name: &str, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Memory {
        self.hosts.insert(name.to_owned(), Host::Serves(State::new(Arc::new(script))));
        self
    }

    /// Adds a host to which no connection is ever made.
    pub fn black_hole(mut self, name: &str) -> Memory {
        self.hosts.insert(name.to_owned(), Host::NeverConnects);
        self
    }

    /// Adds a host to which connecting panics.
    pub fn panicking(mut self, name: &str) -> Memory {
        self.hosts.insert(name.to_owned(), Host::Panics);
        self
    }
}

impl Connect for Memory {
    fn connect<'a>(&'a self, url: &'a http::Uri) -> Connecting<'a> {
        Box::pin(async move {
            match url.host().and_then(|host| self.hosts.get(host)) {
                None => Err(Error::Refused),
                Some(Host::NeverConnects) => std::future::pending().await,
                Some(Host::Panics) => panic!("a test's panic: the round must go on"),
                Some(Host::Serves(state)) => {
                    let (client, server) = tokio::io::duplex(64 * 1024);
                    tokio::spawn(Arc::clone(state).serve(server));
                    Ok(Box::new(client) as _)
                }
            }
        })
    }
}

/// Limits under which a healthy Pod on loopback is never late.
pub fn limits() -> ScrapeLimits {
    ScrapeLimits {
        interval: Duration::from_secs(15),
        timeout: Duration::from_secs(30),
        round_timeout: Duration::from_secs(60),
        concurrency: 32,
        max_pods: 64,
        max_body_bytes: 1024 * 1024,
    }
}

/// Builds a [`Deployment`] the way discovery does.
#[derive(Debug, Clone)]
pub struct Builder {
    engine: String,
    pool: bool,
    router: Option<(String, u64)>,
    roles: Vec<Role>,
    pods: Vec<Planned>,
}

/// A Pod that is to be built: its name, role (else the router's), URL or why it has none, and arguments.
type Planned = (String, Option<String>, Result<String, String>, Vec<String>);

/// A deployment `chat` in the namespace `team` with the engine vLLM and nothing else yet.
pub fn deployment() -> Builder {
    Builder { engine: "vLLM".to_owned(), pool: false, router: None, roles: Vec::new(), pods: Vec::new() }
}

impl Builder {
    /// Another engine.
    pub fn engine(mut self, name: &str) -> Builder {
        self.engine = name.to_owned();
        self
    }

    /// Attaches a KV cache pool.
    pub fn pool(mut self) -> Builder {
        self.pool = true;
        self
    }

    /// Adds the router and the number of its Pods that are expected.
    pub fn router(mut self, name: &str, replicas: u64) -> Builder {
        self.router = Some((name.to_owned(), replicas));
        self
    }

    /// Adds a role and the number of its Pods that are expected.
    pub fn role(mut self, name: &str, kind: RoleKind, expected: u64) -> Builder {
        self.roles.push(Role { name: name.to_owned(), kind, expected, managed: true });
        self
    }

    /// Adds a Pod of a role.
    pub fn pod(self, name: &str, role: &str, url: &str) -> Builder {
        self.pod_with(name, Some(role), Ok(url), &[])
    }

    /// Adds a Pod of the router.
    pub fn router_pod(self, name: &str, url: &str) -> Builder {
        self.pod_with(name, None, Ok(url), &[])
    }

    /// Adds a Pod of a role, or else of the router, with its URL or why it has none, and its arguments.
    pub fn pod_with(mut self, name: &str, role: Option<&str>, url: Result<&str, &str>, args: &[&str]) -> Builder {
        let url = url.map(str::to_owned).map_err(str::to_owned);
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.pods.push((name.to_owned(), role.map(str::to_owned), url, args));
        self
    }

    /// The deployment, its Pods in reading order.
    pub fn build(self) -> Arc<Deployment> {
        let catalogue = Catalogue::embedded().unwrap();
        let (engine, engine_name) = catalogue.find(SoftwareKind::Engine, &self.engine).unwrap();
        let router = self.router.map(|(name, replicas)| {
            let (software, name) = catalogue.find(SoftwareKind::Router, &name).unwrap();
            Router { software: Arc::clone(software), name: name.to_owned(), replicas }
        });
        let mut pods: Vec<Pod> = Vec::new();
        for (name, role, url, args) in self.pods {
            let (member, software) = match &role {
                None => (Member::Router, router.as_ref().map(|router| &router.software)),
                Some(role) => (Member::Role(self.roles.iter().position(|r| r.name == *role).unwrap()), Some(engine)),
            };
            let specs = software.map_or(&[][..], |software| software.arguments.as_slice());
            let uid = url.as_ref().map_or_else(|_| name.clone(), |url| format!("{name} {url}"));
            let arguments = Arguments::read(&args, specs);
            pods.push(Pod {
                uid,
                name,
                member,
                endpoint: url.map(|url| url.parse().unwrap()),
                arguments,
                started: None,
            });
        }
        pods.sort_by(|a, b| (a.member, &a.name).cmp(&(b.member, &b.name)));
        Arc::new(Deployment {
            namespace: "team".to_owned(),
            name: "chat".to_owned(),
            engine: Arc::clone(engine),
            engine_name: engine_name.to_owned(),
            pool: self.pool,
            router,
            roles: self.roles,
            pods: pods.into_iter().map(Arc::new).collect(),
        })
    }
}
