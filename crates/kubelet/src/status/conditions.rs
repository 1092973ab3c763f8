//! The conditions a kubelet owns, in upstream's order and words. Pure.

use api::types::core::v1::{ContainerStatus, PodCondition, PodStatus};

use crate::pod::{BoundPod, is_restartable_init};
use crate::resize::told;
use crate::runtime::PodState;
use crate::sync::lifecycle::Cause;

pub const READY_TO_START: &str = "PodReadyToStartContainers";
pub const INITIALIZED: &str = "Initialized";
pub const READY: &str = "Ready";
pub const CONTAINERS_READY: &str = "ContainersReady";
pub const SCHEDULED: &str = "PodScheduled";
pub const RESTARTING_ALL: &str = "AllContainersRestarting";

/// Others write it, too.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// What is said of a pod that ends for others.
pub fn disruption(cause: &Cause) -> Option<PodCondition> {
    let message = cause.disruption.clone()?;
    let reason = Some("TerminationByKubelet".into());
    Some(PodCondition { reason, message: Some(message), ..is(DISRUPTION_TARGET) })
}

/// The conditions that only a kubelet writes.
pub fn is_owned(kind: &str) -> bool {
    const ALL: [&str; 8] = [
        told::PENDING,
        told::IN_PROGRESS,
        RESTARTING_ALL,
        READY_TO_START,
        INITIALIZED,
        READY,
        CONTAINERS_READY,
        SCHEDULED,
    ];
    ALL.contains(&kind)
}

/// What the conditions are made of.
pub struct Facts<'a> {
    pub pod: &'a BoundPod,
    pub seen: &'a PodState,
    pub init: &'a [ContainerStatus],
    pub containers: &'a [ContainerStatus],
    pub phase: &'a str,
    /// Conditions of others, which readiness gates look at.
    pub others: &'a [PodCondition],
}

/// The five conditions without their times.
pub fn all(facts: &Facts) -> Vec<PodCondition> {
    let containers_ready = containers_ready(facts);
    let ready = ready(facts, &containers_ready);
    vec![ready_to_start(facts), initialized(facts), ready, containers_ready, is(SCHEDULED)]
}

/// True when a status says that all containers are starting anew.
pub fn is_restarting_all(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == RESTARTING_ALL && c.status == "True")
}

/// Whether all containers are starting anew, for pods that may: until the one that asks for it is removed,
/// which is the last.
pub fn restarting_all(pod: &BoundPod, asks: bool, phase: &str) -> Option<PodCondition> {
    if !pod.may_restart_all() {
        return None;
    }
    Some(match phase {
        "Succeeded" => is_not(RESTARTING_ALL, "PodCompleted", String::new()),
        "Failed" => is_not(RESTARTING_ALL, "PodFailed", String::new()),
        _ if asks => PodCondition {
            reason: Some("RestartAllContainersStarted".into()),
            message: Some("container exited with restart policy rule".into()),
            ..is(RESTARTING_ALL)
        },
        _ => is_not(RESTARTING_ALL, "", String::new()),
    })
}

fn is(kind: &str) -> PodCondition {
    PodCondition { type_: kind.into(), status: "True".into(), ..PodCondition::default() }
}

fn is_not(kind: &str, reason: &str, message: String) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PodCondition {
        type_: kind.into(),
        status: "False".into(),
        reason: text(reason),
        message: text(&message),
        ..PodCondition::default()
    }
}

fn ready_to_start(facts: &Facts) -> PodCondition {
    let problem = match facts.seen.sandboxes.first() {
        None => "no pod sandbox exists",
        Some(s) if !s.ready => "pod sandbox is not ready",
        Some(s) if s.ips.is_empty() && !facts.pod.host_network() => "pod sandbox has no IP address",
        Some(_) => return is(READY_TO_START),
    };
    is_not(READY_TO_START, "", problem.into())
}

/// `containers with <what> status: [a b]`, nothing for an empty list.
fn with_status(what: &str, names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
}

fn join(unknown: &[&str], other: Option<String>) -> String {
    let parts: Vec<String> = with_status("unknown", unknown).into_iter().chain(other).collect();
    parts.join(", ")
}

fn initialized(facts: &Facts) -> PodCondition {
    let all = facts.pod.init_containers();
    if facts.phase == "Succeeded" {
        return PodCondition { reason: Some("PodCompleted".into()), ..is(INITIALIZED) };
    }
    if facts.containers.iter().any(|c| c.started == Some(true) || has_run(c)) {
        return is(INITIALIZED);
    }
    if !all.is_empty() && facts.init.is_empty() {
        return is_not(INITIALIZED, "UnknownContainerStatuses", String::new());
    }
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in all {
        let found = facts.init.iter().find(|s| s.name == container.name);
        match found {
            None => unknown.push(container.name.as_str()),
            Some(s) if is_restartable_init(container) && s.started != Some(true) => incomplete.push(s.name.as_str()),
            Some(s) if !is_restartable_init(container) && !s.ready => incomplete.push(s.name.as_str()),
            Some(_) => {}
        }
    }
    if unknown.is_empty() && incomplete.is_empty() {
        return is(INITIALIZED);
    }
    is_not(INITIALIZED, "ContainersNotInitialized", join(&unknown, with_status("incomplete", &incomplete)))
}

