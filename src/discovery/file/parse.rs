//! A deployment file's text, turned into a [`Deployment`].
//!
//! Every value that is wrong is collected with its path before the file is refused. Arguments go
//! into [`Arguments`] at once; no message shows one, nor a URL's user information or query.

use super::Error;
use crate::arguments::Arguments;
use crate::catalogue::{Catalogue, Software, SoftwareKind};
use crate::deployment::{Deployment, Member, Pod, Role, RoleKind, Router};
use crate::text::{short, visible};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The keys of an entry of `pods[]`; any other is an error.
const POD_KEYS: [&str; 5] = ["name", "role", "router", "url", "args"];

/// The most parts (scalars, lists and mappings, with aliases followed) of a file.
const MAX_NODES: usize = 100_000;

/// One thing that is wrong with a deployment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: `spec.roles[0].kind`.
    pub path: String,
    /// What is wrong, with the value where it may be shown.
    pub what: String,
    /// What is accepted; empty where `what` says it.
    pub accepted: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { path, what, accepted } = self;
        if accepted.is_empty() {
            write!(f, "{path}: {what}")
        } else {
            write!(f, "{path}: {what}; accepted: {accepted}")
        }
    }
}

/// Parses a deployment file (contract, section 3). JSON is YAML.
pub fn parse(text: &[u8], catalogue: &Catalogue) -> Result<Deployment, Error> {
    let syntax = |what: String| Error::Syntax { what };
    let text =
        std::str::from_utf8(text).map_err(|e| syntax(format!("it is not UTF-8 after {} bytes", e.valid_up_to())))?;
    let value = yaml(text).map_err(syntax)?;
    let mut reader = Reader { catalogue, problems: Vec::new() };
    let deployment = reader.deployment(&value);
    match deployment {
        Some(deployment) if reader.problems.is_empty() => Ok(deployment),
        _ => Err(Error::Invalid(reader.problems)),
    }
}

fn yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_NODES },
        // Aliases are copied, so their copies are bounded as the file's own parts are.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES },
        // Names such as `on` and `no` are text, as in YAML 1.2.
        strict_booleans: true,
        // Such a number can only be in a field that is not read.
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
        // A snippet of the file would show arguments.
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        use serde_saphyr::Error as Yaml;
        let mut cause = error.without_snippet();
        while let Yaml::AliasError { error, .. } = cause {
            cause = error;
        }
        let what = match cause {
            Yaml::MultipleDocuments { .. } => "it has more than one document".to_owned(),
            Yaml::DuplicateMappingKey { key, .. } => match key {
                Some(key) => format!("the key `{}` is given twice{}", short(key), place(&error)),
                None => format!("a key is given twice{}", place(&error)),
            },
            Yaml::NullIntoString { .. } => format!("a key is null{}", place(&error)),
            Yaml::Budget { .. } | Yaml::AliasReplayLimitExceeded { .. } => {
                format!("it is too large or nested too deeply (at most {MAX_NODES} parts, with aliases followed)")
            }
            other => other.render(),
        };
        what.lines().map(str::trim).collect::<Vec<_>>().join(" ")
    })
}

fn place(error: &serde_saphyr::Error) -> String {
    let place = |at: serde_saphyr::Location| format!(" at line {}, column {}", at.line(), at.column());
    error.location().map(place).unwrap_or_default()
}

