//! The smallest patch that turns the status the API server has into ours. Pure.
//!
//! It is a strategic merge patch on the status subresource: conditions merge by type, so that
//! conditions of others are not touched, and `metadata.uid` makes the server refuse it for a
//! namesake of the pod.

use api::types::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// `None` when nothing differs.
pub fn patch(uid: &str, before: &PodStatus, after: &PodStatus) -> Option<Value> {
    let (before, after) = (tree(before), tree(after));
    let mut status = Map::new();
    for (key, value) in &after {
        if key == "conditions" {
            continue;
        }
        if before.get(key) != Some(value) {
            status.insert(key.clone(), value.clone());
        }
    }
    for key in before.keys().filter(|k| *k != "conditions" && !after.contains_key(*k)) {
        status.insert(key.clone(), Value::Null);
    }
    conditions(list(&before), list(&after), &mut status);
    (!status.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

fn tree(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status).map(prune) {
        Ok(Some(Value::Object(map))) => map,
        _ => Map::new(),
    }
}

/// Without empty objects, lists and nulls: whether one is written out says nothing.
fn prune(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) => {
            let pruned = |(k, v): (String, Value)| {
                // That a container has no resources is said so.
                let none = (k == "resources" && v.is_object()).then(|| Value::Object(Map::new()));
                Some((k, prune(v).or(none)?))
            };
            let map: Map<_, _> = map.into_iter().filter_map(pruned).collect();
            (!map.is_empty()).then_some(Value::Object(map))
        }
        Value::Array(list) => {
            let list: Vec<_> = list.into_iter().filter_map(prune).collect();
            (!list.is_empty()).then_some(Value::Array(list))
        }
        other => Some(other),
    }
}

fn list(status: &Map<String, Value>) -> &[Value] {
    status.get("conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn conditions(before: &[Value], after: &[Value], status: &mut Map<String, Value>) {
    let same_type = |a: &Value, b: &Value| a["type"] == b["type"];
    let mut changed = Vec::new();
    for condition in after {
        let Some(old) = before.iter().find(|b| same_type(b, condition)) else {
            changed.push(condition.clone());
            continue;
        };
        if old == condition {
            continue;
        }
        // Fields that went away must be named to be removed: the lists merge item by item.
        let mut item = condition.clone();
        if let (Some(old), Some(new)) = (old.as_object(), item.as_object_mut()) {
            for key in old.keys() {
                new.entry(key.clone()).or_insert(Value::Null);
            }
            new.retain(|key, value| key == "type" || old.get(key) != Some(value));
        }
        changed.push(item);
    }
    let gone = before.iter().filter(|b| !after.iter().any(|a| same_type(a, b)));
    changed.extend(gone.map(|b| json!({"$patch": "delete", "type": b["type"]})));
    if !changed.is_empty() {
        let order = after.iter().map(|c| json!({"type": c["type"]})).collect();
        status.insert("$setElementOrder/conditions".into(), Value::Array(order));
        status.insert("conditions".into(), Value::Array(changed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn what_is_empty_says_nothing() {
        let bare = |last: Value| {
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "lastState": last, "state": {"running": {}}}]})
        };
        assert_eq!(patch("u", &status(bare(json!({}))), &status(bare(json!(null)))), None);
    }

    #[test]
    fn no_resources_are_something_to_say() {
        let with = |resources: Value| {
            status(json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "resources": resources}]}))
        };
        let patch = patch("u", &with(json!(null)), &with(json!({}))).expect("a patch");
        assert_eq!(patch.pointer("/status/containerStatuses/0/resources"), Some(&json!({})));
        assert_eq!(super::patch("u", &with(json!({})), &with(json!({}))), None);
    }

    #[test]
    fn only_what_changed_is_sent() {
        let before = status(json!({"phase": "Pending", "hostIP": "1.1.1.1", "reason": "r", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "mine", "status": "True"}]}));
        assert_eq!(patch("u", &before, &before), None);
        let after = status(json!({"phase": "Running", "hostIP": "1.1.1.1", "conditions": [
            {"type": "mine", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}));
        assert_eq!(
            patch("u", &before, &after),
            Some(json!({"metadata": {"uid": "u"}, "status": {
                "phase": "Running", "reason": null,
                "$setElementOrder/conditions": [{"type": "mine"}, {"type": "Ready"}, {"type": "PodScheduled"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null,
                                "lastTransitionTime": "2026-01-01T00:00:05Z"}]}}))
        );
    }
}
