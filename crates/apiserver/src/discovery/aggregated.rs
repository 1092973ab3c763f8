//! The new form of discovery: everything in one document.

use kinds::AnyKind;
use serde_json::{Value, json};

use super::{Group, put_list, singular, subresources};

/// `APIGroupDiscoveryList`.
pub(super) fn list<'a>(groups: impl Iterator<Item = &'a Group>) -> Value {
    let items: Vec<Value> = groups.map(group).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn group(group: &Group) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|v| {
            if let Some(elsewhere) = &v.elsewhere {
                let freshness = if elsewhere.is_fresh { "Current" } else { "Stale" };
                return json!({"version": v.name, "resources": elsewhere.resources, "freshness": freshness});
            }
            let resources: Vec<Value> = v.kinds.iter().map(|k| resource(&**k)).collect();
            json!({"version": v.name, "resources": resources, "freshness": "Current"})
        })
        .collect();
    json!({"metadata": metadata, "versions": versions})
}

fn resource(kind: &dyn AnyKind) -> Value {
    let shape = kind.shape();
    let mut verbs = shape.verbs.to_vec();
    if !kind.is_custom() {
        verbs.sort_unstable();
    }
    let mut out = json!({
        "resource": shape.plural,
        // The empty group and version are those of the document's own place.
        "responseKind": {"group": "", "version": "", "kind": shape.kind},
        "scope": if shape.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": singular(&shape),
        "verbs": verbs,
    });
    put_list(&mut out, "shortNames", shape.short_names);
    put_list(&mut out, "categories", shape.categories);
    let subs: Vec<Value> = subresources(&shape)
        .into_iter()
        .map(|s| {
            json!({
                "subresource": s.name, "verbs": s.verbs,
                "responseKind": {"group": s.group, "version": s.version, "kind": s.kind},
            })
        })
        .collect();
    if !subs.is_empty() {
        out["subresources"] = Value::Array(subs);
    }
    out
}
