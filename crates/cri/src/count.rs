//! Which calls of the runtime are made, how long they take and how many fail: told at the one place that all
//! calls go through.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use stdx::SharedClock;
use tonic::body::Body;
use tower_service::Service;
use tracing::Instrument;

type Told = dyn Fn(&str, Duration, bool) + Send + Sync;

/// A channel whose calls are told when their answer begins. Clones tell the same.
#[derive(Clone)]
pub struct Counted<C> {
    channel: C,
    clock: SharedClock,
    told: Arc<Told>,
}

impl<C> Counted<C> {
    /// Tells the operation, how long it took, and whether it failed.
    pub fn new(channel: C, clock: SharedClock, told: impl Fn(&str, Duration, bool) + Send + Sync + 'static) -> Self {
        Self { channel, clock, told: Arc::new(told) }
    }
}

impl<C> Service<http::Request<Body>> for Counted<C>
where
    C: Service<http::Request<Body>, Response = http::Response<Body>>,
    C::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let operation = operation(request.uri().path());
        let (told, clock, began) = (self.told.clone(), self.clock.clone(), self.clock.now());
        let span = span(request.uri().path());
        let called = self.channel.call(request);
        let work = async move {
            let answer = called.await;
            // A call that failed has its status in the head of the answer.
            let well = |r: &http::Response<Body>| r.headers().get("grpc-status").is_none_or(|s| s == "0");
            let is_well = answer.as_ref().is_ok_and(well);
            if !is_well {
                tracing::Span::current().record("error", "the call failed");
            }
            told(&operation, clock.now().since(began), !is_well);
            answer
        };
        Box::pin(work.instrument(span))
    }
}

/// A call as a part of a trace.
fn span(path: &str) -> tracing::Span {
    tracing::debug_span!(
        target: "trace",
        "call",
        "otel.kind" = "client",
        "otel.name" = path.trim_start_matches('/'),
        "rpc.system" = "grpc",
        error = tracing::field::Empty
    )
}

/// `/runtime.v1.RuntimeService/RunPodSandbox` is `run_podsandbox`.
fn operation(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default().replace("PodSandbox", "Podsandbox");
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_upstreams_names() {
        for (path, want) in [
            ("/runtime.v1.RuntimeService/RunPodSandbox", "run_podsandbox"),
            ("/runtime.v1.RuntimeService/PodSandboxStatus", "podsandbox_status"),
            ("/runtime.v1.RuntimeService/ListPodSandbox", "list_podsandbox"),
            ("/runtime.v1.ImageService/PullImage", "pull_image"),
            ("", ""),
        ] {
            assert_eq!(operation(path), want);
        }
    }
}
