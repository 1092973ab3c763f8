//! Speaking as a ServiceAccount with tokens asked for as somebody else: how one process under one
//! kubeconfig runs many controllers, each with no more rights than its own.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use stdx::SharedClock;
use stdx::clock::Instant;
use tokio::sync::Mutex;
use transport::{Handler, Request, Responding, SharedHandler};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::Key;
use crate::resource::Resource;

/// How long tokens are asked for; they are renewed at four fifths of it.
const LIFETIME: Duration = Duration::from_secs(3600);

struct Tokens {
    issuer: Client,
    account: Key,
    clock: SharedClock,
    current: Mutex<Option<(HeaderValue, Instant)>>,
}

impl Tokens {
    async fn header(&self) -> Result<HeaderValue> {
        let mut current = self.current.lock().await;
        if let Some((value, until)) = &*current {
            if self.clock.now() < *until {
                return Ok(value.clone());
            }
        }
        let asked = self.clock.now();
        let token = self.request().await?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::Decode("a token no header may carry".into()))?;
        value.set_sensitive(true);
        *current = Some((value.clone(), asked + LIFETIME.mul_f64(0.8)));
        Ok(value)
    }

    async fn request(&self) -> Result<String> {
        let accounts = Resource::new("", "v1", "serviceaccounts", "ServiceAccount", true);
        let api = self.issuer.dynamic(accounts).namespace(&self.account.namespace);
        let ask = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"expirationSeconds": LIFETIME.as_secs()},
        });
        let name = &self.account.name;
        let answer = match api.create_subresource(name, "token", &ask).await {
            Err(error) if error.is_not_found() => {
                let account = json!({
                    "kind": "ServiceAccount", "apiVersion": "v1",
                    "metadata": {"name": name, "namespace": self.account.namespace},
                });
                match api.create(&account).await {
                    Err(error) if !error.is_already_exists() => return Err(error),
                    _ => {}
                }
                api.create_subresource(name, "token", &ask).await?
            }
            answer => answer?,
        };
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        token.map(str::to_owned).ok_or_else(|| Error::Decode("the TokenRequest was answered without a token".into()))
    }
}

struct AsAccount {
    bare: SharedHandler,
    tokens: Arc<Tokens>,
}

impl Handler for AsAccount {
    fn call(&self, mut request: Request) -> Responding {
        let (bare, tokens) = (self.bare.clone(), self.tokens.clone());
        // Boxed twice: the token is asked for by a client like the one being served.
        let header: BoxFuture<'static, Result<HeaderValue>> = {
            let tokens = tokens.clone();
            Box::pin(async move { tokens.header().await })
        };
        Box::pin(async move {
            let value = header.await.map_err(|e| transport::Error::Connect(format!("no token: {e}")))?;
            request.headers_mut().insert(header::AUTHORIZATION, value);
            let response = bare.call(request).await?;
            if response.status() == http::StatusCode::UNAUTHORIZED {
                // It may have been revoked; the next request asks for another.
                *tokens.current.lock().await = None;
            }
            Ok(response)
        })
    }
}

impl Client {
    /// A client that speaks as a ServiceAccount over `bare`, which must carry no identity of its
    /// own. Tokens are asked for through `issuer`, renewed in time; a missing account is made.
    pub fn as_service_account(bare: SharedHandler, issuer: Client, account: Key, clock: SharedClock) -> Self {
        let agent = account.name.clone();
        let tokens = Arc::new(Tokens { issuer, account, clock, current: Mutex::new(None) });
        Self::new(Arc::new(AsAccount { bare, tokens }), &agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use stdx::clock::ManualClock;

    /// Answers token requests with `t1`, `t2`, …; everything else with the authorization it saw.
    struct Echo(parking_lot::Mutex<(u32, bool)>);

    impl Handler for Echo {
        fn call(&self, request: Request) -> Responding {
            let mut state = self.0.lock();
            let path = request.uri().path().to_owned();
            let seen =
                request.headers().get("authorization").and_then(|v| v.to_str().ok()).unwrap_or("nobody").to_owned();
            let (code, body) = match (path.ends_with("/token"), request.method() == http::Method::POST) {
                (true, _) if !state.1 => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})),
                (true, _) => {
                    state.0 += 1;
                    (201, json!({"status": {"token": format!("t{}", state.0)}}))
                }
                (false, true) => {
                    state.1 = true;
                    (201, json!({}))
                }
                (false, false) if seen == "Bearer t2" => (401, json!({"kind": "Status", "code": 401})),
                (false, false) => (200, json!(seen)),
            };
            let mut response = http::Response::new(transport::full(body.to_string()));
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
            Box::pin(std::future::ready(Ok(response)))
        }
    }

    #[tokio::test]
    async fn tokens_are_asked_for_renewed_and_replaced() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let handler: SharedHandler = Arc::new(Echo(parking_lot::Mutex::new((0, false))));
        let issuer = Client::new(handler.clone(), "issuer");
        let account = Key::new("kube-system", "replicaset-controller");
        let client = Client::as_service_account(handler, issuer, account, Arc::new(clock.clone()));
        let ask = || client.send(crate::client::Call::get("/x"));
        assert_eq!(ask().await.expect("answered"), "\"Bearer t1\"", "the account was made first");
        clock.advance(Duration::from_secs(2879));
        assert_eq!(ask().await.expect("answered"), "\"Bearer t1\"");
        clock.advance(Duration::from_secs(1));
        assert!(ask().await.is_err_and(|e| e.status().is_some_and(|s| s.code == 401)), "t2 is refused");
        assert_eq!(ask().await.expect("answered"), "\"Bearer t3\"");
    }
}
