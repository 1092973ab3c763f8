//! How answers look: negotiation, objects, lists, Tables, errors.
//!
//! What is sent as it is stored is sent as the bytes of the watch cache. Everything else (Tables,
//! metadata only, YAML, a kind that is stored in another kind's form) is computed from those bytes.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY, WARNING};
use http::{HeaderMap, HeaderValue, StatusCode};
use kinds::AnyKind;
use machinery::status::{self, Status};
use machinery::{encode, meta};
use serde_json::Value;
use transport::{BodyError, Response};

use self::json::ListMeta;
use self::negotiate::{Accepted, Format, View};
use self::table::Include;
use crate::cacher::CachedObject;
use crate::chain::Call;

pub mod json;
pub mod negotiate;
pub mod table;

/// Responses longer than this are compressed when the client takes gzip.
const GZIP_OVER: usize = 128 * 1024;
/// Lists are made and sent in pieces of about this size.
const PIECE: usize = 128 * 1024;
/// Longer ones are compressed on a thread where that holds up nobody.
const GZIP_ASIDE: usize = 1024 * 1024;

/// The bytes of an object in its kind's own form: the cache's, unless the kind is stored as another.
///
/// # Errors
/// 500 when the stored bytes cannot be read.
pub fn own_form(kind: &dyn AnyKind, object: &CachedObject) -> status::Result<Bytes> {
    if kind.stored_as().is_none() && object.damage.is_none() {
        return Ok(object.json.clone());
    }
    let mut value = object.value()?;
    kind.from_stored(&mut value);
    Ok(encode::json(&value, &kind.schema()).into())
}

/// An object of the cache as a response.
///
/// # Errors
/// 500 when it cannot be read.
pub async fn cached(
    call: &Call,
    kind: &dyn AnyKind,
    accepted: Accepted,
    object: &CachedObject,
) -> status::Result<Response> {
    one(call, kind, accepted, 200, own_form(kind, object)?, object.revision).await
}

/// An object of the write path (own form) as a response.
///
/// # Errors
/// 400 for a query that asks for a Table in an unknown form.
pub async fn value(
    call: &Call,
    kind: &dyn AnyKind,
    accepted: Accepted,
    code: u16,
    object: &Value,
) -> status::Result<Response> {
    let revision = meta::revision(object).unwrap_or_default();
    one(call, kind, accepted, code, encode::json(object, &kind.schema()).into(), revision).await
}

async fn one(
    call: &Call,
    kind: &dyn AnyKind,
    accepted: Accepted,
    code: u16,
    json: Bytes,
    revision: u64,
) -> status::Result<Response> {
    let json = match accepted.view {
        View::Whole => json,
        View::Metadata => json::partial(&json).into(),
        View::Table => {
            let include = Include::parse(&call.query)?;
            let mut out = table::open(kind, &ListMeta { revision, ..ListMeta::default() }, true);
            table::row(&mut out, kind, &json, include, call.server.clock.wall());
            out.extend_from_slice(table::CLOSE);
            out.into()
        }
    };
    Ok(body(call, accepted, code, json).await)
}

/// Objects as a list. What fits into one piece is sent whole; a longer list is made while it is sent, so
/// that a client that reads slowly, or not at all, holds the cache's own objects and no copy of them.
///
/// # Errors
/// 500 when one cannot be read, 400 for a query that asks for a Table in an unknown form.
pub async fn list(
    call: &Call,
    kind: &'static dyn AnyKind,
    accepted: Accepted,
    meta: &ListMeta,
    objects: Vec<Arc<CachedObject>>,
) -> status::Result<Response> {
    let include = Include::parse(&call.query)?;
    for damaged in objects.iter().filter(|object| object.damage.is_some()) {
        own_form(kind, damaged)?;
    }
    let mut items = Items::new(kind, accepted, include, meta, call.server.clock.wall(), objects);
    let first = items.piece()?;
    if items.done || accepted.pretty || accepted.format != Format::Json {
        let mut whole = first;
        while !items.done {
            whole.append(&mut items.piece()?);
        }
        return Ok(body(call, accepted, 200, whole.into()).await);
    }
    let zipped = negotiate::takes_gzip(call.header(ACCEPT_ENCODING));
    let mut response = http::Response::new(transport::stream(pieces(first, items, zipped)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(accepted.format.media_type()));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if zipped {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// The pieces of a list as its body, compressed if wanted.
fn pieces(first: Vec<u8>, items: Items, zipped: bool) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
    let zip = zipped.then(|| flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1)));
    stream::unfold(Some((Some(first), items, zip)), |state| async move {
        let (first, mut items, zip) = state?;
        let plain = match first {
            Some(first) => first,
            None => match items.piece() {
                Ok(piece) => piece,
                // The head is out: the connection breaks, so that nobody takes the part for the whole.
                Err(status) => return Some((Err(status.message.into()), None)),
            },
        };
        let Some(mut zip) = zip else {
            let more = !items.done;
            return Some((Ok(Bytes::from(plain)), more.then_some((None, items, None))));
        };
        if let Err(error) = zip.write_all(&plain) {
            return Some((Err(error.into()), None));
        }
        if items.done {
            return Some((zip.finish().map(Bytes::from).map_err(Into::into), None));
        }
        let out = Bytes::from(std::mem::take(zip.get_mut()));
        Some((Ok(out), Some((None, items, Some(zip)))))
    })
}