/// A value and where it is.
#[derive(Clone)]
struct Node<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    /// The value under a key; null counts as absent, as in the cluster's API.
    fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Node { path: self.path_of(key), value })
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// A value as messages show it: a short scalar, or what it is.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", short(text)),
        Value::Number(_) | Value::Bool(_) => format!("`{value}`"),
        other => kind(other).to_owned(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// What of the roles the Pods need: name, and the index in the spec.
struct Roles {
    roles: Vec<Role>,
    /// False when a role could not be read, so that a Pod's role may be one of those.
    complete: bool,
}

struct Reader<'a> {
    catalogue: &'a Catalogue,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, path: &str, what: impl Into<String>, accepted: impl Into<String>) {
        let path = if path.is_empty() { "(file)" } else { path }.to_owned();
        self.problems.push(Problem { path, what: what.into(), accepted: accepted.into() });
    }

    fn missing(&mut self, path: &str, accepted: &str) {
        self.problem(path, "is missing", accepted);
    }

    fn wrong(&mut self, node: &Node<'_>, accepted: &str) {
        self.problem(&node.path, format!("{} is not accepted", show(node.value)), accepted);
    }

    /// A mapping under a key; its absence is no error.
    fn mapping<'a>(&mut self, parent: &Node<'a>, key: &str) -> Option<Node<'a>> {
        let node = parent.get(key)?;
        if node.value.is_object() {
            return Some(node);
        }
        self.wrong(&node, "a mapping");
        None
    }

    /// The entries of a list under a key; its absence is an empty one. None for anything else.
    fn list<'a>(&mut self, parent: &Node<'a>, key: &str) -> Option<Vec<Node<'a>>> {
        let Some(node) = parent.get(key) else { return Some(Vec::new()) };
        let Value::Array(entries) = node.value else {
            self.problem(&node.path, format!("is {}", kind(node.value)), "a list");
            return None;
        };
        let entry = |(index, value)| Node { path: format!("{}[{index}]", node.path), value };
        Some(entries.iter().enumerate().map(entry).collect())
    }

    /// A text that is not empty, under a key.
    fn text<'a>(&mut self, parent: &Node<'a>, key: &str, accepted: &str) -> Option<(String, &'a str)> {
        let Some(node) = parent.get(key) else {
            self.missing(&parent.path_of(key), accepted);
            return None;
        };
        match node.value {
            Value::String(text) if !text.is_empty() => return Some((node.path, text)),
            Value::Number(_) | Value::Bool(_) => {
                let what = format!("{} is {}, not a text", show(node.value), kind(node.value));
                self.problem(&node.path, what, format!("{accepted}, in quotes where it looks like something else"));
            }
            _ => self.wrong(&node, accepted),
        }
        None
    }

    /// A whole number under a key, at least `least`.
    fn count(&mut self, parent: &Node<'_>, key: &str, least: u64, default: u64) -> Option<u64> {
        let Some(node) = parent.get(key) else { return Some(default) };
        let number = node.value.as_u64().filter(|number| *number >= least);
        if number.is_none() {
            self.wrong(&node, &format!("a whole number from {least} on"));
        }
        number
    }

    fn software(&mut self, parent: &Node<'_>, kind: SoftwareKind) -> Option<(Arc<Software>, String)> {
        let catalogue = self.catalogue;
        let accepted = format!("{}, in any case", quoted(catalogue.names(kind)));
        let (path, name) = self.text(parent, "name", &accepted)?;
        let found = catalogue.find(kind, name);
        if found.is_none() {
            self.problem(&path, format!("`{}` is not known", short(name)), accepted);
        }
        found.map(|(software, spelling)| (Arc::clone(software), spelling.to_owned()))
    }

    fn deployment(&mut self, value: &Value) -> Option<Deployment> {
        let root = Node { path: String::new(), value };
        match value {
            Value::Object(_) => {}
            Value::Null => {
                self.problem("", "is empty", "a mapping with metadata, spec and pods");
                return None;
            }
            other => {
                self.problem("", format!("is {}", kind(other)), "a mapping with metadata, spec and pods");
                return None;
            }
        }
        // Stands in for an absent mapping, so that what is missing in it is named too.
        let empty = Value::Object(Map::new());
        let metadata = self.mapping(&root, "metadata").unwrap_or(Node { path: "metadata".to_owned(), value: &empty });
        let name = self.text(&metadata, "name", "the deployment's name");
        let namespace = self.text(&metadata, "namespace", "the deployment's namespace");
        let spec = self.mapping(&root, "spec").unwrap_or(Node { path: "spec".to_owned(), value: &empty });
        let engine = self.mapping(&spec, "engine").unwrap_or(Node { path: spec.path_of("engine"), value: &empty });
        let engine = self.software(&engine, SoftwareKind::Engine);
        let pool = self.mapping(&spec, "kvCache").and_then(|cache| self.mapping(&cache, "poolRef")).is_some();
        let declares_router = spec.get("router").is_some();
        let router = self.mapping(&spec, "router").and_then(|router| self.router(&router));
        let roles = self.roles(&spec);
        let pods =
            self.pods(&root, declares_router, &roles, engine.as_ref().map(|(engine, _)| engine), router.as_ref());
        let (engine, engine_name) = engine?;
        Some(Deployment {
            namespace: namespace?.1.to_owned(),
            name: name?.1.to_owned(),
            engine,
            engine_name,
            pool,
            router,
            roles: roles.roles,
            pods,
        })
    }

    fn router(&mut self, node: &Node<'_>) -> Option<Router> {
        let software = self.software(node, SoftwareKind::Router);
        let replicas = self.count(node, "replicas", 0, 1);
        let (software, name) = software?;
        Some(Router { software, name, replicas: replicas? })
    }

    fn roles(&mut self, spec: &Node<'_>) -> Roles {
        let Some(entries) = self.list(spec, "roles") else { return Roles { roles: Vec::new(), complete: false } };
        let mut roles: Vec<Role> = Vec::new();
        let mut complete = true;
        for entry in entries {
            let Some(role) = self.role(&entry) else {
                complete = false;
                continue;
            };
            if roles.iter().any(|other| other.name == role.name) {
                let what = format!("`{}` is the name of another role already", short(&role.name));
                self.problem(&entry.path_of("name"), what, "a name of its own for each role");
            }
            roles.push(role);
        }
        Roles { roles, complete }
    }

    fn role(&mut self, node: &Node<'_>) -> Option<Role> {
        const KINDS: [(&str, RoleKind); 3] =
            [("Server", RoleKind::Server), ("Prefill", RoleKind::Prefill), ("Decode", RoleKind::Decode)];
        if !node.value.is_object() {
            self.wrong(node, "a mapping with name, kind, replicas and size");
            return None;
        }
        let name = self.text(node, "name", "the role's name");
        let kind = match node.get("kind") {
            None => RoleKind::Server,
            Some(node) => {
                let text = node.value.as_str().unwrap_or_default();
                let kind = KINDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, kind)| *kind);
                kind.unwrap_or_else(|| {
                    self.wrong(&node, &format!("{}, in any case", quoted(KINDS.map(|(name, _)| name))));
                    RoleKind::Server
                })
            }
        };
        let replicas = self.count(node, "replicas", 0, 1);
        // `replicaSize` is the older name.
        let size_key = if node.get("size").is_some() { "size" } else { "replicaSize" };
        let size = self.count(node, size_key, 1, 1);
        let managed = match node.get("command") {
            None => true,
            Some(command) => match command.value {
                Value::String(text) => text.is_empty(),
                Value::Array(words) => words.is_empty(),
                other => {
                    // Not shown: a command may hold keys too.
                    let what = format!("is {}", self::kind(other));
                    self.problem(&command.path, what, "a list of texts or a text");
                    true
                }
            },
        };
        let expected = match (replicas, size) {
            (Some(replicas), Some(size)) => {
                let expected = replicas.checked_mul(size);
                if expected.is_none() {
                    let what = format!("{replicas} replicas of size {size} are more Pods than can be counted");
                    self.problem(&node.path, what, "");
                }
                expected
            }
            _ => None,
        };
        // Parts that are wrong get a stand-in, so that Pods of the role are not called wrong too.
        Some(Role { name: name?.1.to_owned(), kind, expected: expected.unwrap_or(0), managed })
    }

    /// The Pods of the router and of the managed roles, in reading order.
    fn pods(
        &mut self,
        root: &Node<'_>,
        declares_router: bool,
        roles: &Roles,
        engine: Option<&Arc<Software>>,
        router: Option<&Router>,
    ) -> Vec<Arc<Pod>> {
        let mut seen = HashSet::new();
        let mut pods: Vec<Pod> = Vec::new();
        for entry in self.list(root, "pods").unwrap_or_default() {
            let Some(members) = entry.value.as_object() else {
                self.problem(
                    &entry.path,
                    format!("is {}", kind(entry.value)),
                    format!("a mapping with {}", quoted(POD_KEYS)),
                );
                continue;
            };
            for key in members.keys().filter(|key| !POD_KEYS.contains(&key.as_str())) {
                let what = format!("the key `{}` is not known", short(key));
                self.problem(&entry.path, what, quoted(POD_KEYS));
            }
            let name = self.text(&entry, "name", "the Pod's name");
            if let Some((path, name)) = &name
                && !seen.insert(*name)
            {
                let what = format!("`{}` is the name of another Pod already", short(name));
                self.problem(path, what, "a name of its own for each Pod");
            }
            let member = self.member(&entry, declares_router, roles);
            let url = self.url(&entry);
            let args = self.args(&entry);
            let (Some((_, name)), Some(member), Some((url, uri)), Some(args)) = (name, member, url, args) else {
                continue;
            };
            if let Member::Role(index) = member
                && roles.roles.get(index).is_none_or(|role| !role.managed)
            {
                continue;
            }
            let software = match member {
                Member::Router => router.map(|router| &router.software),
                Member::Role(_) => engine,
            };
            let arguments = software.map(|software| Arguments::read(&args, &software.arguments)).unwrap_or_default();
            let uid = format!("{name} {url}");
            pods.push(Pod { uid, name: name.to_owned(), member, endpoint: Ok(uri), arguments, started: None });
        }
        // Routers come before roles, and roles in the order of the spec.
        pods.sort_by(|a, b| (a.member, &a.name).cmp(&(b.member, &b.name)));
        pods.into_iter().map(Arc::new).collect()
    }

    /// What a Pod belongs to: exactly one of a role and the router.
    fn member(&mut self, pod: &Node<'_>, declares_router: bool, roles: &Roles) -> Option<Member> {
        const EITHER: &str = "either `role: <name of a role>` or `router: true`";
        let is_router = match pod.get("router") {
            None => false,
            Some(node) => {
                let Some(is_router) = node.value.as_bool() else {
                    self.wrong(&node, "true or false");
                    return None;
                };
                is_router
            }
        };
        match (is_router, pod.get("role").is_some()) {
            (true, true) => {
                self.problem(&pod.path, "has both `role` and `router: true`", EITHER);
                None
            }
            (false, false) => {
                self.problem(&pod.path, "has neither `role` nor `router: true`", EITHER);
                None
            }
            (true, false) => {
                if !declares_router {
                    let what = "is a router's Pod, but the deployment has no `spec.router`";
                    self.problem(&pod.path, what, "a `spec.router` with its name, or a `role` for the Pod");
                }
                Some(Member::Router)
            }
            (false, true) => {
                let names = roles.roles.iter().map(|role| role.name.as_str());
                let accepted = if roles.roles.is_empty() {
                    "the name of a role in spec.roles, which has none".to_owned()
                } else {
                    format!("the name of a role in spec.roles: {}", quoted(names))
                };
                let (path, name) = self.text(pod, "role", &accepted)?;
                let index = roles.roles.iter().position(|role| role.name == name);
                if index.is_none() && roles.complete {
                    self.problem(&path, format!("`{}` is not known", short(name)), accepted);
                }
                index.map(Member::Role)
            }
        }
    }

    /// A Pod's URL as it is written, and parsed.
    fn url<'a>(&mut self, pod: &Node<'a>) -> Option<(&'a str, http::Uri)> {
        const ACCEPTED: &str = "an http or https URL without user information, such as http://127.0.0.1:8000/metrics";
        let node = pod.get("url");
        if let Some(Node { path, value: value @ (Value::Array(_) | Value::Object(_)) }) = &node {
            self.problem(path, format!("is {}", kind(value)), ACCEPTED);
            return None;
        }
        let (path, text) = self.text(pod, "url", ACCEPTED)?;
        match endpoint(text) {
            Ok(uri) => Some((text, uri)),
            Err(what) => {
                self.problem(&path, format!("`{}` {what}", redact(text)), ACCEPTED);
                None
            }
        }
    }

    /// A Pod's arguments. Messages show none of them: they hold API keys.
    fn args(&mut self, pod: &Node<'_>) -> Option<Vec<String>> {
        const ACCEPTED: &str = "a list of texts, with quotes around numbers and JSON";
        let Some(node) = pod.get("args") else { return Some(Vec::new()) };
        let Value::Array(words) = node.value else {
            self.problem(&node.path, format!("is {}", kind(node.value)), ACCEPTED);
            return None;
        };
        let mut args = Vec::with_capacity(words.len());
        for (index, word) in words.iter().enumerate() {
            match word {
                Value::String(text) => args.push(text.clone()),
                other => self.problem(&format!("{}[{index}]", node.path), format!("is {}", kind(other)), ACCEPTED),
            }
        }
        (args.len() == words.len()).then_some(args)
    }
}

