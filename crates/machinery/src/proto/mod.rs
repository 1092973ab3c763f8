//! Kubernetes' protobuf, from and to the JSON tree, by the same schema that drives JSON.
//!
//! ```text
//! "k8s\0"  envelope { 1: { 1: apiVersion, 2: kind }, 2: the object, 3: "", 4: "" }
//! ```
//!
//! The object's fields are written in the order of their tags and with upstream's zero values, so
//! that the bytes are upstream's.

mod read;
#[cfg(test)]
mod tests;
mod transcode;
mod wire;
mod write;

use std::cell::Cell;

use serde_json::{Map, Value};

use crate::decode::{Decoded, MAX_BYTES};
use crate::schema::Type;
use crate::status::{Result, Status};

/// What every object in protobuf begins with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// An object whose type is known and whose body is still bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<'b> {
    pub api_version: String,
    pub kind: String,
    pub body: &'b [u8],
}

/// Reads the envelope; `None` when the bytes are not Kubernetes' protobuf.
pub fn open(bytes: &[u8]) -> Option<Envelope<'_>> {
    let mut reader = wire::Reader::new(bytes.strip_prefix(MAGIC)?);
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), body: &[] };
    while let Some((tag, value)) = reader.field().ok()? {
        match (tag, value) {
            (1, wire::Field::Bytes(meta)) => {
                let mut reader = wire::Reader::new(meta);
                while let Some((tag, value)) = reader.field().ok()? {
                    match (tag, value) {
                        (1, wire::Field::Bytes(text)) => envelope.api_version = std::str::from_utf8(text).ok()?.into(),
                        (2, wire::Field::Bytes(text)) => envelope.kind = std::str::from_utf8(text).ok()?.into(),
                        _ => {}
                    }
                }
            }
            (2, wire::Field::Bytes(body)) => envelope.body = body,
            _ => {}
        }
    }
    Some(envelope)
}

/// What follows the body in an envelope: no content encoding, no content type.
pub const SEAL_END: &[u8] = &[0x1a, 0, 0x22, 0];

/// The envelope of a body of so many bytes, up to the body itself; [`SEAL_END`] follows it.
pub fn seal_begin(api_version: &str, kind: &str, body: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(api_version.len() + kind.len() + 24);
    out.extend_from_slice(MAGIC);
    let at = wire::begin(&mut out, 1);
    wire::bytes(&mut out, 1, api_version.as_bytes());
    wire::bytes(&mut out, 2, kind.as_bytes());
    wire::end(&mut out, at);
    wire::head(&mut out, 2, body);
    out
}

/// Puts a body into an envelope.
pub fn seal(api_version: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let mut out = seal_begin(api_version, kind, body.len());
    out.reserve_exact(body.len() + SEAL_END.len());
    out.extend_from_slice(body);
    out.extend_from_slice(SEAL_END);
    out
}

/// The object with its envelope. `kind` and `apiVersion` are the object's own, or the type's.
pub fn encode(value: &Value, schema: &Type) -> Vec<u8> {
    let t = schema.get();
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
    let version = text("apiVersion").map_or_else(|| crate::encode::api_version(t), str::to_owned);
    seal(&version, text("kind").unwrap_or(t.name()), &encode_body(value, schema))
}

/// The object without its envelope: an item of a list.
pub fn encode_body(value: &Value, schema: &Type) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    write::message(&mut out, value.as_object(), schema.get());
    out
}

/// The same as [`encode_body`] from the bytes that [`crate::encode::json`] wrote, without a tree between.
///
/// # Errors
/// 500 when the bytes are not JSON.
pub fn transcode(json: &[u8], schema: &Type) -> Result<Vec<u8>> {
    transcode::body(json, schema.get()).or_else(|_| {
        let value: Value = serde_json::from_slice(json).map_err(Status::internal)?;
        Ok(encode_body(&value, schema))
    })
}

/// The first field of a body as it stands there, tag and length included: of every object `metadata`.
pub fn first_field(body: &[u8]) -> Option<&[u8]> {
    let mut reader = wire::Reader::new(body);
    match reader.field() {
        Ok(Some((1, wire::Field::Bytes(_)))) => body.get(..body.len() - reader.left()),
        _ => None,
    }
}

/// The tag of a field of a type, by its name; 0 when it has none.
pub fn tag(schema: &Type, name: &str) -> u32 {
    schema.get().declared().find(|field| field.name() == name && !field.embedded()).map_or(0, |field| field.tag())
}

/// How many bytes an item of so many bytes takes in a list, its tag and length included.
pub fn item_len(tag: u32, item: usize) -> usize {
    wire::varint_len(u64::from(tag) << 3) + wire::varint_len(item as u64) + item
}

/// An item of a list.
pub fn append_item(out: &mut Vec<u8>, tag: u32, item: &[u8]) {
    wire::bytes(out, tag, item);
}

/// A watch event as it stands in a stream, its length in front, up to the object, which has its own
/// envelope and is of so many bytes; nothing follows the object.
pub fn watch_event_begin(what: &str, object: usize) -> Vec<u8> {
    let raw = item_len(1, object);
    let length = item_len(1, what.len()) + item_len(2, raw);
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    wire::bytes(&mut out, 1, what.as_bytes());
    wire::head(&mut out, 2, raw);
    wire::head(&mut out, 1, object);
    out
}

/// Reads a watch event, without the length in front: its type and the object's bytes.
pub fn read_watch_event(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (mut kind, mut object): (String, &[u8]) = (String::new(), &[]);
    let mut reader = wire::Reader::new(bytes);
    while let Some((tag, value)) = reader.field().ok()? {
        match (tag, value) {
            (1, wire::Field::Bytes(text)) => kind = std::str::from_utf8(text).ok()?.into(),
            (2, wire::Field::Bytes(raw)) => {
                let mut reader = wire::Reader::new(raw);
                while let Some((tag, value)) = reader.field().ok()? {
                    if let (1, wire::Field::Bytes(bytes)) = (tag, value) {
                        object = bytes;
                    }
                }
            }
            _ => {}
        }
    }
    Some((kind, object))
}

/// Decodes an object of the type. Unknown fields are skipped, as every reader of protobuf does.
pub fn decode(bytes: &[u8], schema: &Type) -> Result<Decoded> {
    if bytes.len() > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    let t = schema.get();
    let unrecognized = |why: &str| {
        Status::bad_request(format!("the object provided is unrecognized (must be of type {}): {why}", t.name()))
    };
    let envelope = open(bytes).ok_or_else(|| unrecognized("provided data does not appear to be a protobuf message"))?;
    if !envelope.kind.is_empty() && envelope.kind != t.name() {
        return Err(crate::decode::other_kind(&envelope.kind, Some(&envelope.api_version), schema));
    }
    let mut value = decode_body(envelope.body, schema).map_err(|e| unrecognized(&e.message))?;
    if let Value::Object(map) = &mut value
        && t.is_root()
    {
        let or = |text: String, other: String| if text.is_empty() { other } else { text };
        map.insert("kind".to_owned(), or(envelope.kind, t.name().to_owned()).into());
        map.insert("apiVersion".to_owned(), or(envelope.api_version, crate::encode::api_version(t)).into());
    }
    Ok(Decoded { value, warnings: Vec::new() })
}

/// Decodes an object without an envelope.
pub fn decode_body(bytes: &[u8], schema: &Type) -> Result<Value> {
    let mut map = Map::new();
    let nodes = Cell::new(0);
    read::message(bytes, schema.get(), &mut map, read::At::start(&nodes))
        .map_err(|read::Malformed(why)| Status::bad_request(why))?;
    Ok(Value::Object(map))
}
