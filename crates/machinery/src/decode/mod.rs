//! Bytes of a client to one JSON tree, by the schema: unknown and duplicate fields are found with
//! their exact paths, types are checked as Go checks them, and what the schema does not know is
//! dropped. One pass, no intermediate tree.
//!
//! ```text
//! {"spec":{"replicas":"3"}}   ──► 400 … cannot unmarshal string into Go struct field Deployment.spec.replicas of type int32
//! {"spec":{"replica":3}}      ──► Strict: 400 … unknown field "spec.replica"; Warn: a warning; Ignore: dropped
//! {"spec":{"replicas":null}}  ──► {"spec":{}}
//! ```

mod scalar;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use scalar::{canonical, canonical_micro_time, canonical_time};

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};

use crate::schema::{Type, TypeRef};
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
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// One text per unknown or duplicate field, for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Decodes a body as an object of the type. `kind` and `apiVersion` are filled in when absent.
pub fn decode(bytes: &[u8], format: Format, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    if bytes.len() > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    match format {
        Format::Json => read(bytes, format, schema, strictness),
        Format::Yaml => crate::yaml::with_room(|| read(bytes, format, schema, strictness)),
    }
}

fn read(bytes: &[u8], format: Format, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    let t = schema.get();
    let mut state = tree::State::new(t, strictness != Strictness::Ignore);
    let outcome = match format {
        Format::Json => read_json(bytes, &mut state),
        Format::Yaml => read_yaml(bytes, &mut state),
    };
    let value = match outcome {
        Ok(value) => value,
        Err(Failure::Type(text)) => return Err(unfit(bytes, format, t, &text)),
        Err(Failure::Syntax(text)) => {
            let message = format!(
                "the object provided is unrecognized (must be of type {}): {text} ({})",
                t.name(),
                first_bytes(bytes)
            );
            return Err(Status::bad_request(message));
        }
    };
    finish(value, state, schema, strictness)
}

/// Checks and prunes a tree that is already parsed, as after a patch.
pub fn tree(value: Value, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    let t = schema.get();
    let mut state = tree::State::new(t, strictness != Strictness::Ignore);
    let head = head_of(&value);
    check_depth(&value)?;
    let value = match tree::root(&mut state).deserialize(value) {
        Ok(value) => value.unwrap_or_else(|| Value::Object(Map::new())),
        Err(error) => {
            let text = state.failure.take().unwrap_or_else(|| error.to_string());
            return Err(cannot_be_handled(&head, t, &text));
        }
    };
    finish(value, state, schema, strictness)
}

/// Refuses a tree that is deeper than what can be read again, wherever its parts came from.
///
/// # Errors
/// 400.
pub fn check_depth(value: &Value) -> Result<()> {
    tree::check_depth(value, MAX_DEPTH).map_err(Status::bad_request)
}

fn finish(mut value: Value, state: tree::State<'_>, schema: &Type, strictness: Strictness) -> Result<Decoded> {
    let t = schema.get();
    if t.is_root() {
        let head = head_of(&value);
        if let Some(kind) = &head.kind
            && kind != t.name()
        {
            return Err(other_kind(kind, head.api_version.as_deref(), schema));
        }
        if strictness == Strictness::Strict && !state.errors.is_empty() {
            let text = format!("strict decoding error: {}", state.errors.join(", "));
            return Err(cannot_be_handled(&head, t, &text));
        }
        if let Value::Object(map) = &mut value {
            if head.kind.is_none() {
                map.insert("kind".to_owned(), Value::String(t.name().to_owned()));
            }
            if head.api_version.is_none() {
                map.insert("apiVersion".to_owned(), Value::String(crate::encode::api_version(t)));
            }
        }
    } else if strictness == Strictness::Strict && !state.errors.is_empty() {
        return Err(Status::bad_request(format!("strict decoding error: {}", state.errors.join(", "))));
    }
    let warnings = if strictness == Strictness::Warn { state.errors } else { Vec::new() };
    Ok(Decoded { value, warnings })
}

enum Failure {
    /// The text is well formed but does not fit the type.
    Type(String),
    /// The text cannot be read.
    Syntax(String),
}

fn read_json(bytes: &[u8], state: &mut tree::State<'_>) -> std::result::Result<Value, Failure> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = tree::root(state).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    settle(value, state, |error| {
        let text = if bytes.iter().all(u8::is_ascii_whitespace) {
            "unexpected end of JSON input".to_owned()
        } else {
            error.to_string()
        };
        format!("couldn't get version/kind; json parse error: {text}")
    })
}

