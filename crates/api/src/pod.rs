//! Small questions about pods that several components ask.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::resources::{self, Resources};

/// The condition of `kind` (`Ready`, `PodScheduled`, …).
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// True when the condition of `kind` is True.
pub fn has_condition(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|c| c.status == "True")
}

/// True when the Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    has_condition(pod, "Ready")
}

/// True when the pod has been ready for `min_ready_seconds`.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    let Some(ready) = condition(pod, "Ready").filter(|c| c.status == "True") else { return false };
    if min_ready_seconds <= 0 {
        return true;
    }
    let since = ready.last_transition_time.as_ref();
    since.is_some_and(|t| t.0.as_second().saturating_add(i64::from(min_ready_seconds)) <= now.as_second())
}

/// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`; empty before the first status.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// True once nothing of the pod will run again.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// True once deletion has begun.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither finished nor being deleted: what controllers count as a replica.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

/// The node the pod is bound to, or empty.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// The priority; 0 when none was resolved.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or_default()
}

/// True for the API's image of a pod that a kubelet runs from a file.
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"))
}

/// An init container that keeps running beside the others.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Sets the condition of its type; `lastTransitionTime` moves only when its status changes. True
/// when anything changed.
pub fn set_condition(conditions: &mut Vec<PodCondition>, mut wanted: PodCondition, now: Timestamp) -> bool {
    let Some(have) = conditions.iter_mut().find(|c| c.type_ == wanted.type_) else {
        wanted.last_transition_time.get_or_insert(Time(now));
        conditions.push(wanted);
        return true;
    };
    wanted.last_transition_time =
        if have.status == wanted.status { have.last_transition_time.clone() } else { Some(Time(now)) };
    let changed = *have != wanted;
    *have = wanted;
    changed
}

#[derive(Clone, Copy)]
enum Side {
    Requests,
    Limits,
}

fn of_container(container: &Container, side: Side) -> Resources {
    let all = container.resources.as_ref();
    let list = match side {
        Side::Requests => all.and_then(|r| r.requests.as_ref()),
        Side::Limits => all.and_then(|r| r.limits.as_ref()),
    };
    list.map(resources::parse).unwrap_or_default()
}

/// Whose word counts while a resize is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// What is wished for.
    Spec,
    /// What the node has agreed to.
    Allocated,
    /// What the runtime has.
    Actuated,
}

/// True when the node has said that it will never grant the resize.
fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let pending = conditions.into_iter().find(|condition| condition.type_ == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

fn status_of<'a>(pod: &'a Pod, container: &Container) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter().find(|status| status.name == container.name)
}

/// What one container has, or asks for; nothing where only the wish is known and it will not be granted.
fn as_told(pod: &Pod, container: &Container, side: Side, told: Told, infeasible: bool) -> Resources {
    if told != Told::Spec {
        let status = status_of(pod, container);
        let actual = status.filter(|_| told == Told::Actuated).and_then(|status| status.resources.as_ref());
        let known = match side {
            Side::Requests => actual
                .and_then(|r| r.requests.as_ref())
                .or_else(|| status.and_then(|status| status.allocated_resources.as_ref())),
            Side::Limits => actual.and_then(|r| r.limits.as_ref()),
        };
        match known {
            Some(list) => return resources::parse(list),
            None if infeasible => return Resources::new(),
            None => {}
        }
    }
    of_container(container, side)
}

/// Containers run together, init containers one after another beside the sidecars started before
/// them: the pod needs the larger of the two sums.
fn together(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
    let mut together = Resources::new();
    for container in &spec.containers {
        resources::add(&mut together, &of(container));
    }
    let (mut sidecars, mut starting) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut at_its_turn = sidecars.clone();
        resources::add(&mut at_its_turn, &own);
        if is_sidecar(container) {
            resources::add(&mut together, &own);
            sidecars.clone_from(&at_its_turn);
        }
        resources::max(&mut starting, &at_its_turn);
    }
    resources::max(&mut together, &starting);
    together
}

/// What the pod as a whole is given.
fn of_whole_pod(spec: &PodSpec, side: Side) -> Resources {
    let whole_pod = spec.resources.as_ref();
    let whole_pod = match side {
        Side::Requests => whole_pod.and_then(|r| r.requests.as_ref()),
        Side::Limits => whole_pod.and_then(|r| r.limits.as_ref()),
    };
    whole_pod.map(resources::parse).unwrap_or_default()
}

