//! RFC 6902, bounded: `copy` and `move` can build huge or very deep trees out of a small patch.

use json_patch::PatchOperation;
use serde_json::Value;

use super::{MAX_OPERATIONS, type_name, unprocessable};
use crate::decode::{MAX_BYTES, MAX_DEPTH};
use crate::status::{Result, Status};

/// Values that copies and moves may touch altogether.
const MAX_VISITED: usize = 500_000;

pub(super) fn apply(object: &mut Value, patch: &[u8]) -> Result<()> {
    let patch: Value = serde_json::from_slice(patch).map_err(|e| Status::bad_request(e.to_string()))?;
    let Value::Array(operations) = patch else {
        let found = type_name(&patch);
        let text = format!("json: cannot unmarshal {found} into Go value of type jsonpatch.Patch");
        return Err(Status::bad_request(text));
    };
    if operations.len() > MAX_OPERATIONS {
        let text = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(Status::new(413, "RequestEntityTooLarge", text));
    }
    let mut work = object.clone();
    let mut spent = Spent::default();
    for operation in operations {
        let operation: PatchOperation = serde_json::from_value(operation).map_err(|_| unprocessable())?;
        spent.check(&work, &operation)?;
        // The operations run on a copy, so nothing needs to be undone.
        json_patch::patch_unsafe(&mut work, &[operation]).map_err(|_| unprocessable())?;
    }
    *object = work;
    Ok(())
}

#[derive(Default)]
struct Spent {
    copied: usize,
    visited: usize,
}

impl Spent {
    /// Refuses an operation that would make the tree too large or too deep.
    fn check(&mut self, object: &Value, operation: &PatchOperation) -> Result<()> {
        let target = operation.path().as_str().matches('/').count();
        let (value, copies) = match operation {
            PatchOperation::Add(op) => (Some(&op.value), false),
            PatchOperation::Replace(op) => (Some(&op.value), false),
            PatchOperation::Copy(op) => (object.pointer(op.from.as_str()), true),
            PatchOperation::Move(op) => (object.pointer(op.from.as_str()), false),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, false),
        };
        let Some(value) = value else { return Ok(()) };
        let mut pending = vec![(value, target)];
        while let Some((value, depth)) = pending.pop() {
            self.visited += 1;
            if depth > MAX_DEPTH || self.visited > MAX_VISITED {
                return Err(unprocessable());
            }
            let size = match value {
                Value::Array(items) => {
                    pending.extend(items.iter().map(|v| (v, depth + 1)));
                    items.len()
                }
                Value::Object(map) => {
                    pending.extend(map.values().map(|v| (v, depth + 1)));
                    map.keys().map(|k| k.len() + 4).sum()
                }
                Value::String(text) => text.len() + 2,
                Value::Null | Value::Bool(_) | Value::Number(_) => 4,
            };
            self.copied += if copies { size } else { 0 };
            if self.copied > MAX_BYTES {
                return Err(unprocessable());
            }
        }
        Ok(())
    }
}
