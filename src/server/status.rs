//! Errors of the JSON path as Kubernetes `Status` objects, so that `kubectl` prints their message.

use http::StatusCode;
use serde::Serialize;

/// The API group of the contract's section 7.
const GROUP: &str = "worker.gpustack.ai";
/// The resource that the path is about.
const RESOURCE: &str = "modeldeployments";

/// `metav1.Status` of Kubernetes' API conventions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: &'a str,
    reason: &'static str,
    details: Details<'a>,
    code: u16,
}

#[derive(Debug, Serialize)]
struct Empty {}

#[derive(Debug, Serialize)]
struct Details<'a> {
    name: &'a str,
    group: &'static str,
    kind: &'static str,
}

/// The body of a failure about the deployment with this name.
pub fn failure(code: StatusCode, name: &str, message: &str) -> Vec<u8> {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        _ => "ServiceUnavailable",
    };
    let status = Status {
        kind: "Status",
        api_version: "v1",
        metadata: Empty {},
        status: "Failure",
        message,
        reason,
        details: Details { name, group: GROUP, kind: RESOURCE },
        code: code.as_u16(),
    };
    // Strings and one number: serde_json always writes them.
    let mut body = serde_json::to_vec(&status).unwrap_or_default();
    body.push(b'\n');
    body
}

/// The message of Kubernetes' own not-found error.
pub fn not_found(name: &str) -> Vec<u8> {
    failure(StatusCode::NOT_FOUND, name, &format!("{RESOURCE}.{GROUP} {name:?} not found"))
}
