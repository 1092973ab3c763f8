//! The handler chain: what happens to a request, in order, on one screen.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AsHeaderName, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use kinds::User;
use machinery::status::{self, GroupResource, Status};
use parking_lot::Mutex;
use stdx::ClockExt;
use tracing::Instrument;
use transport::debug::Debug;
use transport::websocket::Takeover;
use transport::{Body, ReadError, Response};

use crate::aggregation::remote::Remote;
use crate::audit::causes::{self, Causes};
use crate::authn;
use crate::authz::Decision;
use crate::encode::negotiate::{self, Accepted, Format, Offer};
use crate::metrics::Running;
use crate::registry::catalogue::Resource;
use crate::request::{Query, RequestInfo};
use crate::server::ApiServer;
use crate::traces::{self, Trace};
use crate::{dispatch, encode, fairness, request};

/// The largest body.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// How long a request that is no watch and no stream may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// One request after authentication, authorization and reading of the body.
pub struct Call {
    pub server: Arc<ApiServer>,
    pub info: RequestInfo,
    pub user: User,
    pub query: Query,
    pub headers: HeaderMap,
    /// Read whole, at most 3 MiB.
    pub body: Bytes,
    pub causes: Causes,
    /// As the client sent them: what is passed on is passed on as it came.
    pub method: Method,
    pub uri: Uri,
    /// The body of what is passed on, which is not read whole.
    pub stream: Mutex<Option<Body>>,
    /// Who answers, when it is another server.
    pub remote: Option<Arc<Remote>>,
    /// The connection below, where it can be taken over.
    pub takeover: Option<Takeover>,
    /// What the client is warned of, however the request ends.
    warnings: Arc<Mutex<Vec<String>>>,
    /// Of which trace the request is a part.
    pub trace: Trace,
    /// The place of a stream, for who carries it on after the answer.
    pub slot: Mutex<Option<fairness::Slot>>,
}

/// What a request is counted as whose path means nothing.
static NOTHING: LazyLock<RequestInfo> = LazyLock::new(RequestInfo::default);

/// Answers one request, whatever happens.
pub async fn handle(server: Arc<ApiServer>, request: transport::Request) -> Response {
    let (head, body) = request.into_parts();
    let (headers, query) = (head.headers.clone(), Query::parse(head.uri.query().unwrap_or_default()));
    let own = server.clone();
    let info = request::parse(&head.method, head.uri.path(), &query);
    let counted = info.as_ref().unwrap_or(&NOTHING);
    let (mut running, is_stream) = (own.metrics.begin(&own, counted, &query, &head), fairness::is_stream(counted));
    let is_read = counted.is_resource && matches!(counted.verb.as_str(), "get" | "list");
    let warnings = Arc::default();
    // The client's name for the request, or one of ours, so that both sides can speak of it.
    let id = headers.get("audit-id").filter(|id| id.len() <= 64).cloned();
    let id = id.or_else(|| HeaderValue::from_str(&own.rng.uuid()).ok());
    let span = traces::request(&head, info.as_ref().ok(), id.as_ref());
    let line = traces::Line::begin(&head, &own.clock);
    let late = Arc::new(AtomicBool::new(false));
    let work = steps(server, head, body, info, Arc::clone(&warnings), Arc::clone(&late));
    let outcome = survive(work, &own.panics).instrument(span.clone()).await;
    let mut response = outcome.unwrap_or_else(|status| encode::failure(&headers, &query, &status));
    traces::answered(&span, response.status().as_u16());
    line.end(&span, response.status().as_u16());
    let is_stream = is_stream && response.status().as_u16() < 300;
    running.answered(response.status().as_u16(), is_stream);
    if late.load(Ordering::Relaxed) || response.extensions_mut().remove::<fairness::Ended>().is_some() {
        running.ended();
    }
    if is_stream {
        response = transport::hold(response, running);
    } else if is_read {
        response = sized(response, &mut running);
    }
    encode::warn(&mut response, &warnings.lock());
    let none = HeaderValue::from_static("no-cache, private");
    response.headers_mut().entry(http::header::CACHE_CONTROL).or_insert(none);
    response.headers_mut().extend(id.map(|id| (HeaderName::from_static("audit-id"), id)));
    response
}

/// Counts how large the answer is: at once where that is known, else when all of it has come.
fn sized(response: Response, running: &mut Running) -> Response {
    if let Some(bytes) = transport::length(response.body()) {
        running.sized(bytes);
        return response;
    }
    let mut sizing = running.sizes();
    response.map(|body| transport::counting(body, move |bytes| sizing.more(bytes)))
}

/// A panic ends its request and no other.
async fn survive(work: impl Future<Output = status::Result<Response>>, panics: &AtomicU64) -> status::Result<Response> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!("a request caused a panic");
        Err(Status::internal("This request caused apiserver to panic. Look in the logs for details."))
    })
}

