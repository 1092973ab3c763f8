//! Whether a pod may run on this node at all: the node's own check of what the scheduler decided. Pure.

use std::collections::BTreeMap;

use api::types::core::v1::{Node, Taint};
use api::{affinity, pod as ask, resources, taint};
use machinery::quantity::Quantity;

use crate::evict;
use crate::node::pressure::Pressure;
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

/// All that a pod is judged by beside other pods.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    pub place: &'a Place,
    /// What the node is short of, as it was last seen there: what its object says comes later.
    pub pressure: Pressure,
    pub kernel: &'a Kernel,
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

/// A node that is short of something takes only critical pods; one that is short of memory alone, also those
/// that said how much of it they need, and those that tolerate it.
fn pressure_forbids(pod: &BoundPod, pressure: Pressure) -> Option<Cause> {
    let conditions = pressure.conditions();
    if conditions.is_empty() || pod.is_critical() {
        return None;
    }
    let taint =
        Taint { key: "node.kubernetes.io/memory-pressure".into(), effect: "NoSchedule".into(), ..Taint::default() };
    let tolerates = || pod.spec().tolerations.iter().flatten().any(|t| taint::tolerates(t, &taint));
    if conditions == ["MemoryPressure"] && (pod.qos() != ask::QosClass::BestEffort || tolerates()) {
        return None;
    }
    cause(evict::REASON, format!("The node had condition: [{}]. ", conditions.join(" ")))
}

/// The reason for refusing `pod` beside the pods that were admitted, if there is one.
pub fn refuse<'a>(pod: &BoundPod, ground: Ground<'_>, others: impl Iterator<Item = &'a BoundPod>) -> Option<Cause> {
    let others: Vec<&BoundPod> = counted(pod, others);
    pressure_forbids(pod, ground.pressure)
        .or_else(|| kernel_forbids(pod, ground.kernel))
        .or_else(|| resources_missing(pod, ground.place, &others))
        .or_else(|| refuse_place(pod, ground.place, &others))
}

/// The same for a pod that others make room for: what it lacks is no reason, but comes along.
pub fn refuse_critical<'a>(
    pod: &BoundPod,
    ground: Ground<'_>,
    others: impl Iterator<Item = &'a BoundPod>,
) -> Result<Vec<Lack>, Cause> {
    let others: Vec<&BoundPod> = counted(pod, others);
    match kernel_forbids(pod, ground.kernel).or_else(|| refuse_place(pod, ground.place, &others)) {
        Some(cause) => Err(cause),
        None => Ok(lacks(pod, ground.place, &others)),
    }
}

fn counted<'a>(pod: &BoundPod, others: impl Iterator<Item = &'a BoundPod>) -> Vec<&'a BoundPod> {
    others.filter(|p| p.uid != pod.uid && !p.has_ended()).collect()
}

/// What is no matter of room.
fn refuse_place(pod: &BoundPod, place: &Place, others: &[&BoundPod]) -> Option<Cause> {
    affinity_missing(pod, place)
        .or_else(|| ports_taken(pod, others))
        .or_else(|| taint_untolerated(pod, place))
        .or_else(|| wrong_system(pod))
}

fn cause(reason: impl Into<String>, message: impl std::fmt::Display) -> Option<Cause> {
    Some(Cause { reason: reason.into(), message: format!("Pod was rejected: {message}"), disruption: None })
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

/// A resource of which there is too little; `cpu` in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub name: String,
    pub requested: i128,
    pub used: i128,
    pub capacity: i128,
}

impl Lack {
    /// How much has to become free.
    pub fn amount(&self) -> i128 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// An amount as it is compared and told: `cpu` in thousandths.
pub fn number(name: &str, quantity: &Quantity) -> i128 {
    if name == "cpu" { quantity.milli() } else { quantity.value() }
}

/// What of `pod`'s requests does not fit beside those of `others`, the number of pods first.
pub fn lacks(pod: &BoundPod, place: &Place, others: &[&BoundPod]) -> Vec<Lack> {
    let mut out = Vec::new();
    if let Some(limit) = place.allocatable.get("pods") {
        let (used, capacity) = (i128::try_from(others.len()).unwrap_or(i128::MAX), limit.value());
        if used >= capacity {
            out.push(Lack { name: "pods".into(), requested: 1, used, capacity });
        }
    }
    let mut used = BTreeMap::new();
    for other in others {
        let [requests, _] = ask::by_spec(other.object());
        resources::add(&mut used, &requests);
    }
    let [requests, _] = ask::by_spec(pod.object());
    for (name, wanted) in &requests {
        let requested = number(name, wanted);
        let Some(capacity) = place.allocatable.get(name).map(|q| number(name, q)) else {
            // What a node does not list it has none of, but cpu and memory of a node that has not
            // reported yet are unknown, not absent.
            if requested > 0 && !place.allocatable.is_empty() {
                out.push(Lack { name: name.clone(), requested, used: 0, capacity: 0 });
            }
            continue;
        };
        let used = used.get(name).map_or(0, |q| number(name, q));
        if requested > 0 && used.saturating_add(requested) > capacity {
            out.push(Lack { name: name.clone(), requested, used, capacity });
        }
    }
    out
}

/// The first of what does not fit, as a reason.
pub fn resources_missing(pod: &BoundPod, place: &Place, others: &[&BoundPod]) -> Option<Cause> {
    let Lack { name, requested, used, capacity } = lacks(pod, place, others).into_iter().next()?;
    let text =
        format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}");
    cause(format!("OutOf{name}"), text)
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
    fn a_node_that_is_short_of_something_takes_only_some() {
        let check = |short: &[&str], spec: Value, want: Option<&str>| {
            let is = |kind| short.contains(&kind);
            let pressure = Pressure { memory: is("MemoryPressure"), disk: is("DiskPressure"), pids: is("PIDPressure") };
            let found = pressure_forbids(&pod(json!({"spec": spec})), pressure);
            assert_eq!(found.map(|c| format!("{}: {}", c.reason, c.message)).as_deref(), want, "{short:?} {spec}");
        };
        let refused = |list: &str| format!("Evicted: Pod was rejected: The node had condition: [{list}]. ");
        let idle = json!({"containers": [{"name": "c"}]});
        let asks = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]});
        let critical = json!({"priority": 2_000_000_000, "containers": [{"name": "c"}]});
        let key = "node.kubernetes.io/memory-pressure";
        let tolerates = json!({"tolerations": [{"key": key, "operator": "Exists"}], "containers": [{"name": "c"}]});
        check(&[], idle.clone(), None);
        check(&["MemoryPressure"], idle.clone(), Some(&refused("MemoryPressure")));
        check(&["MemoryPressure"], asks.clone(), None);
        check(&["MemoryPressure"], tolerates.clone(), None);
        check(&["DiskPressure"], asks, Some(&refused("DiskPressure")));
        check(&["MemoryPressure", "PIDPressure"], tolerates, Some(&refused("MemoryPressure PIDPressure")));
        check(&["DiskPressure"], critical, None);
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
        let (place, kernel) = (place(), kernel());
        let ground = Ground { place: &place, pressure: Pressure::default(), kernel: &kernel };
        let got = refuse(&make(uid, &spec), ground, others.iter().map(|p| &**p));
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
