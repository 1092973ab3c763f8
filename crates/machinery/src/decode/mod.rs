//! Bytes of a client to one JSON tree, by the schema: unknown and duplicate fields are found with
//! their exact paths, types are checked as Go checks them, and what the schema does not know is
//! dropped. One pass, no intermediate tree.
//!
//! ```text
//! {"spec":{"replicas":"3"}}   ──► 400 … cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
//! {"spec":{"replica":3}}      ──► Strict: 400 … unknown field "spec.replica"; Warn: a warning; Ignore: dropped
//! {"spec":{"replicas":null}}  ──► {"spec":{}}
//! ```

mod head;
mod loose;
mod scalar;
mod state;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use head::mend;
pub(crate) use scalar::{canonical, canonical_micro_time, canonical_time};

use std::borrow::Cow;

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};

use self::head::Head;
use self::state::{Source, State};
use crate::go;
use crate::schema::Type;
use crate::status::{Result, Status};

/// The largest body, as upstream's.
pub const MAX_BYTES: usize = 3 * 1024 * 1024;
/// The deepest nesting of lists and objects. JSON readers stop at 127 levels: an object, and a list of such
/// objects, must stay readable.
pub const MAX_DEPTH: usize = 120;
/// The most lists and objects in one object. Each may be three bytes of a body and kilobytes of a typed
/// view; no object that means something comes near.
pub const MAX_NODES: usize = 32 * 1024;
/// No more mistakes than this are listed.
const MAX_ERRORS: usize = 100;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
}

/// `fieldValidation`: what happens to unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// They are dropped.
    Ignore,
    /// They are dropped, and the client is told.
    #[default]
    Warn,
    /// The request fails.
    Strict,
}

/// A decoded body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// One text per unknown or duplicate field, for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Decodes a body as an object of the type. `kind` and `apiVersion` are filled in when absent.
///
/// # Errors
/// 400 for what cannot be read, is of another kind or does not fit; 413 for what is too long.
pub fn decode(bytes: &[u8], format: Format, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    if bytes.len() > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    match format {
        Format::Json if schema.get().is_loose() => read_loose(bytes, schema, strictness),
        Format::Json => read_json(bytes, bytes, schema, strictness),
        Format::Yaml => read_yaml(bytes, schema, strictness),
    }
}

/// Reads a custom resource.
fn read_loose(bytes: &[u8], schema: &Type, strictness: Strictness) -> Result<Decoded> {
    if let Some(error) = go::json_error(bytes) {
        return Err(unrecognized(bytes, schema, &format!("{}{error}", head::NO_HEAD)));
    }
    let mended = head::mend(bytes);
    let head = Head::of_json(&mended).map_err(|error| unrecognized(bytes, schema, &error))?;
    let read = loose::parse(&mended, strictness != Strictness::Ignore);
    let (value, duplicates) = read.map_err(|text| head.cannot_be_handled(schema, &text))?;
    fit_loose(value, &head, duplicates, schema, strictness)
}

/// Fits a tree to the custom resource it says it is.
fn fit_loose(
    mut value: Value,
    head: &Head,
    mut errors: Vec<String>,
    schema: &Type,
    strictness: Strictness,
) -> Result<Decoded> {
    head.check_version(schema)?;
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    let unknown = loose::fit(&mut value, schema.get(), strictness != Strictness::Ignore);
    errors.append(&mut unknown.map_err(|text| head.cannot_be_handled(schema, &text))?);
    if strictness == Strictness::Strict && !errors.is_empty() {
        return Err(head.cannot_be_handled(schema, &format!("strict decoding error: {}", errors.join(", "))));
    }
    complete(&mut value, schema);
    let warnings = if strictness == Strictness::Warn { errors } else { Vec::new() };
    Ok(Decoded { value, warnings })
}

