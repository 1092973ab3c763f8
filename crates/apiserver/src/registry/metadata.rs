//! What the server itself does to `metadata` on a write, for every kind alike; pure.

use std::collections::HashSet;

use jiff::Timestamp;
use kinds::AnyShape;
use machinery::field::{FieldErrors, Path};
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{encode, meta};
use serde_json::{Map, Value};

use super::catalogue::Resource;
use crate::verbs::options;

/// Gives a new object its system fields, and the namespace of the request when it names none.
///
/// # Errors
/// 400 when it names another namespace or a resourceVersion.
pub fn begin(
    object: &mut Value,
    shape: &AnyShape<'_>,
    namespace: &str,
    now: Timestamp,
    uid: &str,
) -> status::Result<()> {
    if !meta::resource_version(object).is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let named = meta::namespace(object).to_owned();
    if shape.is_namespaced() {
        if !named.is_empty() && named != namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        meta::set_namespace(object, namespace);
    } else if !named.is_empty() {
        meta::set_namespace(object, "");
    }
    let metadata = meta::metadata_mut(object);
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
    meta::set_creation_timestamp(object, Some(now));
    meta::set_uid(object, uid);
    Ok(())
}

/// Carries over from the stored object what an update cannot change, and checks which version of it
/// the client meant.
///
/// # Errors
/// 409 when another version or another object was meant, 422 when a version must be named.
pub fn carry(resource: &Resource, new: &mut Value, old: &Value) -> status::Result<()> {
    let (shape, group_resource) = (resource.shape(), resource.group_resource());
    let name = meta::name(old);
    let uid = meta::uid(old);
    match meta::uid(new) {
        "" => meta::set_uid(new, uid),
        other if other != uid => return Err(other_uid(resource, meta::namespace(old), name, other, uid)),
        _ => {}
    }
    let asked = meta::resource_version(new).to_owned();
    if asked.is_empty() || asked == "0" {
        if !shape.unconditional_update {
            let mut errors = FieldErrors::new();
            let path = Path::new("metadata").child("resourceVersion");
            errors.invalid(&path, 0, "must be specified for an update");
            return Err(Status::invalid(shape.group, shape.plural, name, &errors));
        }
        meta::set_resource_version(new, meta::resource_version(old));
    } else if options::revision(&asked)? != meta::revision(old).unwrap_or_default() {
        return Err(Status::modified(&group_resource, name));
    }
    let keep = |metadata: &mut Map<String, Value>, field: &str| {
        if let Some(value) = old.get("metadata").and_then(|m| m.get(field)) {
            metadata.insert(field.to_owned(), value.clone());
        }
    };
    let metadata = meta::metadata_mut(new);
    keep(metadata, "creationTimestamp");
    if meta::is_deleting(old) {
        keep(metadata, "deletionTimestamp");
    }
    if !metadata.contains_key("deletionGracePeriodSeconds") {
        keep(metadata, "deletionGracePeriodSeconds");
    }
    metadata.remove("selfLink");
    if shape.is_namespaced() && !metadata.contains_key("namespace") {
        keep(metadata, "namespace");
    } else if !shape.is_namespaced() {
        metadata.remove("namespace");
    }
    Ok(())
}

/// The 409 for a write that means the object with the uid `wanted`, where `found` is another.
pub fn other_uid(resource: &Resource, namespace: &str, name: &str, wanted: &str, found: &str) -> Box<Status> {
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    not_that_object(resource, namespace, name, &why)
}

/// The 409 for a write that means another object than the one that is stored.
pub fn not_that_object(resource: &Resource, namespace: &str, name: &str, why: &str) -> Box<Status> {
    let key = resource.key(namespace, name);
    let why =
        format!("StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}");
    Status::conflict(&resource.group_resource(), name, why)
}

