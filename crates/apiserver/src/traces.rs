//! What a request is a part of, and what its lines in the log say of it.
//!
//! Whose word counts is upstream's rule: only administrators and those who observe the cluster can have their
//! requests recorded by saying so, since recording costs. The requests of all others begin traces of their own.

use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue};
use kinds::User;
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::trace::{self, Context};
use tracing::Span;
use tracing::field::Empty;
use transport::serve::Peer;

use crate::request::RequestInfo;
use crate::server::ApiServer;

/// The target of spans that are parts of traces.
pub const TARGET: &str = "trace";
/// Who says whether a request is recorded.
const BELIEVED: [&str; 2] = ["system:masters", "system:monitoring"];

/// The span of a request, which all its lines are within.
pub fn request(head: &http::request::Parts, info: Option<&RequestInfo>, id: Option<&HeaderValue>) -> Span {
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        "audit-ID" = id,
        verb = Empty,
        resource = Empty,
        namespace = Empty,
        object = Empty,
        traceID = Empty,
        "otel.kind" = "server",
        "otel.name" = Empty,
        "otel.context" = Empty,
        "otel.caller" = Empty,
        "http.request.method" = head.method.as_str(),
        "url.path" = head.uri.path(),
        "user_agent.original" = Empty,
        "http.response.status_code" = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(info) = info.filter(|info| info.is_resource) {
        span.record("verb", info.verb.as_str()).record("resource", info.resource.as_str());
        match (info.namespace.as_str(), info.name.as_str()) {
            ("", "") => {}
            (namespace, "") => {
                span.record("namespace", namespace);
            }
            ("", name) => {
                span.record("object", name);
            }
            (namespace, name) => {
                span.record("object", format!("{namespace}/{name}"));
            }
        }
    }
    span
}

/// The answer has begun.
pub fn answered(span: &Span, code: u16) {
    if !span.is_disabled() {
        span.record("http.response.status_code", code);
    }
}

/// The place of a request in a trace, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace(Option<Context>);

impl Trace {
    /// Of a request by somebody who is known. Where traces are told of nowhere, what the client says is only
    /// passed on.
    pub fn begin(server: &ApiServer, head: &http::request::Parts, info: &RequestInfo, user: &User) -> Self {
        let caller = head.headers.get(trace::HEADER).and_then(|v| v.to_str().ok()).and_then(Context::parse);
        let span = Span::current();
        let place = match server.tracing {
            None => caller,
            Some(sampler) => {
                let is_believed = user.groups.iter().any(|group| BELIEVED.contains(&group.as_str()));
                let believed = caller.filter(|_| is_believed);
                let place = sampler.begin(believed, &server.rng);
                span.record("otel.context", place.to_string()).record("otel.name", name(head, info));
                if let Some(caller) = believed {
                    span.record("otel.caller", caller.to_string());
                }
                if let Some(agent) = head.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()) {
                    span.record("user_agent.original", agent);
                }
                Some(place)
            }
        };
        if let Some(shown) = place.filter(|place| place.sampled).or(caller).filter(|_| !span.is_disabled()) {
            span.record("traceID", format!("{:032x}", shown.trace));
        }
        Self(place)
    }

    /// Who is asked on behalf of the request learns its place.
    pub fn pass_on(self, headers: &mut HeaderMap) {
        if let Some(value) = self.0.and_then(|place| HeaderValue::from_str(&place.to_string()).ok()) {
            headers.insert(trace::HEADER, value);
        }
    }
}

/// What upstream calls the span: the path with placeholders.
fn name(head: &http::request::Parts, info: &RequestInfo) -> String {
    if !info.is_resource {
        return head.method.to_string();
    }
    let mut name = match info.group.as_str() {
        "" => format!("{} /api/{}", head.method, info.version),
        group => format!("{} /apis/{group}/{}", head.method, info.version),
    };
    if !info.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.push('/');
    name.push_str(&info.resource);
    if !info.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !info.subresource.is_empty() {
        name.push('/');
        name.push_str(&info.subresource);
    }
    name
}

/// The line of a request, for those who want to see every one.
pub struct Line(Option<Known>);

struct Known {
    method: http::Method,
    uri: String,
    agent: String,
    from: String,
    began: Instant,
    clock: SharedClock,
}

impl Line {
    /// A request begins. Nothing is kept of it where nobody listens.
    pub fn begin(head: &http::request::Parts, clock: &SharedClock) -> Self {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return Self(None);
        }
        let agent = head.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let from = head.extensions.get::<Peer>().map(|peer| peer.address.to_string()).unwrap_or_default();
        // Over HTTP/2 the host is in it, too.
        let uri = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let (method, agent) = (head.method.clone(), agent.to_owned());
        Self(Some(Known { method, uri, agent, from, began: clock.now(), clock: clock.clone() }))
    }

    /// Its answer has begun.
    pub fn end(self, span: &Span, code: u16) {
        let Some(Known { method, uri, agent, from, began, clock }) = self.0 else { return };
        let latency: Duration = clock.now().since(began);
        span.in_scope(|| {
            tracing::debug!(%method, URI = uri, ?latency, userAgent = agent, srcIP = from, resp = code, "HTTP");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Query, parse};

    #[test]
    fn spans_have_upstreams_names() {
        for (method, path, want) in [
            ("GET", "/api/v1/pods", "GET /api/v1/pods"),
            ("PUT", "/api/v1/namespaces/a/pods/b/status", "PUT /api/v1/namespaces/{:namespace}/pods/{:name}/status"),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments",
                "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
            ),
            ("GET", "/healthz", "GET"),
        ] {
            let request = http::Request::builder().method(method).uri(path).body(()).expect("a request");
            let head = request.into_parts().0;
            let info = parse(&head.method, path, &Query::parse("")).expect("a path");
            assert_eq!(name(&head, &info), want, "{method} {path}");
        }
    }
}
