//! What the kubelet serves: logs to the API server, and its own health and pods to whoever may see
//! them. HTTPS only; every request is authenticated and authorized.

pub mod auth;
pub mod container_logs;

use std::sync::Arc;

use http::{Method, StatusCode};
use stdx::SharedClock;
use transport::{Handler, Request, Responding, Response};

use crate::pods::Pods;
use auth::Gate;

/// The routes.
pub struct Server {
    pub pods: Arc<Pods>,
    pub gate: Gate,
    pub clock: SharedClock,
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Healthz,
    Pods,
    ContainerLogs { namespace: String, pod: String, container: String },
}

impl Route {
    /// Reads a path.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_start_matches('/').split('/').map(decode);
        let first = parts.next()??;
        let rest: Vec<String> = parts.collect::<Option<_>>()?;
        match (first.as_str(), rest.as_slice()) {
            ("healthz", []) => Some(Self::Healthz),
            ("pods", []) => Some(Self::Pods),
            ("containerLogs", [namespace, pod, container]) => Some(Self::ContainerLogs {
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: container.clone(),
            }),
            _ => None,
        }
    }

    /// The subresources of the node that allow it, the narrowest first.
    pub fn subresources(&self) -> &'static [&'static str] {
        match self {
            Self::Healthz => &["healthz", "proxy"],
            Self::Pods => &["pods", "proxy"],
            Self::ContainerLogs { .. } => &["proxy"],
        }
    }
}

/// Undoes `%xx`; `None` for what is not text.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let hex = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        out.push(hex(bytes.next()?)? << 4 | hex(bytes.next()?)?);
    }
    String::from_utf8(out).ok()
}

/// The parameters of a query.
pub fn query(text: Option<&str>) -> Vec<(String, String)> {
    let pairs = text.unwrap_or_default().split('&').filter(|p| !p.is_empty());
    pairs
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(&key.replace('+', " "))?, decode(&value.replace('+', " "))?))
        })
        .collect()
}

/// A short answer in plain text.
pub fn text(status: StatusCode, text: impl Into<String>) -> Response {
    let mut response = Response::new(transport::full(text.into()));
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

impl Handler for Server {
    fn call(&self, request: Request) -> Responding {
        let (pods, gate, clock) = (self.pods.clone(), self.gate.clone(), self.clock.clone());
        Box::pin(async move { Ok(answer(pods, gate, clock, request.into_parts().0).await) })
    }
}

async fn answer(pods: Arc<Pods>, gate: Gate, clock: SharedClock, request: http::request::Parts) -> Response {
    let user = match gate.authenticate(&request).await {
        Ok(user) => user,
        Err(response) => return *response,
    };
    let Some(route) = Route::parse(request.uri.path()) else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if let Err(response) = gate.authorize(&user, &request.method, &route).await {
        return *response;
    }
    if request.method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed\n");
    }
    match route {
        Route::Healthz => text(StatusCode::OK, "ok"),
        Route::Pods => list(&pods),
        Route::ContainerLogs { namespace, pod, container } => {
            let query = query(request.uri.query());
            container_logs::answer(&pods, &clock, &namespace, &pod, &container, &query).await
        }
    }
}

/// The pods as this kubelet sees them.
fn list(pods: &Pods) -> Response {
    let mut items = Vec::new();
    for view in pods.all() {
        let mut object = api::types::core::v1::Pod::clone(view.pod.object());
        object.status = Some(view.status.as_ref().clone());
        match serde_json::to_value(&object) {
            Ok(value) => items.push(value),
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
    let list = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    let mut response = Response::new(transport::full(list.to_string()));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        assert_eq!(Route::parse("/healthz"), Some(Route::Healthz));
        assert_eq!(Route::parse("/pods"), Some(Route::Pods));
        let logs = |n: &str, p: &str, c: &str| {
            Some(Route::ContainerLogs { namespace: n.into(), pod: p.into(), container: c.into() })
        };
        assert_eq!(Route::parse("/containerLogs/ns/p/c"), logs("ns", "p", "c"));
        assert_eq!(Route::parse("/containerLogs/ns/p%2d1/c%2F.."), logs("ns", "p-1", "c/.."));
        for bad in ["/", "/containerLogs/ns/p", "/containerLogs/ns/p/c/d", "/exec/ns/p/c", "/%ff", "/%", "/pods/x"] {
            assert_eq!(Route::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn queries() {
        let got = query(Some("follow=true&sinceTime=2026-01-01T00%3A00%3A00Z&x&a+b=%2B"));
        let pairs: Vec<(&str, &str)> = got.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("follow", "true"), ("sinceTime", "2026-01-01T00:00:00Z"), ("x", ""), ("a b", "+")]);
    }
}
