//! How answers look: negotiation, objects, lists, Tables, errors.
//!
//! What is sent as it is stored is sent as the bytes of the watch cache, JSON or protobuf. Everything
//! else (Tables, metadata only, YAML, a kind that is stored in another kind's form) is computed from
//! those bytes.

use std::borrow::Cow;
use std::io::Write as _;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use kinds::AnyKind;
use machinery::status::{self, Status};
use machinery::{encode, meta, proto};
use serde_json::Value;
use transport::Response;

use self::json::ListMeta;
use self::negotiate::{Accepted, Format, Offer, View};
use self::table::Include;
use crate::cacher::CachedObject;
use crate::chain::Call;
use crate::request::Query;

pub mod event;
pub mod json;
mod list;
pub mod negotiate;
pub mod protobuf;
pub mod table;
mod warnings;

pub use list::list;
pub use warnings::warn;

/// Responses longer than this are compressed when the client takes gzip.
const GZIP_OVER: usize = 128 * 1024;
/// Longer ones are compressed on a thread where that holds up nobody.
const GZIP_ASIDE: usize = 1024 * 1024;

/// The bytes of an object in its kind's own form: the cache's, unless the kind is stored as another.
///
/// # Errors
/// 500 when the stored bytes cannot be read.
pub fn own_form<'o>(kind: &dyn AnyKind, object: &'o CachedObject) -> status::Result<Cow<'o, [u8]>> {
    if kind.stored_as().is_none() && object.damage.is_none() {
        return Ok(Cow::Borrowed(&object.json));
    }
    let mut value = object.value()?;
    kind.from_stored(&mut value);
    Ok(Cow::Owned(encode::json(&value, &kind.schema())))
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
    if accepted.format == Format::Protobuf && accepted.view == View::Whole && kind.stored_as().is_none() {
        let shape = kind.shape();
        let body = object.protobuf(&kind.schema())?;
        let sealed = proto::seal(&shape.api_version(), shape.kind, body);
        return Ok(plain(call, 200, accepted.format.media_type(), sealed.into()).await);
    }
    one(call, kind, accepted, 200, &own_form(kind, object)?, Some(object.revision)).await
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
    let revision = Some(meta::revision(object).unwrap_or_default());
    one(call, kind, accepted, code, &encode::json(object, &kind.schema()), revision).await
}

/// An object in its own form, as JSON, as a response.
///
/// # Errors
/// 400 for a query that asks for a Table in an unknown form.
pub async fn one(
    call: &Call,
    kind: &dyn AnyKind,
    accepted: Accepted,
    code: u16,
    json: &[u8],
    revision: Option<u64>,
) -> status::Result<Response> {
    let json = match accepted.view {
        View::Whole => Cow::Borrowed(json),
        View::Metadata => json::partial(json, accepted.meta_version).into(),
        View::Table => {
            let include = Include::parse(&call.query)?;
            let meta_version = accepted.meta_version;
            let mut out = table::open(kind, meta_version, &ListMeta { revision, ..ListMeta::default() }, true);
            table::row(&mut out, kind, json, include, meta_version, call.server.clock.wall());
            out.extend_from_slice(table::CLOSE);
            out.into()
        }
    };
    Ok(body(call, accepted, code, &json).await)
}

/// `{"kind":"Status","status":"Success"}`, as a delete answers.
pub async fn success(call: &Call, accepted: Accepted, code: u16, details: &Value) -> Response {
    let mut json = String::from(r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success""#);
    if !details.is_null() {
        json.push_str(r#","details":"#);
        json.push_str(&details.to_string());
    }
    // What creates says so.
    if code == 201 {
        json.push_str(r#","code":201"#);
    }
    json.push('}');
    body(call, accepted, code, json.as_bytes()).await
}

/// JSON that says what it is in the form the client gets.
pub async fn body(call: &Call, accepted: Accepted, code: u16, json: &[u8]) -> Response {
    let (media_type, bytes) = formed(accepted, json);
    plain(call, code, media_type, bytes).await
}

/// Bytes as they are, compressed if they are many and the client takes that.
async fn plain(call: &Call, code: u16, media_type: &'static str, mut bytes: Bytes) -> Response {
    let mut encoding = None;
    if bytes.len() > GZIP_OVER && negotiate::takes_gzip(call.header(ACCEPT_ENCODING)) {
        if let Some(zipped) = gzip(bytes.clone()).await {
            bytes = zipped;
            encoding = Some(HeaderValue::from_static("gzip"));
        }
    }
    let mut response = with_type(code, media_type, bytes);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if let Some(encoding) = encoding {
        response.headers_mut().insert(CONTENT_ENCODING, encoding);
    }
    response
}

/// The bytes with their media type: JSON where what is accepted has no words for it.
fn formed(accepted: Accepted, json: &[u8]) -> (&'static str, Bytes) {
    let other = match accepted.format {
        Format::Json => None,
        Format::Yaml => yaml(json),
        Format::Protobuf => protobuf::of_json(json).map(Bytes::from),
    };
    match other {
        Some(bytes) => (accepted.format.media_type(), bytes),
        None if accepted.pretty => (Format::Json.media_type(), json::pretty(json).into()),
        // One line, with its end.
        None => (Format::Json.media_type(), [json, b"\n"].concat().into()),
    }
}

fn yaml(json: &[u8]) -> Option<Bytes> {
    let value: Value = serde_json::from_slice(json).ok()?;
    Some(machinery::encode::yaml(&value).into())
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

/// A failure as a response, in the form the client accepts; indented JSON when it accepts none we speak.
pub fn failure(headers: &HeaderMap, query: &Query, status: &Status) -> Response {
    let json = status_json(status);
    let json = json.as_bytes();
    let (media_type, bytes) = match negotiate::of_request(headers, query, Offer::Plain, false, String::new) {
        Ok(accepted) => formed(accepted, json),
        Err(_) => (Format::Json.media_type(), json::pretty(json).into()),
    };
    let code = if status.code >= 100 { status.code } else { 500 };
    let mut response = with_type(code, media_type, bytes);
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
