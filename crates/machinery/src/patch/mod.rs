//! The three patches that rewrite a JSON tree: RFC 6902, RFC 7396 and strategic merge.
//!
//! (Server-side apply, the fourth, merges by ownership: see [`crate::managed`].) A patch that fails
//! leaves the tree as it was. What comes out is checked and pruned by [`crate::decode::patched`].

mod difference;
mod json;
mod merge;
mod strategic;
#[cfg(test)]
mod tests;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub use json::JsonPatch;

use crate::go;
use crate::schema::{Shape, Type};
use crate::status::{Result, Status};

/// The most operations of a JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON merge patch (RFC 7396).
pub fn merge(object: &mut Value, patch: &Map<String, Value>) {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Value::Object(object) = object {
        merge::apply(object, patch.clone());
    }
}

/// Applies a strategic merge patch: lists of objects are merged by the keys that the schema names,
/// and the patch may carry directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…`,
/// `$setElementOrder/…`).
///
/// # Errors
/// 400 and 422 for patches that cannot be applied, in upstream's words.
pub fn strategic(object: &mut Value, patch: &Map<String, Value>, schema: &Type) -> Result<()> {
    strategic::apply(object, patch.clone(), schema.get())
}

/// The strategic merge patch that makes `before` into `after`; empty when they are the same. Neither has
/// nulls, and lists of scalars that are merged have no scalar twice.
pub fn difference(before: &Map<String, Value>, after: &Map<String, Value>, schema: &Type) -> Map<String, Value> {
    difference::objects(before, after, Shape::Struct(schema.get()))
}

/// The body of a merge or strategic merge patch.
#[derive(Debug, PartialEq)]
pub struct Tree {
    pub patch: Map<String, Value>,
    /// Members that are there twice, as texts; the last one counts.
    pub errors: Vec<String>,
}

/// Reads the body of a merge or strategic merge patch. With `checked`, members that are there twice are
/// told. `prefix` begins the text of an error; it is empty for strategic merge.
///
/// # Errors
/// 400 for what is no object. (What is no JSON at all: see [`check_syntax`].)
pub fn parse(bytes: &[u8], checked: bool, prefix: &str) -> Result<Tree> {
    let bytes = &*crate::decode::mend(bytes);
    let mut state = Duplicates { path: String::new(), errors: Vec::new(), checked };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match Seed(&mut state).deserialize(&mut reader) {
        Ok(Value::Object(patch)) => Ok(Tree { patch, errors: state.errors }),
        // Strategic merge has nothing to do then; the other has no such patch.
        Ok(Value::Null) if prefix.is_empty() => Ok(Tree { patch: Map::new(), errors: Vec::new() }),
        Ok(Value::Null) => Err(Status::bad_request("Invalid JSON Patch")),
        Ok(other) => Err(Status::bad_request(format!(
            "{prefix}json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            type_name(&other)
        ))),
        Err(_) => Err(Status::bad_request(format!("{prefix}exceeded max depth"))),
    }
}

/// What is no JSON is no patch.
///
/// # Errors
/// 400.
pub fn check_syntax(bytes: &[u8]) -> Result<()> {
    match go::json_error(bytes) {
        Some(_) => Err(Status::bad_request("invalid JSON patch")),
        None => Ok(()),
    }
}

/// Members that are there twice, with the way to them.
struct Duplicates {
    path: String,
    errors: Vec<String>,
    checked: bool,
}

/// Reads a value and remembers what is there twice.
struct Seed<'s>(&'s mut Duplicates);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        let length = self.0.path.len();
        loop {
            if self.0.checked {
                self.0.path.push_str(&format!("[{}]", items.len()));
            }
            let item = access.next_element_seed(Seed(self.0))?;
            self.0.path.truncate(length);
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> std::result::Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.0.path.len();
        while let Some(name) = access.next_key::<String>()? {
            if self.0.checked {
                if length > 0 {
                    self.0.path.push('.');
                }
                self.0.path.push_str(&name);
                if map.contains_key(&name) && self.0.errors.len() < 100 {
                    let text = format!("duplicate field {}", go::quote(&self.0.path));
                    if !self.0.errors.contains(&text) {
                        self.0.errors.push(text);
                    }
                }
            }
            let value = access.next_value_seed(Seed(self.0))?;
            self.0.path.truncate(length);
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A patch as upstream prints it in the text of an error.
pub fn print(patch: &Map<String, Value>) -> String {
    go::print(&Value::Object(patch.clone()))
}

/// 422 with the text that clients see of a patch that cannot be applied.
fn unprocessable() -> Box<Status> {
    let mut status = Status::new(422, "Invalid", "the server rejected our request due to an error in our request");
    status.details = Some(crate::status::Details::default());
    status
}