fn read_json(original: &[u8], bytes: &[u8], schema: &Type, strictness: Strictness) -> Result<Decoded> {
    let mut state = State::new(schema.get(), strictness != Strictness::Ignore, Source::Text);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = tree::root(&mut state).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let failure = state.failure();
    let value = match (read, &failure) {
        (Ok(value), None) if !state.folded_head && !Head::is_odd(value.as_ref()) => {
            value.unwrap_or_else(|| Value::Object(Map::new()))
        }
        (read, _) => {
            // What is no JSON at all is told before what does not fit.
            if let Some(error) = go::json_error(bytes) {
                return Err(unrecognized(original, schema, &format!("{}{error}", head::NO_HEAD)));
            }
            if read.is_err() && failure.is_none() {
                if let Cow::Owned(mended) = head::mend(bytes) {
                    return read_json(original, &mended, schema, strictness);
                }
            }
            let head = Head::of_json(bytes).map_err(|error| unrecognized(original, schema, &error))?;
            head.check(schema, |other| read_json(original, bytes, other, strictness))?;
            match (read, failure) {
                (_, Some(text)) => return Err(head.cannot_be_handled(schema, &text)),
                (Ok(value), None) => value.unwrap_or_else(|| Value::Object(Map::new())),
                // The one thing that this reader minds and Go does not.
                (Err(_), None) => return Err(head.cannot_be_handled(schema, "exceeded max depth")),
            }
        }
    };
    let again = |other: &Type| read_json(original, bytes, other, strictness);
    finish(value, state.errors, schema, strictness, again)
}

fn read_yaml(bytes: &[u8], schema: &Type, strictness: Strictness) -> Result<Decoded> {
    let read = crate::yaml::parse(bytes).map_err(|error| unrecognized(bytes, schema, &error))?;
    let head = Head::of_tree(&read.value).map_err(|error| unrecognized(bytes, schema, &error))?;
    let errors = match (strictness, read.errors) {
        (Strictness::Strict, Some(text)) => vec![text],
        // Each key is a warning of its own.
        (Strictness::Warn, Some(text)) => text.lines().skip(1).map(|line| line.trim().to_owned()).collect(),
        (Strictness::Ignore, _) | (_, None) => Vec::new(),
    };
    fit(read.value, &head, errors, schema, strictness)
}

/// Fits a document's tree to the type it says it is.
fn fit(value: Value, head: &Head, mut errors: Vec<String>, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    if schema.get().is_loose() {
        return fit_loose(value, head, errors, schema, strictness);
    }
    let source = value.clone();
    let again = |other: &Type| fit(source.clone(), head, errors.clone(), other, strictness);
    head.check(schema, again)?;
    let mut state = State::new(schema.get(), strictness != Strictness::Ignore, Source::Tree);
    let read = tree::root(&mut state).deserialize(value);
    if let Some(text) = state.failure() {
        return Err(head.cannot_be_handled(schema, &text));
    }
    let value = read.map_err(|error| head.cannot_be_handled(schema, &error.to_string()))?;
    errors.append(&mut state.errors);
    finish(value.unwrap_or_else(|| Value::Object(Map::new())), errors, schema, strictness, |_| Ok(Decoded::default()))
}

/// Decodes the options of a request. They may say that they are of any group and version; fields that
/// the type does not have are dropped, and fields that come twice are taken as Go takes them.
///
/// # Errors
/// Why they cannot be read, in upstream's words.
pub fn options(bytes: &[u8], format: Format, schema: &Type) -> std::result::Result<Value, String> {
    let mut state = State::new(schema.get(), false, if format == Format::Json { Source::Text } else { Source::Tree });
    let read = match format {
        Format::Json => {
            if let Some(error) = go::json_error(bytes) {
                return Err(format!("{}{error}", head::NO_HEAD));
            }
            let bytes = head::mend(bytes);
            Head::of_json(&bytes)?.check_options(schema)?;
            tree::root(&mut state).deserialize(&mut serde_json::Deserializer::from_slice(&bytes))
        }
        Format::Yaml => {
            let tree = crate::yaml::parse(bytes)?.value;
            Head::of_tree(&tree)?.check_options(schema)?;
            tree::root(&mut state).deserialize(tree)
        }
    };
    match (state.failure(), read) {
        (Some(text), _) => Err(text),
        (None, Ok(value)) => Ok(value.unwrap_or_else(|| Value::Object(Map::new()))),
        (None, Err(_)) => Err("exceeded max depth".to_owned()),
    }
}

/// What a patch made of an object, checked and pruned; the mistakes are texts, for the caller says whose
/// they are.
#[derive(Debug)]
pub struct Patched {
    pub value: Value,
    /// Unknown and duplicate fields, when they were asked for.
    pub errors: Vec<String>,
}

/// Checks and prunes a tree that is already parsed.
///
/// # Errors
/// 400.
pub fn tree(value: Value, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    check_depth(&value)?;
    let head = Head::of_tree(&value).map_err(Status::bad_request)?;
    fit(value, &head, Vec::new(), schema, strictness)
}

