//! The object in a request's body, decoded by its kind's schema.

use kinds::AnyKind;
use machinery::decode::{self, Decoded, Strictness};
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::Value;

use super::options::Validation;
use crate::chain::Call;
use crate::encode::negotiate::Format;

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
    let decoded = decode::decode(&call.body, format(call)?, &kind.schema(), strictness(validation))?;
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

fn format(call: &Call) -> status::Result<decode::Format> {
    Ok(match call.content()? {
        Format::Json => decode::Format::Json,
        Format::Yaml => decode::Format::Yaml,
    })
}

/// The body as a tree of any form; `None` when there is none.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for what cannot be read.
pub fn tree(call: &Call) -> status::Result<Option<Value>> {
    if call.body.is_empty() {
        return Ok(None);
    }
    let unreadable = |error: String| Status::bad_request(format!("the body of the request cannot be read: {error}"));
    match call.content()? {
        Format::Json => serde_json::from_slice(&call.body).map(Some).map_err(|e| unreadable(e.to_string())),
        Format::Yaml => serde_saphyr::from_slice(&call.body).map(Some).map_err(|e| unreadable(e.to_string())),
    }
}
