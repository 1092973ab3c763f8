//! The mistakes in what a pod says about where it wants to run.

use std::collections::BTreeSet;

use api::meta::apis::meta::v1::LabelSelector;
use api::types::core::v1::{
    Affinity, NodeSelector, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration, WeightedPodAffinityTerm,
};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;

const WEIGHT: &str = "must be in the range 1-100";
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// All tolerations.
pub fn tolerations(tolerations: &Option<Vec<Toleration>>, path: &Path, errors: &mut FieldErrors) {
    for (i, toleration) in tolerations.iter().flatten().enumerate() {
        self::toleration(toleration, &path.index(i), errors);
    }
}

fn toleration(toleration: &Toleration, path: &Path, errors: &mut FieldErrors) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let operator_path = path.child("operator");
    if !key.is_empty() {
        check::all(names::qualified_name(key), &path.child("key"), key, errors);
    } else if operator != "Exists" {
        let wrong = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&operator_path, operator, wrong);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let wrong = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&path.child("effect"), effect, wrong);
    }
    match operator {
        "Equal" | "" => check::all(names::label_value(value), &operator_path, value, errors),
        "Exists" => {
            if !value.is_empty() {
                let wrong = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&operator_path, check::value(toleration), wrong);
            }
        }
        other => errors.not_supported(&operator_path, other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        errors.not_supported(&path.child("effect"), effect, EFFECTS);
    }
}

/// Affinity to nodes, to pods, and against pods.
pub fn affinity(affinity: Option<&Affinity>, path: &Path, errors: &mut FieldErrors) {
    let Some(affinity) = affinity else { return };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            node_selector(selector, &path.child(required), errors);
        }
        let terms = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (i, term) in terms.enumerate() {
            let path = path.child(preferred).index(i);
            weight(term.weight, &path, errors);
            node_term(&term.preference, &path.child("preference"), errors);
        }
    }
    let required_terms = |terms: &Option<Vec<PodAffinityTerm>>, path: Path, errors: &mut FieldErrors| {
        for (i, term) in terms.iter().flatten().enumerate() {
            pod_term(term, &path.child(required).index(i), errors);
        }
    };
    let preferred_terms = |terms: &Option<Vec<WeightedPodAffinityTerm>>, path: Path, errors: &mut FieldErrors| {
        for (i, term) in terms.iter().flatten().enumerate() {
            let path = path.child(preferred).index(i);
            weight(term.weight, &path, errors);
            pod_term(&term.pod_affinity_term, &path.child("podAffinityTerm"), errors);
        }
    };
    if let Some(with) = &affinity.pod_affinity {
        let path = path.child("podAffinity");
        required_terms(&with.required_during_scheduling_ignored_during_execution, path.clone(), errors);
        preferred_terms(&with.preferred_during_scheduling_ignored_during_execution, path, errors);
    }
    if let Some(apart) = &affinity.pod_anti_affinity {
        let path = path.child("podAntiAffinity");
        required_terms(&apart.required_during_scheduling_ignored_during_execution, path.clone(), errors);
        preferred_terms(&apart.preferred_during_scheduling_ignored_during_execution, path, errors);
    }
}

fn weight(weight: i32, path: &Path, errors: &mut FieldErrors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, WEIGHT);
    }
}

/// A selector of nodes: at least one term.
pub fn node_selector(selector: &NodeSelector, path: &Path, errors: &mut FieldErrors) {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(term, &path.index(i), errors);
    }
}

fn node_term(term: &NodeSelectorTerm, path: &Path, errors: &mut FieldErrors) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Exists" | "DoesNotExist" => {}
            "Gt" | "Lt" if values.len() != 1 => {
                let wrong = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.required(&path.child("values"), wrong);
            }
            "Gt" | "Lt" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        check::all(names::qualified_name(&requirement.key), &path.child("key"), &requirement.key, errors);
        for (j, value) in values.iter().enumerate() {
            check::all(names::label_value(value), &path.child("values").index(j), value, errors);
        }
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let path = path.child("matchFields").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.len() != 1 => {
                let wrong = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&path.child("values"), wrong);
            }
            "In" | "NotIn" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        if requirement.key != "metadata.name" {
            errors.invalid(&path.child("key"), requirement.key.as_str(), "not a valid field selector key");
        } else {
            for (j, value) in values.iter().enumerate() {
                check::all(names::dns1123_subdomain(value), &path.child("values").index(j), value, errors);
            }
        }
    }
}