/// Each step may end the request; the order is part of the contract.
async fn steps(
    server: Arc<ApiServer>,
    mut head: http::request::Parts,
    body: Body,
    info: status::Result<RequestInfo>,
    warnings: Arc<Mutex<Vec<String>>>,
    late: Arc<AtomicBool>,
) -> status::Result<Response> {
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let info = info?;
    let limit = deadline(&info, &query)?;
    let clock = server.clock.clone();
    let work: BoxFuture<'static, status::Result<Response>> = Box::pin(async move {
        authn::websocket::take_token(&mut head.headers)?;
        let asked = server.clock.now();
        let user = authn::identify(server.authenticators(), &head, &info).await;
        let name = user.as_ref().ok().map(|user| user.name.as_str());
        server.metrics.identity.identified(name, server.clock.now().since(asked));
        let user = user?;
        let causes = read_causes(&head.headers, &head.extensions);
        let trace = Trace::begin(&server, &head, &info, &user);
        refuse_impersonation(&head.headers, &user)?;
        let Some(slot) = server.fairness.admit(&info, &user) else { return Ok(fairness::come_back()) };
        authorize(&server, &user, &info).await?;
        let remote = server.aggregation.answering(&info);
        // What is passed on goes on until its other end is done.
        let is_stream = fairness::is_stream(&info) || remote.is_some();
        let writes = info.is_resource && !is_stream && !matches!(info.verb.as_str(), "get" | "list" | "watch");
        // Nobody else's body is looked at: it would only be memory that a stranger fills.
        let (body, stream) = match (writes || Debug::reads(&info.path), is_stream) {
            (true, _) => (read(&server, &head, body).await?, None),
            (false, is_stream) => (Bytes::new(), is_stream.then_some(body)),
        };
        let takeover = Takeover::of(&head.extensions);
        let call = Call {
            server,
            info,
            user,
            query,
            headers: head.headers,
            body,
            causes,
            method: head.method,
            uri: head.uri,
            stream: Mutex::new(stream),
            remote,
            takeover,
            warnings,
            trace,
            slot: Mutex::new(None),
        };
        if writes {
            return see_through(call, slot).await;
        }
        // A stream has its place until it ends.
        *call.slot.lock() = Some(slot);
        let response = dispatch::dispatch(&call).await?;
        let slot = call.slot.lock().take().filter(|_| is_stream);
        Ok(match slot {
            Some(slot) => transport::hold(response, slot),
            None => response,
        })
    });
    match limit {
        None => work.await,
        Some(limit) => clock.timeout(limit, work).await.unwrap_or_else(|_| {
            late.store(true, Ordering::Relaxed);
            Err(Status::timeout("request did not complete within the allotted timeout"))
        }),
    }
}

/// Serves a write to its end, also when its client hangs up or its time is over: half a write would keep
/// the addresses and ports it has claimed.
async fn see_through(call: Call, slot: fairness::Slot) -> status::Result<Response> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let stage = call.server.stage().clone();
    let work = async move {
        let turn = call.server.fairness.turn(call.body.len()).await;
        let outcome = AssertUnwindSafe(dispatch::dispatch(&call)).catch_unwind().await;
        drop(turn);
        drop(slot);
        // Nobody listens to a client that is gone.
        drop(tell.send(outcome));
    };
    stage.spawn(work.in_current_span());
    match told.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => Err(Status::unavailable("the server is stopping")),
    }
}

/// How long the request may take; `None` for watches and streams, which end themselves.
fn deadline(info: &RequestInfo, query: &Query) -> status::Result<Option<Duration>> {
    if fairness::is_stream(info) {
        return Ok(None);
    }
    let Some(text) = query.text("timeout") else { return Ok(Some(DEADLINE)) };
    let asked = seconds(text).ok_or_else(|| {
        Status::bad_request(format!("invalid timeout specified in the request URL - time: invalid duration {text:?}"))
    })?;
    Ok(Some(if asked.is_zero() { DEADLINE } else { asked.min(DEADLINE) }))
}

