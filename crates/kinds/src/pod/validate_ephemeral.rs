//! What may change in a running pod through `pods/ephemeralcontainers`: ephemeral containers come and stay.

use std::collections::BTreeSet;

use api::types::core::v1::{Container, EphemeralContainer, Pod, PodSpec, ResourceRequirements};
use machinery::field::{FieldErrors, Path};

use super::validate_container;
use crate::check;
use crate::differences::differences;

const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

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
