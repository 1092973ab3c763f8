//! What may change in a pod: little, because it runs already.

use api::types::core::v1::{Container, Pod, PodSpec, Toleration};
use machinery::field::{FieldErrors, Path};
use serde_json::Value;

use crate::check;
use crate::differences::differences;

const FEW_FIELDS: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` \
    (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
    (allow it to be set to 1 if it was previously negative)";

/// The mistakes in a change of a pod.
pub fn pod(new: &Pod, old: &Pod, errors: &mut FieldErrors) {
    let none = PodSpec::default();
    let (new_spec, old_spec) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    let path = Path::new("spec");
    let inits = |spec: &PodSpec| spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut counts_differ = false;
    if new_spec.containers.len() != old_spec.containers.len() {
        errors.forbidden(&path.child("containers"), "pod updates may not add or remove containers");
        counts_differ = true;
    }
    if inits(new_spec) != inits(old_spec) {
        errors.forbidden(&path.child("initContainers"), "pod updates may not add or remove containers");
        counts_differ = true;
    }
    if counts_differ {
        return;
    }
    deadline(new_spec, old_spec, &path.child("activeDeadlineSeconds"), errors);
    gates(new_spec, old_spec, &path.child("schedulingGates"), errors);
    tolerations(new_spec, old_spec, &path.child("tolerations"), errors);
    rest(new_spec, old_spec, &path, errors);
}

fn deadline(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => {
            errors.invalid(path, new, "must be less than or equal to previous value");
        }
        (None, Some(_)) => errors.invalid(path, Value::Null, "must not update from a positive integer to nil value"),
        _ => {}
    }
}

fn gates(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let before: Vec<&str> = old.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
    for (i, gate) in new.scheduling_gates.iter().flatten().enumerate() {
        if !before.contains(&gate.name.as_str()) {
            let wrong = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
            errors.forbidden(&path.index(i).child("name"), wrong);
        }
    }
}

fn tolerations(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let alike = |a: &Toleration, b: &Toleration| {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        part(&a.key) == part(&b.key)
            && part(&a.operator) == part(&b.operator)
            && part(&a.value) == part(&b.value)
            && part(&a.effect) == part(&b.effect)
    };
    let kept = |old: &Toleration| new.tolerations.iter().flatten().any(|new| alike(new, old));
    if !old.tolerations.iter().flatten().all(kept) {
        errors.forbidden(path, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// Nothing else may differ once what may is made equal.
fn rest(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut masked = new.clone();
    let new_inits = masked.init_containers.iter_mut().flatten();
    let old_inits = old.init_containers.iter().flatten();
    for (new, old) in new_inits.zip(old_inits).chain(masked.containers.iter_mut().zip(&old.containers)) {
        new.image.clone_from(&old.image);
        // No resources and `{}` are the same: protobuf and clients that leave out zeros say none.
        let none = |container: &Container| container.resources.as_ref().is_none_or(|r| *r == Default::default());
        if none(new) && none(old) {
            new.resources.clone_from(&old.resources);
        }
    }
    masked.active_deadline_seconds = old.active_deadline_seconds;
    masked.tolerations.clone_from(&old.tolerations);
    masked.scheduling_gates.clone_from(&old.scheduling_gates);
    if old.termination_grace_period_seconds.is_some_and(|s| s < 0) && new.termination_grace_period_seconds == Some(1) {
        masked.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    let gated = old.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    if gated {
        narrow(&mut masked, old, path, errors);
    }
    if masked == *old {
        return;
    }
    let differences = differences(&check::value(old), &check::value(&masked));
    if !differences.is_empty() {
        errors.forbidden(path, format!("{FEW_FIELDS}\n{}", differences.join("\n")));
    }
}

/// A gated pod has been nowhere yet: where it may go can still be narrowed.
fn narrow(masked: &mut PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let before = old.node_selector.clone().unwrap_or_default();
    let after = masked.node_selector.clone().unwrap_or_default();
    if before.iter().any(|(key, value)| after.get(key) != Some(value)) {
        let wrong = "only additions are allowed (no mutations or deletions)";
        errors.invalid(&path.child("nodeSelector"), check::value(&after), wrong);
    }
    masked.node_selector.clone_from(&old.node_selector);
    let node = |spec: &PodSpec| spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
    let required =
        |spec: &PodSpec| node(spec).and_then(|node| node.required_during_scheduling_ignored_during_execution);
    if let Some(before) = required(old) {
        let path = path.child("affinity").child("nodeAffinity").child("requiredDuringSchedulingIgnoredDuringExecution");
        let after = required(masked).map(|selector| selector.node_selector_terms).unwrap_or_default();
        if after.len() != before.node_selector_terms.len() {
            let wrong = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
            errors.invalid(&path.child("nodeSelectorTerms"), check::value(&after), wrong);
        } else {
            for (i, (after, before)) in after.iter().zip(&before.node_selector_terms).enumerate() {
                let expressions = after.match_expressions.clone().unwrap_or_default();
                let fields = after.match_fields.clone().unwrap_or_default();
                let kept = before.match_expressions.iter().flatten().all(|one| expressions.contains(one))
                    && before.match_fields.iter().flatten().all(|one| fields.contains(one));
                let was_empty = before.match_expressions.is_none() && before.match_fields.is_none();
                if !kept || (was_empty && (!expressions.is_empty() || !fields.is_empty())) {
                    let wrong = "only additions are allowed (no mutations or deletions)";
                    errors.invalid(&path.child("nodeSelectorTerms").index(i), check::value(after), wrong);
                }
            }
        }
    }
    let old_node = node(old);
    match (&mut masked.affinity, old_node) {
        (Some(affinity), old_node) => {
            affinity.node_affinity = old_node;
            if old.affinity.is_none() && *affinity == Default::default() {
                masked.affinity = None;
            }
        }
        (None, _) => masked.affinity.clone_from(&old.affinity),
    }
}
