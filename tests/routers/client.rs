//! The client of the router's API: sends one request of the tables and ends it as the table says.

use crate::backend::MODEL;
use crate::events::Request;
use reqwest::Client;
use serde_json::json;
use std::net::SocketAddr;
use tokio::sync::Semaphore;

/// Sends one request; a stream that is to break off gets its permit of `cuts` after its first bytes.
///
/// The status that the router answered, once the body ended as it should; an error if it ended otherwise.
pub async fn send(client: &Client, router: SocketAddr, request: Request, cuts: &Semaphore) -> Result<u16, String> {
    let chat = |prompt: &str, stream: bool| {
        let body = json!({"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": stream});
        ("/v1/chat/completions", body.to_string())
    };
    let (path, body) = match request {
        Request::Chat(prompt) => chat(prompt, false),
        Request::Stream(prompt) | Request::Cut(prompt) | Request::Leave(prompt) => chat(prompt, true),
        Request::Post(path, body) => (path, body.to_owned()),
    };
    let url = format!("http://{router}{path}");
    let sent = client.post(&url).header("content-type", "application/json").body(body).send();
    let mut answer = sent.await.map_err(|e| format!("{url}: {e:?}"))?;
    let status = answer.status().as_u16();
    if let Request::Leave(_) = request {
        let first = answer.chunk().await.map_err(|e| format!("{url}: {e:?}"))?;
        return first.map(|_| status).ok_or_else(|| "the stream ended before the client could leave".to_owned());
    }
    let mut whole = Vec::new();
    let cut = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => {
                if matches!(request, Request::Cut(_)) && whole.is_empty() {
                    cuts.add_permits(1);
                }
                whole.extend_from_slice(&chunk);
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    // A router may end a broken stream as if it were whole; that its last token is missing shows all the same.
    let done = String::from_utf8_lossy(&whole).contains(r#""finish_reason":"length""#);
    match (request, cut) {
        (Request::Cut(_), None) if done => Err("the stream did not break off".to_owned()),
        (Request::Cut(_), _) if whole.is_empty() => Err("the stream broke off before its first chunk".to_owned()),
        (Request::Cut(_), _) | (_, None) => Ok(status),
        (_, Some(error)) => Err(format!("{url}: {error:?}")),
    }
}