fn pod_term(term: &PodAffinityTerm, path: &Path, errors: &mut FieldErrors) {
    if let Some(selector) = &term.label_selector {
        check::selector(selector, &path.child("labelSelector"), errors);
    }
    if let Some(selector) = &term.namespace_selector {
        check::selector(selector, &path.child("namespaceSelector"), errors);
    }
    for namespace in term.namespaces.iter().flatten() {
        check::all(names::dns1123_label(namespace), &path.child("namespace"), namespace, errors);
    }
    label_keys(&term.match_label_keys, &term.mismatch_label_keys, term.label_selector.as_ref(), path, errors);
    topology_key(&term.topology_key, path, errors);
}

/// Keys whose values the pod itself gives. The selector has their requirements already, unless the pod has no
/// such label: one that is there twice was said by the user, too.
fn label_keys(
    keys: &Option<Vec<String>>,
    not: &Option<Vec<String>>,
    selector: Option<&LabelSelector>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    for (keys, field) in [(keys, "matchLabelKeys"), (not, "mismatchLabelKeys")] {
        let path = path.child(field);
        if selector.is_none() && keys.as_ref().is_some_and(|keys| !keys.is_empty()) {
            errors.forbidden(&path, "must not be specified when labelSelector is not set");
            continue;
        }
        for (i, key) in keys.iter().flatten().enumerate() {
            check::all(names::qualified_name(key), &path.index(i), key, errors);
        }
    }
    let position = |key: &str| keys.iter().flatten().position(|one| one == key);
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&str> = selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for expression in selector.match_expressions.iter().flatten() {
            if let Some(i) = position(&expression.key).filter(|_| seen.contains(expression.key.as_str())) {
                // The name of the list is not part of this path.
                errors.invalid(&path.index(i), &*expression.key, "exists in both matchLabelKeys and labelSelector");
            }
            seen.insert(&expression.key);
        }
    }
    for (i, key) in keys.iter().flatten().enumerate() {
        if not.iter().flatten().any(|other| other == key) {
            let wrong = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(&path.child("matchLabelKeys").index(i), key.as_str(), wrong);
        }
    }
}

fn topology_key(key: &str, path: &Path, errors: &mut FieldErrors) {
    let path = path.child("topologyKey");
    if key.is_empty() {
        errors.required(&path, "can not be empty");
    } else {
        check::all(names::qualified_name(key), &path, key, errors);
    }
}

/// How pods spread over zones, nodes and the like.
pub fn spread(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.index(i);
        if constraint.max_skew <= 0 {
            errors.invalid(&path.child("maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        topology_key(&constraint.topology_key, &path, errors);
        let when = constraint.when_unsatisfiable.as_str();
        let supported = ["DoNotSchedule", "ScheduleAnyway"];
        if !supported.contains(&when) {
            errors.not_supported(&path.child("whenUnsatisfiable"), when, &supported);
        }
        if !seen.insert((constraint.topology_key.as_str(), when)) {
            let both = format!("{{{}, {when}}}", constraint.topology_key);
            errors.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), both);
        }
        if let Some(domains) = constraint.min_domains {
            let path = path.child("minDomains");
            if domains <= 0 {
                errors.invalid(&path, domains, "must be greater than zero");
            }
            if when != "DoNotSchedule" {
                let wrong = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway";
                errors.invalid(&path, domains, wrong);
            }
        }
        for (policy, field) in [
            (&constraint.node_affinity_policy, "nodeAffinityPolicy"),
            (&constraint.node_taints_policy, "nodeTaintsPolicy"),
        ] {
            check::one_of_or_absent(policy.as_deref(), &["Honor", "Ignore"], &path.child(field), errors);
        }
        label_keys(&constraint.match_label_keys, &None, constraint.label_selector.as_ref(), &path, errors);
        if let Some(selector) = &constraint.label_selector {
            check::selector(selector, &path.child("labelSelector"), errors);
        }
    }
}