fn read_yaml(bytes: &[u8], state: &mut tree::State<'_>) -> std::result::Result<Value, Failure> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Failure::Syntax("error converting YAML to JSON: yaml: invalid UTF-8".to_owned()))?;
    // The first pass stops at a key that is set twice, which says where it stands; the second one
    // then lets the last of them win, as upstream does.
    let mut duplicate = None;
    if state.report {
        use serde_saphyr::options::DuplicateKeyPolicy::Error;
        let options = yaml_options(Error);
        let seen: std::result::Result<serde::de::IgnoredAny, _> = serde_saphyr::from_str_with_options(text, options);
        if let Err(error) = &seen
            && let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet()
        {
            let key = key.as_deref().unwrap_or_default();
            duplicate =
                Some(format!("yaml: unmarshal errors:\n  line {}: key {key:?} already set in map", location.line()));
        }
    }
    state.duplicates_known = true;
    let options = yaml_options(serde_saphyr::options::DuplicateKeyPolicy::LastWins);
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        tree::root(state).deserialize(reader)
    });
    let value = settle(value, state, |error| {
        let text = error.to_string();
        format!("error converting YAML to JSON: yaml: {}", text.lines().next().unwrap_or_default())
    });
    if let Some(duplicate) = duplicate {
        state.errors.insert(0, duplicate);
    }
    value
}

pub(crate) fn yaml_options(duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy) -> serde_saphyr::Options {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_nodes = 500_000;
    budget.max_events = 1_000_000;
    budget.max_aliases = 1_000;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.duplicate_keys = duplicate_keys;
    // YAML 1.1, which upstream reads: `yes` and `on` are booleans, `0644` is octal.
    options.strict_booleans = false;
    options.legacy_octal_numbers = true;
    options.alias_limits.max_total_replayed_events = 200_000;
    options.with_snippet = false;
    options
}

fn settle<E>(
    outcome: std::result::Result<Option<Value>, E>,
    state: &mut tree::State<'_>,
    syntax: impl FnOnce(E) -> String,
) -> std::result::Result<Value, Failure> {
    match outcome {
        Ok(value) => Ok(value.unwrap_or_else(|| Value::Object(Map::new()))),
        Err(error) => Err(match state.failure.take() {
            // What is no object at all has no kind to be handled as.
            Some(text) if text.contains(" into Go value of type v") => {
                let found = text.split(" into ").next().unwrap_or_default();
                Failure::Syntax(format!("couldn't get version/kind; json parse error: {found} into {HEAD}"))
            }
            Some(text) => Failure::Type(text),
            None => Failure::Syntax(syntax(error)),
        }),
    }
}

/// The Go type upstream looks at first.
const HEAD: &str = "Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
                    Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// What a body says it is.
#[derive(Default)]
struct Head {
    kind: Option<String>,
    api_version: Option<String>,
}

fn head_of(value: &Value) -> Head {
    let text = |key: &str| {
        let text = value.get(key).and_then(Value::as_str).unwrap_or_default();
        (!text.is_empty()).then(|| text.to_owned())
    };
    Head { kind: text("kind"), api_version: text("apiVersion") }
}

/// Why an object with more than [`MAX_NODES`] lists and objects is refused.
pub(crate) fn too_many_nodes() -> String {
    format!("more than {MAX_NODES} lists and objects")
}

/// 400 for a body that does not fit the type; its own kind is read a second time, leniently.
fn unfit(bytes: &[u8], format: Format, t: TypeRef<'_>, text: &str) -> Box<Status> {
    #[derive(serde::Deserialize)]
    struct Lenient {
        #[serde(default)]
        kind: Value,
        #[serde(default, rename = "apiVersion")]
        api_version: Value,
    }
    let lenient: Option<Lenient> = match format {
        Format::Json => serde_json::from_slice(bytes).ok(),
        Format::Yaml => {
            let options = yaml_options(serde_saphyr::options::DuplicateKeyPolicy::LastWins);
            serde_saphyr::from_slice_with_options(bytes, options).ok()
        }
    };
    let text_of = |v: Value| match v {
        Value::String(s) if !s.is_empty() => Some(s),
        _ => None,
    };
    let head = lenient.map(|l| Head { kind: text_of(l.kind), api_version: text_of(l.api_version) }).unwrap_or_default();
    cannot_be_handled(&head, t, text)
}

fn cannot_be_handled(head: &Head, t: TypeRef<'_>, text: &str) -> Box<Status> {
    let kind = head.kind.as_deref().unwrap_or(t.name());
    let version = head.api_version.as_deref().map_or(t.version(), |v| v.rsplit('/').next().unwrap_or(v));
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {text}", t.name()))
}

/// 400 for a body of another kind.
pub(crate) fn other_kind(kind: &str, api_version: Option<&str>, schema: &Type) -> Box<Status> {
    let t = schema.get();
    let own = t.api_version();
    let (group, version) = match api_version.unwrap_or(&own).split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", api_version.unwrap_or(&own)),
    };
    match schema.sibling(group, version, kind) {
        Some(other) => {
            let internal = t.package().split('/').next().unwrap_or_default();
            let text =
                format!("converting ({version}.{}) to ({internal}.{}): unknown conversion", other.name(), t.name());
            Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {text}", t.name()))
        }
        None => Status::bad_request(format!(
            "no kind {kind:?} is registered for version {:?} in scheme \"pintle\"",
            if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
        )),
    }
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
