//! Small questions about stored objects, asked of their JSON.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use machinery::labels::Selector;
use machinery::meta;
use serde_json::Value;

use super::recorder::Objects;

/// The value at a JSON pointer; null when there is none.
pub fn at<'a>(object: &'a Value, pointer: &str) -> &'a Value {
    object.pointer(pointer).unwrap_or(&Value::Null)
}

/// The text at a JSON pointer; empty when there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).as_str().unwrap_or_default()
}

/// The number at a JSON pointer; zero when there is none.
pub fn number(object: &Value, pointer: &str) -> i64 {
    at(object, pointer).as_i64().unwrap_or_default()
}

/// True when the condition of this type is True.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    let list = at(object, "/status/conditions").as_array();
    list.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

/// Since when the Ready condition has been what it is.
pub fn ready_since(pod: &Value) -> Option<jiff::Timestamp> {
    let list = at(pod, "/status/conditions").as_array();
    let ready = list.into_iter().flatten().find(|c| c["type"] == "Ready")?;
    ready["lastTransitionTime"].as_str()?.parse().ok()
}

/// Nothing of the pod will run again.
pub fn is_terminal(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Neither finished nor being deleted.
pub fn is_active(pod: &Value) -> bool {
    !is_terminal(pod) && !meta::is_deleting(pod)
}

/// Active and ready.
pub fn is_serving(pod: &Value) -> bool {
    is_active(pod) && has_condition(pod, "Ready")
}

/// The uid of the owner that manages the object.
pub fn controller(object: &Value) -> Option<&str> {
    let owners = at(object, "/metadata/ownerReferences").as_array()?;
    owners.iter().find(|o| o["controller"] == true)?["uid"].as_str()
}

/// The objects of one resource.
pub fn all<'a>(objects: &'a Objects, plural: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |(key, _)| key.plural == plural).map(|(_, object)| &**object)
}

/// The object with this uid.
pub fn by_uid<'a>(objects: &'a Objects, plural: &'a str, uid: &str) -> Option<&'a Value> {
    all(objects, plural).find(|o| meta::uid(o) == uid)
}

/// What `spec.selector` of a workload matches; `None` when it cannot be read.
pub fn selector(workload: &Value) -> Option<Selector> {
    let selector = serde_json::from_value(at(workload, "/spec/selector").clone()).ok()?;
    api::selector(&selector).ok()
}

/// True when a workload's selector matches the labels of an object.
pub fn selects(workload: &Value, object: &Value) -> bool {
    selector(workload).is_some_and(|s| s.matches(&meta::labels(object)))
}

/// A count or a share of `replicas`, as `maxSurge` and `maxUnavailable` give it.
fn share(value: &Value, replicas: i64, round_up: bool) -> i64 {
    match value {
        Value::Number(n) => n.as_i64().unwrap_or_default(),
        Value::String(s) => {
            let percent: i64 = s.trim_end_matches('%').parse().unwrap_or_default();
            let exact = percent * replicas;
            if round_up { (exact + 99) / 100 } else { exact / 100 }
        }
        _ => 0,
    }
}

/// How many pods a Deployment may have, and how many must stay available.
pub fn bounds(deployment: &Value) -> (i64, i64) {
    let replicas = number(deployment, "/spec/replicas");
    if text(deployment, "/spec/strategy/type") == "Recreate" {
        return (replicas, 0);
    }
    let rolling = at(deployment, "/spec/strategy/rollingUpdate");
    let surge = share(&rolling["maxSurge"], replicas, true);
    let mut unavailable = share(&rolling["maxUnavailable"], replicas, false);
    if surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    (replicas + surge, replicas - unavailable.min(replicas))
}

/// Thousandths of a core, bytes, pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub cpu: i128,
    pub memory: i128,
    pub pods: i128,
}

impl Room {
    fn of(resources: &api::resources::Resources) -> Self {
        let get = |name: &str| resources.get(name);
        Self {
            cpu: get("cpu").map_or(0, machinery::quantity::Quantity::milli),
            memory: get("memory").map_or(0, machinery::quantity::Quantity::value),
            pods: get("pods").map_or(0, machinery::quantity::Quantity::value),
        }
    }

    /// What a pod takes.
    pub fn taken(pod: &Value) -> Self {
        let Ok(pod) = serde_json::from_value::<Pod>(pod.clone()) else { return Self::default() };
        Self { pods: 1, ..Self::of(&api::pod::effective_requests(&pod)) }
    }

    /// What a node has.
    pub fn allocatable(node: &Value) -> Self {
        let node = serde_json::from_value::<Node>(node.clone()).ok();
        let list = node.and_then(|n| n.status).and_then(|s| s.allocatable);
        Self::of(&api::resources::parse(&list.unwrap_or_default()))
    }

    /// The sum of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory + other.memory, pods: self.pods + other.pods }
    }

    /// True when all of it fits into `other`.
    pub fn fits(&self, other: &Self) -> bool {
        self.cpu <= other.cpu && self.memory <= other.memory && self.pods <= other.pods
    }
}

/// What the pods on a node take.
pub fn taken_on(objects: &Objects, node: &str) -> Room {
    let on = |pod: &&Value| text(pod, "/spec/nodeName") == node && !is_terminal(pod);
    all(objects, "pods").filter(on).map(Room::taken).fold(Room::default(), Room::and)
}

/// The labels of an object, as a selector wants them.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    meta::labels(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bounds_round_as_the_controller_does() {
        let deployment = |surge: Value, unavailable: Value| {
            json!({"spec": {"replicas": 5, "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}})
        };
        assert_eq!(bounds(&deployment(json!("25%"), json!("25%"))), (7, 4));
        assert_eq!(bounds(&deployment(json!(1), json!(0))), (6, 5));
        assert_eq!(bounds(&deployment(json!(0), json!("10%"))), (5, 4));
        assert_eq!(bounds(&json!({"spec": {"replicas": 3, "strategy": {"type": "Recreate"}}})), (3, 0));
    }
}
