//! The object in a request's body, decoded by its kind's schema.

use kinds::AnyKind;
use machinery::decode::{self, Decoded, Strictness};
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{meta, proto, yaml};
use serde_json::Value;

use super::options::Validation;
use crate::chain::Call;
use crate::encode::negotiate::Content;

/// How strictly unknown fields are taken.
pub fn strictness(validation: Validation) -> Strictness {
    match validation {
        Validation::Ignore => Strictness::Ignore,
        Validation::Warn => Strictness::Warn,
        Validation::Strict => Strictness::Strict,
    }
}

/// Decodes the body as an object of `kind`.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for anything that is not such an object.
pub fn decode(call: &Call, kind: &dyn AnyKind, validation: Validation) -> status::Result<Decoded> {
    let decoded = read(call, &kind.schema(), validation)?;
    check_version(&decoded.value, kind)?;
    Ok(decoded)
}

/// An object must be of the version that its URL says.
///
/// # Errors
/// 400.
pub fn check_version(object: &Value, kind: &dyn AnyKind) -> status::Result<()> {
    let (found, wanted) = (meta::api_version(object), kind.shape().api_version());
    if found == wanted {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the API version in the data ({found}) does not match the expected API version ({wanted})"
    )))
}

/// Decodes the body as an object of a type, in whatever it is written.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for anything that is not such an object.
pub fn read(call: &Call, schema: &Type, validation: Validation) -> status::Result<Decoded> {
    match call.content()? {
        Content::Text(format) => decode::decode(&call.body, format, schema, strictness(validation)),
        Content::Protobuf => proto::decode(&call.body, schema),
    }
}

/// The body as a tree; `None` when there is none. Protobuf, which does not describe itself, is read
/// as the one thing that is sent to verbs that take a tree: DeleteOptions.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for what cannot be read.
pub fn tree(call: &Call) -> status::Result<Option<Value>> {
    if call.body.is_empty() {
        return Ok(None);
    }
    let unreadable = |error: String| Status::bad_request(format!("the body of the request cannot be read: {error}"));
    match call.content()? {
        Content::Text(decode::Format::Json) => {
            serde_json::from_slice(&call.body).map(Some).map_err(|e| unreadable(e.to_string()))
        }
        Content::Text(decode::Format::Yaml) => yaml::read(&call.body).map(Some),
        Content::Protobuf => {
            let schema = api::schema::of("", "v1", "DeleteOptions");
            let schema = schema.ok_or_else(|| Status::internal("DeleteOptions has no schema"))?;
            Ok(Some(proto::decode(&call.body, &schema)?.value))
        }
    }
}