/// The endpoint of a URL, or what is wrong with it.
fn endpoint(text: &str) -> Result<http::Uri, &'static str> {
    let uri: http::Uri = text.parse().map_err(|_| "is not a valid URL")?;
    let scheme = uri.scheme_str().ok_or("has no scheme")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err("is neither http nor https");
    }
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') {
        return Err("carries user information");
    }
    if authority.host().is_empty() {
        return Err("has no host");
    }
    // What follows the host is a colon and a port that can be connected to, or nothing.
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err("has no valid port");
    }
    Ok(uri)
}

/// A URL as messages show it: without what may be user information, a query or a fragment.
fn redact(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let (scheme, rest) = if scheme.contains(['@', '?', '#', '/', ':']) { ("", url) } else { (scheme, rest) };
    // User information may hold any character, so everything up to the last `@` is left out.
    let (hidden, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    let end = rest.find(['?', '#']);
    let tail = if end.is_some() { "?…" } else { "" };
    let separator = if scheme.is_empty() { "" } else { "://" };
    visible(&format!("{scheme}{separator}{hidden}{}{tail}", &rest[..end.unwrap_or(rest.len())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Deployment, Error> {
        parse(text.as_bytes(), &Catalogue::embedded().unwrap())
    }

    fn lines(text: &str) -> Vec<String> {
        read(text).map_or_else(|error| error.lines(), |_| Vec::new())
    }

    /// A deployment with this spec (in flow style, without the engine) and these Pods.
    fn file(spec: &str, pods: &str) -> String {
        format!("metadata: {{name: chat, namespace: team}}\nspec: {{engine: {{name: vLLM}}, {spec}}}\npods: {pods}\n")
    }

    const EXAMPLE: &str = r#"
metadata: {name: chat, namespace: team}
spec:
  engine: {name: vLLM}                 # vLLM | vLLM-Ascend (read as vLLM) | SGLang, any case
  kvCache: {poolRef: {name: pool}}     # present: a KV cache pool is attached
  router: {name: vllm-router, replicas: 1}   # llm-d-router | vllm-router | sglang-gateway
  roles:
    - {name: server, kind: Server, replicas: 2, size: 1}   # Server | Prefill | Decode, any case
pods:
  - name: chat-server-0
    role: server
    url: http://127.0.0.1:8000/metrics
    args: [vllm, serve, model, --kv-transfer-config, '{"kv_connector":"MooncakeConnector"}']
  - name: chat-router-0
    router: true
    url: http://127.0.0.1:29000/metrics
"#;

    #[test]
    fn the_contracts_example() {
        let deployment = read(EXAMPLE).unwrap();
        assert_eq!((deployment.namespace.as_str(), deployment.name.as_str()), ("team", "chat"));
        assert_eq!((deployment.engine_name.as_str(), deployment.pool), ("vLLM", true));
        let router = deployment.router.as_ref().unwrap();
        assert_eq!((router.name.as_str(), router.replicas), ("vllm-router", 1));
        assert_eq!(deployment.expected(), [(Member::Router, 1), (Member::Role(0), 2)]);
        assert!(!deployment.is_pair());
        let names: Vec<&str> = deployment.pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["chat-router-0", "chat-server-0"]);
        let server = &deployment.pods[1];
        assert_eq!(server.member, Member::Role(0));
        assert_eq!(server.endpoint.as_ref().unwrap().to_string(), "http://127.0.0.1:8000/metrics");
        assert!(server.arguments.has("kv-transfer-config"));
        assert!(!format!("{deployment:?}").contains("Mooncake"), "a value of an argument is kept");
    }

    #[test]
    fn defaults_and_names_in_any_case() {
        let text = "metadata: {name: a, namespace: b}\nspec: {engine: {name: VLLM-ascend, image: x}, template: {a: .nan},\
                    kvCache: null, router: ~, roles: [{name: p, kind: PREFILL, replicas: 3, replicaSize: 2},\
                    {name: d, kind: decode, size: 4, replicaSize: 9}, {name: s, replicas: 0}]}";
        let deployment = read(text).unwrap();
        assert_eq!((deployment.engine_name.as_str(), deployment.pool), ("vLLM-Ascend", false));
        assert!(deployment.router.is_none() && deployment.is_pair() && deployment.pods.is_empty());
        let roles: Vec<_> =
            deployment.roles.iter().map(|role| (role.name.as_str(), role.kind, role.expected)).collect();
        assert_eq!(roles, [("p", RoleKind::Prefill, 6), ("d", RoleKind::Decode, 4), ("s", RoleKind::Server, 0)]);
        // JSON is YAML.
        let json = r#"{"metadata":{"name":"a","namespace":"b"},"spec":{"engine":{"name":"sglang"},"roles":[{"name":"s"}]},
            "pods":[{"name":"p","role":"s","url":"HTTPS://[::1]/m?x=1","args":null,"router":false}]}"#;
        let deployment = read(json).unwrap();
        assert_eq!(deployment.engine_name, "SGLang");
        assert_eq!(deployment.pods.len(), 1);
    }

    #[test]
    fn a_role_with_a_command_is_not_managed() {
        let spec = |command: &str| {
            let spec = format!("roles: [{{name: own, command: {command}, replicas: 3}}, {{name: s}}]");
            file(&spec, "[{name: a, role: own, url: 'http://h/'}, {name: b, role: s, url: 'http://h/'}]")
        };
        for (command, managed) in [("[sleep]", false), ("sleep 1", false), ("[]", true), ("''", true), ("null", true)] {
            let deployment = read(&spec(command)).unwrap();
            assert_eq!(deployment.roles[0].managed, managed, "{command}");
            let names: Vec<&str> = deployment.pods.iter().map(|pod| pod.name.as_str()).collect();
            let (pods, expected): (&[&str], &[(Member, u64)]) = if managed {
                (&["a", "b"], &[(Member::Role(0), 3), (Member::Role(1), 1)])
            } else {
                (&["b"], &[(Member::Role(1), 1)])
            };
            assert_eq!(names, pods, "{command}");
            assert_eq!(deployment.expected(), expected, "{command}");
        }
    }

    #[test]
    fn pods_are_in_reading_order_and_a_changed_url_is_another_pod() {
        let spec = "router: {name: vllm-router}, roles: [{name: z}, {name: a}]";
        let pods = |url: &str| {
            format!(
                "[{{name: b, role: a, url: 'http://h/'}}, {{name: c, role: z, url: 'http://h/'}}, \
                 {{name: r2, router: true, url: 'http://h/'}}, {{name: a, role: a, url: '{url}'}}, \
                 {{name: r1, router: true, url: 'http://h/'}}]"
            )
        };
        let before = read(&file(spec, &pods("http://h:1/metrics"))).unwrap();
        let names: Vec<&str> = before.pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["r1", "r2", "c", "a", "b"]);
        let after = read(&file(spec, &pods("http://h:2/metrics"))).unwrap();
        let same: Vec<bool> = before.pods.iter().zip(&after.pods).map(|(a, b)| a.uid == b.uid).collect();
        assert_eq!(same, [true, true, true, false, true]);
    }

    #[test]
    fn urls() {
        let pod = |url: &str| file("roles: [{name: s}]", &format!("[{{name: p, role: s, url: {url}}}]"));
        for url in [
            "http://h",
            "http://h/",
            "http://h:80/a/b?c=d",
            "https://10.0.0.1:8443/metrics",
            "'http://[::1]:1/'",
            "'http://h/#f'",
        ] {
            assert_eq!(lines(&pod(url)), [""; 0], "{url}");
        }
        // A URL without a path is taken as it is.
        let deployment = read(&pod("http://h:1")).unwrap();
        assert_eq!(deployment.pods[0].endpoint.as_ref().unwrap().path(), "/");
        let refused = [
            ("ftp://h/metrics", "`ftp://h/metrics` is neither http nor https"),
            ("h/metrics", "is not a valid URL"),
            ("/metrics", "has no scheme"),
            ("127.0.0.1:8000", "has no scheme"),
            ("'http://'", "is not a valid URL"),
            ("'http:///metrics'", "is not a valid URL"),
            ("http://h:0/", "has no valid port"),
            ("http://h:65536/", "has no valid port"),
            ("http://h:x/", "has no valid port"),
            ("'http://h:/'", "has no valid port"),
            ("'http://h /'", "is not a valid URL"),
            ("''", "is not accepted"),
            ("8000", "`8000` is a number, not a text"),
            ("null", "is missing"),
            ("[a]", "is a list"),
        ];
        for (url, what) in refused {
            let found = lines(&pod(url));
            let [line] = found.as_slice() else { panic!("{url}: {found:?}") };
            assert!(line.starts_with("pods[0].url: ") && line.contains(what), "{url}: {line}");
            assert!(line.contains("accepted: an http or https URL"), "{url}: {line}");
        }
    }

    #[test]
    fn no_message_shows_user_information_a_query_or_an_argument() {
        let secrets = [
            "[{name: p, role: s, url: 'http://user:SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'https://SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'http://user:SECRET/SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'http://user:SECRET?SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'http://user:a@SECRET#@h/metrics'}]",
            "[{name: p, role: s, url: 'user:SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'user:SECRET://SECRET@h/metrics'}]",
            "[{name: p, role: s, url: 'ftp://h/metrics?token=SECRET'}]",
            "[{name: p, role: s, url: 'http://h/', args: SECRET}]",
            "[{name: p, role: s, url: 'http://h/', args: [{SECRET: SECRET}, 1]}]",
            "[{name: p, role: s, url: 'http://h/', arg: [SECRET]}]",
            "[{name: p, role: s, url: 'http://h/', args: [SECRET, *SECRET]}]",
            "[{name: p, role: s, url: 'http://h/', args: [--api-key, SECRET]",
            "[{name: p, role: s, url: 'http://h/', args: ['SECRET]}]",
            "[{name: p, role: s, url: 'http://h/', args: [\"SECRET\\xSECRET\"]}]",
            "[{name: p, role: s, url: 'http://h/', args: [!!int SECRET, !!float SECRET, !!bool SECRET]}]",
            "[SECRET]",
            "SECRET",
        ];
        for pods in secrets {
            let found = lines(&file("roles: [{name: s}]", pods));
            assert!(!found.is_empty(), "{pods}");
            assert!(found.iter().all(|line| !line.contains("SECRET")), "{pods}: {found:?}");
        }
        assert_eq!(redact("http://u:p@h:1/m?t=1"), "http://…@h:1/m?…");
        assert_eq!(redact("http://h:1/m"), "http://h:1/m");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_path_and_what_is_accepted() {
        let roles = "roles: [{name: s}]";
        let cases: &[(&str, &str, &str)] = &[
            ("roles: [{name: s}, {name: s}]", "[]", "spec.roles[1].name: `s` is the name of another role already"),
            ("roles: [{replicas: 1}]", "[]", "spec.roles[0].name: is missing"),
            (
                "roles: [{name: 123}]",
                "[]",
                "spec.roles[0].name: `123` is a number, not a text; accepted: the role's name, in quotes",
            ),
            ("roles: [s]", "[]", "spec.roles[0]: `s` is not accepted; accepted: a mapping"),
            ("roles: {name: s}", "[]", "spec.roles: is a mapping; accepted: a list"),
            (
                "roles: [{name: s, kind: worker}]",
                "[]",
                "spec.roles[0].kind: `worker` is not accepted; accepted: Server, Prefill, Decode",
            ),
            ("roles: [{name: s, kind: 1}]", "[]", "spec.roles[0].kind: `1` is not accepted"),
            (
                "roles: [{name: s, replicas: -1}]",
                "[]",
                "spec.roles[0].replicas: `-1` is not accepted; accepted: a whole number from 0 on",
            ),
            ("roles: [{name: s, replicas: '2'}]", "[]", "spec.roles[0].replicas: `2` is not accepted"),
            ("roles: [{name: s, replicas: 1.5}]", "[]", "spec.roles[0].replicas: `1.5`"),
            (
                "roles: [{name: s, size: 0}]",
                "[]",
                "spec.roles[0].size: `0` is not accepted; accepted: a whole number from 1 on",
            ),
            ("roles: [{name: s, replicaSize: x}]", "[]", "spec.roles[0].replicaSize: `x`"),
            (
                "roles: [{name: s, replicas: 9223372036854775808, size: 2}]",
                "[]",
                "spec.roles[0]: 9223372036854775808 replicas of size 2 are more Pods than can be counted",
            ),
            ("roles: [{name: s, command: {a: b}}]", "[]", "spec.roles[0].command: is a mapping"),
            (
                "router: {name: nginx}",
                "[]",
                "spec.router.name: `nginx` is not known; accepted: llm-d-router, vllm-router, sglang-gateway",
            ),
            ("router: {}", "[]", "spec.router.name: is missing"),
            ("router: {name: vllm-router, replicas: x}", "[]", "spec.router.replicas: `x`"),
            ("router: vllm-router", "[]", "spec.router: `vllm-router` is not accepted; accepted: a mapping"),
            ("kvCache: yes", "[]", "spec.kvCache: `yes` is not accepted"),
            ("kvCache: {poolRef: pool}", "[]", "spec.kvCache.poolRef: `pool` is not accepted"),
            (roles, "{}", "pods: is a mapping; accepted: a list"),
            (roles, "[p]", "pods[0]: is a text; accepted: a mapping with name, role, router, url, args"),
            (roles, "[{role: s, url: 'http://h/'}]", "pods[0].name: is missing"),
            (roles, "[{name: p, role: s}]", "pods[0].url: is missing"),
            (
                roles,
                "[{name: p, role: t, url: 'http://h/'}]",
                "pods[0].role: `t` is not known; accepted: the name of a role in spec.roles: s",
            ),
            (
                "",
                "[{name: p, role: t, url: 'http://h/'}]",
                "pods[0].role: `t` is not known; accepted: the name of a role in spec.roles, which has none",
            ),
            (roles, "[{name: p, url: 'http://h/'}]", "pods[0]: has neither `role` nor `router: true`"),
            (roles, "[{name: p, router: false, url: 'http://h/'}]", "pods[0]: has neither"),
            (roles, "[{name: p, role: s, router: true, url: 'http://h/'}]", "pods[0]: has both"),
            (
                roles,
                "[{name: p, router: yes, url: 'http://h/'}]",
                "pods[0].router: `yes` is not accepted; accepted: true or false",
            ),
            (
                roles,
                "[{name: p, router: true, url: 'http://h/'}]",
                "pods[0]: is a router's Pod, but the deployment has no `spec.router`",
            ),
            (
                roles,
                "[{name: p, role: s, url: 'http://h/', port: 1}]",
                "pods[0]: the key `port` is not known; accepted: name, role, router, url, args",
            ),
            (roles, "[{name: p, role: s, url: 'http://h/', args: [--port, 8000]}]", "pods[0].args[1]: is a number"),
            (
                roles,
                "[{name: p, role: s, url: 'http://h/', args: [--x, {a: 1}]}]",
                "pods[0].args[1]: is a mapping; accepted: a list of texts, with quotes",
            ),
            (
                roles,
                "[{name: p, role: s, url: 'http://h/'}, {name: p, role: s, url: 'http://i/'}]",
                "pods[1].name: `p` is the name of another Pod already",
            ),
        ];
        for (spec, pods, expected) in cases {
            let found = lines(&file(spec, pods));
            let [line] = found.as_slice() else { panic!("{spec} {pods}: {found:?}") };
            assert!(line.starts_with(expected), "{spec} {pods}: {line}");
        }
    }

    #[test]
    fn files_that_are_no_deployment() {
        let cases = [
            ("", "(file): is empty"),
            ("# only a comment\n", "(file): is empty"),
            ("null", "(file): is empty"),
            ("[]", "(file): is a list"),
            ("text", "(file): is a text"),
            ("{}", "metadata.name: is missing"),
            ("metadata: []", "metadata: a list is not accepted; accepted: a mapping"),
            ("spec: {engine: vLLM}", "metadata.name: is missing"),
            ("a: 1\na: 2", "the file is not valid YAML: the key `a` is given twice at line 2, column 1"),
            ("null: 1", "the file is not valid YAML: a key is null at line 1"),
            ("a: [", "the file is not valid YAML: "),
            ("a:\n\t- b", "the file is not valid YAML: "),
            ("a: 1\n---\nb: 2", "the file is not valid YAML: it has more than one document"),
        ];
        for (text, expected) in cases {
            let found = lines(text);
            assert!(found.first().is_some_and(|line| line.starts_with(expected)), "{text:?}: {found:?}");
        }
        let not_utf8 = parse(b"a: \xFF", &Catalogue::embedded().unwrap()).unwrap_err();
        assert!(not_utf8.to_string().contains("not UTF-8 after 3 bytes"), "{not_utf8}");
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let text = "metadata: {name: ''}\nspec: {engine: {name: x}, router: {name: y}, roles: [{name: s, kind: k}]}\n\
                    pods: [{name: p, role: s}, {name: p, role: q, url: 'a'}]";
        let found = lines(text);
        let paths: Vec<&str> = found.iter().map(|line| line.split(": ").next().unwrap()).collect();
        let expected = [
            "metadata.name",
            "metadata.namespace",
            "spec.engine.name",
            "spec.router.name",
            "spec.roles[0].kind",
            "pods[0].url",
            "pods[1].name",
            "pods[1].role",
            "pods[1].url",
        ];
        assert_eq!(paths, expected, "{found:#?}");
    }

    #[test]
    fn aliases_cannot_blow_a_file_up() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        let found = lines(&text);
        assert!(found.len() == 1 && found[0].starts_with("the file is not valid YAML: it is too large"), "{found:?}");
        // An ordinary anchor is fine.
        let text = file(
            "roles: [{name: s}]",
            "[{name: p, role: s, url: 'http://h/', args: &a [x]}, {name: q, role: s, url: 'http://h/', args: *a}]",
        );
        assert_eq!(lines(&text), [""; 0]);
    }
}
