//! Who may: one file per authorizer, asked in order until one allows.

use std::sync::Arc;

use kinds::User;

use crate::request::RequestInfo;

pub mod masters;
pub mod node;
pub mod rbac;

pub use node::NodeAuthorizer;
pub use rbac::Rbac;

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow {
        reason: String,
    },
    /// Ask the next; 403 when there is none.
    NoOpinion {
        reason: String,
    },
    Deny {
        reason: String,
    },
}

impl Decision {
    /// No opinion and nothing to say about it.
    pub const fn silent() -> Self {
        Self::NoOpinion { reason: String::new() }
    }

    /// True for `Allow`.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// What was said.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow { reason } | Self::NoOpinion { reason } | Self::Deny { reason } => reason,
        }
    }
}

/// One rule base. It reads its own listers and never waits.
pub trait Authorizer: Send + Sync + 'static {
    /// May `user` do what `request` says?
    fn authorize(&self, user: &User, request: &RequestInfo) -> Decision;
}

/// Authorizers in order: the first that allows or denies decides. When none does, the reasons of
/// all are kept, a line each.
pub struct Chain(pub Vec<Arc<dyn Authorizer>>);

impl Chain {
    /// The usual order: members of `system:masters`, nodes, RBAC.
    pub fn standard(node: Arc<NodeAuthorizer>, rbac: Arc<Rbac>) -> Self {
        Self(vec![Arc::new(masters::Masters), node, rbac])
    }
}

impl Authorizer for Chain {
    fn authorize(&self, user: &User, request: &RequestInfo) -> Decision {
        let mut reasons: Vec<String> = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(user, request) {
                Decision::NoOpinion { reason } if reason.is_empty() => {}
                Decision::NoOpinion { reason } => reasons.push(reason),
                decided => return decided,
            }
        }
        Decision::NoOpinion { reason: reasons.join("\n") }
    }
}
