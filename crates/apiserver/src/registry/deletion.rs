//! What a delete does to an object: remove it, mark it and wait, or nothing more; pure.
//!
//! ```text
//!  no finalizers, no grace ─► Remove
//!  finalizers              ─► Mark (deletionTimestamp, grace 0) ─► … removed when the last finalizer goes
//!  grace 30 (pods)         ─► Mark (deletionTimestamp = now + 30) ─► kubelet deletes with grace 0 ─► Remove
//!  marked already          ─► Pending, or Mark again with a shorter grace or other finalizers
//! ```

use std::time::Duration;

use jiff::Timestamp;
use kinds::shape::Propagation;
use kinds::{AnyKind, AnyShape};
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;

use crate::verbs::options::{DeleteOptions, Propagate};

/// The garbage collector orphans dependents while this is there.
pub const ORPHAN: &str = "orphan";
/// The garbage collector deletes dependents first while this is there.
pub const FOREGROUND: &str = "foregroundDeletion";

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The object goes now.
    Remove,
    /// The object is written like this and stays.
    Mark(Value),
    /// Deletion has begun already and nothing changes.
    Pending,
}

/// Checks what the client demanded of the object it deletes.
///
/// # Errors
/// 409 when the object is another one, or another version of it.
pub fn check(options: &DeleteOptions, object: &Value, shape: &AnyShape<'_>) -> status::Result<()> {
    let name = meta::name(object);
    // Here clients are told the kind where elsewhere they are told the resource.
    let what = GroupResource::new(shape.group, shape.kind);
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != meta::uid(object)) {
        let found = meta::uid(object);
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). \
             The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(&what, name, why));
    }
    if let Some(revision) = options.revision.as_deref().filter(|rv| *rv != meta::resource_version(object)) {
        let found = meta::resource_version(object);
        let why = format!(
            "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record \
             ({found}). The object might have been modified"
        );
        return Err(Status::conflict(&what, name, why));
    }
    Ok(())
}

