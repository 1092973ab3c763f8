//! Taints of nodes and the tolerations of pods that answer them.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Keeps new pods away, unless there is nowhere else for them.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
/// Keeps new pods away.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Keeps new pods away and evicts those that run.
pub const NO_EXECUTE: &str = "NoExecute";

/// The taint of a node whose `spec.unschedulable` is set.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The taint of a node whose Ready condition is False.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a node whose Ready condition is Unknown.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint of a node short of memory.
pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
/// The taint of a node short of disk.
pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
/// The taint of a node short of process ids.
pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
/// The taint of a node whose network is not set up.
pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";

/// Does `toleration` answer `taint`? An empty key or effect answers any.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    fn given(field: &Option<String>) -> &str {
        field.as_deref().unwrap_or_default()
    }
    let (effect, key) = (given(&toleration.effect), given(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => given(&toleration.value) == given(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

/// The first of `taints` with one of `effects` that none of `tolerations` answers.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    let counts = |t: &&Taint| effects.contains(&t.effect.as_str());
    taints.iter().filter(counts).find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations_answer_taints() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).expect("json");
        for (toleration, answers) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k"}), false),
            (json!({"key": "j", "operator": "Exists"}), false),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "operator": "Near", "value": "v"}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).expect("json");
            assert_eq!(tolerates(&parsed, &taint), answers, "{toleration}");
            let found = untolerated(std::slice::from_ref(&taint), &[parsed], &[NO_SCHEDULE, NO_EXECUTE]);
            assert_eq!(found.is_none(), answers);
        }
        assert!(untolerated(&[taint], &[], &[NO_EXECUTE]).is_none());
    }
}
