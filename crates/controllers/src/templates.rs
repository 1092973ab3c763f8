//! Pod templates: whether two are the same, what a template is called, the pod it describes.

use client::OwnerRef;
use machinery::names;
use serde_json::{Map, Value, json};

/// The label that tells the ReplicaSets of a Deployment apart.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// Are two templates the same, but for the hash label? Absent, null and empty lists and maps of
/// metadata are the same thing.
pub(crate) fn is_same(a: &Value, b: &Value) -> bool {
    normal(a) == normal(b)
}

fn normal(template: &Value) -> Value {
    let mut out = template.clone();
    if let Some(labels) = out.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    if let Some(metadata) = out.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, v| !v.as_object().is_some_and(Map::is_empty));
        if metadata.is_empty() {
            out.as_object_mut().map(|o| o.remove("metadata"));
        }
    }
    prune(&mut out);
    out
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

/// A short name for a template: FNV-1a over its fields in order, with the collisions so far.
pub(crate) fn hash(template: &Value, collisions: i32) -> String {
    let mut state = 0x811c_9dc5u32;
    feed(&normal(template), &mut state);
    if collisions > 0 {
        bytes(&collisions.to_le_bytes(), &mut state);
    }
    names::safe_encode(&state.to_string())
}

fn bytes(input: &[u8], state: &mut u32) {
    for byte in input {
        *state = (*state ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
}

/// Walks a tree with sorted keys, so that the order fields came in changes nothing.
fn feed(value: &Value, state: &mut u32) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            bytes(b"{", state);
            for (key, value) in fields {
                bytes(key.as_bytes(), state);
                bytes(b":", state);
                feed(value, state);
            }
            bytes(b"}", state);
        }
        Value::Array(items) => {
            bytes(b"[", state);
            items.iter().for_each(|item| feed(item, state));
            bytes(b"]", state);
        }
        scalar => bytes(format!("{scalar},").as_bytes(), state),
    }
}

/// The pod a template describes, owned by `owner`.
pub(crate) fn pod(template: &Value, owner: &OwnerRef, namespace: &str) -> Value {
    let part = |name: &str| template.pointer(&format!("/metadata/{name}")).filter(|v| !v.is_null()).cloned();
    let mut metadata = json!({"generateName": prefix(&owner.name), "namespace": namespace});
    for name in ["labels", "annotations", "finalizers"] {
        if let Some(value) = part(name) {
            metadata[name] = value;
        }
    }
    metadata["ownerReferences"] = json!([reference(owner)]);
    json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

/// `<owner>-`, or the owner's name alone where the dash would make no valid name.
pub(crate) fn prefix(owner: &str) -> String {
    let dashed = format!("{owner}-");
    // A prefix is judged as the name it will become part of.
    if names::dns1123_subdomain(&format!("{owner}-x")).is_empty() { dashed } else { owner.to_owned() }
}

/// An owner reference as JSON.
pub(crate) fn reference(owner: &OwnerRef) -> Value {
    json!({
        "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
        "controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion,
    })
}

/// The reference by which an object controls what it makes.
pub(crate) fn controller(resource: &client::Resource, meta: &client::Meta) -> OwnerRef {
    OwnerRef {
        api_version: resource.api_version(),
        kind: resource.kind.to_string(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        controller: true,
        block_owner_deletion: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_the_same_but_for_the_hash_label_and_emptiness() {
        let a = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let b = json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web", HASH_LABEL: "x"}},
            "spec": {"containers": [{"name": "c", "image": "i", "args": []}]}});
        assert!(is_same(&a, &b));
        assert_eq!(hash(&a, 0), hash(&b, 0));
        let c = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "j"}]}});
        assert!(!is_same(&a, &c));
        assert_ne!(hash(&a, 0), hash(&c, 0));
        assert_ne!(hash(&a, 0), hash(&a, 1));
        assert!(hash(&a, 0).len() <= 10);
        let d = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert!(is_same(
            &d,
            &json!({"metadata": {"labels": {HASH_LABEL: "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        ));
    }
}
