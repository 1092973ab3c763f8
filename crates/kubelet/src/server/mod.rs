//! What the kubelet serves: logs and streams to the API server, and what it knows of itself and its node to
//! whoever may see it. HTTPS only; every request is authenticated and authorized.

pub mod auth;
pub mod container_logs;
pub mod node;
pub mod node_logs;
pub mod stat_pages;
pub mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use stdx::SharedClock;
use stdx::metrics::Form;
use stdx::shutdown::Stage;
use tokio::sync::watch;
use transport::{Body, Handler, Request, Responding, Response};

use crate::runtime::Runtime;
use crate::sync::worker::View;
use auth::Gate;
use streams::{Verb, Whose};

/// The node's pods, as far as a server must know them.
pub trait Pods: Send + Sync + 'static {
    /// A pod by name, and what becomes of it.
    fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<View>>;
    /// Every pod.
    fn all(&self) -> Vec<View>;
}

impl Pods for crate::pods::Pods {
    fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<View>> {
        self.find(namespace, name)
    }

    fn all(&self) -> Vec<View> {
        self.all()
    }
}

/// The routes, and what they answer from. Clones share it.
#[derive(Clone)]
pub struct Server {
    pub pods: Arc<dyn Pods>,
    pub gate: Gate,
    pub clock: SharedClock,
    /// No log is read that is not beneath it.
    pub log_root: PathBuf,
    /// Streams end with it.
    pub stage: Stage,
    /// What is told of the node.
    pub about: Arc<node::About>,
    /// Serves them.
    pub runtime: Arc<dyn Runtime>,
    /// How long a stream may carry nothing.
    pub stream_idle: Duration,
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Node(node::Route),
    ContainerLogs { namespace: String, pod: String, container: String },
    Stream(Verb, Whose),
    Run(Whose),
}

impl Route {
    /// Reads a path.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_start_matches('/').split('/').map(decode);
        let first = parts.next()??;
        let rest: Vec<String> = parts.collect::<Option<_>>()?;
        match (first.as_str(), rest.as_slice()) {
            ("containerLogs", [namespace, pod, container]) => Some(Self::ContainerLogs {
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: container.clone(),
            }),
            ("exec", rest) => Some(Self::Stream(Verb::Exec, Whose::container(rest)?)),
            ("attach", rest) => Some(Self::Stream(Verb::Attach, Whose::container(rest)?)),
            ("portForward", rest) => Some(Self::Stream(Verb::PortForward, Whose::pod(rest)?)),
            ("run", rest) => Some(Self::Run(Whose::container(rest)?)),
            (first, rest) => node::Route::parse(first, rest).map(Self::Node),
        }
    }

    /// Whether it is asked for by that method.
    fn allows(&self, method: &Method) -> bool {
        match self {
            Self::Node(route) => *method == route.method(),
            Self::ContainerLogs { .. } => *method == Method::GET,
            Self::Stream(..) => method == Method::GET || method == Method::POST,
            Self::Run(_) => method == Method::POST,
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

/// Is there a parameter of this name that is no text? A command without one of its words is another command.
pub fn has_unreadable(text: Option<&str>, name: &str) -> bool {
    let mut pairs = text.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.any(|(key, value)| {
        decode(&key.replace('+', " ")).is_some_and(|key| key == name) && decode(&value.replace('+', " ")).is_none()
    })
}

/// A short answer in plain text.
pub fn text(status: StatusCode, text: impl Into<String>) -> Response {
    let mut response = Response::new(transport::full(text.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

impl Handler for Server {
    fn call(&self, request: Request) -> Responding {
        let server = self.clone();
        Box::pin(async move {
            let (request, body) = request.into_parts();
            let metrics = &server.about.ctx.metrics;
            let counted = node::InFlight::begin(metrics, &server.clock, &request.method, request.uri.path());
            let mut response = server.answer(request, body).await;
            if counted.is_stream {
                response = response.map(|body| transport::holding(body, counted));
            }
            Ok(response)
        })
    }
}

impl Server {
    async fn answer(&self, request: http::request::Parts, body: Body) -> Response {
        let user = match self.gate.authenticate(&request).await {
            Ok(user) => user,
            Err(response) => return *response,
        };
        // Who may not look learns nothing of what there is.
        let route = Route::parse(request.uri.path());
        let subresources = node::subresources(&decode(request.uri.path()).unwrap_or_default());
        if let Err(response) = self.gate.authorize(&user, &request.method, subresources).await {
            return *response;
        }
        // Who runs a command does more than look, whatever the method: a WebSocket begins with a GET.
        if matches!(route, Some(Route::Stream(..))) && request.method != Method::POST {
            if let Err(response) = self.gate.authorize(&user, &Method::POST, subresources).await {
                return *response;
            }
        }
        if let Some(response) = self.about.debug.answer(&request.method, &request.uri, body).await {
            return response;
        }
        let Some(route) = route else {
            return text(StatusCode::NOT_FOUND, "404 page not found\n");
        };
        if !route.allows(&request.method) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
        }
        match route {
            Route::Node(route) => {
                let accept = request.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok());
                node::answer(self, route, request.uri.query(), Form::asked(accept)).await
            }
            Route::ContainerLogs { namespace, pod, container } => {
                let query = query(request.uri.query());
                container_logs::answer(self, &namespace, &pod, &container, &query).await
            }
            Route::Stream(verb, whose) => streams::answer(self, &request, verb, &whose).await,
            Route::Run(whose) => streams::run::answer(self, &whose, &query(request.uri.query())).await,
        }
    }
}

/// The pods as this kubelet sees them.
fn list(views: &[View]) -> Response {
    let object = |view: &View| {
        let mut object = api::types::core::v1::Pod::clone(view.pod.object());
        object.status = Some(view.status.as_ref().clone());
        serde_json::to_value(&object)
    };
    let items = match views.iter().map(object).collect::<Result<Vec<_>, _>>() {
        Ok(items) => items,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let list = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    let bytes = match api::schema::of("", "v1", "PodList") {
        Some(schema) => machinery::encode::json(&list, &schema),
        None => list.to_string().into_bytes(),
    };
    let mut response = Response::new(transport::full(bytes));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
