//! The mistakes in a change of a Job's status: whoever looks after the Job, it ends once and its
//! numbers fit together. What was wrong before and did not change is let through.

use std::collections::BTreeSet;

use api::types::batch::v1 as batch;
use machinery::field::{FieldErrors, Path};

use super::{INDEXED, holds, indexes, says};
use crate::check;

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const FAILURE_TARGET: &str = "FailureTarget";
const SUCCESS: &str = "SuccessCriteriaMet";
const SUSPENDED: &str = "Suspended";

fn is_finished(job: &batch::Job) -> bool {
    holds(job, COMPLETE) || holds(job, FAILED)
}

/// Conditions are told by their sentence, without the whole list.
fn conditions(detail: &str, errors: &mut FieldErrors) {
    let path = Path::new("status").child("conditions");
    errors.invalid_unprinted(&path, detail);
}

/// The mistakes in the new status, after the old one.
pub fn change(new: &batch::Job, old: &batch::Job, errors: &mut FieldErrors) {
    let (none, no_spec) = (batch::JobStatus::default(), batch::JobSpec::default());
    let status = new.status.as_ref().unwrap_or(&none);
    let before = old.status.as_ref().unwrap_or(&none);
    let spec = new.spec.as_ref().unwrap_or(&no_spec);
    let path = Path::new("status");
    for (number, name) in [
        (status.active, "active"),
        (status.succeeded, "succeeded"),
        (status.failed, "failed"),
        (status.ready, "ready"),
        (status.terminating, "terminating"),
    ] {
        check::not_negative(number, &path.child(name), errors);
    }
    uncounted(status, &path, errors);
    let differs = |kind: &str| holds(new, kind) != holds(old, kind);
    let ended = is_finished(new) != is_finished(old);
    let started = status.start_time != before.start_time;
    let completed_at = status.completion_time != before.completion_time;
    if (differs(COMPLETE) || differs(FAILED)) && holds(new, COMPLETE) && holds(new, FAILED) {
        conditions("cannot set Complete=True and Failed=true conditions", errors);
    }
    if (differs(COMPLETE) || differs(FAILURE_TARGET)) && holds(new, COMPLETE) && holds(new, FAILURE_TARGET) {
        conditions("cannot set Complete=True and FailureTarget=true conditions", errors);
    }
    let completion = path.child("completionTime");
    if differs(COMPLETE) || completed_at {
        match (&status.completion_time, holds(new, COMPLETE)) {
            (Some(at), false) => {
                let wrong = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(&completion, check::value(at), wrong);
            }
            (None, true) => errors.required(&completion, "completionTime is required for Complete jobs"),
            _ => {}
        }
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time) {
        if (started || completed_at) && end.0 < start.0 {
            errors.invalid(&completion, check::value(end), "must be equal to or after `startTime`");
        }
    }
    let failed_indexes = status.failed_indexes != before.failed_indexes;
    if (differs(FAILED) || failed_indexes) && holds(new, FAILED) && !holds(new, FAILURE_TARGET) {
        conditions("cannot set Failed=True condition without the FailureTarget=true condition", errors);
    }
    if (differs(COMPLETE) || differs(SUCCESS)) && holds(new, COMPLETE) && !holds(new, SUCCESS) {
        conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition", errors);
    }
    if is_finished(new) {
        finished(status, before, ended, errors);
        let nothing_to_do = spec.suspend == Some(true) && spec.completions == Some(0);
        if (ended || started) && status.start_time.is_none() && !nothing_to_do {
            errors.required(&path.child("startTime"), "startTime is required for finished job");
        }
    }
    index_lists(spec, status, before, errors);
    if let Some(ready) = status.ready.filter(|ready| *ready > status.active.unwrap_or(0)) {
        if status.ready != before.ready || status.active != before.active {
            errors.invalid(&path.child("ready"), ready, "cannot set more ready pods than active");
        }
    }
    if holds(new, SUCCESS) && holds(new, FAILED) {
        conditions("cannot set SuccessCriteriaMet=True and Failed=true conditions", errors);
    }
    if holds(new, SUCCESS) && holds(new, FAILURE_TARGET) {
        conditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions", errors);
    }
    if spec.success_policy.is_some() && !holds(new, SUCCESS) && holds(new, COMPLETE) {
        let wrong = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        conditions(wrong, errors);
    }
    transitions(new, old, errors);
}

