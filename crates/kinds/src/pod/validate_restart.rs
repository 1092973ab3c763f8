//! When a container is started again: its own policy, rules for exit codes, and what a resize does.

use api::types::core::v1::Container;
use machinery::field::{FieldErrors, Path};

use crate::check;

const POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const ACTIONS: &[&str] = &["Restart", "RestartAllContainers"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const RULES: usize = 20;
const VALUES: usize = 255;

/// The mistakes in the policy and the rules of a container.
pub fn policy(container: &Container, path: &Path, errors: &mut FieldErrors) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let place = path.child("restartPolicy");
    if container.restart_policy.is_none() && !rules.is_empty() {
        errors.required(&place, "must specify restartPolicy when restart rules are used");
    }
    check::one_of_or_absent(container.restart_policy.as_deref(), POLICIES, &place, errors);
    let path = path.child("restartPolicyRules");
    if rules.len() > RULES {
        errors.too_many(&path, rules.len(), RULES);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        if !ACTIONS.contains(&rule.action.as_str()) {
            errors.not_supported(&path.child("action"), rule.action.as_str(), ACTIONS);
        }
        let path = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(&path, "must be specified");
            continue;
        };
        if !OPERATORS.contains(&codes.operator.as_str()) {
            errors.not_supported(&path.child("operator"), codes.operator.as_str(), OPERATORS);
        }
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > VALUES {
            errors.too_many(&path.child("values"), count, VALUES);
        }
    }
}

/// The mistakes in what a resize does to a container of a pod with this policy.
pub fn resize(container: &Container, pod_policy: Option<&str>, path: &Path, errors: &mut FieldErrors) {
    let path = path.child("resizePolicy");
    let mut seen: Vec<&str> = Vec::new();
    for (i, one) in container.resize_policy.iter().flatten().enumerate() {
        if seen.contains(&one.resource_name.as_str()) {
            errors.duplicate(&path.index(i), one.resource_name.as_str());
        }
        seen.push(&one.resource_name);
        check::one_of(Some(&one.resource_name), &["cpu", "memory"], &path, errors);
        check::one_of(Some(&one.restart_policy), &["NotRequired", "RestartContainer"], &path, errors);
        if pod_policy == Some("Never") && one.restart_policy != "NotRequired" {
            let wrong = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(&path, one.restart_policy.as_str(), wrong);
        }
    }
}
