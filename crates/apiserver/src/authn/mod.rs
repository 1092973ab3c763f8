//! Who asks: one file per authenticator, asked in order; the first that knows the request decides.

use async_trait::async_trait;
use kinds::User;

pub mod in_process;
pub mod jwt;
pub mod service_account;
pub mod x509;

/// What an authenticator says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this user (group `system:authenticated` is added by the chain).
    User(User),
    /// The request carries nothing this authenticator understands.
    Unknown,
    /// It carries a credential that is wrong: 401, the rest is not asked.
    Invalid,
}

/// One way to know who asks.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Looks at the head of a request (client certificates are in its extensions).
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict;
}
