//! What it takes to give a container what is allocated to it. Pure.

use std::collections::BTreeMap;

use api::types::core::v1::{Container, ResourceRequirements};

use crate::pod::{self, BoundPod};

/// What running containers have where it is not what is allocated, by container id; the pod's own
/// cgroup stands under [`POD`].
pub type Actuated = BTreeMap<String, ResourceRequirements>;

/// Stands in [`Actuated`] for the pod as a whole.
pub const POD: &str = "";

/// What is to be done about a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has what it is to have.
    Nothing,
    /// The runtime changes its cgroup; `shrinks` when its memory becomes less.
    Update { shrinks: bool },
    /// Its policy wants it to start anew.
    Restart,
}

/// cpu request and limit, memory request and limit, as far as the kernel is told of them: a container
/// without a limit has the pod's.
fn amounts(pod: &BoundPod, container: &Container) -> [(&'static str, i128); 4] {
    let milli = |q: Option<machinery::quantity::Quantity>| q.map_or(0, |q| q.milli());
    let value = |q: Option<machinery::quantity::Quantity>| q.map_or(0, |q| q.value());
    [
        ("cpu", milli(pod::request(container, "cpu"))),
        ("cpu", milli(pod.limit(container, "cpu"))),
        ("memory", value(pod::request(container, "memory"))),
        ("memory", value(pod.limit(container, "memory"))),
    ]
}

/// Compares what `container` of `pod` (as it is allocated) is to have with what it has.
pub fn change(pod: &BoundPod, container: &Container, has: Option<&ResourceRequirements>) -> Change {
    let Some(has) = has else { return Change::Nothing };
    let before = Container { resources: Some(has.clone()), ..Container::default() };
    let (wanted, had) = (amounts(pod, container), amounts(pod, &before));
    let changed: Vec<&str> =
        wanted.iter().zip(&had).filter(|((_, new), (_, old))| new != old).map(|((name, _), _)| *name).collect();
    if changed.is_empty() {
        return Change::Nothing;
    }
    let policies = container.resize_policy.iter().flatten();
    let mut restarts = policies.filter(|p| p.restart_policy == "RestartContainer");
    if restarts.any(|p| changed.contains(&p.resource_name.as_str())) {
        return Change::Restart;
    }
    // A limit where there was none is less than before.
    let ([.., (_, limit)], [.., (_, old)]) = (wanted, had);
    Change::Update { shrinks: limit > 0 && (old == 0 || limit < old) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    #[test]
    fn policies_and_directions() {
        let of = |new: Value, old: Value, policies: Value| {
            let pod = pod(json!({"spec": {"containers": [{"name": "a", "resources": new, "resizePolicy": policies}]}}));
            change(&pod, &pod.containers()[0], Some(&serde_json::from_value(old).expect("resources")))
        };
        let both = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
        let restart = |name: &str| json!([{"resourceName": name, "restartPolicy": "RestartContainer"}]);
        let none = json!([]);
        let grows = Change::Update { shrinks: false };
        let rows = [
            (both("1", "1Gi"), both("1000m", "1024Mi"), none.clone(), Change::Nothing),
            (both("2", "1Gi"), both("1", "1Gi"), none.clone(), grows),
            (both("1", "1Gi"), both("2", "1Gi"), none.clone(), grows),
            (both("1", "1Gi"), both("1", "2Gi"), none.clone(), Change::Update { shrinks: true }),
            (both("1", "1Gi"), json!({}), none.clone(), Change::Update { shrinks: true }),
            (both("1", "3Gi"), both("1", "2Gi"), none, grows),
            (both("1", "3Gi"), both("1", "2Gi"), restart("memory"), Change::Restart),
            (both("1", "3Gi"), both("1", "2Gi"), restart("cpu"), grows),
            (both("2", "3Gi"), both("1", "2Gi"), restart("cpu"), Change::Restart),
        ];
        for (new, old, policies, want) in rows {
            assert_eq!(of(new.clone(), old.clone(), policies.clone()), want, "{old} to {new} with {policies}");
        }
    }
}
