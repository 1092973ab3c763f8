//! What a Deployment says of itself: counts, and the conditions Available, Progressing and
//! ReplicaFailure with upstream's reasons and texts. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::model::{Rollout, Set, condition};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const FAILURE: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const COMPLETE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";

/// Progress that is noted the moment it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Created(String),
    Found(String),
    /// The new ReplicaSet could not be made.
    Failed(String),
}

/// The text of an event and of the condition when a ReplicaSet cannot be made.
pub(super) fn create_error(set: &str, error: impl std::fmt::Display) -> String {
    format!("Failed to create new replica set \"{set}\": {error}")
}

pub(super) fn note_progress(d: &mut Rollout, progress: &Progress, now: Timestamp) {
    if d.deadline.is_none() {
        return;
    }
    let (status, reason, message) = match progress {
        Progress::Created(set) => ("True", "NewReplicaSetCreated", format!("Created new replica set \"{set}\"")),
        Progress::Found(set) => ("True", "FoundNewReplicaSet", format!("Found new replica set \"{set}\"")),
        Progress::Failed(message) => ("False", "ReplicaSetCreateError", message.clone()),
    };
    set(&mut d.status, make(PROGRESSING, status, reason, message, now));
}

/// Notes that the Deployment was paused or resumed, so that the time it rests does not count
/// against its deadline.
pub(super) fn note_pause(d: &mut Rollout, now: Timestamp) {
    if d.deadline.is_none() {
        return;
    }
    let reason = d.condition(PROGRESSING).and_then(|c| c.reason.clone());
    if reason.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let was_paused = reason.as_deref() == Some(PAUSED);
    if d.paused && !was_paused {
        set(&mut d.status, make(PROGRESSING, "Unknown", PAUSED, "Deployment is paused".into(), now));
    } else if !d.paused && was_paused {
        set(&mut d.status, make(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed".into(), now));
    }
}

fn make(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(kind.into()),
        status: Some(status.into()),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Puts a condition in, unless status and reason are what they were; the time of the last
/// transition moves only with the status.
fn set(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    let kind = new.type_.clone().unwrap_or_default();
    if let Some(old) = condition(status, &kind) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.last_transition_time.clone_from(&old.last_transition_time);
        }
    }
    remove(status, &kind);
    status.conditions.get_or_insert_default().push(new);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|c| c.type_.as_deref() != Some(kind));
    }
}

/// The counts, and whether enough replicas are available.
pub(super) fn count(d: &Rollout, all: &[&Set], new: Option<&Set>, now: Timestamp) -> DeploymentStatus {
    let sum = |of: fn(&Set) -> i32| all.iter().map(|s| of(s)).sum::<i32>();
    let available = sum(|s| s.status.available_replicas);
    let terminating: Option<i32> = all.iter().map(|s| s.status.terminating_replicas).sum();
    let mut status = DeploymentStatus {
        observed_generation: Some(d.generation),
        replicas: Some(sum(|s| s.status.replicas)),
        updated_replicas: Some(new.map_or(0, |s| s.status.replicas)),
        ready_replicas: Some(sum(|s| s.status.ready_replicas)),
        available_replicas: Some(available),
        unavailable_replicas: Some((sum(|s| s.replicas) - available).max(0)),
        terminating_replicas: terminating,
        collision_count: d.status.collision_count,
        conditions: d.status.conditions.clone(),
    };
    let enough = available >= d.replicas - d.max_unavailable();
    let (word, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set(&mut status, make(AVAILABLE, word, reason, message.into(), now));
    status
}

/// Is the rollout done?
pub(super) fn is_complete(d: &Rollout, status: &DeploymentStatus) -> bool {
    let all = Some(d.replicas);
    status.updated_replicas == all
        && status.replicas == all
        && status.available_replicas == all
        && status.observed_generation.unwrap_or(0) >= d.generation
}

fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |value: Option<i32>| value.unwrap_or(0);
    let outdated = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

fn is_timed_out(d: &Rollout, status: &DeploymentStatus, now: Timestamp) -> bool {
    let (Some(deadline), Some(condition)) = (d.deadline, condition(status, PROGRESSING)) else { return false };
    match condition.reason.as_deref() {
        Some(COMPLETE) => false,
        Some(TIMED_OUT) => true,
        _ => condition.last_update_time.as_ref().is_some_and(|t| ends(t.0, deadline) < now),
    }
}

fn ends(from: Timestamp, seconds: i32) -> Timestamp {
    from.saturating_add(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MAX)
}

/// The whole status of a rollout: counts with the judgement of its progress.
pub(super) fn judge(
    d: &Rollout,
    mut status: DeploymentStatus,
    all: &[&Set],
    new: Option<&Set>,
    now: Timestamp,
) -> DeploymentStatus {
    let current = d.condition(PROGRESSING).cloned();
    if d.deadline.is_none() {
        remove(&mut status, PROGRESSING);
    }
    let reason = current.as_ref().and_then(|c| c.reason.as_deref());
    let was_complete = status.replicas == status.updated_replicas && reason == Some(COMPLETE);
    if d.deadline.is_some() && !was_complete {
        let what = new.map_or_else(|| format!("Deployment \"{}\"", d.name), |s| format!("ReplicaSet \"{}\"", s.name));
        if is_complete(d, &status) {
            let message = format!("{what} has successfully progressed.");
            set(&mut status, make(PROGRESSING, "True", COMPLETE, message, now));
        } else if is_progressing(&d.status, &status) {
            let mut made = make(PROGRESSING, "True", "ReplicaSetUpdated", format!("{what} is progressing."), now);
            if let Some(current) = current {
                if current.status.as_deref() == Some("True") {
                    made.last_transition_time = current.last_transition_time;
                }
                // Each step forward counts, also when reason and status stay.
                remove(&mut status, PROGRESSING);
            }
            set(&mut status, made);
        } else if is_timed_out(d, &status, now) {
            set(&mut status, make(PROGRESSING, "False", TIMED_OUT, format!("{what} has timed out progressing."), now));
        }
    }
    let failure = |s: &&Set| s.status.conditions.iter().find(|c| c.type_.as_deref() == Some(FAILURE)).cloned();
    match new.as_ref().and_then(failure).or_else(|| all.iter().find_map(failure)) {
        Some(found) => set(
            &mut status,
            DeploymentCondition {
                type_: found.type_,
                status: found.status,
                reason: found.reason,
                message: found.message,
                last_update_time: found.last_transition_time.clone(),
                last_transition_time: found.last_transition_time,
            },
        ),
        None => remove(&mut status, FAILURE),
    }
    status
}

/// When the deadline passes, if one runs.
pub(super) fn check_at(d: &Rollout, status: &DeploymentStatus) -> Option<Timestamp> {
    let condition = condition(status, PROGRESSING)?;
    let deadline = d.deadline?;
    if is_complete(d, status) || condition.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    // A second more, because the deadline must have passed.
    condition.last_update_time.as_ref().map(|t| ends(t.0, deadline.saturating_add(1)))
}

/// Would writing the status change anything?
pub(super) fn is_news(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let plain = |s: &DeploymentStatus| {
        let n = |value: Option<i32>| value.unwrap_or(0);
        let counts =
            [s.replicas, s.updated_replicas, s.ready_replicas, s.available_replicas, s.unavailable_replicas].map(n);
        (
            counts,
            s.terminating_replicas,
            s.collision_count,
            s.observed_generation,
            s.conditions.clone().unwrap_or_default(),
        )
    };
    plain(old) != plain(new)
}
