//! The smallest patch that turns the status the API server has into ours. Pure.
//!
//! It is a strategic merge patch on the status subresource: conditions merge by type, so that
//! conditions of others are not touched, addresses by ip, so that those that are gone must be named; and
//! `metadata.uid` makes the server refuse it for a namesake of the pod.

use std::sync::LazyLock;

use api::types::core::v1::PodStatus;
use machinery::schema::Type;
use serde_json::{Map, Value, json};

#[expect(clippy::expect_used, reason = "the table of types is part of the program; a test reads it")]
static STATUS: LazyLock<Type> =
    LazyLock::new(|| api::schema::find("core/v1", "PodStatus").expect("a pod's status has a schema"));

/// `None` when nothing differs.
pub fn patch(uid: &str, before: &PodStatus, after: &PodStatus) -> Option<Value> {
    if before == after {
        return None;
    }
    let mut status = machinery::patch::difference(&tree(before), &tree(after), &STATUS);
    // In which order conditions stand says nothing.
    if !status.contains_key("conditions") {
        status.remove("$setElementOrder/conditions");
    }
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

    /// The server's status once it took the patch, by the merge that it uses itself.
    fn patched(before: &PodStatus, after: &PodStatus) -> PodStatus {
        let mut pod = json!({"metadata": {"uid": "u"}, "status": tree(before)});
        if let Some(Value::Object(patch)) = patch("u", before, after) {
            let schema = api::schema::of("", "v1", "Pod").expect("pods have a schema");
            machinery::patch::strategic(&mut pod, &patch, &schema).expect("the patch applies");
        }
        status(pod["status"].take())
    }

    #[test]
    fn a_patch_leads_to_the_status() {
        let ips = |list: &[&str]| -> Value {
            let all: Vec<_> = list.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"podIP": list.first(), "podIPs": all, "hostIP": list.first(), "hostIPs": all})
        };
        let list = |name: &str, key: &str, items: &[(&str, Value)]| -> Value {
            let all = items.iter().map(|(value, more)| {
                let mut item = more.clone();
                item[key] = json!(value);
                item
            });
            json!({name: all.collect::<Vec<_>>()})
        };
        let c = |name: &str, more: Value| {
            let mut c = json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0});
            c.as_object_mut().expect("a map").extend(more.as_object().cloned().expect("a map"));
            c
        };
        let cpu = |name: &str| json!({"allocatedResources": {name: "1"}, "resources": {"limits": {name: "1"}}});
        let mut statuses: Vec<(&str, Vec<Value>)> = vec![
            (
                // A sandbox that was replaced has an address of its own.
                "addresses",
                vec![
                    ips(&["10.0.0.1"]),
                    ips(&["10.0.0.2"]),
                    ips(&["10.0.0.1", "fd00::1"]),
                    ips(&["fd00::1", "10.0.0.1"]),
                    ips(&["10.0.0.1", "fd00::2"]),
                ],
            ),
            ("resources", vec![cpu("cpu"), cpu("memory"), json!({"resources": {}})]),
            (
                "containerStatuses",
                vec![
                    json!({"containerStatuses": [c("a", json!({"user": {"linux": {"uid": 1, "gid": 1}}}))]}),
                    json!({"containerStatuses": [c("a", json!({"state": {"running": {}}})), c("b", json!({}))]}),
                    json!({"initContainerStatuses": [c("a", json!({"volumeMounts": [{"name": "v", "mountPath": "/"}]}))]}),
                    json!({"initContainerStatuses": [c("a", json!({}))]}),
                ],
            ),
        ];
        for (name, key, field) in [
            ("conditions", "type", ("status", [json!("True"), json!("False")])),
            ("resourceClaimStatuses", "name", ("resourceClaimName", [json!("x"), json!("y")])),
            ("nodeAllocatableResourceClaimStatuses", "resourceClaimName", ("containers", [json!(["a"]), json!(["b"])])),
        ] {
            let item = |n: usize| json!({field.0: field.1[n]});
            // `status` of a condition is there always; another field may go.
            let bare = if name == "conditions" { item(0) } else { json!({}) };
            statuses.push((
                name,
                vec![
                    list(name, key, &[("a", item(0)), ("b", item(1))]),
                    list(name, key, &[("b", item(0))]),
                    list(name, key, &[("b", bare), ("c", item(0))]),
                ],
            ));
        }
        for (name, mut all) in statuses {
            all.push(json!({}));
            for before in &all {
                for after in &all {
                    let (before, after) = (status(before.clone()), status(after.clone()));
                    assert_eq!(tree(&patched(&before, &after)), tree(&after), "{name}: {before:?}");
                }
            }
        }
    }
}
