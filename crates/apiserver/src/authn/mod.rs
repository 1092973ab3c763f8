//! Who asks: one file per authenticator, asked in order; the first that knows who it is decides.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::User;
use machinery::status::{self, Status};

use crate::request::RequestInfo;

pub mod in_process;
pub mod jwt;
pub mod request_header;
pub mod service_account;
pub mod websocket;
pub mod x509;

/// What an authenticator says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this user (group `system:authenticated` is added by the chain).
    User(User),
    /// The request carries nothing this authenticator understands.
    Unknown,
    /// It carries a credential that is wrong. Another one may be right; if none is, it is a 401, also where
    /// anybody may ask.
    Invalid,
}

/// One way to know who asks.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Looks at the head of a request (client certificates are in its extensions).
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict;
}

const AUTHENTICATED: &str = "system:authenticated";

/// Asks the authenticators in order: the first that knows who it is decides, whatever else the request carries.
/// Nobody's requests are served only where anybody may ask.
///
/// # Errors
/// 401.
pub async fn identify(
    authenticators: &[Arc<dyn Authenticator>],
    request: &http::request::Parts,
    info: &RequestInfo,
) -> status::Result<User> {
    let mut is_wrong = false;
    for authenticator in authenticators {
        match authenticator.authenticate(request).await {
            Verdict::User(mut user) => {
                if !user.groups.iter().any(|g| g == AUTHENTICATED) {
                    user.groups.push(AUTHENTICATED.to_owned());
                }
                return Ok(user);
            }
            Verdict::Invalid => is_wrong = true,
            Verdict::Unknown => {}
        }
    }
    // A bearer token that nobody understood is a wrong token, not an anonymous request.
    if !is_wrong && is_public(info) && !request.headers.contains_key(http::header::AUTHORIZATION) {
        let groups = vec!["system:unauthenticated".to_owned()];
        return Ok(User { name: "system:anonymous".to_owned(), groups, ..User::default() });
    }
    Err(Status::unauthorized())
}

/// What anybody may ask: is the server well, and which version is it.
pub fn is_public(info: &RequestInfo) -> bool {
    let first = info.path.trim_start_matches('/').split('/').next().unwrap_or_default();
    !info.is_resource
        && info.verb == "get"
        && (matches!(first, "healthz" | "livez" | "readyz") || info.path.trim_end_matches('/') == "/version")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Query, parse};

    struct Says(Verdict);

    #[async_trait]
    impl Authenticator for Says {
        async fn authenticate(&self, _request: &http::request::Parts) -> Verdict {
            self.0.clone()
        }
    }

    async fn check(verdicts: &[Verdict], path: &str, token: bool) -> Option<(String, Vec<String>)> {
        let all: Vec<Arc<dyn Authenticator>> =
            verdicts.iter().map(|v| -> Arc<dyn Authenticator> { Arc::new(Says(v.clone())) }).collect();
        let mut request = http::Request::get(path);
        if token {
            request = request.header("authorization", "Bearer x");
        }
        let (head, ()) = request.body(()).expect("request").into_parts();
        let info = parse(&head.method, head.uri.path(), &Query::default()).expect("parses");
        identify(&all, &head, &info).await.ok().map(|u| (u.name, u.groups))
    }

    #[tokio::test]
    async fn the_first_that_knows_decides_and_nobody_gets_health_only() {
        let user = |name: &str| Verdict::User(User { name: name.into(), ..User::default() });
        let who = |name: &str, group: &str| Some((name.to_owned(), vec![group.to_owned()]));
        let anonymous = who("system:anonymous", "system:unauthenticated");
        for (verdicts, path, token, want) in [
            (vec![Verdict::Unknown, user("a"), user("b")], "/api/v1/pods", false, who("a", AUTHENTICATED)),
            (vec![Verdict::Invalid, user("a")], "/healthz", false, who("a", AUTHENTICATED)),
            (vec![Verdict::Invalid, Verdict::Unknown], "/healthz", false, None),
            (vec![Verdict::Unknown, Verdict::Invalid], "/api/v1/pods", true, None),
            (vec![Verdict::Unknown], "/api/v1/pods", false, None),
            (vec![Verdict::Unknown], "/apis", false, None),
            (vec![], "/readyz", false, anonymous.clone()),
            (vec![], "/livez/ping", false, anonymous.clone()),
            (vec![], "/version", false, anonymous.clone()),
            (vec![], "/version/x", false, None),
            (vec![], "/healthzz", false, None),
            (vec![], "/readyz", true, None),
        ] {
            assert_eq!(check(&verdicts, path, token).await, want, "{path}");
        }
    }
}
