//! What may change in a running pod through doors of its own: ephemeral containers come and stay, and
//! amounts of cpu and memory move.

use std::collections::BTreeSet;

use api::types::core::v1::{Container, EphemeralContainer, Pod, PodSpec, ResourceRequirements};
use machinery::field::{FieldErrors, Path};
use serde_json::Value;

use super::validate_container;
use crate::check;
use crate::differences::differences;
use crate::resources::List;

const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The mistakes in a change through `pods/ephemeralcontainers`.
pub fn ephemeral(new: &Pod, old: &Pod, errors: &mut FieldErrors) {
    if api::pod::is_mirror(old) {
        *errors = FieldErrors::new();
        errors.forbidden(&Path::new("[]"), "static pods do not support ephemeral containers");
        return;
    }
    let none = PodSpec::default();
    let (new, old) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    let path = Path::new("spec").child("ephemeralContainers");
    ephemeral_containers(new, &path, errors);
    for before in old.ephemeral_containers.iter().flatten() {
        let name = &before.name;
        match new.ephemeral_containers.iter().flatten().find(|after| after.name == *name) {
            None => errors.forbidden(&path, format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(after) if after != before => {
                let lines = differences(&check::value(before), &check::value(after)).join("\n");
                let wrong = format!("existing ephemeral containers {name:?} may not be changed\n{lines}");
                errors.forbidden(&path, wrong);
            }
            Some(_) => {}
        }
    }
}

/// The mistakes in the ephemeral containers of a pod.
pub fn ephemeral_containers(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let others: BTreeSet<&str> = others.map(|container| container.name.as_str()).collect();
    let mut seen = others.clone();
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = path.index(i);
        validate_container::one(&as_container(container), spec, &path, errors);
        if !seen.insert(container.name.as_str()) {
            errors.duplicate(&path.child("name"), container.name.as_str());
        }
        if let Some(target) = container.target_container_name.as_deref().filter(|target| !target.is_empty()) {
            if !others.contains(target) {
                errors.not_found(&path.child("targetContainerName"), target);
            }
        }
        let some = |resources: &ResourceRequirements| *resources != ResourceRequirements::default();
        for (given, field) in [
            (container.ports.as_ref().is_some_and(|ports| !ports.is_empty()), "ports"),
            (container.resources.as_ref().is_some_and(some), "resources"),
            (container.resize_policy.is_some(), "resizePolicy"),
            (container.restart_policy.is_some(), "restartPolicy"),
            (container.restart_policy_rules.is_some(), "restartPolicyRules"),
            (container.liveness_probe.is_some(), "livenessProbe"),
            (container.readiness_probe.is_some(), "readinessProbe"),
            (container.startup_probe.is_some(), "startupProbe"),
            (container.lifecycle.is_some(), "lifecycle"),
        ] {
            if given {
                errors.forbidden(&path.child(field), NOT_EPHEMERAL);
            }
        }
        for (j, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let path = path.child("volumeMounts").index(j);
            for (given, field) in [(&mount.sub_path, "subPath"), (&mount.sub_path_expr, "subPathExpr")] {
                if given.as_deref().is_some_and(|given| !given.is_empty()) {
                    errors.forbidden(&path.child(field), NOT_EPHEMERAL);
                }
            }
        }
    }
}

/// What an ephemeral container has in common with others, beside what it may not have.
fn as_container(of: &EphemeralContainer) -> Container {
    Container {
        name: of.name.clone(),
        image: of.image.clone(),
        command: of.command.clone(),
        args: of.args.clone(),
        working_dir: of.working_dir.clone(),
        env: of.env.clone(),
        env_from: of.env_from.clone(),
        volume_mounts: of.volume_mounts.clone(),
        volume_devices: of.volume_devices.clone(),
        termination_message_path: of.termination_message_path.clone(),
        termination_message_policy: of.termination_message_policy.clone(),
        image_pull_policy: of.image_pull_policy.clone(),
        security_context: of.security_context.clone(),
        stdin: of.stdin,
        stdin_once: of.stdin_once,
        tty: of.tty,
        ..Container::default()
    }
}

