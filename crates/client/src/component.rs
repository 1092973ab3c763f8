//! What a component that runs alone serves of itself: whether it is well to everybody, what it counts, how it
//! is configured and what is below `/debug` to whom the API server allows it.
//!
//! Health needs no permission, as upstream (`--authorization-always-allow-paths`); everything else is asked of
//! the API server for its path. Only tokens say who asks: whoever has a certificate asks through the API server.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use machinery::status::Status;
use serde_json::Value;
use stdx::metrics::{Form, Registry};
use transport::debug::Debug;
use transport::{Body, Handler, Request, Responding, Response};

use crate::delegated::{Delegate, Wish};

/// The answers. Clones share them.
#[derive(Clone)]
pub struct Component {
    registry: Registry,
    /// What `/configz` shows.
    config: Arc<Value>,
    debug: Debug,
    others: Others,
    /// Pages of metrics that are made when they are asked for, by their paths.
    pages: BTreeMap<&'static str, Arc<Make>>,
}

/// A page that is being made; or why it cannot be.
pub type Making = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;
type Make = dyn Fn() -> Making + Send + Sync;

/// Who may see more than health.
#[derive(Clone)]
enum Others {
    Nobody,
    /// For servers that only this host reaches.
    Everybody,
    /// Whom the API server allows it.
    Allowed(Arc<Delegate>),
}

impl Component {
    /// Of a component that counts in `registry`; without a delegate everybody may see it.
    pub fn new(registry: Registry, config: Value, debug: Debug, delegate: Option<Delegate>) -> Self {
        let others = delegate.map_or(Others::Everybody, |delegate| Others::Allowed(Arc::new(delegate)));
        Self { registry, config: Arc::new(config), debug, others, pages: BTreeMap::new() }
    }

    /// One that tells its health and nothing else.
    pub fn health_only() -> Self {
        Self { others: Others::Nobody, ..Self::new(Registry::default(), Value::Null, Debug::none(), None) }
    }

    /// With one more page of metrics, which is made whenever it is asked for, or cannot be.
    #[must_use]
    pub fn with_page(mut self, path: &'static str, make: impl Fn() -> Making + Send + Sync + 'static) -> Self {
        self.pages.insert(path, Arc::new(make));
        self
    }

    async fn answer(&self, request: http::request::Parts, body: Body) -> Response {
        let path = request.uri.path();
        if is_health(path) {
            return text(StatusCode::OK, "text/plain; charset=utf-8", "ok".into());
        }
        if let Err(status) = self.admit(&request, path).await {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return text(code, "application/json", status.to_value().to_string());
        }
        if let Some(response) = self.debug.answer(&request.method, &request.uri, body).await {
            return response;
        }
        let accept = request.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok());
        let form = Form::asked(accept);
        if let Some(make) = self.pages.get(path).filter(|_| request.method == Method::GET) {
            return match make().await {
                Ok(page) => text(StatusCode::OK, form.media_type(), form.write(page)),
                Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", format!("{why}\n")),
            };
        }
        match path {
            _ if request.method != Method::GET => {
                text(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "405: Method Not Allowed\n".into())
            }
            "/metrics" => text(StatusCode::OK, form.media_type(), form.write(self.registry.page())),
            "/configz" => text(StatusCode::OK, "application/json", self.config.to_string()),
            _ => text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".into()),
        }
    }

    /// May whoever asks see that?
    async fn admit(&self, request: &http::request::Parts, path: &str) -> machinery::status::Result<()> {
        let delegate = match &self.others {
            Others::Nobody => return Err(Status::no_such_path()),
            Others::Everybody => return Ok(()),
            Others::Allowed(delegate) => delegate,
        };
        let header = request.headers.get(http::header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = header.and_then(|h| h.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let (_, token) = token.ok_or_else(Status::unauthorized)?;
        let user = delegate.authenticate(token.trim()).await.map_err(|error| {
            tracing::warn!(%error, "the API server cannot be asked whose token it is");
            Status::unauthorized()
        })?;
        let user = user.ok_or_else(Status::unauthorized)?;
        let verb = request.method.as_str().to_ascii_lowercase();
        let wish = Wish::Path { verb: verb.clone(), path: path.to_owned() };
        match delegate.authorize(&user, &wish).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
                Err(Status::new(403, "Forbidden", why))
            }
            Err(error) => {
                tracing::warn!(%error, "the API server cannot be asked who may");
                Err(Status::internal("the API server cannot be asked"))
            }
        }
    }
}

