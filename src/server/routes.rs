//! Answers one request from what the newest round published (contract, sections 7 to 9).
//!
//! No request makes the exporter read a Pod, and none waits for a round.

use super::negotiation;
use super::requests::{Path, Requests};
use super::{landing, status};
use crate::export::process::Exporter;
use crate::export::{self, Format, Point, gzip};
use crate::state::{Age, DeploymentName, Newest, Published, State, View};
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use smol_str::SmolStr;
use std::borrow::Cow;
use std::sync::Arc;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// Rounds with more points than this are encoded off the runtime's thread: about 1 ms of encoding
/// and compressing in a release build.
const MANY_POINTS: usize = 1000;

/// What an answer says, before the method is looked at.
#[derive(Debug)]
struct Answer {
    code: StatusCode,
    content_type: &'static str,
    body: Bytes,
    headers: HeaderMap,
}

impl Answer {
    fn new(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
        Answer { code, content_type, body: body.into(), headers: HeaderMap::new() }
    }

    fn text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
        Answer::new(code, TEXT, body)
    }

    fn header(mut self, name: http::HeaderName, value: &'static str) -> Answer {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// HEAD has the headers of GET and no body.
    fn response(self, head: bool) -> Response<Full<Bytes>> {
        let length = HeaderValue::from(self.body.len());
        let mut response = Response::new(Full::new(if head { Bytes::new() } else { self.body }));
        *response.status_mut() = self.code;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response.headers_mut().insert(CONTENT_LENGTH, length);
        response
    }
}

/// Everything that answers are made from.
#[derive(Debug)]
pub struct Routes {
    state: Arc<State>,
    requests: Requests,
    exporter: Exporter,
}

/// Which path a request is for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Known(Path),
    /// The path of section 7, with the deployment it names.
    Json(DeploymentName),
}

impl Target {
    fn of(path: &str) -> Target {
        match path {
            "/" => Target::Known(Path::Landing),
            "/metrics" => Target::Known(Path::Metrics),
            "/healthz" => Target::Known(Path::Health),
            "/readyz" => Target::Known(Path::Ready),
            _ => json_path(path).map_or(Target::Known(Path::Other), Target::Json),
        }
    }

    fn path(&self) -> Path {
        match self {
            Target::Known(path) => *path,
            Target::Json(_) => Path::Json,
        }
    }
}