/// The mistakes in a change through `pods/resize`.
pub fn resize(new_pod: &Pod, old_pod: &Pod, errors: &mut FieldErrors) {
    let refuse = |errors: &mut FieldErrors, why: &str| {
        *errors = FieldErrors::new();
        errors.forbidden(&Path::new("[]"), why);
    };
    if api::pod::is_mirror(old_pod) {
        return refuse(errors, "static pods cannot be resized");
    }
    let none = PodSpec::default();
    let (new, old) = (new_pod.spec.as_ref().unwrap_or(&none), old_pod.spec.as_ref().unwrap_or(&none));
    if old.os.as_ref().is_some_and(|os| os.name == "windows") {
        return refuse(errors, "windows pods cannot be resized");
    }
    let path = Path::new("spec");
    let class = api::pod::qos_class(new_pod);
    if class != api::pod::qos_class(old_pod) {
        errors.invalid(&path, class.as_str(), "Pod QOS Class may not change as a result of resizing");
    }
    if !node_can_resize(old_pod) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    let lists = [
        ("containers", &new.containers[..], &old.containers[..]),
        (
            "initContainers",
            new.init_containers.as_deref().unwrap_or_default(),
            old.init_containers.as_deref().unwrap_or_default(),
        ),
    ];
    let found = errors.len();
    for (field, new, old) in lists {
        if new.len() != old.len() {
            errors.forbidden(&path.child(field), format!("{field} may not be added or removed on resize"));
        } else if new.iter().zip(old).any(|(new, old)| new.name != old.name) {
            errors.forbidden(&path.child(field), format!("{field} may not be renamed or reordered on resize"));
        }
    }
    if errors.len() > found {
        return;
    }
    for (field, new, old) in lists {
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            let path = path.child(field).index(i).child("resources");
            if field == "initContainers" && !api::pod::is_sidecar(old) {
                if new.resources.clone().unwrap_or_default() != old.resources.clone().unwrap_or_default() {
                    let wrong = "resources for non-sidecar init containers are immutable";
                    errors.invalid(&path, check::value(&new.resources), wrong);
                }
                continue;
            }
            kept(new.resources.as_ref(), old.resources.as_ref(), &path, errors);
        }
    }
    kept(new.resources.as_ref(), old.resources.as_ref(), &path.child("resources"), errors);
    if !same_but_for_amounts(new, old) {
        errors.forbidden(&path, "only cpu and memory resources are mutable");
    }
}

/// An amount that is there can change, and stays.
fn kept(new: Option<&ResourceRequirements>, old: Option<&ResourceRequirements>, path: &Path, errors: &mut FieldErrors) {
    let gone = |of: fn(&ResourceRequirements) -> Option<&List>| {
        let has = |resources: Option<&ResourceRequirements>, name: &str| {
            resources.and_then(of).is_some_and(|list| list.contains_key(name))
        };
        RESIZABLE.iter().any(|name| has(old, name) && !has(new, name))
    };
    if gone(|r| r.requests.as_ref()) {
        errors.forbidden(path, "resource requests cannot be removed");
    }
    if gone(|r| r.limits.as_ref()) {
        errors.forbidden(path, "resource limits cannot be removed");
    }
}

/// A kubelet that reports the resources of what it runs can change them.
fn node_can_resize(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut running = statuses.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|status| status.resources.is_some())
}

/// Equal once amounts of cpu and memory are left out.
fn same_but_for_amounts(new: &PodSpec, old: &PodSpec) -> bool {
    let bare = |spec: &PodSpec| {
        let mut tree = check::value(spec);
        let strip = |holder: &mut Value| {
            let Some(resources) = holder.get_mut("resources").and_then(Value::as_object_mut) else { return };
            for list in ["requests", "limits"] {
                if let Some(amounts) = resources.get_mut(list).and_then(Value::as_object_mut) {
                    amounts.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
                    if amounts.is_empty() {
                        resources.remove(list);
                    }
                }
            }
            if resources.is_empty()
                && let Some(holder) = holder.as_object_mut()
            {
                holder.remove("resources");
            }
        };
        strip(&mut tree);
        for list in ["containers", "initContainers"] {
            tree.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
        }
        tree
    };
    bare(new) == bare(old)
}
