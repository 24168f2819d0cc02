//! What the model deployment is: its spec, its Pods and what is expected of them.
//!
//! Plain data with the questions the rules ask of it. Every discovery publishes this one type and
//! nothing downstream knows which discovery ran. No I/O.

use crate::arguments::Arguments;
use crate::catalogue::Software;
use std::sync::Arc;
use std::time::SystemTime;

/// One model deployment as discovery sees it, immutable.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The engine's catalogue file.
    pub engine: Arc<Software>,
    /// The engine's name in the catalogue's spelling, for `modeldeployment_info`.
    pub engine_name: String,
    /// Whether a KV cache pool is attached.
    pub pool: bool,
    /// The router, if the deployment has one.
    pub router: Option<Router>,
    /// The roles in the order of the spec.
    pub roles: Vec<Role>,
    /// The owned Pods of the router and of the managed roles, in reading order:
    /// routers first, then the roles in turn, each by name.
    pub pods: Vec<Arc<Pod>>,
}

/// The deployment's router.
#[derive(Debug, Clone)]
pub struct Router {
    /// The router's catalogue file.
    pub software: Arc<Software>,
    /// Its name in the catalogue's spelling.
    pub name: String,
    /// Pods expected.
    pub replicas: u64,
}

/// What a role does in serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleKind {
    /// Serves whole requests.
    Server,
    /// Computes prompts and hands their KV blocks to a decode role.
    Prefill,
    /// Generates from handed KV blocks.
    Decode,
}

/// One role of the deployment.
#[derive(Debug, Clone)]
pub struct Role {
    /// Its name, the label `role`.
    pub name: String,
    /// What it does.
    pub kind: RoleKind,
    /// Pods expected: replicas × size.
    pub expected: u64,
    /// False for a role with a command of its own: not read and not expected.
    pub managed: bool,
}

/// Which part of the deployment a Pod belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// The router.
    Router,
    /// The role with this index in [`Deployment::roles`].
    Role(usize),
}

/// Which half of a pair a Pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// Of a pair, the prefill half.
    Prefill,
    /// Of a pair, the decode half.
    Decode,
}

/// One Pod of the deployment.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its identity: a Pod with another one starts afresh. The UID in a cluster; name and URL in a file.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// What it belongs to.
    pub member: Member,
    /// Where its metrics are, or the sentence that says why there is no usable endpoint.
    pub endpoint: Result<http::Uri, String>,
    /// What its arguments say about the rules' questions.
    pub arguments: Arguments,
    /// When the container that declares the metrics port started, where discovery knows.
    pub started: Option<SystemTime>,
}

impl Deployment {
    /// Whether both kinds prefill and decode are present, which makes the deployment a pair.
    pub fn is_pair(&self) -> bool {
        let has = |kind| self.roles.iter().any(|role| role.kind == kind);
        has(RoleKind::Prefill) && has(RoleKind::Decode)
    }

    /// The half of a pair that a Pod is, if it is one.
    pub fn half(&self, member: Member) -> Option<Half> {
        let Member::Role(index) = member else { return None };
        if !self.is_pair() {
            return None;
        }
        match self.roles.get(index)?.kind {
            RoleKind::Prefill => Some(Half::Prefill),
            RoleKind::Decode => Some(Half::Decode),
            RoleKind::Server => None,
        }
    }

    /// The name of a Pod's role; none for the router.
    pub fn role(&self, member: Member) -> Option<&str> {
        match member {
            Member::Router => None,
            Member::Role(index) => self.roles.get(index).map(|role| role.name.as_str()),
        }
    }

    /// The catalogue file that says what a Pod exports.
    pub fn software(&self, member: Member) -> Option<&Arc<Software>> {
        match member {
            Member::Router => self.router.as_ref().map(|router| &router.software),
            Member::Role(_) => Some(&self.engine),
        }
    }

    /// The parts from which Pods are expected, with how many: the router, then the managed roles.
    pub fn expected(&self) -> Vec<(Member, u64)> {
        let router = self.router.iter().map(|router| (Member::Router, router.replicas));
        let roles = self.roles.iter().enumerate().filter(|(_, role)| role.managed);
        router.chain(roles.map(|(index, role)| (Member::Role(index), role.expected))).collect()
    }

    /// `router` or `engine/<role>`: the JSON's scope, and the source of entries about the Pods of a part.
    pub fn scope(&self, member: Member) -> String {
        match self.role(member) {
            None => "router".to_owned(),
            Some(role) => format!("engine/{role}"),
        }
    }
}
