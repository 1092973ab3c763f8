//! Rules about `metadata` that hold for every kind, read off the tree.

use api::meta::apis::meta::v1::ObjectMeta;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::kind::Ctx;
use crate::shape::AnyShape;

/// What all annotations of an object may take together, keys and values, in bytes.
pub const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Finalizers that need no domain.
const PLAIN_FINALIZERS: &[&str] = &["kubernetes", "orphan", "foregroundDeletion"];

/// How a name of some kind must look; the messages of what is wrong with it.
pub type NameRule = fn(&str) -> Vec<String>;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The mistakes in `metadata` of a new object.
pub fn validate(shape: &AnyShape<'_>, rule: NameRule, object: &Value, errors: &mut FieldErrors) {
    let null = Value::Null;
    let metadata = object.get("metadata").unwrap_or(&null);
    let path = Path::new("metadata");
    let generate = text(metadata, "generateName");
    if !generate.is_empty() {
        for message in rule(&without_trailing_dash(generate)) {
            errors.invalid(&path.child("generateName"), generate, message);
        }
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        errors.required(&path.child("name"), "name or generateName is required");
    } else {
        for message in rule(name) {
            errors.invalid(&path.child("name"), name, message);
        }
    }
    let namespace = text(metadata, "namespace");
    match (shape.is_namespaced(), namespace.is_empty()) {
        (true, true) => errors.required(&path.child("namespace"), ""),
        (true, false) => {
            for message in names::dns1123_label(namespace) {
                errors.invalid(&path.child("namespace"), namespace, message);
            }
        }
        (false, false) => errors.forbidden(&path.child("namespace"), "not allowed on this type"),
        (false, true) => {}
    }
    validate_values(metadata, &path, errors);
}

/// The mistakes in the metadata of an object that is embedded in another.
pub fn validate_embedded(metadata: &Value, path: &Path, errors: &mut FieldErrors) {
    if let Err(status) = crate::view::read::<ObjectMeta>(metadata) {
        errors.invalid(path, metadata.clone(), status.message.clone());
        return;
    }
    let (generate, name) = (text(metadata, "generateName"), text(metadata, "name"));
    for (field, value) in [("generateName", generate), ("name", name)] {
        for message in names::path_segment(value) {
            errors.invalid(&path.child(field), value, message);
        }
    }
    let namespace = text(metadata, "namespace");
    if !namespace.is_empty() {
        for message in names::dns1123_label(namespace) {
            errors.invalid(&path.child("namespace"), namespace, message);
        }
    }
    validate_values(metadata, path, errors);
}

/// The mistakes in a change of `metadata`.
pub fn validate_update(_ctx: &Ctx, new: &Value, old: &Value, errors: &mut FieldErrors) {
    let null = Value::Null;
    let (new, old) = (new.get("metadata").unwrap_or(&null), old.get("metadata").unwrap_or(&null));
    let path = Path::new("metadata");
    if old.get("deletionTimestamp").is_some_and(|at| !at.is_null()) {
        let before: Vec<&str> = strings(old, "finalizers").collect();
        let added: Vec<String> =
            strings(new, "finalizers").filter(|f| !before.contains(f)).map(|f| format!("{f:?}")).collect();
        if !added.is_empty() {
            errors.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            );
        }
    }
    let generation = |metadata: &Value| metadata.get("generation").and_then(Value::as_i64).unwrap_or(0);
    if generation(new) < generation(old) {
        errors.invalid(&path.child("generation"), generation(new), "must not be decremented");
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (after, before) = (new.get(field).unwrap_or(&null), old.get(field).unwrap_or(&null));
        let empty = |v: &Value| v.is_null() || v == "";
        if after != before && !(empty(after) && empty(before)) {
            errors.invalid(&path.child(field), after.clone(), "field is immutable");
        }
    }
    validate_values(new, &path, errors);
}

fn validate_values(metadata: &Value, path: &Path, errors: &mut FieldErrors) {
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|n| *n < 0) {
        errors.invalid(&path.child("generation"), generation, "must be greater than or equal to 0");
    }
    if let Some(labels) = metadata.get("labels").and_then(Value::as_object) {
        let pairs = labels.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()));
        validate_labels(pairs, &path.child("labels"), errors);
    }
    if let Some(annotations) = metadata.get("annotations").and_then(Value::as_object) {
        let pairs = annotations.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()));
        validate_annotations(pairs, &path.child("annotations"), errors);
    }
    validate_owners(metadata, &path.child("ownerReferences"), errors);
    validate_finalizers(metadata, &path.child("finalizers"), errors);
}

