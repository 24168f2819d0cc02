//! Gives every Pod of a fleet a listener on loopback that answers, refuses or hangs as the Pod does.
//!
//! It never listens on anything but 127.0.0.1 and decides nothing: the fleet says what to answer.

use super::fleet::{Answer, Fleet};
use super::{Error, TICK};
use crate::clock::Clock;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

/// Engines close a kept connection on which nothing comes for this long (uvicorn's default).
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The listeners of a fleet; dropping it ends them with every open connection.
#[derive(Debug)]
pub struct Servers {
    /// Where each Pod's metrics are, in the order of the scenario's Pods.
    pub urls: Vec<String>,
    tasks: JoinSet<()>,
}

impl Servers {
    /// Ends the listeners and waits until they are gone.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Starts a listener on loopback for every Pod of a fleet, with the time of this clock.
pub async fn serve_fleet(fleet: Arc<Mutex<Fleet>>, clock: Arc<dyn Clock>) -> Result<Servers, Error> {
    let pods = lock(&fleet).pods();
    let mut servers = Servers { urls: Vec::with_capacity(pods), tasks: JoinSet::new() };
    for pod in 0..pods {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        servers.urls.push(format!("http://{address}/metrics"));
        let simulated = Simulated { fleet: Arc::clone(&fleet), clock: Arc::clone(&clock), pod };
        servers.tasks.spawn(serve(simulated, listener, address));
    }
    Ok(servers)
}

/// One Pod of the fleet.
#[derive(Clone)]
struct Simulated {
    fleet: Arc<Mutex<Fleet>>,
    clock: Arc<dyn Clock>,
    pod: usize,
}

fn lock(fleet: &Mutex<Fleet>) -> std::sync::MutexGuard<'_, Fleet> {
    fleet.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulated {
    /// The clock is read under the lock, so that the fleet is never asked for an earlier time.
    fn is_up(&self) -> bool {
        let mut fleet = lock(&self.fleet);
        let now = self.clock.now();
        fleet.is_up(self.pod, now)
    }

    fn answer(&self) -> (Answer, &'static str) {
        let mut fleet = lock(&self.fleet);
        let now = self.clock.now();
        (fleet.answer(self.pod, now), fleet.content_type(self.pod))
    }
}

/// A listener whose port can be taken again at once after it was closed.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

/// Serves a Pod: while it is dead its port is closed, and its connections are gone.
async fn serve(pod: Simulated, first: TcpListener, address: SocketAddr) {
    let mut listener = Some(first);
    let mut connections = JoinSet::new();
    let keep_alive = if lock(&pod.fleet).is_engine(pod.pod) { Some(ENGINE_KEEP_ALIVE) } else { None };
    loop {
        match (&listener, pod.is_up()) {
            (Some(_), false) => {
                listener = None;
                connections.shutdown().await;
            }
            // The port may be somebody's for a moment; the next tick tries again.
            (None, true) => listener = listen(address).ok(),
            _ => {}
        }
        while connections.try_join_next().is_some() {}
        let Some(open) = &listener else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let Ok(Ok((stream, _))) = tokio::time::timeout(TICK, open.accept()).await else { continue };
        let pod = pod.clone();
        connections.spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(keep_alive);
            let service = service_fn(|request| answer(pod.clone(), request));
            // A client that goes away is no news here.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(pod: Simulated, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let (answer, content_type) = pod.answer();
    match answer {
        Answer::Exposition(body) => {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            *response.body_mut() = Full::from(body);
        }
        // A Pod that has just died says nothing more; its connections are closed by the next tick.
        Answer::Refuse | Answer::Hang => std::future::pending().await,
    }
    Ok(response)
}