/// `/healthz`, `/livez` and `/readyz`, as a whole or by the check that there always is.
fn is_health(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    ["/healthz", "/livez", "/readyz"].iter().any(|known| path == *known || path.strip_prefix(known) == Some("/ping"))
}

fn text(code: StatusCode, media: &'static str, text: String) -> Response {
    let mut response = Response::new(transport::full(text));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

impl Handler for Component {
    fn call(&self, request: Request) -> Responding {
        let this = self.clone();
        Box::pin(async move {
            let (request, body) = request.into_parts();
            Ok(this.answer(request, body).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use http_body_util::BodyExt;
    use serde_json::json;
    use stdx::clock::RealClock;

    /// Knows the token `good`, whose user may see metrics.
    struct Reviews;

    impl Handler for Reviews {
        fn call(&self, request: Request) -> Responding {
            Box::pin(async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(|e| transport::Error::Broken(e.to_string()))?.to_bytes();
                let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
                review["status"] = if parts.uri.path().ends_with("tokenreviews") {
                    json!({"authenticated": review["spec"]["token"] == "good", "user": {"username": "jane"}})
                } else {
                    json!({"allowed": review["spec"]["nonResourceAttributes"] == json!({"verb": "get", "path": "/metrics"})})
                };
                Ok(http::Response::new(transport::full(review.to_string())))
            })
        }
    }

    async fn ask(component: &Component, method: Method, path: &str, token: &str) -> (u16, String) {
        let request =
            http::Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        let response = component.call(request.body(transport::empty()).expect("a request")).await.expect("an answer");
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("read").to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn health_is_for_everybody_and_the_rest_for_who_may() {
        let client = Client::new(Arc::new(Reviews), "kube-scheduler");
        let delegate = Delegate::new(client, Vec::new(), Default::default(), RealClock::shared());
        let registry = Registry::default();
        registry.counter("a_total", "A.", &[]).inc(&[]);
        let component =
            Component::new(registry, json!({"componentconfig": {}}), Debug::none().with_profiling([]), Some(delegate));
        for (method, path, token, code, part) in [
            (Method::GET, "/healthz", "", 200, "ok"),
            (Method::GET, "/livez/ping", "bad", 200, "ok"),
            (Method::GET, "/readyz/", "", 200, "ok"),
            (Method::GET, "/metrics", "good", 200, "a_total 1\n"),
            (Method::GET, "/metrics", "bad", 401, "\"reason\":\"Unauthorized\""),
            (Method::GET, "/configz", "good", 403, "forbidden: User \\\"jane\\\" cannot get path \\\"/configz\\\""),
            (Method::POST, "/metrics", "good", 403, "cannot post path"),
            (Method::GET, "/debug/pprof/", "good", 403, "Forbidden"),
            (Method::GET, "/debug/pprof/", "bad", 401, "Unauthorized"),
            (Method::GET, "/healthz/other", "bad", 401, "Unauthorized"),
            (Method::GET, "/nothing", "good", 403, "Forbidden"),
        ] {
            let (got, text) = ask(&component, method, path, token).await;
            assert!(got == code && text.contains(part), "{path} {token}: {got} {text}");
        }
        let open = Component::new(Registry::default(), json!({}), Debug::none(), None);
        assert_eq!(ask(&open, Method::GET, "/nothing", "").await, (404, "404 page not found\n".to_owned()));
        assert_eq!(ask(&open, Method::POST, "/metrics", "").await.0, 405);
        let closed = Component::health_only();
        assert_eq!(
            (ask(&closed, Method::GET, "/healthz", "").await.0, ask(&closed, Method::GET, "/metrics", "").await.0),
            (200, 404)
        );
    }
}