/// While a resize is under way the node still holds what it gave before, so that the largest of what
/// is wished for, agreed to and had counts; a wish that will never be granted does not. And overhead.
fn effective(pod: &Pod, side: Side, at_least: &Resources) -> Resources {
    let Some(spec) = pod.spec.as_ref() else { return Resources::new() };
    let infeasible = is_resize_infeasible(pod);
    let sum = |told: Told| {
        together(spec, |container| {
            let mut asked = as_told(pod, container, side, told, infeasible);
            for (name, amount) in at_least {
                asked.entry(name.clone()).or_insert(*amount);
            }
            asked
        })
    };
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses));
    let is_said = statuses.flatten().any(|status| status.resources.is_some() || status.allocated_resources.is_some());
    let mut whole = if infeasible { Resources::new() } else { sum(Told::Spec) };
    if is_said || infeasible {
        let more: &[Told] = match side {
            Side::Requests => &[Told::Allocated, Told::Actuated],
            Side::Limits => &[Told::Actuated],
        };
        more.iter().for_each(|told| resources::max(&mut whole, &sum(*told)));
    }
    whole.extend(of_whole_pod(spec, side));
    if let Some(overhead) = &spec.overhead {
        let mut overhead = resources::parse(overhead);
        if matches!(side, Side::Limits) {
            // Overhead raises a limit; where there is none it sets none.
            overhead.retain(|name, _| whole.contains_key(name));
        }
        resources::add(&mut whole, &overhead);
    }
    whole
}

/// What is wished for of cpu, memory and the rest, whatever the node has given so far, and without what
/// running a pod costs beside: requests, then limits.
pub fn wished(pod: &Pod) -> [Resources; 2] {
    [Side::Requests, Side::Limits].map(|side| {
        let Some(spec) = pod.spec.as_ref() else { return Resources::new() };
        let mut whole = together(spec, |container| of_container(container, side));
        let given = of_whole_pod(spec, side);
        whole.extend(given.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")));
        whole
    })
}

/// What the pod's spec says that it needs and may have, whatever its status tells, with what running a
/// pod costs beside: requests, then limits. For who decides by the spec, as a node does.
pub fn by_spec(pod: &Pod) -> [Resources; 2] {
    [Side::Requests, Side::Limits].map(|side| {
        let Some(spec) = pod.spec.as_ref() else { return Resources::new() };
        let mut whole = together(spec, |container| of_container(container, side));
        whole.extend(of_whole_pod(spec, side));
        if let Some(overhead) = &spec.overhead {
            let mut overhead = resources::parse(overhead);
            if matches!(side, Side::Limits) {
                overhead.retain(|name, _| whole.contains_key(name));
            }
            resources::add(&mut whole, &overhead);
        }
        whole
    })
}

/// True when the pod as a whole is given cpu, memory or huge pages.
pub fn has_resources_of_its_own(pod: &Pod) -> bool {
    let of_it = |name: &String| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-");
    let Some(spec) = pod.spec.as_ref() else { return false };
    [Side::Requests, Side::Limits].into_iter().any(|side| of_whole_pod(spec, side).keys().any(of_it))
}

/// What the pod needs of a node.
pub fn effective_requests(pod: &Pod) -> Resources {
    effective(pod, Side::Requests, &Resources::new())
}

/// The same where a container that does not ask for a resource counts with that of `assumed`: for
/// spreading pods that do not say what they need.
pub fn effective_requests_assuming(pod: &Pod, assumed: &Resources) -> Resources {
    effective(pod, Side::Requests, assumed)
}

/// What the pod may use at most, for the resources that have a limit.
pub fn effective_limits(pod: &Pod) -> Resources {
    effective(pod, Side::Limits, &Resources::new())
}

/// Who is served last when a node runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    /// As `status.qosClass` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class that follows from cpu and memory requests and limits.
pub fn qos_class(pod: &Pod) -> QosClass {
    const COUNTED: [&str; 2] = ["cpu", "memory"];
    let Some(spec) = pod.spec.as_ref() else { return QosClass::BestEffort };
    let positive = |mut list: Resources| {
        list.retain(|name, amount| COUNTED.contains(&name.as_str()) && !amount.is_zero());
        list
    };
    let list = |list: Option<&_>| positive(list.map(resources::parse).unwrap_or_default());
    let whole_pod = spec.resources.as_ref().filter(|r| r.requests.is_some() || r.limits.is_some());
    let pairs: Vec<(Resources, Resources)> = match whole_pod {
        Some(r) => vec![(list(r.requests.as_ref()), list(r.limits.as_ref()))],
        None => {
            let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            let pair = |c| (positive(of_container(c, Side::Requests)), positive(of_container(c, Side::Limits)));
            containers.map(pair).collect()
        }
    };
    if pairs.iter().all(|(requests, limits)| requests.is_empty() && limits.is_empty()) {
        return QosClass::BestEffort;
    }
    let full = |(requests, limits): &(Resources, Resources)| {
        limits.len() == COUNTED.len() && requests.iter().all(|(name, amount)| limits.get(name) == Some(amount))
    };
    if pairs.iter().all(full) { QosClass::Guaranteed } else { QosClass::Burstable }
}

/// A port of the node that a container wants for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub port: u16,
    pub protocol: String,
    /// `0.0.0.0` for every address.
    pub ip: String,
}

impl HostPort {
    /// True when both cannot be had on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        const EVERY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == EVERY || other.ip == EVERY)
    }
}