/// The deployment that a path of section 7 names; segments are decoded after they are told apart.
fn json_path(path: &str) -> Option<DeploymentName> {
    let segments: Option<Vec<Cow<'_, str>>> = path.strip_prefix('/')?.split('/').map(decoded).collect();
    let segments = segments?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    match segments[..] {
        ["apis", "worker.gpustack.ai", "v1", "namespaces", namespace, "modeldeployments", name, "metrics"]
            if !namespace.is_empty() && !name.is_empty() =>
        {
            Some(DeploymentName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => None,
    }
}

/// A path segment without its percent-encoding (RFC 3986, section 2.1); none if that is malformed.
fn decoded(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

impl Routes {
    /// Answers from this state.
    pub fn new(state: Arc<State>) -> Routes {
        Routes { state, requests: Requests::new(), exporter: Exporter::myself() }
    }

    /// Answers one request; its body is not read.
    pub async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let target = Target::of(request.uri().path());
        let path = target.path();
        let answer = if matches!(*request.method(), Method::GET | Method::HEAD) {
            match target {
                Target::Known(Path::Metrics) => self.metrics(request.headers()).await,
                Target::Json(name) => self.json(&name),
                Target::Known(Path::Health) => self.health(),
                Target::Known(Path::Ready) => self.ready(),
                Target::Known(Path::Landing) => self.landing(),
                Target::Known(Path::Json | Path::Other) => Answer::text(StatusCode::NOT_FOUND, "not found\n"),
            }
        } else {
            not_allowed(&target)
        };
        self.requests.count(path, answer.code);
        // Every answer is of this moment.
        answer.header(CACHE_CONTROL, "no-store").response(*request.method() == Method::HEAD)
    }

    fn landing(&self) -> Answer {
        Answer::new(StatusCode::OK, HTML, landing::page(&self.state.view()))
            .header(CONTENT_SECURITY_POLICY, landing::POLICY)
            .header(X_CONTENT_TYPE_OPTIONS, "nosniff")
            .header(REFERRER_POLICY, "no-referrer")
    }

    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let (format, gzip) = (negotiation::format(headers), negotiation::gzip(headers));
        let view = self.state.view();
        let own = self.own(format, without_round(&view));
        let body = match view.newest {
            Newest::None if gzip => gzip::member(&gzip::part(b""), own.as_bytes()).into(),
            Newest::None => Bytes::from(own),
            Newest::Fresh(round) => joined(round, format, Age::Fresh, gzip, own).await,
            Newest::TooOld(round) => joined(round, format, Age::TooOld, gzip, own).await,
        };
        let answer = Answer::new(StatusCode::OK, format.content_type(), body).header(VARY, "Accept, Accept-Encoding");
        if gzip { answer.header(CONTENT_ENCODING, "gzip") } else { answer }
    }

    /// The exporter's own families after `before`, and the exposition's end.
    fn own(&self, format: Format, before: Vec<Point>) -> String {
        let (rounds, distribution) = self.state.own();
        let build = Point {
            family: "modeldeployment_exporter_build_info".into(),
            labels: vec![("version", crate::VERSION.into()), ("revision", crate::REVISION.into())],
            value: 1.0,
        };
        let mut points = before;
        points.push(build);
        points.extend(rounds);
        points.extend(self.requests.points());
        points.extend(self.exporter.points());
        let mut text = export::encode(points.into(), vec![distribution], format);
        text.push_str(format.end());
        text
    }

    fn json(&self, asked: &DeploymentName) -> Answer {
        let view = self.state.view();
        let exists = match &view.deployment {
            Some(known) => known == asked,
            // Before discovery has synced, any deployment may be the one.
            None => !view.synced,
        };
        if !exists {
            return Answer::new(StatusCode::NOT_FOUND, JSON, status::not_found(&asked.name));
        }
        let why = match view.newest {
            Newest::Fresh(round) if round.readable => {
                return Answer::new(StatusCode::OK, JSON, round.json().clone());
            }
            Newest::Fresh(_) => "no Pod of the model deployment could be read in the newest round",
            Newest::TooOld(_) => "the newest round over the model deployment's Pods is too old",
            Newest::None => "no round over the model deployment's Pods has finished yet",
        };
        let code = StatusCode::SERVICE_UNAVAILABLE;
        Answer::new(code, JSON, status::failure(code, &asked.name, why))
    }

    fn health(&self) -> Answer {
        if self.state.is_healthy() {
            Answer::text(StatusCode::OK, "ok\n")
        } else {
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, "no round has begun for too long\n")
        }
    }

    fn ready(&self) -> Answer {
        match self.state.readiness() {
            Ok(()) => Answer::text(StatusCode::OK, "ok\n"),
            Err(why) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    }
}

fn not_allowed(target: &Target) -> Answer {
    let code = StatusCode::METHOD_NOT_ALLOWED;
    let answer = match target {
        Target::Json(asked) => {
            Answer::new(code, JSON, status::failure(code, &asked.name, "only GET and HEAD are allowed"))
        }
        Target::Known(_) => Answer::text(code, "only GET and HEAD are allowed\n"),
    };
    answer.header(ALLOW, "GET, HEAD")
}

/// A deployment that exists and has no round is not up.
fn without_round(view: &View) -> Vec<Point> {
    match (&view.newest, &view.deployment) {
        (Newest::None, Some(deployment)) => vec![Point {
            family: "modeldeployment_up".into(),
            labels: vec![
                ("namespace", deployment.namespace.as_str().into()),
                ("modeldeployment", deployment.name.as_str().into()),
                ("pod", SmolStr::default()),
            ],
            value: 0.0,
        }],
        _ => Vec::new(),
    }
}

/// The round's ready bytes and, after them, the exporter's own.
async fn joined(round: Arc<Published>, format: Format, age: Age, gzip: bool, own: String) -> Bytes {
    if !round.is_encoded(format, age, gzip) && round.points(age).len() > MANY_POINTS {
        let round = Arc::clone(&round);
        let encode = move || {
            if gzip {
                round.compressed(format, age);
            } else {
                round.series(format, age);
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(encode).await {
            tracing::error!(%error, "the round could not be encoded off the runtime's thread");
        }
    }
    if gzip {
        gzip::member(round.compressed(format, age), own.as_bytes()).into()
    } else {
        [round.series(format, age), own.as_bytes()].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_after_they_are_told_apart() {
        let path = |namespace: &str, name: &str| {
            format!("/apis/worker.gpustack.ai/v1/namespaces/{namespace}/modeldeployments/{name}/metrics")
        };
        let names = |path: &str| json_path(path).map(|found| (found.namespace, found.name));
        let expected = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(names(&path("team", "chat")), expected("team", "chat"));
        assert_eq!(names(&path("t%65am", "ch%C3%A4t")), expected("team", "chät"));
        assert_eq!(names(&path("team", "a%2Fb")), expected("team", "a/b"));
        assert_eq!(names(&path("team", "a%25")), expected("team", "a%"));
        for malformed in ["%", "%4", "%zz", "%FF", ""] {
            assert_eq!(names(&path("team", malformed)), None, "{malformed}");
        }
        assert_eq!(names(&(path("team", "chat") + "/")), None);
        assert_eq!(names(&path("team", "chat/more")), None);
    }
}
