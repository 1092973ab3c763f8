//! What a ReplicaSet does about its pods, and what it says about them. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use machinery::labels::Labels;

use crate::views::{CachedPod, is_active, is_terminating};

/// Pods created or deleted in one pass at most.
pub(super) const BURST: usize = 500;
const FAILURE: &str = "ReplicaFailure";

/// What to do about the number of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Create that many, in growing batches.
    Create(usize),
    /// Delete these, by index into the pods.
    Delete(Vec<usize>),
}

/// Decides what to do about the number of pods. `related` counts the active pods per node of every
/// ReplicaSet with the same owner: where many run together, one is spared least.
pub(super) fn plan(pods: &[Arc<CachedPod>], wanted: i32, related: &HashMap<String, usize>, now: Timestamp) -> Action {
    let active: Vec<usize> = (0..pods.len()).filter(|i| is_active(&pods[*i])).collect();
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() < wanted {
        return Action::Create((wanted - active.len()).min(BURST));
    }
    if active.len() == wanted {
        return Action::Nothing;
    }
    let surplus = (active.len() - wanted).min(BURST);
    let mut doomed = active;
    if wanted > 0 {
        let rank = |i: &usize| Rank::of(&pods[*i], related, now);
        doomed.sort_by_cached_key(rank);
    }
    doomed.truncate(surplus);
    Action::Delete(doomed)
}

/// Which pod goes first: the smallest. Fields in order of weight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Unassigned before assigned.
    is_assigned: bool,
    /// Pending, Unknown, Running.
    phase: u8,
    /// Not ready before ready.
    is_ready: bool,
    /// Cheap before dear.
    cost: i32,
    /// From crowded nodes first.
    spread: std::cmp::Reverse<usize>,
    /// Ready for a shorter time first, by powers of two.
    ready: Age,
    /// More restarts first.
    restarts: std::cmp::Reverse<i32>,
    /// Younger first, by powers of two.
    created: Age,
    uid: String,
}

impl Rank {
    fn of(pod: &CachedPod, related: &HashMap<String, usize>, now: Timestamp) -> Self {
        let view = &pod.view;
        let restarts = |list: &[crate::views::ContainerStatus]| list.iter().map(|c| c.restart_count).max().unwrap_or(0);
        let is_ready = view.is_ready();
        Self {
            is_assigned: !view.spec.node_name.is_empty(),
            phase: match view.status.phase.as_str() {
                "Pending" | "" => 0,
                "Unknown" => 1,
                _ => 2,
            },
            is_ready,
            cost: view.deletion_cost(),
            spread: std::cmp::Reverse(related.get(&view.spec.node_name).copied().unwrap_or(0)),
            ready: if is_ready { age(view.ready().and_then(|c| c.last_transition_time), now) } else { Age::Unknown },
            restarts: std::cmp::Reverse(
                restarts(&view.status.container_statuses).max(restarts(&view.status.init_container_statuses)),
            ),
            created: age(pod.meta.creation_timestamp, now),
            uid: pod.meta.uid.clone(),
        }
    }
}

/// How old something is, roughly: ages within a power of two are alike, so that scaling down does
/// not always take the newest failure domain. What has no time is younger than all.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Unknown,
    Log2(u32),
}

fn age(since: Option<Timestamp>, now: Timestamp) -> Age {
    let Some(since) = since else { return Age::Unknown };
    let nanos = now.as_nanosecond().saturating_sub(since.as_nanosecond());
    Age::Log2(u128::try_from(nanos).unwrap_or(0).max(1).ilog2())
}

/// Batches of creations: 1, 2, 4, … so that a failure that concerns all pods is met by few requests.
pub(super) fn batches(total: usize) -> Vec<usize> {
    let (mut left, mut size, mut out) = (total, 1, Vec::new());
    while left > 0 {
        let batch = size.min(left);
        out.push(batch);
        left -= batch;
        size *= 2;
    }
    out
}

/// How the pass over the pods went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    #[default]
    Fine,
    /// There are too few pods, and this is why.
    CreateFailed(String),
    /// There are too many.
    DeleteFailed(String),
}

