//! What the server itself sets in a pod.

use api::meta::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, Time};
use api::types::core::v1::{Pod, PodAffinityTerm, PodCondition, PodSpec, PodStatus};
use jiff::Timestamp;

use super::{defaults, validate_app_armor};

/// A new pod is Pending, has a class of service, and may be gated.
pub fn create(pod: &mut Pod, now: Timestamp) {
    if let Some(spec) = &mut pod.spec {
        defaults::service_account(spec);
        drop_disabled(spec);
    }
    validate_app_armor::adopt(pod);
    let class = api::pod::qos_class(pod).as_str().to_owned();
    let mut status = PodStatus { phase: Some("Pending".into()), qos_class: Some(class), ..PodStatus::default() };
    let gated = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
    if gated {
        status.conditions = Some(vec![PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("SchedulingGated".into()),
            message: Some("Scheduling is blocked due to non-empty scheduling gates".into()),
            observed_generation: Some(1),
            last_transition_time: Some(Time(now)),
            ..PodCondition::default()
        }]);
    }
    pod.status = Some(status);
    spread_label_keys(pod);
}

/// What neither a user nor a status writer may take away.
pub fn update(subresource: &str, new: &mut Pod, old: &Pod) {
    if let Some(spec) = &mut new.spec {
        defaults::service_account(spec);
        if let Some(old) = &old.spec {
            keep_disabled(spec, old);
        }
    }
    if matches!(subresource, "ephemeralcontainers" | "resize") && new.spec != old.spec {
        // What is asked of the pod has changed, through whichever door.
        new.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
    }
    if subresource != "status" {
        return;
    }
    new.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
    let (Some(new), Some(old)) = (&mut new.status, &old.status) else { return };
    if new.qos_class.as_deref().unwrap_or_default().is_empty() {
        new.qos_class.clone_from(&old.qos_class);
    }
    // A client that does not know of claims does not take them away.
    if new.resource_claim_statuses.is_none() {
        new.resource_claim_statuses.clone_from(&old.resource_claim_statuses);
    }
    if new.extended_resource_claim_status.is_none() {
        new.extended_resource_claim_status.clone_from(&old.extended_resource_claim_status);
    }
    drop_disabled_status(new, old);
    if new.observed_generation.unwrap_or(0) == 0 {
        new.observed_generation = old.observed_generation;
    }
    for condition in new.conditions.iter_mut().flatten() {
        if condition.observed_generation.unwrap_or(0) == 0 {
            let before = old.conditions.iter().flatten().find(|c| c.type_ == condition.type_);
            condition.observed_generation = before.and_then(|c| c.observed_generation);
        }
    }
}

/// Parts of a status behind gates that are off, where the stored status does not use them already.
fn drop_disabled_status(new: &mut PodStatus, old: &PodStatus) {
    if old.node_allocatable_resource_claim_statuses.is_none() {
        new.node_allocatable_resource_claim_statuses = None;
    }
    if old.volume_health.is_none() {
        new.volume_health = None;
    }
    let lists = |status: &PodStatus| {
        let all = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
        all.into_iter()
            .flatten()
            .flatten()
            .flat_map(|status| status.volume_mounts.iter().flatten())
            .any(|mount| mount.volume_status.is_some())
    };
    if !lists(old) {
        let all =
            [&mut new.container_statuses, &mut new.init_container_statuses, &mut new.ephemeral_container_statuses];
        for mount in all.into_iter().flatten().flatten().flat_map(|status| status.volume_mounts.iter_mut().flatten()) {
            mount.volume_status = None;
        }
    }
}

/// Fields behind gates that are off.
fn drop_disabled(spec: &mut PodSpec) {
    spec.scheduling_group = None;
    drop_stop_signals(spec);
}

/// A lifecycle that said nothing else goes, too: an update that says it again changes nothing.
fn drop_stop_signals(spec: &mut PodSpec) {
    for lifecycle in lifecycles(spec) {
        let Some(inner) = lifecycle.as_mut().filter(|inner| inner.stop_signal.is_some()) else { continue };
        inner.stop_signal = None;
        if inner.post_start.is_none() && inner.pre_stop.is_none() {
            *lifecycle = None;
        }
    }
}

/// The same on update, where the stored pod does not use them already.
fn keep_disabled(spec: &mut PodSpec, old: &PodSpec) {
    if old.scheduling_group.is_none() {
        spec.scheduling_group = None;
    }
    let stops = |spec: &PodSpec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .any(|container| container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.stop_signal.is_some()))
    };
    if !stops(old) {
        drop_stop_signals(spec);
    }
}

fn lifecycles(spec: &mut PodSpec) -> Vec<&mut Option<api::types::core::v1::Lifecycle>> {
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    containers.map(|container| &mut container.lifecycle).collect()
}

/// `matchLabelKeys` names labels of this pod: their values become part of the selector, so that the
/// scheduler needs to know one rule only.
fn spread_label_keys(pod: &mut Pod) {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let Some(spec) = &mut pod.spec else { return };
    let add = |selector: &mut Option<LabelSelector>, keys: &Option<Vec<String>>, operator: &str| {
        let Some(selector) = selector else { return };
        for key in keys.iter().flatten() {
            let Some(value) = labels.get(key) else { continue };
            selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: operator.into(),
                values: Some(vec![value.clone()]),
            });
        }
    };
    let term = |term: &mut PodAffinityTerm| {
        add(&mut term.label_selector, &term.match_label_keys, "In");
        add(&mut term.label_selector, &term.mismatch_label_keys, "NotIn");
    };
    if let Some(affinity) = &mut spec.affinity {
        if let Some(with) = &mut affinity.pod_affinity {
            with.required_during_scheduling_ignored_during_execution.iter_mut().flatten().for_each(term);
            let preferred = with.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            preferred.for_each(|weighted| term(&mut weighted.pod_affinity_term));
        }
        if let Some(apart) = &mut affinity.pod_anti_affinity {
            apart.required_during_scheduling_ignored_during_execution.iter_mut().flatten().for_each(term);
            let preferred = apart.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            preferred.for_each(|weighted| term(&mut weighted.pod_affinity_term));
        }
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        add(&mut constraint.label_selector, &constraint.match_label_keys, "In");
    }
}