/// Checks and prunes what a patch made of an object. `converted`: it was never a text (strategic merge).
///
/// # Errors
/// Why it is no object of the type, in upstream's words.
pub fn patched(value: Value, schema: &Type, report: bool, converted: bool) -> std::result::Result<Patched, String> {
    tree::check_depth(&value, MAX_DEPTH)?;
    let head = Head::of_tree(&value)?;
    if schema.get().is_loose() {
        let mut value = value;
        let errors = loose::fit(&mut value, schema.get(), report)?;
        complete(&mut value, schema);
        return Ok(Patched { value, errors });
    }
    let mut state = State::new(schema.get(), report, if converted { Source::Converted } else { Source::Tree });
    let mut value = value;
    match &mut value {
        _ if !converted => head.check_kind(schema)?,
        // What is converted is what it was.
        Value::Object(map) => ["kind", "apiVersion"].into_iter().for_each(|name| drop(map.remove(name))),
        _ => {}
    }
    let read = tree::root(&mut state).deserialize(value);
    if let Some(text) = state.failure() {
        return Err(text);
    }
    let mut value = read.map_err(|error| error.to_string())?.unwrap_or_else(|| Value::Object(Map::new()));
    let mut errors = state.errors;
    if converted {
        errors.sort();
    }
    complete(&mut value, schema);
    Ok(Patched { value, errors })
}

/// Refuses a tree that is deeper than what can be read again, wherever its parts came from.
///
/// # Errors
/// 400.
pub fn check_depth(value: &Value) -> Result<()> {
    tree::check_depth(value, MAX_DEPTH).map_err(Status::bad_request)
}

fn finish(
    mut value: Value,
    errors: Vec<String>,
    schema: &Type,
    strictness: Strictness,
    again: impl Fn(&Type) -> Result<Decoded>,
) -> Result<Decoded> {
    let head = Head::lenient(&value);
    head.check(schema, again)?;
    if strictness == Strictness::Strict && !errors.is_empty() {
        return Err(head.cannot_be_handled(schema, &format!("strict decoding error: {}", errors.join(", "))));
    }
    complete(&mut value, schema);
    let warnings = if strictness == Strictness::Warn { errors } else { Vec::new() };
    Ok(Decoded { value, warnings })
}

/// Fills in what the object is.
fn complete(value: &mut Value, schema: &Type) {
    let t = schema.get();
    let Value::Object(map) = value else { return };
    let absent = |map: &Map<String, Value>, key| map.get(key).and_then(Value::as_str).is_none_or(str::is_empty);
    if t.is_root() {
        if absent(map, "kind") {
            map.insert("kind".to_owned(), Value::String(t.name().to_owned()));
        }
        if absent(map, "apiVersion") {
            map.insert("apiVersion".to_owned(), Value::String(crate::encode::api_version(t)));
        }
    }
}

/// Why an object with more than [`MAX_NODES`] lists and objects is refused.
pub(crate) fn too_many_nodes() -> String {
    format!("more than {MAX_NODES} lists and objects")
}

/// 400 for a body that says it is of another kind.
pub(crate) fn other_kind(kind: &str, api_version: Option<&str>, schema: &Type) -> Box<Status> {
    let head = Head::new(kind, api_version.unwrap_or_default());
    match head.check(schema, |_| Ok(Decoded::default())) {
        Err(status) => status,
        Ok(()) => head.cannot_be_handled(schema, "unknown conversion"),
    }
}

/// 400 for what does not even say what it is.
fn unrecognized(bytes: &[u8], schema: &Type, why: &str) -> Box<Status> {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({})",
        schema.name(),
        first_bytes(bytes)
    ))
}

/// The start of a body as an error text shows it.
fn first_bytes(bytes: &[u8]) -> String {
    const LIMIT: usize = 30;
    if bytes.is_empty() {
        return "<empty>".to_owned();
    }
    let cut = bytes.len() > LIMIT;
    let start = &bytes[..bytes.len().min(LIMIT)];
    let mut text = if bytes[0] == b'{' {
        String::from_utf8_lossy(start).into_owned()
    } else {
        start.iter().map(|b| format!("{b:02x}")).collect()
    };
    if cut {
        text.push_str(" ...");
    }
    text
}
