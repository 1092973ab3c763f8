//! Who uses a claim, a volume or a class of attributes; pure.

use machinery::meta;
use serde_json::{Value, json};

/// True when the object carries the finalizer.
pub(super) fn has(object: &Value, finalizer: &str) -> bool {
    meta::finalizers(object).into_iter().any(|given| given == finalizer)
}

/// The object with the finalizer.
pub(super) fn with(object: &Value, finalizer: &str) -> Value {
    let mut object = object.clone();
    match object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        Some(list) => list.push(json!(finalizer)),
        None => object["metadata"]["finalizers"] = json!([finalizer]),
    }
    object
}

/// The object without it.
pub(super) fn without(object: &Value, finalizer: &str) -> Value {
    let mut object = object.clone();
    if let Some(list) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        list.retain(|given| given != finalizer);
    }
    object
}

/// True for a volume that a claim holds.
pub(super) fn is_bound(volume: &Value) -> bool {
    volume.pointer("/status/phase").is_some_and(|phase| phase == "Bound")
}

/// True when a pod uses a claim of its namespace. One without a node does not yet: a node does not
/// start a pod whose claim is being deleted.
pub(super) fn pod_uses(pod: &Value, claim: &Value) -> bool {
    let text = |value: &'_ Value, pointer: &str| -> String {
        value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    if text(pod, "/spec/nodeName").is_empty() {
        return false;
    }
    let (name, pod_name) = (meta::name(claim), meta::name(pod));
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let is_its_own =
        || meta::owner_references(claim).iter().any(|owner| owner.controller && owner.uid == meta::uid(pod));
    volumes.into_iter().flatten().any(|volume| {
        if volume.get("ephemeral").is_some_and(|source| !source.is_null()) {
            return format!("{pod_name}-{}", text(volume, "/name")) == name && is_its_own();
        }
        text(volume, "/persistentVolumeClaim/claimName") == name
    })
}

/// True when a claim or a volume has the class, or is on its way to it or from it.
pub(super) fn names_class(user: &Value, class: &str) -> bool {
    let places = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    places.iter().any(|place| user.pointer(place).is_some_and(|name| name == class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_on_a_node_uses_its_claims() {
        let claim = json!({"metadata": {"name": "c"}});
        let own = json!({"metadata": {"name": "p-v", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true},
        ]}});
        let pod = |node: &str, volume: Value| json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node, "volumes": [volume]}});
        let by_name = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let ephemeral = json!({"name": "v", "ephemeral": {}});
        for (pod, claim, want) in [
            (pod("n", by_name.clone()), &claim, true),
            (pod("", by_name), &claim, false),
            (pod("n", json!({"name": "v", "emptyDir": {}})), &claim, false),
            (pod("n", ephemeral.clone()), &own, true),
            (pod("n", ephemeral), &json!({"metadata": {"name": "p-v"}}), false),
        ] {
            assert_eq!(pod_uses(&pod, claim), want, "{pod}");
        }
    }

    #[test]
    fn a_class_is_used_until_nobody_is_on_the_way_to_it() {
        for (user, want) in [
            (json!({"spec": {"volumeAttributesClassName": "c"}}), true),
            (json!({"status": {"currentVolumeAttributesClassName": "c"}}), true),
            (json!({"status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "c"}}}), true),
            (json!({"spec": {"volumeAttributesClassName": "d"}}), false),
        ] {
            assert_eq!(names_class(&user, "c"), want, "{user}");
        }
    }

    #[test]
    fn finalizers_come_and_go_alone() {
        let bare = json!({"metadata": {"name": "c"}});
        let guarded = with(&bare, "f");
        assert!(has(&guarded, "f") && !has(&bare, "f"));
        assert_eq!(without(&with(&guarded, "g"), "f"), json!({"metadata": {"name": "c", "finalizers": ["g"]}}));
    }
}
