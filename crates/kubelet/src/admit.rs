//! Whether a pod may run on this node at all: the node's own check of what the scheduler decided. Pure.

use std::collections::BTreeMap;

use api::types::core::v1::{Node, Taint};
use api::{affinity, pod as ask, resources, taint};
use machinery::quantity::Quantity;

use crate::pod::BoundPod;
use crate::runtime::Features;
use crate::sync::lifecycle::Cause;
use crate::sysctl;

/// The node, as far as admission looks at it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: BTreeMap<String, Quantity>,
}

/// What the node's kernel and its administrator allow pods.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub sysctls: sysctl::Allowed,
    /// The kernel enforces AppArmor profiles.
    pub apparmor: bool,
}

/// `supplementalGroupsPolicy: Strict` on a node whose runtime passes over it would give processes
/// groups that the pod's author has ruled out.
pub fn groups_forbidden(pod: &BoundPod, features: &Features) -> Option<Cause> {
    let policy = pod.spec().security_context.as_ref().and_then(|s| s.supplemental_groups_policy.as_deref());
    let strict = policy == Some("Strict") && !features.supplemental_groups_policy;
    let text = "SupplementalGroupsPolicy=Strict is not supported in this node";
    strict.then(|| cause("SupplementalGroupsPolicyNotSupported", text)).flatten()
}

impl Place {
    /// From the node's object.
    pub fn of(node: &Node) -> Self {
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default(),
            allocatable: node
                .status
                .as_ref()
                .and_then(|s| s.allocatable.as_ref())
                .map(resources::parse)
                .unwrap_or_default(),
        }
    }
}

/// The reason for refusing `pod` beside the pods that were admitted, if there is one.
pub fn refuse<'a>(
    pod: &BoundPod,
    place: &Place,
    kernel: &Kernel,
    others: impl Iterator<Item = &'a BoundPod>,
) -> Option<Cause> {
    let others: Vec<&BoundPod> = others.filter(|p| p.uid != pod.uid && !p.has_ended()).collect();
    kernel_forbids(pod, kernel)
        .or_else(|| resources_missing(pod, place, &others))
        .or_else(|| affinity_missing(pod, place))
        .or_else(|| ports_taken(pod, &others))
        .or_else(|| taint_untolerated(pod, place))
        .or_else(|| wrong_system(pod))
}

fn cause(reason: impl Into<String>, message: impl std::fmt::Display) -> Option<Cause> {
    Some(Cause { reason: reason.into(), message: format!("Pod was rejected: {message}") })
}

