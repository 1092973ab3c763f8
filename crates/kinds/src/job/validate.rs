//! The mistakes in a Job, in the part of it a CronJob has, and in its change.

use std::collections::BTreeSet;

use api::meta::apis::meta::v1::ObjectMeta;
use api::types::batch::v1 as batch;
use api::types::core::v1::{Affinity, Container, PodTemplateSpec};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use super::{
    COMPLETIONS_SOFT_LIMIT, INDEXED, NAME_LABEL, NON_INDEXED, OLD_NAME_LABEL, OLD_UID_LABEL, PARALLELISM_SOFT_LIMIT,
    UID_LABEL, holds, indexes,
};
use crate::check;
use crate::kind::Ctx;
use crate::pod;

const MAX_INDEXED_PARALLELISM: i32 = 100_000;
const MAX_FAILED_INDEXES: i32 = 100_000;
const MAX_FAILED_INDEXES_OF_MANY: i32 = 10_000;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_PATTERNS: usize = 20;
const MAX_MANAGED_BY: usize = 63;
const MAX_SUCCEEDED_INDEXES: usize = 64 * 1024;
const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const STATES: &[&str] = &["False", "True", "Unknown"];
const PATH_PART: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$";

/// The labels and the selector that the server makes are there and fit.
pub fn generated(metadata: &ObjectMeta, spec: &batch::JobSpec, newer: bool, errors: &mut FieldErrors) {
    let Some(selector) = spec.selector.as_ref().filter(|_| spec.manual_selector != Some(true)) else { return };
    let name = metadata.name.as_deref().unwrap_or_default();
    let uid = metadata.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        errors.required(&Path::new("metadata").child("uid"), "");
    }
    let labels = pod::defaults::template_labels(&spec.template);
    let mut wanted = vec![(OLD_UID_LABEL, uid), (OLD_NAME_LABEL, name)];
    if newer {
        wanted.extend([(UID_LABEL, uid), (NAME_LABEL, name)]);
    }
    for (label, value) in wanted {
        let path = Path::new("spec.template.metadata.labels").key(label);
        match labels.get(label) {
            None => errors.required(&path, format!("must be '{value}'")),
            Some(found) if found != value => {
                errors.invalid(&path, check::value(&labels), format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let expected = [(OLD_UID_LABEL, uid), (OLD_NAME_LABEL, name), (UID_LABEL, uid), (NAME_LABEL, name)];
    let expected: std::collections::BTreeMap<String, String> =
        expected.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
    if api::selector(selector).is_ok_and(|matcher| !matcher.matches(&expected)) {
        errors.invalid(&Path::new("spec").child("selector"), check::value(selector), "`selector` not auto-generated");
    }
}

/// The mistakes in the spec of a Job.
pub fn job(ctx: &Ctx, spec: &batch::JobSpec, path: &Path, errors: &mut FieldErrors) {
    template(ctx, spec, path, errors);
    let selector = path.child("selector");
    match &spec.selector {
        None => errors.required(&selector, ""),
        Some(own) => check::selector(own, &selector, errors),
    }
    let labels = pod::defaults::template_labels(&spec.template);
    let matches = match &spec.selector {
        None => Some(false),
        Some(own) => api::selector(own).ok().map(|matcher| matcher.matches(&labels)),
    };
    if matches == Some(false) {
        let path = path.child("template").child("metadata").child("labels");
        errors.invalid(&path, check::value(&labels), "`selector` does not match template `labels`");
    }
}

/// The mistakes in a spec that need not have a selector yet.
pub fn template(ctx: &Ctx, spec: &batch::JobSpec, path: &Path, errors: &mut FieldErrors) {
    for (number, name) in [
        (spec.parallelism.map(i64::from), "parallelism"),
        (spec.completions.map(i64::from), "completions"),
        (spec.active_deadline_seconds, "activeDeadlineSeconds"),
        (spec.backoff_limit.map(i64::from), "backoffLimit"),
        (spec.ttl_seconds_after_finished.map(i64::from), "ttlSecondsAfterFinished"),
        (spec.backoff_limit_per_index.map(i64::from), "backoffLimitPerIndex"),
        (spec.max_failed_indexes.map(i64::from), "maxFailedIndexes"),
    ] {
        check::not_negative(number, &path.child(name), errors);
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        errors.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = spec.managed_by.as_deref() {
        managed_by(manager, &path.child("managedBy"), errors);
    }
    let modes = [NON_INDEXED, INDEXED];
    check::one_of_or_absent(spec.completion_mode.as_deref(), &modes, &path.child("completionMode"), errors);
    match spec.completion_mode.as_deref() {
        Some(INDEXED) => indexed(spec, path, errors),
        None | Some(NON_INDEXED) => {
            for (number, name) in
                [(spec.backoff_limit_per_index, "backoffLimitPerIndex"), (spec.max_failed_indexes, "maxFailedIndexes")]
            {
                if let Some(number) = number {
                    errors.invalid(&path.child(name), number, "requires indexed completion mode");
                }
            }
        }
        Some(_) => {}
    }
    if let Some(policy) = &spec.pod_failure_policy {
        failure_policy(spec, policy, &path.child("podFailurePolicy"), errors);
    }
    if let Some(policy) = &spec.success_policy {
        let path = path.child("successPolicy");
        if spec.completion_mode.as_deref() == Some(INDEXED) {
            success_policy(spec, policy, &path, errors);
        } else {
            errors.invalid(&path, check::value(policy), "requires indexed completion mode");
        }
    }
    let replacement: &[&str] =
        if spec.pod_failure_policy.is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    let replacement_path = path.child("podReplacementPolicy");
    check::one_of_or_absent(spec.pod_replacement_policy.as_deref(), replacement, &replacement_path, errors);
    let path = path.child("template");
    pod::template::alone(ctx, &spec.template, &path, errors);
    let policy = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref()).unwrap_or_default();
    let path = path.child("spec").child("restartPolicy");
    errors.0.retain(|error| error.path != path);
    match policy {
        "" | "Always" => errors.required(&path, r#"valid values: "OnFailure", "Never""#),
        "Never" => {}
        "OnFailure" if spec.pod_failure_policy.is_none() => {}
        "OnFailure" => {
            errors.invalid(&path, policy, r#"only "Never" is supported when podFailurePolicy is specified"#);
        }
        other => errors.not_supported(&path, other, &["OnFailure", "Never"]),
    }
}

/// Who looks after the Job instead of the controller.
fn managed_by(manager: &str, path: &Path, errors: &mut FieldErrors) {
    if manager.is_empty() {
        return errors.required(path, "");
    }
    match manager.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            check::all(names::dns1123_subdomain(domain), path, domain, errors);
            let fits = |c: u8| c.is_ascii_alphanumeric() || br"/-._~%!$&'()*+,;=:".contains(&c);
            if !rest.bytes().all(fits) {
                errors.invalid(path, rest, format!("Invalid path (regex used for validation is '{PATH_PART}')"));
            }
        }
        _ => errors.invalid(path, manager, r#"must be a domain-prefixed path (such as "acme.io/foo")"#),
    }
    if manager.len() > MAX_MANAGED_BY {
        errors.too_long(path, MAX_MANAGED_BY);
    }
}

fn indexed(spec: &batch::JobSpec, path: &Path, errors: &mut FieldErrors) {
    let (parallel_path, failed_path) = (path.child("parallelism"), path.child("maxFailedIndexes"));
    if spec.completions.is_none() {
        errors.required(&path.child("completions"), format!("when completion mode is {INDEXED}"));
    }
    if let Some(parallel) = spec.parallelism.filter(|n| *n > MAX_INDEXED_PARALLELISM) {
        let wrong =
            format!("must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is {INDEXED}");
        errors.invalid(&parallel_path, parallel, wrong);
    }
    if let Some(failed) = spec.max_failed_indexes {
        if spec.completions.is_some_and(|completions| failed > completions) {
            errors.invalid(&failed_path, failed, "must be less than or equal to completions");
        }
        if failed > MAX_FAILED_INDEXES {
            errors.invalid(&failed_path, failed, format!("must be less than or equal to {MAX_FAILED_INDEXES}"));
        }
    }
    if spec.completions.unwrap_or(0) <= COMPLETIONS_SOFT_LIMIT || spec.backoff_limit_per_index.is_none() {
        return;
    }
    let when = format!("when completions are above {COMPLETIONS_SOFT_LIMIT} and used with backoff limit per index");
    if spec.max_failed_indexes.is_none() {
        let wrong = format!("must be specified when completions is above {COMPLETIONS_SOFT_LIMIT}");
        errors.required(&failed_path, wrong);
    }
    if let Some(parallel) = spec.parallelism.filter(|n| *n > PARALLELISM_SOFT_LIMIT) {
        let wrong = format!("must be less than or equal to {PARALLELISM_SOFT_LIMIT} {when}");
        errors.invalid(&parallel_path, parallel, wrong);
    }
    if let Some(failed) = spec.max_failed_indexes.filter(|n| *n > MAX_FAILED_INDEXES_OF_MANY) {
        let wrong = format!("must be less than or equal to {MAX_FAILED_INDEXES_OF_MANY} {when}");
        errors.invalid(&failed_path, failed, wrong);
    }
}

/// `valid values: ["In" "NotIn"]`.
fn valid(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

fn one_of(text: &str, supported: &[&str], path: &Path, errors: &mut FieldErrors) {
    match text {
        "" => errors.required(path, valid(supported)),
        text if supported.contains(&text) => {}
        text => errors.not_supported(path, text, supported),
    }
}

/// A mistake in a struct whose value is not worth printing.
fn wrong_as_a_whole(path: &Path, detail: &str, errors: &mut FieldErrors) {
    errors.invalid(path, serde_json::Value::Null, detail);
    if let Some(error) = errors.0.last_mut() {
        error.value = None;
    }
}

fn failure_policy(spec: &batch::JobSpec, policy: &batch::PodFailurePolicy, path: &Path, errors: &mut FieldErrors) {
    let path = path.child("rules");
    if policy.rules.len() > MAX_RULES {
        errors.too_many(&path, policy.rules.len(), MAX_RULES);
    }
    let none = Default::default();
    let pod = spec.template.spec.as_ref().unwrap_or(&none);
    let containers: BTreeSet<&str> =
        pod.containers.iter().chain(pod.init_containers.iter().flatten()).map(|c| c.name.as_str()).collect();
    for (i, rule) in policy.rules.iter().enumerate() {
        let path = path.index(i);
        let action = path.child("action");
        if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
            errors.invalid(&action, "FailIndex", "requires the backoffLimitPerIndex to be set");
        }
        one_of(&rule.action, ACTIONS, &action, errors);
        if let Some(codes) = &rule.on_exit_codes {
            exit_codes(codes, &containers, &path.child("onExitCodes"), errors);
        }
        let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
        let patterns_path = path.child("onPodConditions");
        if patterns.len() > MAX_PATTERNS {
            errors.too_many(&patterns_path, patterns.len(), MAX_PATTERNS);
        }
        for (j, pattern) in patterns.iter().enumerate() {
            let path = patterns_path.index(j);
            check::all(names::qualified_name(&pattern.type_), &path.child("type"), &pattern.type_, errors);
            one_of(pattern.status.as_deref().unwrap_or_default(), STATES, &path.child("status"), errors);
        }
        match (rule.on_exit_codes.is_some(), patterns.is_empty()) {
            (true, false) => {
                let wrong = "specifying both OnExitCodes and OnPodConditions is not supported";
                wrong_as_a_whole(&path, wrong, errors);
            }
            (false, true) => {
                let wrong = "specifying one of OnExitCodes and OnPodConditions is required";
                wrong_as_a_whole(&path, wrong, errors);
            }
            _ => {}
        }
    }
}

fn exit_codes(
    codes: &batch::PodFailurePolicyOnExitCodesRequirement,
    containers: &BTreeSet<&str>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    one_of(&codes.operator, OPERATORS, &path.child("operator"), errors);
    if let Some(name) = codes.container_name.as_deref().filter(|name| !containers.contains(name)) {
        let wrong = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&path.child("containerName"), name, wrong);
    }
    let path = path.child("values");
    if codes.values.is_empty() {
        errors.invalid(&path, check::value(&codes.values), "at least one value is required");
    } else if codes.values.len() > MAX_EXIT_CODES {
        errors.too_many(&path, codes.values.len(), MAX_EXIT_CODES);
    }
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.invalid(&path.index(i), *code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&path.index(i), *code);
        }
    }
    if !codes.values.is_sorted() {
        errors.invalid(&path, check::value(&codes.values), "must be ordered");
    }
}

fn success_policy(spec: &batch::JobSpec, policy: &batch::SuccessPolicy, path: &Path, errors: &mut FieldErrors) {
    let path = path.child("rules");
    if policy.rules.is_empty() {
        errors.required(&path, "at least one rules must be specified when the successPolicy is specified");
    }
    if policy.rules.len() > MAX_RULES {
        errors.too_many(&path, policy.rules.len(), MAX_RULES);
    }
    let completions = spec.completions.unwrap_or(0);
    for (i, rule) in policy.rules.iter().enumerate() {
        let path = path.index(i);
        if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
            errors.required(&path, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut named = 0;
        if let Some(list) = &rule.succeeded_indexes {
            let path = path.child("succeededIndexes");
            if list.len() > MAX_SUCCEEDED_INDEXES {
                errors.too_long(&path, MAX_SUCCEEDED_INDEXES);
            }
            match indexes::count(list, completions) {
                Ok(count) => named = count,
                Err(wrong) => {
                    errors.invalid(&path, list.as_str(), format!("error parsing succeededIndexes: {wrong}"));
                }
            }
        }
        let Some(count) = rule.succeeded_count else { continue };
        let path = path.child("succeededCount");
        check::not_negative(Some(count), &path, errors);
        if count > completions {
            let wrong = format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(&path, count, wrong);
        }
        if rule.succeeded_indexes.is_some() && count > named {
            let wrong = format!(
                "must be less than or equal to {named} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(&path, count, wrong);
        }
    }
}

/// The mistakes in a change.
pub fn update(new: &batch::Job, old: &batch::Job, errors: &mut FieldErrors) {
    let (Some(spec), Some(before)) = (&new.spec, &old.spec) else { return };
    let labels = pod::defaults::template_labels(&before.template);
    if labels.contains_key(UID_LABEL) && labels.contains_key(NAME_LABEL) {
        generated(&new.metadata, spec, true, errors);
    }
    let path = Path::new("spec");
    let completions = path.child("completions");
    if spec.completion_mode.as_deref() != Some(INDEXED) {
        check::immutable(&spec.completions, &before.completions, &completions, errors);
    } else if spec.completions != before.completions && spec.completions.is_some_and(|n| Some(n) != spec.parallelism) {
        let wrong = "can only be modified in tandem with spec.parallelism";
        errors.invalid(&completions, check::value(&spec.completions), wrong);
    }
    check::immutable(&spec.selector, &before.selector, &path.child("selector"), errors);
    let allowed = if may_move(old, before) { moved(&before.template, &spec.template) } else { before.template.clone() };
    check::immutable(&spec.template, &allowed, &path.child("template"), errors);
    check::immutable(&spec.completion_mode, &before.completion_mode, &path.child("completionMode"), errors);
    check::immutable(&spec.pod_failure_policy, &before.pod_failure_policy, &path.child("podFailurePolicy"), errors);
    let per_index = path.child("backoffLimitPerIndex");
    check::immutable(&spec.backoff_limit_per_index, &before.backoff_limit_per_index, &per_index, errors);
    check::immutable(&spec.managed_by, &before.managed_by, &path.child("managedBy"), errors);
    check::immutable(&spec.success_policy, &before.success_policy, &path.child("successPolicy"), errors);
}

/// A suspended Job that has no pods may still be told where and how large they are to be.
fn may_move(old: &batch::Job, spec: &batch::JobSpec) -> bool {
    let status = old.status.clone().unwrap_or_default();
    let rests = status.start_time.is_none() || holds(old, "Suspended");
    spec.suspend == Some(true) && rests && status.active.unwrap_or(0) == 0
}

/// The old template with what may change taken from the new one.
fn moved(old: &PodTemplateSpec, new: &PodTemplateSpec) -> PodTemplateSpec {
    let mut out = old.clone();
    let none = ObjectMeta::default();
    let metadata = new.metadata.as_ref().unwrap_or(&none);
    let own = out.metadata.get_or_insert_default();
    own.labels.clone_from(&metadata.labels);
    own.annotations.clone_from(&metadata.annotations);
    if new.metadata.is_none() && out.metadata.as_ref() == Some(&none) {
        out.metadata = None;
    }
    let (Some(to), Some(from)) = (&mut out.spec, &new.spec) else { return out };
    to.node_selector.clone_from(&from.node_selector);
    to.tolerations.clone_from(&from.tolerations);
    to.scheduling_gates.clone_from(&from.scheduling_gates);
    match (&mut to.affinity, &from.affinity) {
        (Some(affinity), None) => {
            affinity.node_affinity = None;
            if *affinity == Affinity::default() {
                to.affinity = None;
            }
        }
        (None, Some(new)) => {
            to.affinity = Some(Affinity { node_affinity: new.node_affinity.clone(), ..Affinity::default() });
        }
        (Some(affinity), Some(new)) => affinity.node_affinity.clone_from(&new.node_affinity),
        (None, None) => {}
    }
    let sized = |to: &mut [Container], from: &[Container]| {
        for (to, from) in to.iter_mut().zip(from) {
            to.resources.clone_from(&from.resources);
        }
    };
    sized(&mut to.containers, &from.containers);
    if let (Some(to), Some(from)) = (&mut to.init_containers, &from.init_containers) {
        sized(to, from);
    }
    out
}