fn uncounted(status: &batch::JobStatus, path: &Path, errors: &mut FieldErrors) {
    let Some(uncounted) = &status.uncounted_terminated_pods else { return };
    let path = path.child("uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for (list, name) in [(&uncounted.succeeded, "succeeded"), (&uncounted.failed, "failed")] {
        for (i, uid) in list.iter().flatten().enumerate() {
            let path = path.child(name).index(i);
            if uid.is_empty() {
                errors.invalid(&path, "", "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(&path, uid.as_str());
            }
        }
    }
}

/// A Job that has ended has no pods left to wait for.
fn finished(status: &batch::JobStatus, before: &batch::JobStatus, ended: bool, errors: &mut FieldErrors) {
    let path = Path::new("status");
    let active = status.active.filter(|n| *n > 0 && (ended || status.active != before.active));
    if let Some(active) = active {
        errors.invalid(&path.child("active"), active, "active>0 is invalid for finished job");
    }
    if ended || status.uncounted_terminated_pods != before.uncounted_terminated_pods {
        let left = status
            .uncounted_terminated_pods
            .as_ref()
            .filter(|uncounted| uncounted.succeeded.iter().chain(&uncounted.failed).any(|list| !list.is_empty()));
        if let Some(uncounted) = left {
            let wrong = "must be empty for finished job";
            errors.invalid(&path.child("uncountedTerminatedPods"), check::value(uncounted), wrong);
        }
    }
    let terminating = status.terminating.filter(|n| *n > 0 && (ended || status.terminating != before.terminating));
    if let Some(terminating) = terminating {
        errors.invalid(&path.child("terminating"), terminating, "terminating>0 is invalid for finished job");
    }
}

fn index_lists(spec: &batch::JobSpec, status: &batch::JobStatus, before: &batch::JobStatus, errors: &mut FieldErrors) {
    let path = Path::new("status");
    let (completed_path, failed_path) = (path.child("completedIndexes"), path.child("failedIndexes"));
    let completed = status.completed_indexes.as_deref().unwrap_or_default();
    let failed = status.failed_indexes.as_deref();
    let completed_differ = completed != before.completed_indexes.as_deref().unwrap_or_default();
    let failed_differ = failed != before.failed_indexes.as_deref();
    if let Some(completions) = spec.completions {
        if let Some(wrong) = indexes::count(completed, completions).err().filter(|_| completed_differ) {
            errors.invalid(&completed_path, completed, format!("error parsing completedIndexes: {wrong}"));
        }
        if let Some(failed) = failed.filter(|_| failed_differ && spec.backoff_limit_per_index.is_some()) {
            if let Err(wrong) = indexes::count(failed, completions) {
                errors.invalid(&failed_path, failed, format!("error parsing failedIndexes: {wrong}"));
            }
        }
    }
    if completed_differ && !completed.is_empty() && spec.completion_mode.as_deref() != Some(INDEXED) {
        let wrong = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.invalid(&completed_path, completed, wrong);
    }
    let Some(failed) = failed else { return };
    if failed_differ && spec.backoff_limit_per_index.is_none() {
        let wrong = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.invalid(&failed_path, failed, wrong);
    }
    let overlap = spec.completions.and_then(|completions| indexes::overlap(completed, failed, completions));
    if let Some(index) = overlap.filter(|_| failed_differ || completed_differ) {
        let wrong = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.invalid(&failed_path, failed, wrong);
    }
}

/// What is decided stays decided, and what is counted stays counted.
fn transitions(new: &batch::Job, old: &batch::Job, errors: &mut FieldErrors) {
    let (none, no_spec) = (batch::JobStatus::default(), batch::JobSpec::default());
    let (status, before) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let spec = new.spec.as_ref().unwrap_or(&no_spec);
    let path = Path::new("status");
    for kind in [FAILED, COMPLETE, FAILURE_TARGET] {
        if holds(old, kind) && !holds(new, kind) {
            conditions(&format!("cannot disable the terminal {kind}=True condition"), errors);
        }
    }
    let less = |new: Option<i32>, old: Option<i32>| new.unwrap_or(0) < old.unwrap_or(0);
    if less(status.failed, before.failed) {
        errors.invalid(&path.child("failed"), status.failed.unwrap_or(0), "cannot decrease the failed counter");
    }
    // An indexed Job whose parallelism is its completions may shrink, and counts fewer then.
    let may_shrink = spec.completion_mode.as_deref() == Some(INDEXED) && spec.completions == spec.parallelism;
    if !may_shrink && less(status.succeeded, before.succeeded) {
        let wrong = "cannot decrease the succeeded counter";
        errors.invalid(&path.child("succeeded"), status.succeeded.unwrap_or(0), wrong);
    }
    if let (Some(at), Some(_)) = (&status.completion_time, &before.completion_time) {
        if status.completion_time != before.completion_time {
            errors.invalid(&path.child("completionTime"), check::value(at), check::IMMUTABLE);
        }
    }
    let moved = before.start_time.is_some() && before.start_time != status.start_time;
    let resumed = holds(old, SUSPENDED) && says(new, SUSPENDED, "False");
    if moved && spec.suspend != Some(true) && !resumed {
        let wrong = "field is immutable for unsuspended job once set";
        errors.invalid(&path.child("startTime"), check::value(&status.start_time), wrong);
    }
    if holds(old, SUCCESS) && !holds(new, SUCCESS) {
        conditions("cannot disable the SuccessCriteriaMet=True condition", errors);
    }
    if holds(old, COMPLETE) && !holds(old, SUCCESS) && holds(new, SUCCESS) {
        let wrong = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        conditions(wrong, errors);
    }
}