/// A container that runs or ever ran.
fn has_run(status: &ContainerStatus) -> bool {
    let ran = |state: &Option<api::types::core::v1::ContainerState>| {
        state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    };
    ran(&status.state) || ran(&status.last_state)
}

fn containers_ready(facts: &Facts) -> PodCondition {
    if facts.containers.is_empty() {
        return is_not(CONTAINERS_READY, "UnknownContainerStatuses", String::new());
    }
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = facts.pod.init_containers().iter().filter(|c| is_restartable_init(c));
    let statuses = || facts.init.iter().chain(facts.containers);
    for container in sidecars.chain(facts.pod.containers()) {
        match statuses().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match facts.phase {
        "Succeeded" if unknown.is_empty() => return is_not(CONTAINERS_READY, "PodCompleted", String::new()),
        "Failed" => return is_not(CONTAINERS_READY, "PodFailed", String::new()),
        _ => {}
    }
    if unknown.is_empty() && unready.is_empty() {
        return is(CONTAINERS_READY);
    }
    is_not(CONTAINERS_READY, "ContainersNotReady", join(&unknown, with_status("unready", &unready)))
}

fn ready(facts: &Facts, containers_ready: &PodCondition) -> PodCondition {
    if containers_ready.status != "True" {
        return PodCondition { type_: READY.into(), ..containers_ready.clone() };
    }
    let mut missing = Vec::new();
    for gate in facts.pod.spec().readiness_gates.iter().flatten() {
        let kind = &gate.condition_type;
        match facts.others.iter().find(|c| c.type_ == *kind) {
            None => {
                missing.push(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist."));
            }
            Some(c) if c.status != "True" => {
                missing.push(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", c.status));
            }
            Some(_) => {}
        }
    }
    if missing.is_empty() { is(READY) } else { is_not(READY, "ReadinessGatesNotReady", missing.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    fn status(name: &str, ready: bool) -> ContainerStatus {
        ContainerStatus { name: name.into(), ready, started: Some(ready), ..ContainerStatus::default() }
    }

    fn check(pod: &BoundPod, init: &[ContainerStatus], containers: &[ContainerStatus], phase: &str, want: &[&str]) {
        let seen = PodState::default();
        let others = pod.status().conditions.clone().unwrap_or_default();
        let got: Vec<String> = all(&Facts { pod, seen: &seen, init, containers, phase, others: &others })
            .iter()
            .map(|c| {
                let part = |text: &Option<String>| text.clone().map(|t| format!(" {t}")).unwrap_or_default();
                format!("{}={}{}{}", c.type_, c.status, part(&c.reason), part(&c.message))
            })
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn order_and_texts() {
        let plain = pod(json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}));
        check(
            &plain,
            &[],
            &[status("a", true), status("b", false)],
            "Running",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=True",
                "Ready=False ContainersNotReady containers with unready status: [b]",
                "ContainersReady=False ContainersNotReady containers with unready status: [b]",
                "PodScheduled=True",
            ],
        );
        check(
            &plain,
            &[],
            &[status("a", false)],
            "Pending",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=True",
                "Ready=False ContainersNotReady containers with unknown status: [b], containers with unready status: [a]",
                "ContainersReady=False ContainersNotReady containers with unknown status: [b], containers with unready status: [a]",
                "PodScheduled=True",
            ],
        );
        check(
            &plain,
            &[],
            &[status("a", false), status("b", false)],
            "Succeeded",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=True PodCompleted",
                "Ready=False PodCompleted",
                "ContainersReady=False PodCompleted",
                "PodScheduled=True",
            ],
        );
        check(
            &plain,
            &[],
            &[status("a", false), status("b", false)],
            "Failed",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=True",
                "Ready=False PodFailed",
                "ContainersReady=False PodFailed",
                "PodScheduled=True",
            ],
        );
    }

    #[test]
    fn init_containers_and_gates() {
        let pod = pod(json!({
            "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "x"}, {"name": "s", "restartPolicy": "Always"}],
                     "readinessGates": [{"conditionType": "one"}, {"conditionType": "two"}]},
            "status": {"conditions": [{"type": "two", "status": "Unknown"}]}
        }));
        check(
            &pod,
            &[status("x", true), status("s", false)],
            &[status("a", false)],
            "Pending",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=False ContainersNotInitialized containers with incomplete status: [s]",
                "Ready=False ContainersNotReady containers with unready status: [s a]",
                "ContainersReady=False ContainersNotReady containers with unready status: [s a]",
                "PodScheduled=True",
            ],
        );
        check(
            &pod,
            &[status("x", true), status("s", true)],
            &[status("a", true)],
            "Running",
            &[
                "PodReadyToStartContainers=False no pod sandbox exists",
                "Initialized=True",
                "Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate \"one\" does not exist., \
             the status of pod readiness gate \"two\" is not \"True\", but Unknown",
                "ContainersReady=True",
                "PodScheduled=True",
            ],
        );
    }
}