/// The mistakes in labels, wherever they stand.
pub fn validate_labels<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>, path: &Path, errors: &mut FieldErrors) {
    for (key, value) in labels {
        for message in names::qualified_name(key) {
            errors.invalid(path, key, message);
        }
        for message in names::label_value(value) {
            errors.invalid(path, value, message);
        }
    }
}

/// The mistakes in annotations, wherever they stand.
pub fn validate_annotations<'a>(
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let mut size = 0;
    for (key, value) in annotations {
        // An annotation's name may have capitals where a label's prefix may not.
        for message in names::qualified_name(&key.to_lowercase()) {
            errors.invalid(path, key, message);
        }
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_LIMIT {
        errors.too_long(path, ANNOTATIONS_LIMIT);
    }
}

fn validate_owners(metadata: &Value, path: &Path, errors: &mut FieldErrors) {
    let Some(owners) = metadata.get("ownerReferences").and_then(Value::as_array) else { return };
    let mut controller: Option<String> = None;
    for (i, owner) in owners.iter().enumerate() {
        let at = path.index(i);
        let version = text(owner, "apiVersion");
        if version.is_empty() {
            errors.required(&at.child("apiVersion"), "must not be empty");
        } else if version.ends_with('/') || version.matches('/').count() > 1 {
            errors.invalid(&at.child("apiVersion"), version, "must be <group>/<version> or <version>");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.required(&at.child(field), "must not be empty");
            }
        }
        if version == "v1" && text(owner, "kind") == "Event" {
            errors.invalid(&at, owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                None => controller = Some(name),
                Some(first) => errors.invalid(
                    path,
                    Value::Array(owners.clone()),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    ),
                ),
            }
        }
    }
}

fn validate_finalizers(metadata: &Value, path: &Path, errors: &mut FieldErrors) {
    let all: Vec<&str> = strings(metadata, "finalizers").collect();
    for finalizer in &all {
        for message in names::qualified_name(finalizer) {
            errors.invalid(path, *finalizer, message);
        }
    }
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        errors.invalid(
            path,
            all.iter().map(|f| Value::from(*f)).collect::<Vec<_>>(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}

/// The finalizers of an object of Kubernetes' own that have no domain and are not Kubernetes' own. Custom
/// resources and their definitions may have such.
pub fn validate_plain_finalizers(object: &Value, errors: &mut FieldErrors) {
    let null = Value::Null;
    let path = Path::new("metadata").child("finalizers");
    for (i, finalizer) in strings(object.get("metadata").unwrap_or(&null), "finalizers").enumerate() {
        if !finalizer.contains('/') && !PLAIN_FINALIZERS.contains(&finalizer) {
            errors.invalid(
                &path.index(i),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

fn strings<'a>(metadata: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    metadata.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// A base for generated names may end in a dash: the random part follows.
fn without_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => {
            let mut out: String = stem.to_owned();
            out.pop();
            out.push('a');
            out
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Shape;

    const SHAPE: Shape = Shape::namespaced("", "v1", "Thing", "things");

    fn check(metadata: Value) -> Vec<String> {
        let mut errors = FieldErrors::new();
        let object = json!({"metadata": metadata});
        validate(&SHAPE, names::dns1123_subdomain, &object, &mut errors);
        validate_plain_finalizers(&object, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_new_object_needs_a_name_and_a_namespace() {
        assert_eq!(
            check(json!({})),
            ["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required value"]
        );
        assert_eq!(check(json!({"name": "a", "generateName": "a-", "namespace": "b"})), [""; 0]);
    }

    #[test]
    fn values_are_checked_wherever_they_come_from() {
        let texts = check(json!({
            "name": "a", "namespace": "b",
            "finalizers": ["plain"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "", "controller": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": true},
            ],
            "annotations": {"a": "x".repeat(ANNOTATIONS_LIMIT)},
            "labels": {"ok": "-"},
        }));
        assert_eq!(texts.len(), 5, "{texts:#?}");
        assert!(texts[0].starts_with("metadata.labels: Invalid value: \"-\": a valid label must be"), "{}", texts[0]);
        assert_eq!(texts[1], "metadata.annotations: Too long: may not be more than 262144 bytes");
        assert_eq!(texts[2], "metadata.ownerReferences[0].uid: Required value: must not be empty");
        assert!(texts[3].contains(
            "Only one reference can have Controller set to true. Found \"true\" in references for Pod/p and Pod/q"
        ));
        assert_eq!(
            texts[4],
            "metadata.finalizers[0]: Invalid value: \"plain\": \
             name is neither a standard finalizer name nor is it fully qualified"
        );
    }
}
