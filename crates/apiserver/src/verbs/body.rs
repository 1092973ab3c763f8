//! The object in a request's body, decoded by its kind's schema.

use kinds::AnyKind;
use machinery::decode::{self, Decoded, Strictness};
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{meta, proto};
use serde_json::Value;

use super::options::Validation;
use crate::chain::Call;
use crate::encode::negotiate::{self, Content};

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
    if kind.is_custom() && call.content()? == Content::Protobuf {
        return Err(negotiate::unknown_content(true));
    }
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

/// Decodes the body as an object of a type, in whatever it is written; the client is warned of what it
/// has too much.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for anything that is not such an object.
pub fn read(call: &Call, schema: &Type, validation: Validation) -> status::Result<Decoded> {
    let decoded = match call.content()? {
        Content::Text(format) => decode::decode(&call.body, format, schema, strictness(validation))?,
        Content::Protobuf => proto::decode(&call.body, schema)?,
    };
    call.warn(decoded.warnings.iter().cloned());
    Ok(decoded)
}

/// The body as DeleteOptions; `None` when there is none. There is no field validation for them:
/// what they do not have is dropped.
///
/// # Errors
/// 415 for a content type that is not spoken, 400 for what cannot be read or does not fit.
pub fn delete_options(call: &Call) -> status::Result<Option<Value>> {
    if call.body.is_empty() {
        return Ok(None);
    }
    let schema = api::schema::of("", "v1", "DeleteOptions");
    let schema = schema.ok_or_else(|| Status::internal("DeleteOptions has no schema"))?;
    match call.content()? {
        Content::Text(format) => decode::options(&call.body, format, &schema).map(Some).map_err(Status::bad_request),
        Content::Protobuf => Ok(Some(proto::decode(&call.body, &schema)?.value)),
    }
}
