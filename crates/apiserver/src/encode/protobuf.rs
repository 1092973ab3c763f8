//! Kubernetes' protobuf of what is served: from the bytes of the watch cache, made once per object.

use std::borrow::Cow;

use kinds::AnyKind;
use machinery::proto;
use machinery::schema::Type;
use machinery::status::{self, Status};
use serde::Deserialize;

use super::json::{self, ListMeta};
use super::negotiate::META_V1BETA1;
use super::own_form;
use crate::cacher::CachedObject;

/// A type of `meta.k8s.io` in the version a client asked for.
///
/// # Errors
/// 500 when it is not in the table.
pub fn meta_type(meta_version: &str, name: &str) -> status::Result<Type> {
    let package = match (meta_version, name) {
        // The others did not change.
        (META_V1BETA1, "PartialObjectMetadataList") => "meta/v1beta1",
        _ => "meta/v1",
    };
    api::schema::find(package, name).ok_or_else(|| Status::internal(format!("{name} has no schema")))
}

/// The type of a kind's lists.
///
/// # Errors
/// 500 when it is not in the table.
pub fn list_type(kind: &dyn AnyKind) -> status::Result<Type> {
    let shape = kind.shape();
    let name = shape.list_kind();
    let found = api::schema::of(shape.group, shape.version, &name);
    found.ok_or_else(|| Status::internal(format!("{name} has no schema")))
}

/// An object in its kind's own form, without an envelope. What is stored in that form is made once and
/// kept with the object.
///
/// # Errors
/// 500 when the stored bytes cannot be read.
pub fn whole<'o>(kind: &dyn AnyKind, schema: &Type, object: &'o CachedObject) -> status::Result<Cow<'o, [u8]>> {
    if kind.stored_as().is_none() {
        return Ok(Cow::Borrowed(object.protobuf(schema)?));
    }
    Ok(Cow::Owned(proto::transcode(&own_form(kind, object)?, schema)?))
}

/// A PartialObjectMetadata of an object, without an envelope.
///
/// # Errors
/// 500 when the stored bytes cannot be read.
pub fn partial<'o>(kind: &dyn AnyKind, meta: &Type, object: &'o CachedObject) -> status::Result<Cow<'o, [u8]>> {
    let made = object.protobuf_if_made().filter(|_| kind.stored_as().is_none());
    if let Some(metadata) = made.and_then(|body| proto::first_field(body)) {
        return Ok(Cow::Borrowed(metadata));
    }
    let json = own_form(kind, object)?;
    let metadata = json::metadata(&json).unwrap_or(b"{}");
    Ok(Cow::Owned(proto::transcode(&[br#"{"metadata":"#, metadata, b"}"].concat(), meta)?))
}

#[derive(Deserialize)]
struct Head<'a> {
    kind: Cow<'a, str>,
    #[serde(rename = "apiVersion")]
    api_version: Cow<'a, str>,
}

/// JSON that says what it is, with its envelope; `None` when its type has no protobuf.
pub fn of_json(json: &[u8]) -> Option<Vec<u8>> {
    let head: Head<'_> = serde_json::from_slice(json).ok()?;
    let (group, version) = head.api_version.split_once('/').unwrap_or(("", &head.api_version));
    let schema = match group {
        "meta.k8s.io" => meta_type(&head.api_version, &head.kind).ok(),
        _ => api::schema::of(group, version, &head.kind),
    };
    let body = proto::transcode(json, &schema?).ok()?;
    Some(proto::seal(&head.api_version, &head.kind, &body))
}

/// A list around its items: what stands before the first, and what follows the last.
#[derive(Debug)]
pub struct Around {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

impl Around {
    /// A list of the type, whose items take so many bytes with their tags and lengths.
    pub fn new(list: &Type, api_version: &str, kind: &str, meta: &ListMeta, items: usize) -> Self {
        let fields = proto::encode_body(&serde_json::json!({ "metadata": meta.to_value() }), list);
        let tag = proto::tag(list, "items");
        let mut before = proto::seal_begin(api_version, kind, fields.len() + items);
        let mut after = Vec::new();
        // Fields come in the order of their tags, and once the items were the first.
        let metadata = if tag < proto::tag(list, "metadata") { &mut after } else { &mut before };
        metadata.extend_from_slice(&fields);
        after.extend_from_slice(proto::SEAL_END);
        Self { before, after }
    }
}
