//! `metadata` of an object as a JSON tree: what the write path reads and sets of every kind.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::time;

/// An owner as `metadata.ownerReferences` names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub controller: bool,
    pub block_owner_deletion: bool,
}

fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(name)
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    field(object, name).and_then(Value::as_str).unwrap_or_default()
}

/// `apiVersion`; empty when absent.
pub fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

/// `kind`; empty when absent.
pub fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// Empty when absent.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// Empty when absent.
pub fn generate_name(object: &Value) -> &str {
    text(object, "generateName")
}

/// Empty at cluster scope.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// Empty when absent.
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// Empty when absent; a revision is read with [`revision`].
pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// The resourceVersion as the number it is.
pub fn revision(object: &Value) -> Option<u64> {
    resource_version(object).parse().ok()
}

/// 0 when absent.
pub fn generation(object: &Value) -> i64 {
    field(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}

fn string_map(object: &Value, name: &str) -> BTreeMap<String, String> {
    let pairs = field(object, name).and_then(Value::as_object).into_iter().flatten();
    pairs.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
}

/// The labels, copied out.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    string_map(object, "labels")
}

/// The annotations, copied out.
pub fn annotations(object: &Value) -> BTreeMap<String, String> {
    string_map(object, "annotations")
}

/// One annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    field(object, "annotations")?.get(key)?.as_str()
}

/// The finalizers.
pub fn finalizers(object: &Value) -> Vec<&str> {
    field(object, "finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The owners.
pub fn owner_references(object: &Value) -> Vec<OwnerReference<'_>> {
    let list = field(object, "ownerReferences").and_then(Value::as_array).into_iter().flatten();
    list.map(|owner| {
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        let flag = |name: &str| owner.get(name).and_then(Value::as_bool).unwrap_or_default();
        OwnerReference {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            controller: flag("controller"),
            block_owner_deletion: flag("blockOwnerDeletion"),
        }
    })
    .collect()
}

/// When the object was created.
pub fn creation_timestamp(object: &Value) -> Option<Timestamp> {
    time::parse(text(object, "creationTimestamp"))
}

/// Set once deletion has begun.
pub fn deletion_timestamp(object: &Value) -> Option<Timestamp> {
    time::parse(text(object, "deletionTimestamp"))
}

/// True once deletion has begun.
pub fn is_deleting(object: &Value) -> bool {
    field(object, "deletionTimestamp").is_some_and(|v| !v.is_null())
}

/// The grace period of a deletion that has begun.
pub fn deletion_grace_period_seconds(object: &Value) -> Option<i64> {
    field(object, "deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// `metadata`, made an object if it is none. An object that is no JSON object becomes one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(child_value(object), "metadata")
}

fn child_value(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match object {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn child_mut<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    child_value(parent.entry(name).or_insert_with(|| Value::Object(Map::new())))
}

fn set(object: &mut Value, name: &str, value: Option<Value>) {
    let metadata = metadata_mut(object);
    match value {
        Some(value) => {
            metadata.insert(name.to_owned(), value);
        }
        None => {
            metadata.remove(name);
        }
    }
}

fn set_text(object: &mut Value, name: &str, value: &str) {
    set(object, name, (!value.is_empty()).then(|| value.into()));
}

/// The empty text removes it.
pub fn set_name(object: &mut Value, value: &str) {
    set_text(object, "name", value);
}

/// The empty text removes it.
pub fn set_namespace(object: &mut Value, value: &str) {
    set_text(object, "namespace", value);
}

/// The empty text removes it.
pub fn set_uid(object: &mut Value, value: &str) {
    set_text(object, "uid", value);
}

/// The empty text removes it.
pub fn set_resource_version(object: &mut Value, value: &str) {
    set_text(object, "resourceVersion", value);
}

/// 0 removes it.
pub fn set_generation(object: &mut Value, value: i64) {
    set(object, "generation", (value != 0).then(|| value.into()));
}

/// `None` removes it.
pub fn set_creation_timestamp(object: &mut Value, value: Option<Timestamp>) {
    set(object, "creationTimestamp", value.map(|t| time::rfc3339(t).into()));
}

/// `None` removes it.
pub fn set_deletion_timestamp(object: &mut Value, value: Option<Timestamp>) {
    set(object, "deletionTimestamp", value.map(|t| time::rfc3339(t).into()));
}

/// `None` removes it.
pub fn set_deletion_grace_period_seconds(object: &mut Value, value: Option<i64>) {
    set(object, "deletionGracePeriodSeconds", value.map(Into::into));
}

/// An empty list removes it.
pub fn set_finalizers(object: &mut Value, finalizers: &[&str]) {
    set(object, "finalizers", (!finalizers.is_empty()).then(|| finalizers.to_vec().into()));
}

/// `None` removes the one label.
pub fn set_label(object: &mut Value, key: &str, value: Option<&str>) {
    set_pair(object, "labels", key, value);
}

/// `None` removes the one annotation.
pub fn set_annotation(object: &mut Value, key: &str, value: Option<&str>) {
    set_pair(object, "annotations", key, value);
}

fn set_pair(object: &mut Value, map: &str, key: &str, value: Option<&str>) {
    let metadata = metadata_mut(object);
    match value {
        Some(value) => {
            child_mut(metadata, map).insert(key.to_owned(), value.into());
        }
        None => {
            if let Some(Value::Object(pairs)) = metadata.get_mut(map) {
                pairs.remove(key);
                if pairs.is_empty() {
                    metadata.remove(map);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_what_is_there_and_nothing_else() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "12", "generation": 3,
                "labels": {"x": "y", "bad": 1}, "finalizers": ["f"],
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "ru", "controller": true}],
            }
        });
        assert_eq!((name(&object), namespace(&object), uid(&object), kind(&object)), ("a", "n", "u", "Pod"));
        assert_eq!((revision(&object), generation(&object)), (Some(12), 3));
        assert_eq!(labels(&object).into_iter().collect::<Vec<_>>(), [("x".to_owned(), "y".to_owned())]);
        assert!(is_deleting(&object) && deletion_timestamp(&object).is_some());
        assert_eq!(deletion_grace_period_seconds(&object), Some(30));
        let owners = owner_references(&object);
        assert!(owners[0].controller && !owners[0].block_owner_deletion && owners[0].name == "r");
        for odd in [json!(null), json!([]), json!({"metadata": 3}), json!({"metadata": {"name": 1}})] {
            assert_eq!((name(&odd), revision(&odd), is_deleting(&odd)), ("", None, false));
        }
    }

    #[test]
    fn sets_and_removes() {
        let mut object = json!({"metadata": null});
        set_name(&mut object, "a");
        set_label(&mut object, "k", Some("v"));
        set_annotation(&mut object, "k", Some("v"));
        set_generation(&mut object, 1);
        set_finalizers(&mut object, &["f"]);
        assert_eq!(
            object,
            json!({"metadata": {"name": "a", "labels": {"k": "v"}, "annotations": {"k": "v"}, "generation": 1, "finalizers": ["f"]}})
        );
        set_label(&mut object, "k", None);
        set_annotation(&mut object, "k", None);
        set_finalizers(&mut object, &[]);
        set_generation(&mut object, 0);
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
    }
}
