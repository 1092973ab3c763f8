//! One identity talking to one API server.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use machinery::status::Status;
use stdx::{ClockExt, SharedClock};
use transport::{Body, SharedHandler};

use crate::api::Api;
use crate::causes::{HEADER, Scope};
use crate::error::{Error, Result};
use crate::resource::{Resource, ScopeOf};

/// No answer other than a stream may be longer: the largest list page or object we ever ask for.
const MAX_ANSWER: usize = 512 << 20;

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
        Self { inner: Arc::new(Inner { handler, user_agent, token: None, limit: None }) }
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
        Box::pin(async move { collect(client.open(call).await?).await })
    }

    /// Sends a request and gives the body as it comes: watches, logs.
    pub async fn open(&self, call: Call) -> Result<Body> {
        let response = self.response(call).await?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok(body);
        }
        let bytes = collect(body).await.unwrap_or_default();
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
        Ok(self.inner.handler.call(request).await?)
    }
}

async fn collect(mut body: Body) -> Result<Bytes> {
    // What is promised gets its room at once; what does not come costs no memory that is used.
    let promised = usize::try_from(body.size_hint().lower()).unwrap_or(MAX_ANSWER).min(MAX_ANSWER);
    let mut out = BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::Interrupted(format!("the answer ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if out.len() + data.len() > MAX_ANSWER {
            return Err(Error::Interrupted("the answer is too long".into()));
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
