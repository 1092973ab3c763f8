//! One identity talking to one API server.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use machinery::status::Status;
use stdx::clock::Instant;
use stdx::metrics::{Counter, Histogram, Registry};
use stdx::{ClockExt, SharedClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use transport::{Body, SharedHandler};

use crate::api::Api;
use crate::causes::{HEADER, Scope};
use crate::error::{Error, Result};
use crate::resource::{Resource, ScopeOf};

/// No answer other than a stream may be longer: the largest list page or object we ever ask for.
const MAX_ANSWER: usize = 512 << 20;
/// Nor what a failure says.
const MAX_FAILURE: usize = 4 << 20;

/// Where bearer tokens come from; asked before every request, so that tokens may rotate.
pub trait TokenSource: Send + Sync + 'static {
    /// The token to send now, if there is one.
    fn token(&self) -> Option<String>;
}

impl TokenSource for String {
    fn token(&self) -> Option<String> {
        Some(self.clone())
    }
}

/// A request before it is sent.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub body: Option<Bytes>,
    pub content_type: &'static str,
    pub accept: &'static str,
}

impl Call {
    /// A read.
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, content_type: JSON, accept: JSON }
    }

    /// A write of JSON.
    pub fn write(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method, path: path.into(), body: Some(body.into()), content_type: JSON, accept: JSON }
    }
}

pub(crate) const JSON: &str = "application/json";

/// A client of the API server under one identity. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    handler: SharedHandler,
    user_agent: HeaderValue,
    token: Option<Arc<dyn TokenSource>>,
    limit: Option<(SharedClock, Duration)>,
    bounds: Bounds,
    /// Taken while an answer is read.
    turns: Option<Arc<Semaphore>>,
    /// Where requests are counted.
    counts: Option<Arc<Counts>>,
}

/// How much is read of what a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of one answer, or one event of a watch, in bytes.
    pub answer: usize,
    /// Of a list that a cache is filled with, all its pages together.
    pub list: usize,
}

impl Bounds {
    /// Of this server's own answers: more than any has.
    pub const OWN: Self = Self { answer: MAX_ANSWER, list: usize::MAX };
    /// Of answers that another server gives through this one, and that need not be what they should be.
    pub const FOREIGN: Self = Self { answer: 16 << 20, list: 64 << 20 };
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("user_agent", &self.inner.user_agent).finish_non_exhaustive()
    }
}

impl Client {
    /// A client over `handler`. The part of `user_agent` before the first slash names the field
    /// manager of its writes, as upstream does.
    pub fn new(handler: SharedHandler, user_agent: &str) -> Self {
        let user_agent = HeaderValue::from_str(user_agent).unwrap_or(HeaderValue::from_static("pintle"));
        Self {
            inner: Arc::new(Inner {
                handler,
                user_agent,
                token: None,
                limit: None,
                bounds: Bounds::OWN,
                turns: None,
                counts: None,
            }),
        }
    }

    /// The same, sending a bearer token.
    #[must_use]
    pub fn with_token(self, token: Arc<dyn TokenSource>) -> Self {
        self.changed(|inner| inner.token = Some(token))
    }

    /// The same under another user agent.
    #[must_use]
    pub fn with_user_agent(self, user_agent: &str) -> Self {
        let value = HeaderValue::from_str(user_agent);
        self.changed(|inner| inner.user_agent = value.unwrap_or(HeaderValue::from_static("pintle")))
    }

    /// The same, giving up on an answer (not on a stream) after `limit`.
    #[must_use]
    pub fn with_timeout(self, clock: SharedClock, limit: Duration) -> Self {
        self.changed(|inner| inner.limit = Some((clock, limit)))
    }

