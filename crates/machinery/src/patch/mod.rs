//! The three patches that rewrite a JSON tree: RFC 6902, RFC 7396 and strategic merge.
//!
//! (Server-side apply, the fourth, merges by ownership: see [`crate::managed`].) A patch that fails
//! leaves the tree as it was. What comes out is checked and pruned by [`crate::decode::tree`].

mod json;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::schema::Type;
use crate::status::{Result, Status};

/// The most operations of a JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON patch (RFC 6902).
pub fn json(object: &mut Value, patch: &[u8]) -> Result<()> {
    json::apply(object, patch)
}

/// Applies a JSON merge patch (RFC 7396).
pub fn merge(object: &mut Value, patch: &Value) -> Result<()> {
    if !patch.is_object() {
        return Err(no_object(patch));
    }
    json_patch::merge(object, patch);
    Ok(())
}

/// Applies a strategic merge patch: lists of objects are merged by the keys that the schema names,
/// and the patch may carry directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…`,
/// `$setElementOrder/…`).
pub fn strategic(object: &mut Value, patch: &Value, schema: &Type) -> Result<()> {
    let Value::Object(patch) = patch else { return Err(no_object(patch)) };
    strategic::apply(object, patch.clone(), schema.get())
}

/// Reads the body of a merge or strategic merge patch.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    let patch: Value =
        serde_json::from_slice(bytes).map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))?;
    if patch.is_object() { Ok(patch) } else { Err(no_object(&patch)) }
}

fn no_object(patch: &Value) -> Box<Status> {
    Status::bad_request(format!(
        "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
        type_name(patch)
    ))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// 422 with the text that clients see of a patch that cannot be applied.
fn unprocessable() -> Box<Status> {
    let mut status = Status::new(422, "Invalid", "the server rejected our request due to an error in our request");
    status.details = Some(crate::status::Details::default());
    status
}