/// What is true of the pods now.
pub(super) struct Seen<'a> {
    pub pods: &'a [Arc<CachedPod>],
    pub template_labels: &'a Labels,
    pub min_ready_seconds: i32,
    pub generation: i64,
    pub old: &'a ReplicaSetStatus,
    pub outcome: &'a Outcome,
    pub now: Timestamp,
}

/// The status, and when a pod will next become available by itself.
pub(super) fn status(seen: &Seen) -> (ReplicaSetStatus, Option<Timestamp>) {
    let active: Vec<_> = seen.pods.iter().filter(|p| is_active(p)).collect();
    let count = |test: &dyn Fn(&CachedPod) -> bool| {
        i32::try_from(active.iter().filter(|p| test(p)).count()).unwrap_or(i32::MAX)
    };
    let labelled = |p: &CachedPod| seen.template_labels.iter().all(|(k, v)| p.meta.labels.get(k) == Some(v));
    let available_at = |p: &CachedPod| p.view.available_at(seen.min_ready_seconds);
    let next = active.iter().filter_map(|p| available_at(p)).filter(|at| *at > seen.now).min();
    let terminating = seen.pods.iter().filter(|p| is_terminating(p)).count();
    let status = ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: Some(count(&labelled)),
        ready_replicas: Some(count(&|p| p.view.is_ready())),
        available_replicas: Some(count(&|p| available_at(p).is_some_and(|at| at <= seen.now))),
        terminating_replicas: Some(i32::try_from(terminating).unwrap_or(i32::MAX)),
        observed_generation: Some(seen.generation),
        conditions: conditions(seen),
    };
    (status, next)
}