/// Removes owners that are named twice; the warnings to send.
pub fn drop_duplicate_owners(object: &mut Value) -> Vec<String> {
    let owners = object.get_mut("metadata").and_then(|m| m.get_mut("ownerReferences"));
    let Some(Value::Array(owners)) = owners else { return Vec::new() };
    let mut doubled: Vec<String> = Vec::new();
    let mut seen: HashSet<Value> = HashSet::with_capacity(owners.len());
    owners.retain(|owner| {
        let new = seen.insert(owner.clone());
        if !new {
            doubled.push(owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        new
    });
    if doubled.is_empty() {
        return Vec::new();
    }
    vec![format!(
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        doubled.join(", ")
    )]
}

/// True when an update from `old` to `new` would change nothing, or only when managed fields were
/// last written.
pub fn same(new: &Value, old: &Value, schema: &Type) -> bool {
    equal_but(Some(new), Some(old), &|key, new, old| match key {
        "metadata" => equal_but(new, old, &|key, new, old| match key {
            "resourceVersion" => true,
            "managedFields" => same_managers(new, old),
            _ => new == old,
        }),
        _ => encode::alike(key, new, old, schema),
    })
}

fn same_managers(new: Option<&Value>, old: Option<&Value>) -> bool {
    let (Some(Value::Array(new)), Some(Value::Array(old))) = (new, old) else { return new == old };
    let same = |(new, old)| equal_but(Some(new), Some(old), &|key, new, old| key == "time" || new == old);
    new.len() == old.len() && new.iter().zip(old).all(same)
}

/// Whether a field, by its name, is the same in the new object and the old one.
type Equal<'e> = &'e dyn Fn(&str, Option<&Value>, Option<&Value>) -> bool;

/// Objects of which each field is `equal`.
fn equal_but(new: Option<&Value>, old: Option<&Value>, equal: Equal<'_>) -> bool {
    let (Some(Value::Object(new)), Some(Value::Object(old))) = (new, old) else { return new == old };
    new.iter().all(|(key, value)| equal(key, Some(value), old.get(key)))
        && old.iter().all(|(key, value)| new.contains_key(key) || equal(key, None, Some(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kinds::{AnyKind as _, Shape};
    use serde_json::json;

    const CONFIG_MAP: Shape = Shape::namespaced("", "v1", "ConfigMap", "configmaps");

    #[test]
    fn system_fields_are_the_servers() {
        let mut object = json!({"metadata": {"name": "a", "uid": "mine", "deletionTimestamp": "x", "selfLink": "y"}});
        begin(&mut object, &CONFIG_MAP, "default", Timestamp::UNIX_EPOCH, "u").expect("fine");
        let want = json!({"metadata": {"name": "a", "uid": "u", "namespace": "default",
            "creationTimestamp": "1970-01-01T00:00:00Z"}});
        assert_eq!(object, want);
        for bad in [json!({"metadata": {"namespace": "b"}}), json!({"metadata": {"resourceVersion": "1"}})] {
            let mut bad = bad;
            let refused = begin(&mut bad, &CONFIG_MAP, "a", Timestamp::UNIX_EPOCH, "u").expect_err("refused");
            assert_eq!(refused.code, 400);
        }
    }

    #[test]
    fn an_update_that_changes_nothing_is_seen() {
        let old = json!({"metadata": {"name": "a", "resourceVersion": "7",
            "managedFields": [{"manager": "m", "time": "1"}]}, "data": {"k": "v"}});
        let with = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            same(&new, &old, &kinds::config_map::ConfigMap.schema())
        };
        assert!(with(&|_| {}));
        assert!(with(&|new| new["metadata"]["managedFields"][0]["time"] = json!("2")));
        assert!(with(&|new| new["metadata"]["resourceVersion"] = json!("8")));
        assert!(!with(&|new| new["metadata"]["managedFields"][0]["manager"] = json!("n")));
        assert!(!with(&|new| new["data"]["k"] = json!("w")));
        assert!(!with(&|new| new["immutable"] = json!(true)));
        assert!(with(&|new| new["binaryData"] = json!({})));
        assert!(!with(&|new| drop(new.as_object_mut().map(|m| m.remove("data")))));
    }

    #[test]
    fn owners_count_once() {
        let mut object = json!({"metadata": {"ownerReferences": [{"uid": "1"}, {"uid": "2"}, {"uid": "1"}]}});
        let warnings = drop_duplicate_owners(&mut object);
        assert_eq!(object["metadata"]["ownerReferences"], json!([{"uid": "1"}, {"uid": "2"}]));
        assert!(warnings[0].ends_with("observed: 1"));
        // A body is full of them: not in the square of their number.
        let many: Vec<Value> = (0..100_000).map(|i| json!({ "uid": i })).collect();
        let mut object = json!({"metadata": {"ownerReferences": many}});
        assert!(drop_duplicate_owners(&mut object).is_empty());
    }
}
