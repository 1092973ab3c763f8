//! What a pod may ask for and this kubelet cannot do. Nothing of it is passed over in silence: each
//! answer here fails the step that would need it, with that step's event, and shows as a Wait. Pure.

use api::types::core::v1 as core;

use crate::pod::BoundPod;

/// Why the pod's devices cannot be prepared: the message of `FailedPrepareDynamicResources`.
pub fn claims(pod: &BoundPod) -> Option<String> {
    let names: Vec<&str> = pod.spec().resource_claims.iter().flatten().map(|c| c.name.as_str()).collect();
    (!names.is_empty())
        .then(|| format!("resource claims are not supported by this kubelet: the pod asks for {}", names.join(", ")))
}

/// Why the pod's sandbox cannot be made: the message of `FailedCreatePodSandBox`.
pub fn sandbox(pod: &BoundPod) -> Option<String> {
    let spec = pod.spec();
    if let Some(class) = spec.runtime_class_name.as_deref().filter(|c| !c.is_empty()) {
        return Some(format!("runtime classes are not supported by this kubelet: the pod asks for {class:?}"));
    }
    if spec.host_users == Some(false) {
        return Some("user namespaces (hostUsers: false) are not supported by this kubelet".to_owned());
    }
    let restarts_all = |c: &&core::Container| {
        let mut rules = c.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == RESTART_ALL)
    };
    let container = pod.all_containers().find(restarts_all)?;
    Some(format!(
        "restart rules with action {RESTART_ALL} are not supported by this kubelet: container {} has one",
        container.name
    ))
}

/// The action of a container's restart rule that restarts its whole pod in place.
const RESTART_ALL: &str = "RestartAllContainers";

/// The message that stands for each ephemeral container.
pub const EPHEMERAL: &str = "ephemeral containers are not supported by this kubelet";

/// The names of the pod's ephemeral containers: none of them ever starts.
pub fn ephemeral(pod: &BoundPod) -> impl Iterator<Item = &core::EphemeralContainer> {
    pod.spec().ephemeral_containers.iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn with(spec: Value) -> std::sync::Arc<BoundPod> {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
        pod(json!({"spec": spec}))
    }

    #[test]
    fn what_a_sandbox_needs() {
        let rule = |action: &str| {
            json!({"name": "r", "image": "i", "restartPolicyRules": [{"action": action,
                "exitCodes": {"operator": "In", "values": [3]}}]})
        };
        let rows = [
            (json!({}), None),
            (json!({"runtimeClassName": ""}), None),
            (json!({"hostUsers": true}), None),
            (
                json!({"runtimeClassName": "gvisor"}),
                Some("runtime classes are not supported by this kubelet: the pod asks for \"gvisor\""),
            ),
            (json!({"hostUsers": false}), Some("user namespaces (hostUsers: false) are not supported by this kubelet")),
            (json!({"initContainers": [rule("Restart")]}), None),
            (
                json!({"initContainers": [rule("RestartAllContainers")]}),
                Some(
                    "restart rules with action RestartAllContainers are not supported by this kubelet: container r has \
                     one",
                ),
            ),
        ];
        for (spec, want) in rows {
            assert_eq!(sandbox(&with(spec.clone())).as_deref(), want, "{spec}");
        }
    }

    #[test]
    fn what_devices_need() {
        assert_eq!(claims(&with(json!({}))), None);
        let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}, {"name": "nic"}]});
        let want = "resource claims are not supported by this kubelet: the pod asks for gpu, nic";
        assert_eq!(claims(&with(spec)).as_deref(), Some(want));
    }
}