/// The host ports of all containers that run together.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = pod.spec.as_ref() else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let given = |text: &Option<String>, default: &str| match text.as_deref() {
        None | Some("") => default.to_owned(),
        Some(text) => text.to_owned(),
    };
    ports
        .filter_map(|p| {
            let port = u16::try_from(p.host_port?).ok().filter(|p| *p > 0)?;
            Some(HostPort { port, protocol: given(&p.protocol, "TCP"), ip: given(&p.host_ip, "0.0.0.0") })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).expect("a pod")
    }

    fn container(name: &str, requests: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests}})
    }

    fn check_requests(spec: Value, want: &[&str]) {
        let got: Vec<String> = effective_requests(&pod(spec)).iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn requests_are_what_runs_together_at_the_worst_moment() {
        let cpu = |n: &str| json!({ "cpu": n });
        check_requests(json!({"containers": [container("a", cpu("1")), container("b", cpu("500m"))]}), &["cpu=1500m"]);
        check_requests(
            json!({"containers": [container("a", cpu("1"))], "initContainers": [container("i", cpu("3"))]}),
            &["cpu=3"],
        );
        let mut sidecar = container("s", cpu("1"));
        sidecar["restartPolicy"] = json!("Always");
        // The sidecar runs beside the containers (1 + 1) and beside the init container after it (1 + 2).
        check_requests(
            json!({"containers": [container("a", cpu("1"))], "initContainers": [sidecar, container("i", cpu("2"))]}),
            &["cpu=3"],
        );
        // An init container before the sidecar runs alone.
        check_requests(
            json!({"containers": [container("a", cpu("1"))], "initContainers": [container("i", cpu("2")), sidecar]}),
            &["cpu=2"],
        );
        check_requests(
            json!({"containers": [container("a", cpu("1"))], "overhead": {"cpu": "100m", "memory": "1Mi"}}),
            &["cpu=1100m", "memory=1Mi"],
        );
        check_requests(
            json!({"containers": [container("a", cpu("1"))], "resources": {"requests": {"cpu": "4"}}}),
            &["cpu=4"],
        );
        check_requests(json!({"containers": []}), &[]);
    }

    #[test]
    fn a_shrinking_pod_still_holds_what_it_had() {
        let mut pod = pod(json!({"containers": [container("a", json!({"cpu": "1"}))]}));
        pod.status = serde_json::from_value(json!({
            "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "2"}}}],
        }))
        .expect("a status");
        assert_eq!(effective_requests(&pod)["cpu"].to_string(), "2");
    }

    #[test]
    fn quality_of_service() {
        let with = |resources: Value| json!({"containers": [{"name": "a", "resources": resources}]});
        let full = json!({"cpu": "1", "memory": "1Gi"});
        for (spec, want) in [
            (json!({"containers": [{"name": "a"}]}), QosClass::BestEffort),
            (with(json!({"requests": {"example.com/gpu": "1"}})), QosClass::BestEffort),
            (with(json!({"limits": full, "requests": full})), QosClass::Guaranteed),
            (with(json!({"limits": full})), QosClass::Guaranteed),
            (with(json!({"limits": full, "requests": {"cpu": "500m", "memory": "1Gi"}})), QosClass::Burstable),
            (with(json!({"limits": {"cpu": "1"}})), QosClass::Burstable),
            (with(json!({"requests": {"cpu": "1"}})), QosClass::Burstable),
            (json!({"containers": [{"name": "a", "resources": {"limits": full}}, {"name": "b"}]}), QosClass::Burstable),
            (
                json!({"containers": [{"name": "a", "resources": {"limits": full}}], "initContainers": [{"name": "b"}]}),
                QosClass::Burstable,
            ),
            (
                json!({"containers": [{"name": "a"}], "resources": {"limits": full, "requests": full}}),
                QosClass::Guaranteed,
            ),
        ] {
            assert_eq!(qos_class(&pod(spec.clone())), want, "{spec}");
        }
    }

    #[test]
    fn host_ports_conflict_by_port_protocol_and_address() {
        let ports = host_ports(&pod(json!({"containers": [{"name": "a", "ports": [
            {"containerPort": 1}, {"containerPort": 2, "hostPort": 80},
            {"containerPort": 3, "hostPort": 80, "protocol": "UDP", "hostIP": "10.0.0.1"}]}]})));
        let port = |ip: &str, protocol: &str| HostPort { port: 80, protocol: protocol.into(), ip: ip.into() };
        assert_eq!(ports, [port("0.0.0.0", "TCP"), port("10.0.0.1", "UDP")]);
        assert!(!ports[0].conflicts(&ports[1]));
        assert!(ports[0].conflicts(&port("10.0.0.2", "TCP")));
        assert!(!ports[1].conflicts(&port("10.0.0.2", "UDP")));
        assert!(ports[1].conflicts(&port("0.0.0.0", "UDP")));
    }

    #[test]
    fn conditions_and_phases() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let pod: Pod = serde_json::from_value(json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .expect("a pod");
        assert!(is_ready(&pod) && !is_terminal(&pod) && is_active(&pod));
        assert!(is_available(&pod, 60, now) && !is_available(&pod, 61, now));
        let mut conditions = pod.status.expect("a status").conditions.expect("conditions");
        let same = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        assert!(!set_condition(&mut conditions, same.clone(), now));
        assert!(set_condition(&mut conditions, PodCondition { status: "False".into(), ..same }, now));
        assert_eq!(conditions[0].last_transition_time, Some(Time(now)));
    }
}