fn kernel_forbids(pod: &BoundPod, kernel: &Kernel) -> Option<Cause> {
    if let Some(why) = kernel.sysctls.forbids(pod) {
        return cause("SysctlForbidden", why);
    }
    let whole = pod.spec().security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let own = pod.all_containers().map(|c| c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()));
    let confined = own.filter_map(|own| own.or(whole)).any(|profile| profile.type_ != "Unconfined");
    if confined && !kernel.apparmor {
        return cause("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }
    None
}

/// What of `pod`'s requests does not fit beside those of `others`.
pub fn resources_missing(pod: &BoundPod, place: &Place, others: &[&BoundPod]) -> Option<Cause> {
    let missing = |name: &str, requested: i128, used: i128, capacity: i128| {
        let text = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        cause(format!("OutOf{name}"), text)
    };
    let number = |name: &str, q: &Quantity| if name == "cpu" { q.milli() } else { q.value() };
    if let Some(limit) = place.allocatable.get("pods") {
        let used = i128::try_from(others.len()).unwrap_or(i128::MAX);
        if used >= limit.value() {
            return missing("pods", 1, used, limit.value());
        }
    }
    let mut used = BTreeMap::new();
    for other in others {
        let [requests, _] = ask::by_spec(other.object());
        resources::add(&mut used, &requests);
    }
    let [requests, _] = ask::by_spec(pod.object());
    for (name, wanted) in &requests {
        let wanted = number(name, wanted);
        let Some(capacity) = place.allocatable.get(name).map(|q| number(name, q)) else {
            // What a node does not list it has none of, but cpu and memory of a node that has not
            // reported yet are unknown, not absent.
            if wanted > 0 && !place.allocatable.is_empty() {
                return missing(name, wanted, 0, 0);
            }
            continue;
        };
        let used = used.get(name).map_or(0, |q| number(name, q));
        if wanted > 0 && used.saturating_add(wanted) > capacity {
            return missing(name, wanted, used, capacity);
        }
    }
    None
}

fn affinity_missing(pod: &BoundPod, place: &Place) -> Option<Cause> {
    let node = affinity::NodeFacts { name: &place.name, labels: &place.labels };
    if affinity::admits(pod.object(), node) {
        return None;
    }
    cause("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
}

fn ports_taken(pod: &BoundPod, others: &[&BoundPod]) -> Option<Cause> {
    let wanted = ask::host_ports(pod.object());
    let taken: Vec<_> = others.iter().flat_map(|p| ask::host_ports(p.object())).collect();
    let conflict = wanted.iter().any(|w| taken.iter().any(|t| w.conflicts(t)));
    let text = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    conflict.then(|| cause("NodePorts", text)).flatten()
}

fn taint_untolerated(pod: &BoundPod, place: &Place) -> Option<Cause> {
    let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
    let found = taint::untolerated(&place.taints, tolerations, &[taint::NO_EXECUTE])?;
    let value = found.value.as_deref().unwrap_or_default();
    let text = format!("Predicate TaintToleration failed: node(s) had untolerated taint {{{}: {value}}}", found.key);
    cause("TaintToleration", text)
}

fn wrong_system(pod: &BoundPod) -> Option<Cause> {
    let wanted = pod.spec().os.as_ref().map(|os| os.name.as_str()).filter(|os| *os != "linux")?;
    cause(
        "PodOSNotSupported",
        format!("Failed to admit pod as the OS field doesn't match node OS: pod wants {wanted}, node has linux"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn place() -> Place {
        Place::of(
            &serde_json::from_value(json!({
                "metadata": {"name": "n1", "labels": {"disk": "ssd"}},
                "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]},
                "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "2"}}}))
            .expect("a node"),
        )
    }

    fn kernel() -> Kernel {
        Kernel { sysctls: sysctl::Allowed::new("6.1", &[]).expect("allowed"), apparmor: false }
    }

    #[test]
    fn what_the_kernel_is_not_to_do_for_a_pod() {
        let sysctl =
            |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}, "containers": []});
        check("u", sysctl("net.ipv4.tcp_syncookies"), &[], None);
        check(
            "u",
            sysctl("kernel.msgmax"),
            &[],
            Some("SysctlForbidden: Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted"),
        );
        let profile = |whole: &str, own: Option<&str>| {
            let own = own.map(|own| json!({"appArmorProfile": {"type": own}}));
            json!({"securityContext": {"appArmorProfile": {"type": whole}},
                "containers": [{"name": "c", "securityContext": own}]})
        };
        let refused = Some("AppArmor: Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host");
        check("u", profile("Unconfined", None), &[], None);
        check("u", profile("RuntimeDefault", None), &[], refused);
        check("u", profile("Unconfined", Some("RuntimeDefault")), &[], refused);
        check("u", profile("RuntimeDefault", Some("Unconfined")), &[], None);
    }

    #[test]
    fn strict_groups_are_for_runtimes_that_keep_to_them() {
        let of = |policy: &str, can| {
            let pod = pod(json!({"spec": {"securityContext": {"supplementalGroupsPolicy": policy}, "containers": []}}));
            let features = Features { supplemental_groups_policy: can, ..Features::default() };
            groups_forbidden(&pod, &features).map(|c| format!("{}: {}", c.reason, c.message))
        };
        assert_eq!((of("Merge", false), of("Strict", true)), (None, None));
        let want = "SupplementalGroupsPolicyNotSupported: Pod was rejected: SupplementalGroupsPolicy=Strict is not \
                    supported in this node";
        assert_eq!(of("Strict", false).as_deref(), Some(want));
    }

    fn check(uid: &str, spec: Value, others: &[Value], want: Option<&str>) {
        let make = |uid: &str, spec: &Value| {
            let mut spec = spec.clone();
            let tolerations = json!([{"operator": "Exists"}]);
            spec.as_object_mut().expect("a spec").entry("tolerations").or_insert(tolerations);
            pod(json!({"metadata": {"uid": uid}, "spec": spec}))
        };
        let others: Vec<_> = others.iter().enumerate().map(|(i, s)| make(&format!("o-{i}"), s)).collect();
        let got = refuse(&make(uid, &spec), &place(), &kernel(), others.iter().map(|p| &**p));
        assert_eq!(got.map(|c| format!("{}: {}", c.reason, c.message)).as_deref(), want);
    }

    #[test]
    fn refusals() {
        let cpu = |cpu: &str| json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
        let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
        check("u", cpu("1"), &[cpu("1")], None);
        check(
            "u",
            cpu("1500m"),
            &[cpu("1")],
            Some(
                "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000",
            ),
        );
        check(
            "u",
            cpu("1"),
            &[cpu("0"), cpu("0")],
            Some(
                "OutOfpods: Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
            ),
        );
        check("o-0", cpu("1500m"), &[cpu("1")], None);
        check(
            "u",
            json!({"nodeSelector": {"disk": "hdd"}, "containers": []}),
            &[],
            Some(
                "NodeAffinity: Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ),
        );
        check(
            "u",
            port.clone(),
            &[port],
            Some(
                "NodePorts: Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            ),
        );
        check(
            "u",
            json!({"tolerations": [], "containers": []}),
            &[],
            Some(
                "TaintToleration: Pod was rejected: Predicate TaintToleration failed: node(s) had untolerated taint {k: v}",
            ),
        );
    }
}