/// `30s`, `1m30s`, `500ms`, `10` (seconds): the durations clients send.
fn seconds(text: &str) -> Option<Duration> {
    let mut total = 0f64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            "" if number == text => 1.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

fn read_causes(headers: &HeaderMap, extensions: &http::Extensions) -> Causes {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let trace = Some(text("traceparent")).filter(|t| t.len() <= 64).unwrap_or_default().to_owned();
    let trusted = extensions.get::<authn::in_process::InProcess>().is_some();
    Causes { trace, list: causes::parse(text("pintle-cause")), trusted }
}

/// Until impersonation exists, what it would guard is refused.
fn refuse_impersonation(headers: &HeaderMap, user: &User) -> status::Result<()> {
    let asked = |name: &HeaderName| name.as_str().starts_with("impersonate-");
    if headers.keys().any(asked) {
        let why = format!("User {:?} cannot impersonate: impersonation is not served", user.name);
        return Err(Status::forbidden(&GroupResource::default(), "", why));
    }
    Ok(())
}

async fn authorize(server: &ApiServer, user: &User, info: &RequestInfo) -> status::Result<()> {
    if authn::is_public(info) {
        return Ok(());
    }
    let asked = server.clock.now();
    let decision = server.security.authorize(user, info).await;
    server.metrics.identity.decided(&decision, server.clock.now().since(asked));
    let reason = match decision {
        Decision::Allow { .. } => return Ok(()),
        Decision::NoOpinion { reason } | Decision::Deny { reason } => reason,
    };
    Err(denial(&user.name, info, &reason))
}

/// 403: what the user may not do, and why.
pub fn denial(user: &str, info: &RequestInfo, reason: &str) -> Box<Status> {
    let mut why = format!("User {:?} cannot {}", user, info.verb);
    if info.is_resource {
        let sub = if info.subresource.is_empty() { String::new() } else { format!("/{}", info.subresource) };
        why.push_str(&format!(" resource \"{}{sub}\" in API group {:?}", info.resource, info.group));
        if info.namespace.is_empty() {
            why.push_str(" at the cluster scope");
        } else {
            why.push_str(&format!(" in the namespace {:?}", info.namespace));
        }
    } else {
        why.push_str(&format!(" path {:?}", info.path));
    }
    if !reason.is_empty() {
        why.push_str(&format!(": {reason}"));
    }
    Status::forbidden(&GroupResource::new(&info.group, &info.resource), &info.name, why)
}

async fn read(server: &ApiServer, head: &http::request::Parts, body: Body) -> status::Result<Bytes> {
    let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if length.is_some_and(|n| n > MAX_BODY as u64) {
        return Err(Status::too_large(MAX_BODY));
    }
    let bytes = server.clock.timeout(DEADLINE, transport::read(body, MAX_BODY)).await;
    match bytes.map_err(|_| Status::timeout("the body of the request did not come within the allotted timeout"))? {
        Ok(bytes) => Ok(bytes),
        Err(ReadError::TooLong(limit)) => Err(Status::too_large(limit)),
        Err(ReadError::Broken(error)) => {
            Err(Status::bad_request(format!("the body of the request could not be read: {error}")))
        }
    }
}

impl Call {
    /// The resource the path names.
    ///
    /// # Errors
    /// 404.
    pub fn resource(&self) -> status::Result<Arc<Resource>> {
        let info = &self.info;
        let found = self.server.catalogue.find(&info.group, &info.version, &info.resource);
        found.ok_or_else(Status::no_such_path)
    }

    /// May the user also do `verb` to what the request is about? Asked where a request turns out to be
    /// more than its method says: an update that creates.
    ///
    /// # Errors
    /// 403.
    pub async fn authorize(&self, verb: &str) -> status::Result<()> {
        let info = RequestInfo { verb: verb.into(), ..self.info.clone() };
        authorize(&self.server, &self.user, &info).await
    }

    /// Tells the client something beside the answer, also when that is a refusal.
    pub fn warn(&self, texts: impl IntoIterator<Item = String>) {
        self.warnings.lock().extend(texts);
    }

    /// A header as text.
    pub fn header(&self, name: impl AsHeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// The form the client gets.
    ///
    /// # Errors
    /// 406 when it accepts none we speak.
    pub fn accept(&self, offer: Offer) -> status::Result<Accepted> {
        // As error texts call the objects: the name of the package that has the type, and the type's.
        let of = || {
            let found = self.server.catalogue.find(&self.info.group, &self.info.version, &self.info.resource);
            let shape = found.as_ref().map(|resource| resource.shape());
            let (group, kind) = shape.map_or(("", ""), |shape| (shape.group, shape.kind));
            let package = group.split('.').next().filter(|part| !matches!(*part, "" | "events")).unwrap_or("core");
            format!("{package}.{kind}")
        };
        let accepted = negotiate::of_request(&self.headers, &self.query, offer, false, of)?;
        // Whether it is a custom kind is only looked up where that makes a difference.
        if accepted.format != Format::Protobuf || offer == Offer::Plain || !self.is_custom() {
            return Ok(accepted);
        }
        negotiate::of_request(&self.headers, &self.query, offer, true, of)
    }

    fn is_custom(&self) -> bool {
        self.resource().is_ok_and(|resource| resource.kind.is_custom())
    }

    /// What the body is written in.
    ///
    /// # Errors
    /// 415 for anything but JSON, YAML and protobuf.
    pub fn content(&self) -> status::Result<negotiate::Content> {
        negotiate::content(self.header(CONTENT_TYPE))
    }

    /// Empty when the client names none.
    pub fn user_agent(&self) -> &str {
        self.header(USER_AGENT).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer_and_is_counted() {
        let panics = AtomicU64::new(0);
        let work =
            async { if panics.load(Ordering::Relaxed) == 0 { panic!("a bug") } else { Err(Status::unauthorized()) } };
        let status = survive(work, &panics).await.expect_err("a failure");
        assert_eq!((status.code, status.reason.as_str(), panics.into_inner()), (500, "InternalError", 1));
    }

    #[test]
    fn durations_are_read_as_clients_write_them() {
        for (text, want) in [
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            ("250ms", Some(250)),
            ("10", Some(10_000)),
            ("0", Some(0)),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1s2", None),
            ("99999999999999999999999999h", None),
        ] {
            assert_eq!(seconds(text), want.map(Duration::from_millis), "{text}");
        }
    }
}
