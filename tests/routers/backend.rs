//! A worker that a router accepts: one that answers like an OpenAI-style engine without being one.
//!
//! What a request gets is in its prompt, so a test asks for the failure it wants. Nothing here is random, and nothing
//! of it is measured: the routers are.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// The model that every worker says it serves.
pub const MODEL: &str = "fake-model";

/// What a worker is to its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Prefill,
    Decode,
}

impl Role {
    /// Its name in a prompt and in SGLang's server information.
    fn name(self) -> &'static str {
        match self {
            Role::Server => "null",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

/// A worker that listens until it is stopped or dropped.
pub struct Backend {
    pub role: Role,
    pub address: SocketAddr,
    cuts: Arc<Semaphore>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Backend {
    /// Listens on this address. A stream that is asked to break off does so when it gets a permit of `cuts`.
    pub async fn start(role: Role, address: SocketAddr, cuts: Arc<Semaphore>) -> Backend {
        let mut backend = Backend { role, address, cuts, running: None };
        backend.resume().await;
        backend
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Listens on the same address again, if it does not.
    pub async fn resume(&mut self) {
        if self.running.is_none() {
            let listener =
                TcpListener::bind(self.address).await.unwrap_or_else(|e| panic!("bind {}: {e}", self.address));
            let (stop, stopped) = oneshot::channel();
            self.running = Some((stop, tokio::spawn(serve(listener, self.role, Arc::clone(&self.cuts), stopped))));
        }
    }

    /// Closes the listener and every connection: from then on connecting is refused.
    pub async fn stop(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            let _ = stop.send(());
            task.await.unwrap();
        }
    }
}

async fn serve(listener: TcpListener, role: Role, cuts: Arc<Semaphore>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        let Ok((stream, _)) = accepted else { continue };
        let cuts = Arc::clone(&cuts);
        let service = hyper::service::service_fn(move |request| {
            let cuts = Arc::clone(&cuts);
            async move { Ok::<_, Infallible>(answer(role, request, &cuts).await) }
        });
        connections.spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
    drop(listener);
    connections.shutdown().await;
}

async fn answer(role: Role, request: Request<Incoming>, cuts: &Arc<Semaphore>) -> Response<Answer> {
    let path = request.uri().path().to_owned();
    if request.method() == Method::POST {
        let Ok(body) = request.into_body().collect().await else { return error(StatusCode::BAD_REQUEST) };
        return generate(role, &path, &body.to_bytes(), cuts);
    }
    let information = json!({
        "model_path": MODEL, "tokenizer_path": MODEL, "served_model_name": MODEL, "is_generation": true,
        "version": "0.5.23", "disaggregation_mode": role.name(), "tp_size": 1, "dp_size": 1,
        "load_balance_method": "round_robin", "max_running_requests": 64, "max_total_num_tokens": 100_000,
        "context_length": 4096,
    });
    match path.as_str() {
        "/health" | "/health_generate" | "/ping" => whole(StatusCode::OK, "text/plain", Bytes::new()),
        "/metrics" => whole(StatusCode::OK, "text/plain; version=0.0.4", Bytes::from_static(b"# nothing measured\n")),
        "/v1/models" => object(
            StatusCode::OK,
            &json!({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "test",
                "root": MODEL, "max_model_len": 4096}]}),
        ),
        "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info" => object(StatusCode::OK, &information),
        "/get_load" => {
            object(StatusCode::OK, &json!([{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]))
        }
        "/version" => object(StatusCode::OK, &json!({"version": "0.32.0"})),
        _ => error(StatusCode::NOT_FOUND),
    }
}

/// What a prompt asks for: words, each for every role or, as in `decode:cut`, for one.
struct Wish {
    status: Option<StatusCode>,
    cut: bool,
    slow: bool,
}

impl Wish {
    fn of(role: Role, prompt: &str) -> Wish {
        let mut wish = Wish { status: None, cut: false, slow: false };
        for word in prompt.split_whitespace() {
            let word = match word.split_once(':') {
                Some((for_role, word)) if for_role == role.name() => word,
                Some(_) => continue,
                None => word,
            };
            match word {
                "cut" => wish.cut = true,
                "slow" => wish.slow = true,
                _ => wish.status = wish.status.or(word.parse().ok()),
            }
        }
        wish
    }
}

fn generate(role: Role, path: &str, body: &[u8], cuts: &Arc<Semaphore>) -> Response<Answer> {
    let chat = path == "/v1/chat/completions";
    if !chat && !["/v1/completions", "/generate"].contains(&path) {
        return error(StatusCode::NOT_FOUND);
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return error(StatusCode::BAD_REQUEST) };
    let prompts = [&body["messages"][0]["content"], &body["prompt"], &body["text"]];
    let wish = Wish::of(role, prompts.iter().find_map(|p| p.as_str()).unwrap_or_default());
    if let Some(status) = wish.status {
        return error(status);
    }
    let kind = if chat { "chat.completion" } else { "text_completion" };
    let choice = |text: &str, key: &str, end: Option<&str>| match (path, chat) {
        ("/generate", _) => {
            json!({"text": text, "meta_info": {"id": "1", "finish_reason": end.map(|e| json!({"type": e})),
            "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}})
        }
        (_, true) => json!({"id": "1", "object": kind, "created": 0, "model": MODEL,
            "choices": [{"index": 0, "finish_reason": end, key: {"role": "assistant", "content": text}}]}),
        (_, false) => json!({"id": "1", "object": kind, "created": 0, "model": MODEL,
            "choices": [{"index": 0, "finish_reason": end, "text": text}]}),
    };
    if body["stream"] != true {
        let mut whole = choice("token", "message", Some("length"));
        whole["usage"] = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2});
        if !body["kv_transfer_params"].is_null() {
            whole["kv_transfer_params"] = json!({"do_remote_prefill": true, "do_remote_decode": false,
                "remote_block_ids": [1], "remote_engine_id": "1", "remote_host": "127.0.0.1", "remote_port": 1});
        }
        return object(StatusCode::OK, &whole);
    }
    let chunk = |end| Bytes::from(format!("data: {}\n\n", choice("token", "delta", end)));
    let mut chunks: VecDeque<Bytes> = [chunk(None), chunk(None), chunk(Some("length"))].into();
    chunks.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    if wish.cut {
        chunks.truncate(2);
    }
    let pace = wish.slow.then(|| tokio::time::interval(Duration::from_millis(200)));
    let cut = wish.cut.then(|| Box::pin(Arc::clone(cuts).acquire_owned()) as Cut);
    let body = Answer { chunks, length: None, cut, pace };
    response(StatusCode::OK, "text/event-stream; charset=utf-8", body)
}

fn error(status: StatusCode) -> Response<Answer> {
    object(status, &json!({"error": {"message": "asked to fail", "type": "Failure", "code": status.as_u16()}}))
}

fn object(status: StatusCode, value: &Value) -> Response<Answer> {
    whole(status, "application/json", Bytes::from(value.to_string()))
}

fn whole(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Response<Answer> {
    let length = Some(bytes.len() as u64);
    let chunks = if bytes.is_empty() { VecDeque::new() } else { [bytes].into() };
    response(status, content_type, Answer { chunks, length, cut: None, pace: None })
}

fn response(status: StatusCode, content_type: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", content_type.parse().unwrap());
    response
}

type Cut = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A body in chunks that may end with the connection instead of its end.
struct Answer {
    chunks: VecDeque<Bytes>,
    /// Known for a body that is one piece.
    length: Option<u64>,
    /// The permit to break off, waited for after the last chunk. A router that meets the break before it has passed
    /// the chunks on may drop them, so the client gives the permit once it has read the first.
    cut: Option<Cut>,
    pace: Option<tokio::time::Interval>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(pace) = &mut self.pace {
            ready!(pace.poll_tick(cx));
        }
        if let Some(chunk) = self.chunks.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let Some(cut) = &mut self.cut else { return Poll::Ready(None) };
        if let Ok(permit) = ready!(cut.as_mut().poll(cx)) {
            permit.forget();
        }
        Poll::Ready(Some(Err(std::io::Error::other("asked to cut the stream"))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty() && self.cut.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
