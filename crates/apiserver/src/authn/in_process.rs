//! Components of this process: their door puts the identity into the request's extensions, which
//! nothing that comes from the network can do.

use async_trait::async_trait;
use kinds::User;

use super::{Authenticator, Verdict};

/// The identity of a component in this process, as a request extension.
#[derive(Clone, Debug)]
pub struct InProcess(pub User);

/// Believes the extension.
pub struct InProcessAuthenticator;

#[async_trait]
impl Authenticator for InProcessAuthenticator {
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict {
        request.extensions.get::<InProcess>().map_or(Verdict::Unknown, |found| Verdict::User(found.0.clone()))
    }
}
