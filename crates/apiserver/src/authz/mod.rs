//! Who may: one file per authorizer, asked in order until one allows.

use kinds::User;

use crate::request::RequestInfo;

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

/// One rule base. It reads its own listers and never waits.
pub trait Authorizer: Send + Sync + 'static {
    /// May `user` do what `request` says?
    fn authorize(&self, user: &User, request: &RequestInfo) -> Decision;
}