    /// The same, reading no more than that: what is longer is an error.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        self.changed(|inner| inner.bounds = bounds)
    }

    /// The same, reading so many answers (not streams) at a time; its clones count as one.
    #[must_use]
    pub fn taking_turns(self, at_once: usize) -> Self {
        self.changed(|inner| inner.turns = Some(Arc::new(Semaphore::new(at_once))))
    }

    /// The same, counting its requests under upstream's names (`rest_client_…`); `host` is whom it asks.
    #[must_use]
    pub fn counted(self, registry: &Registry, host: &str, clock: &SharedClock) -> Self {
        self.changed(|inner| inner.counts = Some(Arc::new(Counts::new(registry, host, clock))))
    }

    /// How much it reads.
    pub fn bounds(&self) -> Bounds {
        self.inner.bounds
    }

    /// A turn to read, once there is one; `None` where nobody takes turns.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turns = self.inner.turns.clone()?;
        // Nobody closes it.
        turns.acquire_owned().await.ok()
    }

    fn changed(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner::clone(&self.inner);
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Typed access to a kind.
    pub fn api<K>(&self) -> Api<K>
    where
        K: api::Object,
        K::Scope: ScopeOf,
    {
        Api::new(self.clone(), Resource::of::<K>())
    }

    /// Access to a kind known only at run time, as JSON trees.
    pub fn dynamic(&self, resource: Resource) -> Api<serde_json::Value> {
        Api::new(self.clone(), resource)
    }

    /// Sends a request and reads the whole answer; a failure Status is an error.
    pub async fn send(&self, call: Call) -> Result<Bytes> {
        let _turn = self.turn().await;
        match &self.inner.limit {
            None => self.exchange(call).await,
            Some((clock, limit)) => {
                let what = format!("{} {}", call.method, call.path);
                match clock.timeout(*limit, self.exchange(call)).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Error::Interrupted(format!("{what}: no answer within {limit:?}"))),
                }
            }
        }
    }

    /// Boxed: the compiler cannot prove the bare future `Send` within a time limit.
    fn exchange(&self, call: Call) -> BoxFuture<'static, Result<Bytes>> {
        let client = self.clone();
        Box::pin(async move {
            let longest = client.inner.bounds.answer;
            collect(client.open(call).await?, longest).await
        })
    }

    /// Sends a request and gives the body as it comes: watches, logs.
    pub async fn open(&self, call: Call) -> Result<Body> {
        let response = self.response(call).await?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok(body);
        }
        let bytes = collect(body, MAX_FAILURE.min(self.inner.bounds.answer)).await.unwrap_or_default();
        Err(Error::Api(failure(parts.status.as_u16(), &parts.headers, &bytes)))
    }

    /// Sends a request and gives the answer as it is, failures included.
    pub async fn response(&self, call: Call) -> Result<transport::Response> {
        let mut builder = http::Request::builder()
            .method(&call.method)
            .uri(&call.path)
            .header(header::USER_AGENT, &self.inner.user_agent)
            .header(header::ACCEPT, call.accept);
        if let Some(token) = self.inner.token.as_ref().and_then(|t| t.token()) {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::Invalid("the bearer token has characters no header may carry".into()))?;
            value.set_sensitive(true);
            builder = builder.header(header::AUTHORIZATION, value);
        }
        if call.method != Method::GET {
            if let Some(scope) = Scope::current() {
                builder = builder.header("traceparent", scope.traceparent);
                if let Some(causes) = scope.causes {
                    builder = builder.header(HEADER, causes);
                }
            }
        }
        let body = match call.body {
            Some(bytes) => {
                builder = builder.header(header::CONTENT_TYPE, call.content_type);
                transport::full(bytes)
            }
            None => transport::empty(),
        };
        let request = builder.body(body).map_err(|e| Error::Invalid(format!("{}: {e}", call.path)))?;
        let began = self.inner.counts.as_ref().map(|counts| counts.clock.now());
        let response = self.inner.handler.call(request).await;
        if let Some((counts, began)) = self.inner.counts.as_ref().zip(began) {
            counts.answered(&call.method, response.as_ref().ok().map(transport::Response::status), began);
        }
        Ok(response?)
    }
}

/// Counts requests of one client.
struct Counts {
    host: String,
    clock: SharedClock,
    requests: Counter,
    took: Histogram,
}

impl Counts {
    /// As upstream cuts the durations, in seconds.
    const ENDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

    fn new(registry: &Registry, host: &str, clock: &SharedClock) -> Self {
        Self {
            host: host.to_owned(),
            clock: clock.clone(),
            requests: registry.counter(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "host", "method"],
            ),
            took: registry.histogram(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &["host", "verb"],
                &Self::ENDS,
            ),
        }
    }

    /// An answer has begun; without a status there was none.
    fn answered(&self, method: &Method, status: Option<StatusCode>, began: Instant) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        self.requests.inc(&[code, &self.host, method.as_str()]);
        self.took.took(&[&self.host, method.as_str()], self.clock.now().since(began));
    }
}

