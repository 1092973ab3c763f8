//! Whether the node can give a pod what it wishes for. Pure.

use api::pod as ask;
use api::pod::QosClass;

use crate::admit::{self, Place};
use crate::pod::BoundPod;

/// Why a wish is not granted, as the condition `PodResizePending` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

/// The node will never have so much.
pub const INFEASIBLE: &str = "Infeasible";
/// Others have it now.
pub const DEFERRED: &str = "Deferred";

/// Whether `wish`, a pod as its spec has it, fits beside `others` as they are allocated.
pub fn refuse(wish: &BoundPod, place: &Place, others: &[&BoundPod]) -> Option<Refusal> {
    let [requests, _] = ask::by_spec(wish.object());
    for (name, capacity) in [("memory", place.allocatable.get("memory")), ("cpu", place.allocatable.get("cpu"))] {
        let number = |q: &machinery::quantity::Quantity| if name == "cpu" { q.milli() } else { q.value() };
        let (Some(capacity), Some(wanted)) = (capacity.map(number), requests.get(name).map(number)) else { continue };
        if wanted > capacity {
            let message =
                format!("Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {capacity}");
            return Some(Refusal { reason: INFEASIBLE, message });
        }
    }
    admit::resources_missing(wish, place, others).map(|cause| {
        let message = cause.message.strip_prefix("Pod was rejected: ").unwrap_or(&cause.message).to_owned();
        Refusal { reason: DEFERRED, message }
    })
}

/// Who is served first among pods that wait: those that ask for no more than they have, then by
/// priority, then guaranteed pods. Greater is first.
pub fn rank(wish: &BoundPod, has: &BoundPod) -> (bool, i32, bool) {
    let ([new, _], [old, _]) = (ask::by_spec(wish.object()), ask::by_spec(has.object()));
    let grows = ["cpu", "memory"].iter().any(|name| new.get(*name) > old.get(*name));
    (!grows, ask::priority(wish.object()), wish.qos() == QosClass::Guaranteed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;
    use std::sync::Arc;

    fn asks(uid: &str, cpu: &str, memory: &str, priority: i32) -> Arc<BoundPod> {
        pod(json!({"metadata": {"uid": uid}, "spec": {"priority": priority, "containers": [{"name": "a",
            "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}}))
    }

    fn place() -> Place {
        let allocatable = [("cpu", "2"), ("memory", "1Gi"), ("pods", "2")];
        let allocatable = allocatable.iter().map(|(k, v)| ((*k).to_owned(), v.parse().expect("a quantity"))).collect();
        Place { allocatable, ..Place::default() }
    }

    #[test]
    fn never_and_not_now() {
        let other = asks("o", "1", "512Mi", 0);
        let rows = [
            ("1", "512Mi", None),
            (
                "1500m",
                "1Mi",
                Some((DEFERRED, "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000")),
            ),
            (
                "1",
                "1Gi",
                Some((
                    DEFERRED,
                    "Node didn't have enough resource: memory, requested: 1073741824, used: 536870912, capacity: 1073741824",
                )),
            ),
            ("3", "1Mi", Some((INFEASIBLE, "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000"))),
            (
                "3",
                "2Gi",
                Some((
                    INFEASIBLE,
                    "Node didn't have enough capacity: memory, requested: 2147483648, capacity: 1073741824",
                )),
            ),
        ];
        for (cpu, memory, want) in rows {
            let found = refuse(&asks("u", cpu, memory, 0), &place(), &[&other]);
            assert_eq!(found.as_ref().map(|r| (r.reason, r.message.as_str())), want, "{cpu} {memory}");
        }
    }

    #[test]
    fn who_is_first() {
        let has = asks("u", "1", "1Mi", 0);
        let less = rank(&asks("u", "500m", "1Mi", 0), &has);
        let urgent = rank(&asks("u", "2", "1Mi", 9), &has);
        let more = rank(&asks("u", "2", "1Mi", 0), &has);
        assert!(less > urgent && urgent > more);
    }
}