/// What deleting `object` does.
pub fn plan(kind: &dyn AnyKind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Step {
    let mut marked = object.clone();
    let finalizers = finalizers(kind, object, options);
    let held = !finalizers.is_empty() || kind.is_held(object);
    meta::set_finalizers(&mut marked, &finalizers.iter().map(String::as_str).collect::<Vec<_>>());
    let grace = kind.grace(object, options.grace);
    let Some(begun) = meta::deletion_timestamp(object) else {
        let stay = grace.unwrap_or(0).max(0);
        if stay == 0 && !held {
            return Step::Remove;
        }
        mark(&mut marked, now.saturating_add(seconds(stay)).unwrap_or(now), stay);
        let generation = meta::generation(object);
        if generation > 0 {
            meta::set_generation(&mut marked, generation + 1);
        }
        kind.begin_deletion(&mut marked);
        return Step::Mark(marked);
    };
    let left = match meta::deletion_grace_period_seconds(object) {
        Some(left) if left < 0 => 1,
        left => left.unwrap_or(0),
    };
    if left > 0 && grace.is_some() {
        // Only a shorter grace is heard once deletion has begun.
        let Some(wanted) = options.grace.filter(|wanted| *wanted < left) else { return Step::Pending };
        if wanted == 0 && !held {
            return Step::Remove;
        }
        let at = begun.saturating_sub(seconds(left)).unwrap_or(begun);
        let at = at.saturating_add(seconds(wanted)).unwrap_or(at);
        // What is over already still ends in an orderly way, unless the client wants it to end at once.
        if at < now {
            mark(&mut marked, now, wanted.min(1))
        } else {
            mark(&mut marked, at, wanted)
        }
        return Step::Mark(marked);
    }
    if !held {
        return Step::Remove;
    }
    // What holds it may change: the garbage collector's finalizers follow the last wish.
    mark(&mut marked, begun.min(now), 0);
    if marked == *object { Step::Pending } else { Step::Mark(marked) }
}

fn mark(object: &mut Value, at: Timestamp, grace: i64) {
    meta::set_deletion_timestamp(object, Some(at));
    meta::set_deletion_grace_period_seconds(object, Some(grace));
}

/// True when the update that led to `object` let go of the last thing that held a deleted object.
pub fn is_released(kind: &dyn AnyKind, object: &Value) -> bool {
    let grace = meta::deletion_grace_period_seconds(object).unwrap_or(0);
    meta::is_deleting(object) && grace == 0 && !holds(kind, object)
}

fn holds(kind: &dyn AnyKind, object: &Value) -> bool {
    !meta::finalizers(object).is_empty() || kind.is_held(object)
}

fn seconds(n: i64) -> Duration {
    Duration::from_secs(u64::try_from(n).unwrap_or(0))
}

/// The finalizers with those of the garbage collector as the propagation policy wants them.
fn finalizers(kind: &dyn AnyKind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let old = meta::finalizers(object);
    if kind.shape().propagation == Propagation::Uncollected {
        return old.into_iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).map(str::to_owned).collect();
    }
    let propagate = options.propagate.unwrap_or_else(|| {
        if old.contains(&ORPHAN) {
            Propagate::Orphan
        } else if old.contains(&FOREGROUND) {
            Propagate::Foreground
        } else if kind.shape().propagation == Propagation::Orphan {
            Propagate::Orphan
        } else {
            Propagate::Background
        }
    });
    let mut new: Vec<String> =
        old.into_iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).map(str::to_owned).collect();
    match propagate {
        Propagate::Orphan => new.push(ORPHAN.into()),
        Propagate::Foreground => new.push(FOREGROUND.into()),
        Propagate::Background => {}
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What deleting does, in a line: `remove`, `pending`, or `mark <grace> <finalizers>`.
    fn check(plural: &str, object: &Value, options: &DeleteOptions) -> String {
        let kind = kinds::find("", "v1", plural).expect("a kind");
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("time");
        match plan(kind, object, options, now) {
            Step::Remove => "remove".into(),
            Step::Pending => "pending".into(),
            Step::Mark(marked) => {
                let at = meta::deletion_timestamp(&marked).map_or(0, |at| at.as_second() - now.as_second());
                let grace = meta::deletion_grace_period_seconds(&marked).unwrap_or(-1);
                let finalizers = meta::finalizers(&marked).join(",");
                format!("mark at={at} grace={grace} generation={} {finalizers}", meta::generation(&marked))
            }
        }
    }

    fn grace(seconds: i64) -> DeleteOptions {
        DeleteOptions { grace: Some(seconds), ..DeleteOptions::default() }
    }

    fn propagate(how: Propagate) -> DeleteOptions {
        DeleteOptions { propagate: Some(how), ..DeleteOptions::default() }
    }

    #[test]
    fn what_a_delete_does() {
        let plain = || DeleteOptions::default();
        let map = json!({"metadata": {}});
        let held = json!({"metadata": {"finalizers": ["a/b"], "generation": 3}});
        let going = json!({"metadata": {"finalizers": ["a/b"], "deletionTimestamp": "2029-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 0}});
        let gone = json!({"metadata": {"deletionTimestamp": "2029-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}});
        let pod =
            json!({"metadata": {"generation": 1}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}});
        let waiting = json!({"metadata": {}, "spec": {"terminationGracePeriodSeconds": 30}});
        let ended = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
        let stopping = json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:20Z",
            "deletionGracePeriodSeconds": 30}, "spec": {"nodeName": "n"}});
        let mut stopping_held = stopping.clone();
        stopping_held["metadata"]["finalizers"] = json!(["a/b"]);
        let mut orphaning = going.clone();
        orphaning["metadata"]["finalizers"] = json!([ORPHAN]);
        let space = json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}});
        for (plural, object, options, want) in [
            ("configmaps", &map, plain(), "remove"),
            ("configmaps", &map, grace(30), "remove"),
            ("configmaps", &held, plain(), "mark at=0 grace=0 generation=4 a/b"),
            ("configmaps", &going, plain(), "pending"),
            ("configmaps", &gone, plain(), "remove"),
            ("configmaps", &map, propagate(Propagate::Foreground), "mark at=0 grace=0 generation=0 foregroundDeletion"),
            ("configmaps", &map, propagate(Propagate::Orphan), "mark at=0 grace=0 generation=0 orphan"),
            ("configmaps", &held, propagate(Propagate::Orphan), "mark at=0 grace=0 generation=4 a/b,orphan"),
            ("pods", &pod, plain(), "mark at=30 grace=30 generation=2 "),
            ("pods", &pod, grace(5), "mark at=5 grace=5 generation=2 "),
            ("pods", &pod, grace(0), "remove"),
            ("pods", &pod, propagate(Propagate::Foreground), "mark at=30 grace=30 generation=2 foregroundDeletion"),
            ("pods", &waiting, plain(), "remove"),
            ("pods", &ended, plain(), "remove"),
            ("pods", &stopping, plain(), "pending"),
            ("pods", &stopping, grace(60), "pending"),
            ("pods", &stopping, grace(10), "mark at=0 grace=10 generation=0 "),
            ("pods", &stopping, grace(0), "remove"),
            ("pods", &stopping_held, grace(0), "mark at=0 grace=0 generation=0 a/b"),
            ("pods", &stopping, grace(5), "mark at=0 grace=1 generation=0 "),
            (
                "configmaps",
                &going,
                propagate(Propagate::Foreground),
                "mark at=-31536000 grace=0 generation=0 a/b,foregroundDeletion",
            ),
            ("configmaps", &orphaning, propagate(Propagate::Background), "remove"),
            ("events", &map, propagate(Propagate::Foreground), "remove"),
            ("namespaces", &space, plain(), "mark at=0 grace=0 generation=0 "),
            ("namespaces", &map, plain(), "remove"),
        ] {
            assert_eq!(check(plural, object, &options), want, "{plural} {object} {options:?}");
        }
    }

    #[test]
    fn the_last_hold_lets_go() {
        let map = kinds::find("", "v1", "configmaps").expect("a kind");
        let space = kinds::find("", "v1", "namespaces").expect("a kind");
        let going = json!({"deletionTimestamp": "2029-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        let mut stopping = going.clone();
        stopping["deletionGracePeriodSeconds"] = json!(30);
        assert!(is_released(map, &json!({"metadata": going})));
        assert!(!is_released(map, &json!({"metadata": stopping})));
        assert!(!is_released(map, &json!({"metadata": {}})));
        assert!(!is_released(space, &json!({"metadata": going, "spec": {"finalizers": ["kubernetes"]}})));
        assert!(is_released(space, &json!({"metadata": going, "spec": {}})));
    }
}