fn conditions(seen: &Seen) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = seen.old.conditions.clone().unwrap_or_default();
    let has_failed = conditions.iter().any(|c| c.type_.as_deref() == Some(FAILURE));
    let failure = match seen.outcome {
        Outcome::Fine => None,
        Outcome::CreateFailed(message) => Some(("FailedCreate", message)),
        Outcome::DeleteFailed(message) => Some(("FailedDelete", message)),
    };
    match failure {
        // The first failure stays until it is over.
        Some((reason, message)) if !has_failed => conditions.push(ReplicaSetCondition {
            type_: Some(FAILURE.into()),
            status: Some("True".into()),
            reason: Some(reason.into()),
            message: Some(message.clone()),
            last_transition_time: Some(Time(seen.now)),
        }),
        Some(_) => {}
        None => conditions.retain(|c| c.type_.as_deref() != Some(FAILURE)),
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// Would writing the new status change anything?
pub(super) fn is_news(old: &ReplicaSetStatus, new: &ReplicaSetStatus) -> bool {
    let plain = |s: &ReplicaSetStatus| {
        let zero = |n: Option<i32>| n.unwrap_or(0);
        let counts = (s.replicas, zero(s.fully_labeled_replicas), zero(s.ready_replicas), zero(s.available_replicas));
        (counts, s.terminating_replicas, s.observed_generation, s.conditions.clone().unwrap_or_default())
    };
    plain(old) != plain(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;
    use serde_json::json;

    fn now() -> Timestamp {
        Timestamp::from_second(100_000).expect("in range")
    }

    /// `name node phase ready-for-seconds cost restarts age-in-seconds`; `-` is nothing.
    fn pod(line: &str) -> Arc<CachedPod> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, node, phase, ready, cost, restarts, age] = words[..] else { panic!("{line}") };
        let ago = |s: &str| {
            let seconds: i64 = s.parse().expect("seconds");
            machinery::time::rfc3339(Timestamp::from_second(100_000 - seconds).expect("in range"))
        };
        let conditions = if ready == "-" {
            json!([])
        } else {
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(ready)}])
        };
        Arc::new(cached(&json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": ago(age),
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "spec": {"nodeName": if node == "-" { "" } else { node }},
            "status": {"phase": phase, "conditions": conditions,
                "containerStatuses": [{"restartCount": restarts.parse::<i32>().expect("a number")}]},
        })))
    }

    fn doomed(pods: &[&str], wanted: i32) -> Vec<String> {
        let pods: Vec<_> = pods.iter().map(|l| pod(l)).collect();
        let mut related = HashMap::new();
        for pod in &pods {
            *related.entry(pod.view.spec.node_name.clone()).or_default() += 1;
        }
        match plan(&pods, wanted, &related, now()) {
            Action::Delete(which) => which.iter().map(|i| pods[*i].meta.name.clone()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_order_of_scaling_down() {
        for (what, pods, wanted, gone) in [
            ("unassigned first", vec!["a n1 Running 50 0 0 60", "b - Pending - 0 0 60"], 1, vec!["b"]),
            ("pending before running", vec!["a n1 Running - 0 0 60", "b n2 Pending - 0 0 60"], 1, vec!["b"]),
            ("not ready first", vec!["a n1 Running 50 0 0 60", "b n2 Running - 0 0 60"], 1, vec!["b"]),
            ("cheap first", vec!["a n1 Running 50 10 0 60", "b n2 Running 50 -5 0 60"], 1, vec!["b"]),
            (
                "crowded nodes first",
                vec!["a n1 Running 50 0 0 60", "b n2 Running 50 0 0 60", "c n2 Running 50 0 0 60"],
                2,
                vec!["b"],
            ),
            (
                "ready for a shorter time first",
                vec!["a n1 Running 500 0 0 600", "b n2 Running 5 0 0 600"],
                1,
                vec!["b"],
            ),
            ("but only by powers of two", vec!["b n1 Running 500 0 0 600", "a n2 Running 490 0 0 600"], 1, vec!["a"]),
            ("more restarts first", vec!["a n1 Running 50 0 0 60", "b n2 Running 50 0 3 60"], 1, vec!["b"]),
            ("younger first", vec!["a n1 Running 5 0 0 600", "b n2 Running 5 0 0 6"], 1, vec!["b"]),
        ] {
            assert_eq!(doomed(&pods, wanted), gone, "{what}");
        }
    }

    #[test]
    fn creations_are_bounded_and_grow() {
        let none: Vec<Arc<CachedPod>> = Vec::new();
        assert_eq!(plan(&none, 3, &HashMap::new(), now()), Action::Create(3));
        assert_eq!(plan(&none, 5000, &HashMap::new(), now()), Action::Create(BURST));
        assert_eq!(plan(&none, 0, &HashMap::new(), now()), Action::Nothing);
        assert_eq!(batches(10), [1, 2, 4, 3]);
        assert_eq!(batches(0), Vec::<usize>::new());
    }

    #[test]
    fn finished_and_deleted_pods_do_not_count() {
        let mut going = json!({"metadata": {"name": "g", "uid": "g", "deletionTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": "Running"}});
        let pods = vec![pod("a n1 Succeeded - 0 0 60"), Arc::new(cached(&going)), pod("b n1 Running 60 0 0 60")];
        assert_eq!(plan(&pods, 2, &HashMap::new(), now()), Action::Create(1));
        going["status"]["phase"] = json!("Failed");
        let seen = |min_ready_seconds, outcome: &Outcome, old: &ReplicaSetStatus| {
            let labels = Labels::default();
            status(&Seen {
                pods: &pods,
                template_labels: &labels,
                min_ready_seconds,
                generation: 7,
                old,
                outcome,
                now: now(),
            })
        };
        let old = ReplicaSetStatus::default();
        let (new, next) = seen(0, &Outcome::Fine, &old);
        assert_eq!(
            (new.replicas, new.ready_replicas, new.available_replicas, new.terminating_replicas),
            (1, Some(1), Some(1), Some(1))
        );
        assert_eq!((new.observed_generation, next), (Some(7), None));
        let (new, next) = seen(100, &Outcome::Fine, &old);
        assert_eq!((new.ready_replicas, new.available_replicas), (Some(1), Some(0)));
        assert_eq!(next, Some(Timestamp::from_second(100_040).expect("in range")));
        let (failed, _) = seen(0, &Outcome::CreateFailed("quota".into()), &old);
        let condition = failed.conditions.as_ref().and_then(|c| c.first()).expect("a condition");
        assert_eq!((condition.reason.as_deref(), condition.message.as_deref()), (Some("FailedCreate"), Some("quota")));
        let (again, _) = seen(0, &Outcome::CreateFailed("other".into()), &failed);
        assert!(!is_news(&failed, &again));
        let (over, _) = seen(0, &Outcome::Fine, &failed);
        assert_eq!(over.conditions, None);
        assert!(is_news(&failed, &over));
    }
}
