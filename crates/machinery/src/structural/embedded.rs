//! Objects inside of objects: what is embedded has a kind, a version and metadata of its own.

use serde_json::{Map, Value};

use super::{Names, Node, Structural};
use crate::field::{FieldErrors, Path};
use crate::names;

/// Adds what is wrong with the metadata of an embedded object.
pub type MetadataRule<'r> = &'r dyn Fn(&Value, &Path, &mut FieldErrors);

impl Structural {
    /// Adds what is wrong with the objects that are embedded in an object.
    pub fn validate_embedded(&self, object: &Value, metadata: MetadataRule<'_>, errors: &mut FieldErrors) {
        embedded(&Path::root(), self.root(), false, object, metadata, errors);
    }

    /// Adds when an object is not of the kind and version that it is to be of.
    pub fn validate_head(names: Names<'_>, object: &Value, errors: &mut FieldErrors) {
        let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let version = format!("{}/{}", names.group, names.version);
        for (name, wanted) in [("kind", names.kind), ("apiVersion", &version)] {
            if text(name) != wanted {
                errors.invalid(&Path::new(name), text(name), format!("must be {wanted}"));
            }
        }
    }
}

impl Node {
    /// The same for a value of this node.
    pub fn validate_embedded(&self, path: &Path, value: &Value, rule: MetadataRule<'_>, errors: &mut FieldErrors) {
        embedded(path, self, self.embedded_resource, value, rule, errors);
    }
}

fn embedded(
    path: &Path,
    node: &Node,
    is_object: bool,
    value: &Value,
    rule: MetadataRule<'_>,
    errors: &mut FieldErrors,
) {
    match value {
        Value::Object(map) => {
            if is_object {
                head(path, map, rule, errors);
            }
            for (name, value) in map {
                if let Some(inner) = node.properties.get(name) {
                    embedded(&path.child(name), inner, inner.embedded_resource, value, rule, errors);
                } else if let Some(inner) = node.additional() {
                    embedded(&path.key(name), inner, inner.embedded_resource, value, rule, errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = &node.items else { return };
            for (i, item) in items.iter().enumerate() {
                embedded(&path.index(i), inner, inner.embedded_resource, item, rule, errors);
            }
        }
        _ => {}
    }
}

fn head(path: &Path, map: &Map<String, Value>, rule: MetadataRule<'_>, errors: &mut FieldErrors) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match map.get(name) {
            None => errors.required(&at, ""),
            Some(Value::String(text)) if text.is_empty() => errors.invalid(&at, "", "must not be empty"),
            Some(Value::String(text)) if name == "apiVersion" => {
                if text.matches('/').count() > 1 {
                    errors.invalid(&at, text.as_str(), format!("unexpected GroupVersion string: {text}"));
                }
            }
            Some(Value::String(text)) => {
                let wrong = names::dns1035_label(&text.to_lowercase());
                if !wrong.is_empty() {
                    let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.invalid(&at, text.as_str(), detail);
                }
            }
            Some(other) => errors.invalid(&at, other.clone(), "must be a string"),
        }
    }
    if let Some(metadata) = map.get("metadata") {
        rule(metadata, &path.child("metadata"), errors);
    }
}