async fn collect(mut body: Body, longest: usize) -> Result<Bytes> {
    // What is promised gets its room at once; what does not come costs no memory that is used.
    let promised = usize::try_from(body.size_hint().lower()).unwrap_or(longest).min(longest);
    let mut out = BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::Interrupted(format!("the answer ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let read = only.as_ref().map_or(out.len(), Bytes::len);
        if read + data.len() > longest {
            return Err(Error::Interrupted(format!("the answer is longer than {longest} bytes")));
        }
        // One frame is handed on as it is; only several are copied together.
        match only.take() {
            None if out.is_empty() => only = Some(data),
            first => {
                if out.is_empty() {
                    out.reserve(promised);
                }
                out.extend_from_slice(&first.unwrap_or_default());
                out.extend_from_slice(&data);
            }
        }
    }
    Ok(only.unwrap_or_else(|| out.freeze()))
}

/// The Status of a failed answer; made up from the code when the body holds none.
fn failure(code: u16, headers: &HeaderMap, body: &[u8]) -> Box<Status> {
    let parsed = serde_json::from_slice(body).ok().as_ref().and_then(Status::from_value);
    let mut status = parsed.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&body[..body.len().min(512)]).trim().to_owned();
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Status::new(code, reason, if text.is_empty() { format!("the server answered {code}") } else { text })
    });
    if status.code == 0 {
        status.code = code;
    }
    let wait = headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    if let Some(seconds) = wait {
        let details = status.details.get_or_insert_default();
        if details.retry_after_seconds == 0 {
            details.retry_after_seconds = seconds;
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use transport::{Handler, Request, Responding};

    use super::*;

    /// Answers without end, and counts what was taken of that.
    struct Endless {
        code: u16,
        taken: Arc<AtomicUsize>,
    }

    const PIECE: usize = 16 * 1024;

    impl Handler for Endless {
        fn call(&self, _: Request) -> Responding {
            let (code, taken) = (self.code, self.taken.clone());
            Box::pin(async move {
                let pieces = futures::stream::repeat_with(move || {
                    taken.fetch_add(PIECE, Ordering::SeqCst);
                    Ok(Bytes::from_static(&[b'['; PIECE]))
                });
                let mut response = http::Response::new(transport::stream(pieces));
                *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
                Ok(response)
            })
        }
    }

    /// Of an answer that never ends no more is read than is allowed, and the piece that was too much.
    #[tokio::test]
    async fn an_answer_without_end_is_read_to_the_bound() {
        let bounds = Bounds { answer: 10 * PIECE, list: usize::MAX };
        for (code, bounds, most) in
            [(200, bounds, 11 * PIECE), (500, bounds, 11 * PIECE), (500, Bounds::OWN, MAX_FAILURE + PIECE)]
        {
            let taken = Arc::new(AtomicUsize::new(0));
            let handler = Arc::new(Endless { code, taken: taken.clone() });
            let client = Client::new(handler, "test").with_bounds(bounds).taking_turns(1);
            // Twice: the turn is given back.
            for round in 1..=2 {
                client.send(Call::get("/")).await.expect_err("endless");
                assert_eq!(taken.load(Ordering::SeqCst), round * most, "{code} {bounds:?}");
            }
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_what_came_of_them() {
        struct Answers;
        impl Handler for Answers {
            fn call(&self, request: Request) -> Responding {
                Box::pin(async move {
                    if request.uri().path() == "/gone" {
                        return Err(transport::Error::Connect("nobody".into()));
                    }
                    Ok(http::Response::new(transport::full("{}")))
                })
            }
        }
        let (registry, clock) = (Registry::default(), stdx::clock::ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
        let clock: SharedClock = Arc::new(clock);
        let client = Client::new(Arc::new(Answers), "test").counted(&registry, "10.0.0.1:6443", &clock);
        client.send(Call::get("/")).await.expect("answered");
        client.send(Call::get("/gone")).await.expect_err("nobody");
        let page = registry.page();
        for want in [
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",host=\"10.0.0.1:6443\",method=\"GET\"} 1",
            "rest_client_request_duration_seconds_count{host=\"10.0.0.1:6443\",verb=\"GET\"} 2",
        ] {
            assert!(page.lines().any(|line| line == want), "{want} is not in\n{page}");
        }
    }

    #[tokio::test]
    async fn an_event_without_end_is_read_to_the_bound() {
        let taken = Arc::new(AtomicUsize::new(0));
        let handler = Arc::new(Endless { code: 200, taken: taken.clone() });
        let client = Client::new(handler, "test").with_bounds(Bounds { answer: 10 * PIECE, list: usize::MAX });
        let resource = Resource::new("g", "v1", "foos", "Foo", false);
        let mut frames = client.dynamic(resource).watch_raw(&crate::WatchParams::default()).await.expect("a watch");
        assert!(frames.next().await.expect("an answer").is_err());
        assert!(frames.next().await.is_none());
        assert_eq!(taken.load(Ordering::SeqCst), 11 * PIECE);
    }
}
