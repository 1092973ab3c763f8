//! A pod's status from its spec, the runtime's state and what was reported before. Pure: no clock,
//! no listing; the same inputs give the same status.

use api::meta::apis::meta::v1::Time;
use api::types::core::v1 as core;
use jiff::Timestamp;

use super::{conditions, containers};
use crate::pod::{BoundPod, is_restartable_init};
use crate::pod_addresses;
use crate::resize::change::POD;
use crate::resize::{Actuated, Resizing};
use crate::runtime::PodState;
use crate::sync::lifecycle::Phase;
use crate::sync::plan::{Verdicts, restarts_all};

/// What a status is made of.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub seen: &'a PodState,
    pub verdicts: &'a Verdicts,
    pub waiting: &'a containers::Waiting,
    pub actuated: &'a Actuated,
    pub resizing: &'a Resizing,
    pub life: &'a Phase,
    /// The status as the API server has it, or as it will have it once what was sent arrives.
    pub before: &'a core::PodStatus,
    /// The node's addresses, the preferred family first.
    pub host_ips: &'a [String],
    /// `containerd`.
    pub runtime: &'a str,
    pub now: Timestamp,
}

/// The whole status.
pub fn generate(inputs: &Inputs) -> core::PodStatus {
    let Inputs { pod, seen, before, life, .. } = *inputs;
    if let Some(rejected) = rejected(inputs) {
        return rejected;
    }
    let terminal = life.is_terminated();
    let asks = life.is_running() && restarts_all(pod, seen);
    let restarting = asks || conditions::is_restarting_all(before);
    let facts = containers::Facts {
        pod,
        seen,
        verdicts: inputs.verdicts,
        waiting: inputs.waiting,
        actuated: inputs.actuated,
        before,
        terminal,
        restarting,
        runtime: inputs.runtime,
    };
    let init = containers::init_containers(&facts);
    let regular = containers::containers(&facts);
    let ephemeral = containers::ephemeral_containers(&facts);

    let mut status = core::PodStatus {
        qos_class: before.qos_class.clone().or_else(|| Some(pod.qos().as_str().into())),
        nominated_node_name: None,
        resource_claim_statuses: before.resource_claim_statuses.clone(),
        ..before.clone()
    };
    let ended = before.phase.as_deref().filter(|p| matches!(*p, "Succeeded" | "Failed"));
    let phase = match (ended, life.cause()) {
        (Some(phase), _) => phase.to_owned(),
        (None, Some(_)) => "Failed".to_owned(),
        (None, None) => match phase(pod, &init, &regular, terminal) {
            "Pending" | "Running" if terminal => "Failed".to_owned(),
            phase => phase.to_owned(),
        },
    };
    // An end is told only once nothing runs: whoever replaces the pod must not find it still at work.
    let ends = ended.is_none() && matches!(phase.as_str(), "Succeeded" | "Failed");
    let phase = match &before.phase {
        _ if !ends || terminal => phase,
        Some(before) => before.clone(),
        None => "Pending".to_owned(),
    };
    if before.phase.as_deref() != Some(&phase) {
        (status.reason, status.message) = (None, None);
    }
    if let Some(cause) = life.cause().filter(|_| terminal) {
        status.reason = Some(cause.reason.clone());
        status.message = Some(cause.message.clone());
    }
    let disruption = life.cause().and_then(conditions::disruption);
    let is_ours = |kind: &str| conditions::is_owned(kind) || disruption.as_ref().is_some_and(|d| d.type_ == kind);
    let others: Vec<core::PodCondition> =
        before.conditions.iter().flatten().filter(|c| !is_ours(&c.type_)).cloned().collect();
    let mut owned = inputs.resizing.conditions();
    owned.extend(disruption.clone());
    owned.extend(conditions::all(&conditions::Facts {
        pod,
        seen,
        init: &init,
        containers: &regular,
        phase: &phase,
        others: &others,
    }));
    owned.extend(conditions::restarting_all(pod, asks, &phase));
    status.conditions = Some(dated(others, owned, inputs));
    status.phase = Some(phase);
    status.start_time = before.start_time.clone().or_else(|| Some(Time(containers::whole(inputs.now))));
    status.observed_generation = pod.meta().generation;
    addresses(inputs, &mut status);
    if api::pod::has_resources_of_its_own(pod.object()) {
        status.allocated_resources = Some(texts(&api::pod::by_spec(pod.object())[0]));
        status.resources = inputs.actuated.get(POD).or(pod.spec().resources.as_ref()).cloned();
    }
    status.container_statuses = Some(regular);
    status.init_container_statuses = Some(init).filter(|s| !s.is_empty());
    status.ephemeral_container_statuses = Some(ephemeral).filter(|s| !s.is_empty());
    status
}

fn texts(
    amounts: &api::resources::Resources,
) -> std::collections::BTreeMap<String, api::meta::api::resource::Quantity> {
    let text = |q: &machinery::quantity::Quantity| api::meta::api::resource::Quantity(q.to_string());
    amounts.iter().map(|(name, amount)| (name.clone(), text(amount))).collect()
}

