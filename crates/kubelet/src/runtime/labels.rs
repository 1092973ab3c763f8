//! The labels and annotations by which a restarted kubelet knows its pods again.
//!
//! They are upstream's, so that tools that read a runtime find what they expect. The hash's value
//! is our own: it is only ever compared with itself.

use std::collections::HashMap;

use api::types::core::v1::Container;

use crate::pod::BoundPod;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Ours: the image as the spec names it. The runtime itself reports what it resolved.
pub const IMAGE: &str = "pintle.dev/container.image";

/// The parts of a container that cannot change while it runs, as one number (FNV-1a, 32 bits).
pub fn hash(container: &Container) -> u64 {
    let mut hash: u32 = 0x811c_9dc5;
    for text in [container.name.as_str(), "\0", container.image.as_deref().unwrap_or_default()] {
        for byte in text.bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
    u64::from(hash)
}

/// Whether the container found was made from another definition.
pub fn is_changed(container: &Container, found: &super::Container) -> bool {
    found.hash != 0 && found.hash != hash(container)
}

/// A sandbox's labels: the pod's own, and who it is.
pub fn sandbox(pod: &BoundPod) -> HashMap<String, String> {
    let own = pod.meta().labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone()));
    own.chain(identity(pod)).collect()
}

/// A container's labels.
pub fn container(pod: &BoundPod, container: &Container) -> HashMap<String, String> {
    let name = (CONTAINER_NAME.to_owned(), container.name.clone());
    identity(pod).chain(std::iter::once(name)).collect()
}

fn identity(pod: &BoundPod) -> impl Iterator<Item = (String, String)> {
    [(POD_NAME, &pod.name), (POD_NAMESPACE, &pod.namespace), (POD_UID, &pod.uid)]
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .into_iter()
}

/// A container's annotations.
pub fn annotations(pod: &BoundPod, container: &Container, attempt: u32) -> HashMap<String, String> {
    let mut out = HashMap::from([
        (HASH.to_owned(), format!("{:x}", hash(container))),
        (RESTART_COUNT.to_owned(), attempt.to_string()),
        (IMAGE.to_owned(), container.image.clone().unwrap_or_default()),
        (
            TERMINATION_PATH.to_owned(),
            container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into()),
        ),
        (TERMINATION_POLICY.to_owned(), container.termination_message_policy.clone().unwrap_or_else(|| "File".into())),
    ]);
    if let Some(grace) = pod.spec().termination_grace_period_seconds {
        out.insert(TERMINATION_GRACE.to_owned(), grace.to_string());
    }
    if let Some(grace) = pod.meta().deletion_timestamp.as_ref().and(pod.meta().deletion_grace_period_seconds) {
        out.insert(DELETION_GRACE.to_owned(), grace.to_string());
    }
    // What a kubelet that never saw the pod's object needs to end it as its author wished.
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        if let Ok(text) = serde_json::to_string(hook) {
            out.insert(PRE_STOP.to_owned(), text);
        }
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty()) {
        if let Ok(text) = serde_json::to_string(ports) {
            out.insert(PORTS.to_owned(), text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn only_name_and_image_make_a_container_another() {
        let container = |value| serde_json::from_value::<Container>(value).expect("a container");
        let one = hash(&container(json!({"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}]})));
        assert_eq!(one, hash(&container(json!({"name": "c", "image": "i:1"}))));
        assert_ne!(one, hash(&container(json!({"name": "c", "image": "i:2"}))));
        assert_ne!(one, 0);
    }

    #[test]
    fn annotations_carry_what_ending_needs() {
        let pod = pod(json!({"spec": {"terminationGracePeriodSeconds": 7, "containers": [
            {"name": "c", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}}]}}));
        let found = annotations(&pod, &pod.containers()[0], 3);
        assert_eq!(found[RESTART_COUNT], "3");
        assert_eq!(found[TERMINATION_GRACE], "7");
        assert_eq!(found[PRE_STOP], r#"{"exec":{"command":["bye"]}}"#);
        assert!(!found.contains_key(DELETION_GRACE));
    }
}
