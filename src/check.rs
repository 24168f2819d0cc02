//! The command `check`: the effective configuration and the deployment as text.
//!
//! It opens no socket and reads no Pod; it shows no argument, and of a URL neither user
//! information nor a query.

use crate::config::{Config, Environment, Source};
use crate::deployment::{Deployment, Member, RoleKind};
use crate::text::{table, visible};

/// The report about a configuration and a deployment that are usable.
pub fn report(environment: &Environment, config: &Config, deployment: &Deployment) -> String {
    let mut text = String::from("Environment\n");
    let variables = environment.effective().map(|(variable, value, given)| {
        let origin = if given { "environment" } else { "default" };
        [variable.name.to_owned(), value.map_or_else(|| "-".to_owned(), visible), origin.to_owned()]
    });
    text += &table(&variables.collect::<Vec<_>>());

    let name = visible(&format!("{}/{}", deployment.namespace, deployment.name));
    let origin = match &config.source {
        Source::File(path) => visible(&format!(", from {}", path.display())),
        Source::Simulated => String::new(),
    };
    text += &format!("\nDeployment {name}{origin}\n");
    let router = deployment.router.as_ref().map_or("none", |router| router.name.as_str());
    text += &table(&[
        ["engine".to_owned(), deployment.engine_name.clone()],
        ["router".to_owned(), router.to_owned()],
        ["KV cache pool".to_owned(), if deployment.pool { "attached" } else { "none" }.to_owned()],
        ["prefill/decode pair".to_owned(), if deployment.is_pair() { "yes" } else { "no" }.to_owned()],
    ]);
    text += "\nExpected Pods\n";
    text += &expected(deployment);
    text += "\nPods, in reading order\n";
    text += &pods(deployment, config.scrape.max_pods);
    text
}

fn expected(deployment: &Deployment) -> String {
    let listed = |member| deployment.pods.iter().filter(|pod| pod.member == member).count();
    let header = ["part", "kind", "expected", "listed", ""].map(str::to_owned);
    let note =
        |expected: u64, listed: usize| if expected == listed as u64 { "" } else { "the numbers differ" }.to_owned();
    let mut rows = vec![header];
    if let Some(router) = &deployment.router {
        let listed = listed(Member::Router);
        let note = note(router.replicas, listed);
        rows.push(["router".to_owned(), router.name.clone(), router.replicas.to_string(), listed.to_string(), note]);
    }
    for (index, role) in deployment.roles.iter().enumerate() {
        let member = Member::Role(index);
        let kind = match role.kind {
            RoleKind::Server => "Server",
            RoleKind::Prefill => "Prefill",
            RoleKind::Decode => "Decode",
        };
        let [expected, listed, note] = if role.managed {
            [role.expected.to_string(), listed(member).to_string(), note(role.expected, listed(member))]
        } else {
            ["-".to_owned(), "-".to_owned(), "not managed: it has a command of its own".to_owned()]
        };
        rows.push([visible(&deployment.scope(member)), kind.to_owned(), expected, listed, note]);
    }
    table(&rows)
}

fn pods(deployment: &Deployment, max_pods: usize) -> String {
    if deployment.pods.is_empty() {
        return "  none: the file lists no Pod of the router or of a managed role under `pods`\n".to_owned();
    }
    let mut rows = vec![["name", "part", "url", ""].map(str::to_owned)];
    for (index, pod) in deployment.pods.iter().enumerate() {
        let url = pod.endpoint.as_ref().map_or_else(String::clone, without_query);
        let note = if index < max_pods { "" } else { "not read: past MAX_PODS" };
        rows.push([visible(&pod.name), visible(&deployment.scope(pod.member)), url, note.to_owned()]);
    }
    table(&rows)
}

/// A URL of a deployment, which has no user information, without its query.
fn without_query(uri: &http::Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let query = if uri.query().is_some() { "?…" } else { "" };
    format!("{}://{authority}{}{query}", uri.scheme_str().unwrap_or_default(), uri.path())
}