/// The status of a pod that the node refused: nothing of it ever ran.
fn rejected(inputs: &Inputs) -> Option<core::PodStatus> {
    let cause = inputs.life.cause().filter(|_| inputs.life.is_terminated())?;
    let never_ran = inputs.seen.is_empty() && inputs.before.container_statuses.as_ref().is_none_or(Vec::is_empty);
    if !never_ran {
        return None;
    }
    Some(core::PodStatus {
        phase: Some("Failed".into()),
        reason: Some(cause.reason.clone()),
        message: Some(cause.message.clone()),
        qos_class: inputs.before.qos_class.clone().or_else(|| Some(inputs.pod.qos().as_str().into())),
        start_time: inputs.before.start_time.clone().or_else(|| Some(Time(containers::whole(inputs.now)))),
        observed_generation: inputs.pod.meta().generation,
        ..inputs.before.clone()
    })
}

/// Adds times and generations: a condition keeps its time until its status changes.
fn dated(others: Vec<core::PodCondition>, owned: Vec<core::PodCondition>, inputs: &Inputs) -> Vec<core::PodCondition> {
    let generation = inputs.pod.meta().generation;
    let owned = owned.into_iter().map(|condition| {
        let before = inputs.before.conditions.iter().flatten().find(|c| c.type_ == condition.type_);
        let kept = before.filter(|b| b.status == condition.status).and_then(|b| b.last_transition_time.clone());
        core::PodCondition {
            last_transition_time: kept.or_else(|| Some(Time(containers::whole(inputs.now)))),
            observed_generation: condition.observed_generation.or(generation),
            ..condition
        }
    });
    others.into_iter().chain(owned).collect()
}

fn addresses(inputs: &Inputs, status: &mut core::PodStatus) {
    if let Some(first) = inputs.host_ips.first() {
        status.host_ip = Some(first.clone());
        status.host_ips = Some(inputs.host_ips.iter().map(|ip| core::HostIP { ip: ip.clone() }).collect());
    }
    let sandbox = inputs.seen.sandboxes.first();
    let ips = match sandbox {
        Some(_) if inputs.pod.host_network() => inputs.host_ips.to_vec(),
        Some(s) if !s.ips.is_empty() => pod_addresses::sorted(&s.ips, inputs.host_ips),
        // A sandbox that ended has no address; readers of the pod's end still want the one it had.
        _ => return,
    };
    status.pod_ip = ips.first().cloned();
    status.pod_ips = Some(ips.iter().map(|ip| core::PodIP { ip: ip.clone() }).collect());
}

/// The phase that the containers add up to.
fn phase(
    pod: &BoundPod,
    init: &[core::ContainerStatus],
    regular: &[core::ContainerStatus],
    terminal: bool,
) -> &'static str {
    let ended = |s: &core::ContainerStatus| {
        let state = |s: &Option<core::ContainerState>| s.as_ref().and_then(|s| s.terminated.clone());
        state(&s.state).or_else(|| {
            let waits = s.state.as_ref().is_some_and(|s| s.waiting.is_some());
            waits.then(|| state(&s.last_state)).flatten()
        })
    };
    let runs = |s: &core::ContainerStatus| s.state.as_ref().is_some_and(|s| s.running.is_some());
    let (mut initializing, mut init_failed, mut hopeless) = (false, false, false);
    for container in pod.init_containers() {
        let Some(status) = init.iter().find(|s| s.name == container.name) else {
            initializing = true;
            continue;
        };
        if is_restartable_init(container) {
            initializing |= status.started != Some(true) && ended(status).is_none();
        } else {
            match ended(status) {
                Some(t) => {
                    init_failed |= t.exit_code != 0;
                    hopeless |= t.exit_code != 0 && !pod.restarts_after(container, t.exit_code);
                }
                None => initializing = true,
            }
        }
    }
    if hopeless {
        return "Failed";
    }
    let (mut running, mut waiting, mut stopped, mut succeeded, mut unknown) = (0, 0, 0, 0, 0);
    for container in pod.containers() {
        match regular.iter().find(|s| s.name == container.name) {
            None => unknown += 1,
            Some(s) if runs(s) => running += 1,
            Some(s) => match ended(s) {
                Some(t) => {
                    stopped += 1;
                    succeeded += i32::from(t.exit_code == 0);
                }
                None => waiting += 1,
            },
        }
    }
    let restarts = pod.containers().iter().any(|container| {
        let code = regular.iter().find(|s| s.name == container.name).and_then(ended).map_or(0, |t| t.exit_code);
        pod.restarts_after(container, code)
    });
    match () {
        () if (initializing || init_failed) && running + stopped == 0 => "Pending",
        () if waiting > 0 => "Pending",
        () if running > 0 && unknown == 0 => "Running",
        () if stopped > 0 && unknown == 0 => match () {
            () if !terminal && restarts => "Running",
            () if stopped == succeeded => "Succeeded",
            () => "Failed",
        },
        () => "Pending",
    }
}
