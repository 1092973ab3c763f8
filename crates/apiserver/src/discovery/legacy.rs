//! The old form of discovery: one document per path.

use kinds::AnyKind;
use serde_json::{Value, json};

use super::{Group, Version, group_version, put_list, storage_version_hash, subresources};

/// `/api`.
pub(super) fn versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`.
pub(super) fn group_list(groups: &[Group]) -> Value {
    let groups: Vec<Value> = groups.iter().filter(|g| !g.name.is_empty()).map(|g| group(g, false)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`, and an entry of the list (`root` false).
pub(super) fn group(group: &Group, root: bool) -> Value {
    let version = |v: &Version| json!({"groupVersion": group_version(&group.name, &v.name), "version": v.name});
    let mut out = if root { json!({"kind": "APIGroup", "apiVersion": "v1"}) } else { json!({}) };
    out["name"] = json!(group.name);
    out["versions"] = group.versions.iter().map(version).collect();
    if let Some(first) = group.versions.first() {
        out["preferredVersion"] = version(first);
    }
    out
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
pub(super) fn resources(group: &str, version: &Version) -> Value {
    let mut out = json!({"kind": "APIResourceList", "groupVersion": group_version(group, &version.name)});
    if !group.is_empty() {
        out["apiVersion"] = json!("v1");
    }
    out["resources"] = version.kinds.iter().flat_map(|kind| entries(&**kind)).collect();
    out
}

fn entries(kind: &dyn AnyKind) -> Vec<Value> {
    let shape = kind.shape();
    let mut verbs = shape.verbs.to_vec();
    if !kind.is_custom() {
        verbs.sort_unstable();
    }
    let mut main = json!({
        "name": shape.plural, "singularName": super::singular(&shape), "namespaced": shape.is_namespaced(),
        "kind": shape.kind, "verbs": verbs,
    });
    put_list(&mut main, "shortNames", shape.short_names);
    put_list(&mut main, "categories", shape.categories);
    if let Some(hash) = storage_version_hash(kind) {
        main["storageVersionHash"] = json!(hash);
    }
    let mut out = vec![main];
    for sub in subresources(&shape) {
        let mut entry = json!({
            "name": format!("{}/{}", shape.plural, sub.name), "singularName": "",
            "namespaced": shape.is_namespaced(), "kind": sub.kind, "verbs": sub.verbs,
        });
        if !sub.version.is_empty() {
            entry["group"] = json!(sub.group);
            entry["version"] = json!(sub.version);
        }
        out.push(entry);
    }
    out
}