/// A list on its way to a client.
struct Items {
    kind: &'static dyn AnyKind,
    view: View,
    include: Include,
    now: jiff::Timestamp,
    /// How the bytes of each object begin, which a list says once for all.
    head: String,
    objects: std::vec::IntoIter<Arc<CachedObject>>,
    /// What stands before the first item.
    open: Option<Vec<u8>>,
    first: bool,
    done: bool,
}

impl Items {
    fn new(
        kind: &'static dyn AnyKind,
        accepted: Accepted,
        include: Include,
        meta: &ListMeta,
        now: jiff::Timestamp,
        objects: Vec<Arc<CachedObject>>,
    ) -> Self {
        let shape = kind.shape();
        let api_version = shape.api_version();
        let open = match accepted.view {
            View::Whole => json::open_list(&format!("{}List", shape.kind), &api_version, meta),
            View::Metadata => json::open_list("PartialObjectMetadataList", "meta.k8s.io/v1", meta),
            View::Table => table::open(kind, meta, true),
        };
        let head = json::head(shape.kind, &api_version);
        let (view, objects) = (accepted.view, objects.into_iter());
        Self { kind, view, include, now, head, objects, open: Some(open), first: true, done: false }
    }

    /// The next bytes: one piece, or all that is left.
    fn piece(&mut self) -> status::Result<Vec<u8>> {
        let mut out = self.open.take().unwrap_or_else(|| Vec::with_capacity(PIECE + PIECE / 4));
        while out.len() < PIECE {
            let Some(object) = self.objects.next() else {
                self.done = true;
                out.extend_from_slice(json::CLOSE_LIST);
                return Ok(out);
            };
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            let json = own_form(self.kind, &object)?;
            match self.view {
                View::Whole => json::append_item(&mut out, &json, &self.head),
                View::Metadata => out.extend_from_slice(&json::partial(&json)),
                View::Table => table::row(&mut out, self.kind, &json, self.include, self.now),
            }
        }
        Ok(out)
    }
}

/// `{"kind":"Status","status":"Success"}`, as a delete answers.
pub async fn success(call: &Call, accepted: Accepted, code: u16, details: &Value) -> Response {
    let mut json = String::from(r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success""#);
    if !details.is_null() {
        json.push_str(r#","details":"#);
        json.push_str(&details.to_string());
    }
    json.push('}');
    body(call, accepted, code, Bytes::from(json.into_bytes())).await
}

/// JSON bytes in the form the client gets.
pub async fn body(call: &Call, accepted: Accepted, code: u16, json: Bytes) -> Response {
    let mut bytes = formed(accepted, json);
    let mut encoding = None;
    if bytes.len() > GZIP_OVER && negotiate::takes_gzip(call.header(ACCEPT_ENCODING)) {
        if let Some(zipped) = gzip(bytes.clone()).await {
            bytes = zipped;
            encoding = Some(HeaderValue::from_static("gzip"));
        }
    }
    let mut response = with_type(code, accepted.format.media_type(), bytes);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if let Some(encoding) = encoding {
        response.headers_mut().insert(CONTENT_ENCODING, encoding);
    }
    response
}

fn formed(accepted: Accepted, json: Bytes) -> Bytes {
    match accepted.format {
        Format::Json if accepted.pretty => json::pretty(&json).into(),
        Format::Json => json,
        Format::Yaml => yaml(&json).unwrap_or(json),
    }
}

fn yaml(json: &[u8]) -> Option<Bytes> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let text = machinery::yaml::write(&value).ok()?;
    Some(Bytes::from(text.into_bytes()))
}

async fn gzip(bytes: Bytes) -> Option<Bytes> {
    let aside = bytes.len() > GZIP_ASIDE;
    let work = move || {
        let mut encoder =
            flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 6), flate2::Compression::new(1));
        encoder.write_all(&bytes).ok()?;
        encoder.finish().ok().map(Bytes::from)
    };
    if aside { tokio::task::spawn_blocking(work).await.ok().flatten() } else { work() }
}

/// A response with a body of the given type.
pub fn with_type(code: u16, media_type: &'static str, bytes: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(transport::full(bytes));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Plain text, as health checks and unknown paths answer.
pub fn text(code: u16, text: impl Into<Bytes>) -> Response {
    let mut response = with_type(code, "text/plain; charset=utf-8", text);
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A failure as a response, in the form the client accepts; JSON when it accepts none we speak.
pub fn failure(headers: &HeaderMap, status: &Status) -> Response {
    let accept = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let accepted = negotiate::accept(accept, negotiate::Offer::Plain).unwrap_or_default();
    let json = Bytes::from(status_json(status).into_bytes());
    let code = if status.code >= 100 { status.code } else { 500 };
    let mut response = with_type(code, accepted.format.media_type(), formed(accepted, json));
    if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A Status with its fields in upstream's order.
pub fn status_json(status: &Status) -> String {
    let value = status.to_value();
    let mut out = String::from("{");
    for key in ["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"] {
        if let Some(field) = value.get(key) {
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(&format!("\"{key}\":{field}"));
        }
    }
    out.push('}');
    out
}

/// Adds warnings to a response, each a header of its own; at most so many bytes in all.
pub fn warn(response: &mut Response, warnings: &[String]) {
    const BUDGET: usize = 4 * 1024;
    let mut used = 0;
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        let text: String = format!("299 - \"{quoted}\"").chars().filter(|c| !c.is_control()).collect();
        used += text.len();
        if used > BUDGET {
            return;
        }
        if let Ok(value) = HeaderValue::from_str(&text).or_else(|_| HeaderValue::from_bytes(text.as_bytes())) {
            response.headers_mut().append(WARNING, value);
        }
    }
}
