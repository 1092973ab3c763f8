//! What a budget says of itself: how many of its pods are healthy, how many must be, and how many may
//! be taken away. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::{PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::views::CachedPod;

/// A pod whose eviction was allowed is expected to be going after this long.
pub(super) const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
const ALLOWED: &str = "DisruptionAllowed";

/// Whether the number of pods must be asked of those who control them: where the budget speaks of a share,
/// or of what may be missing.
pub(super) fn needs_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// The number, or the share of `total`, rounded up; `None` for what is neither.
fn scaled(amount: &IntOrString, total: i32) -> Option<i32> {
    match amount {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let share = (percent * i64::from(total) + 99).div_euclid(100);
            i32::try_from(share).ok()
        }
    }
}

/// Expected pods and how many of them must be healthy. `scale` is the sum of what the controllers want,
/// where it was asked for.
pub(super) fn wanted(spec: &PodDisruptionBudgetSpec, pods: usize, scale: i32) -> Result<(i32, i32), String> {
    let wrong = |amount: &IntOrString| match amount {
        IntOrString::Int(number) => format!("invalid value {number}"),
        IntOrString::String(text) => {
            format!("invalid value for IntOrString: invalid type: string is not a percentage: {text}")
        }
    };
    if let Some(amount) = &spec.max_unavailable {
        let most = scaled(amount, scale).ok_or_else(|| wrong(amount))?;
        return Ok((scale, (scale - most).max(0)));
    }
    match &spec.min_available {
        Some(IntOrString::Int(least)) => Ok((i32::try_from(pods).unwrap_or(i32::MAX), *least)),
        Some(amount) => Ok((scale, scaled(amount, scale).ok_or_else(|| wrong(amount))?)),
        None => Ok((0, 0)),
    }
}

/// What is to be written, and done later.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub status: PodDisruptionBudgetStatus,
    /// When to look again, because an eviction may turn out not to have happened.
    pub recheck: Option<Timestamp>,
    /// Pods that were to go and did not.
    pub stayed: Vec<String>,
}

/// What is known of a budget.
pub(super) struct Seen<'a> {
    pub pods: &'a [Arc<CachedPod>],
    pub old: &'a PodDisruptionBudgetStatus,
    pub generation: i64,
    /// From [`wanted`].
    pub expected: i32,
    pub desired: i32,
    pub now: Timestamp,
}

pub(super) fn plan(seen: &Seen<'_>) -> Plan {
    let none = BTreeMap::new();
    let noted = seen.old.disrupted_pods.as_ref().unwrap_or(&none);
    let mut disrupted = BTreeMap::new();
    let (mut recheck, mut stayed, mut healthy) = (None, Vec::new(), 0);
    for pod in seen.pods.iter().filter(|pod| !pod.meta.is_deleting()) {
        if let Some(since) = noted.get(&pod.meta.name) {
            let deadline = since.0.saturating_add(DELETION_TIMEOUT).unwrap_or(Timestamp::MAX);
            if deadline >= seen.now {
                recheck = Some(recheck.map_or(deadline, |other: Timestamp| other.min(deadline)));
                disrupted.insert(pod.meta.name.clone(), since.clone());
                continue;
            }
            stayed.push(pod.meta.name.clone());
        }
        if pod.view.is_ready() {
            healthy += 1;
        }
    }
    // A budget without pods allows nothing: the first pods of its application must be counted first.
    let allowed = if seen.expected <= 0 { 0 } else { (healthy - seen.desired).max(0) };
    let mut status = PodDisruptionBudgetStatus {
        conditions: seen.old.conditions.clone(),
        current_healthy: Some(healthy),
        desired_healthy: Some(seen.desired),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(seen.expected),
        observed_generation: Some(seen.generation),
    };
    let (value, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    set_condition(&mut status, value, reason, String::new(), seen.now);
    Plan { status, recheck, stayed }
}

/// What is written when nothing can be told: nothing may be taken away.
pub(super) fn failed(old: &PodDisruptionBudgetStatus, why: String, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = PodDisruptionBudgetStatus { disruptions_allowed: Some(0), ..old.clone() };
    set_condition(&mut status, "False", "SyncFailed", why, now);
    status
}

fn set_condition(status: &mut PodDisruptionBudgetStatus, value: &str, reason: &str, message: String, now: Timestamp) {
    let observed_generation = status.observed_generation;
    let conditions = status.conditions.get_or_insert_default();
    let mut wanted = Condition {
        type_: ALLOWED.into(),
        status: value.into(),
        reason: reason.into(),
        message,
        observed_generation,
        last_transition_time: Time(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == ALLOWED) {
        Some(found) => {
            if found.status == wanted.status {
                wanted.last_transition_time = found.last_transition_time.clone();
            }
            *found = wanted;
        }
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::views::{PodView, cached};

    fn spec(spec: Value) -> PodDisruptionBudgetSpec {
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn how_many_must_be_healthy() {
        for (budget, pods, scale, want) in [
            (json!({"minAvailable": 2}), 3, 0, Ok((3, 2))),
            (json!({"minAvailable": "50%"}), 3, 5, Ok((5, 3))),
            (json!({"maxUnavailable": 1}), 3, 5, Ok((5, 4))),
            (json!({"maxUnavailable": "30%"}), 3, 5, Ok((5, 3))),
            (json!({"maxUnavailable": 9}), 3, 5, Ok((5, 0))),
            (json!({}), 3, 0, Ok((0, 0))),
        ] {
            assert_eq!(wanted(&spec(budget.clone()), pods, scale), want, "{budget}");
        }
        assert!(wanted(&spec(json!({"minAvailable": "x"})), 1, 1).is_err());
    }

    fn pod(name: &str, ready: bool, deleting: bool) -> Arc<CachedPod> {
        let status = if ready { "True" } else { "False" };
        let mut pod = json!({"metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": status}]}});
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(cached::<PodView>(&pod))
    }

    #[test]
    fn healthy_pods_are_counted_without_those_that_go() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
        let at = |text: &str| Time(text.parse().expect("a time"));
        let noted = BTreeMap::from([
            ("b".to_owned(), at("2026-01-01T00:09:00Z")),
            ("c".to_owned(), at("2026-01-01T00:01:00Z")),
        ]);
        let old = PodDisruptionBudgetStatus { disrupted_pods: Some(noted), ..Default::default() };
        let pods = [
            pod("a", true, false),
            pod("b", true, false),
            pod("c", true, false),
            pod("d", true, true),
            pod("e", false, false),
        ];
        let seen = Seen { pods: &pods, old: &old, generation: 4, expected: 5, desired: 1, now };
        let found = plan(&seen);
        let status = &found.status;
        assert_eq!(
            (status.current_healthy, status.disruptions_allowed, status.observed_generation),
            (Some(2), Some(1), Some(4))
        );
        assert_eq!(
            status.disrupted_pods.as_ref().map(|pods| pods.keys().cloned().collect()),
            Some(vec!["b".to_owned()])
        );
        assert_eq!((found.recheck, found.stayed), (Some(at("2026-01-01T00:11:00Z").0), vec!["c".to_owned()]));
        assert_eq!(status.conditions.as_ref().map(|c| c[0].reason.clone()), Some("SufficientPods".into()));
        // The same again is no news.
        let again = plan(&Seen { old: status, now: "2026-01-01T00:10:30Z".parse().expect("a time"), ..seen });
        assert_eq!(again.status, *status);
    }

    #[test]
    fn a_budget_without_pods_allows_nothing() {
        let old = PodDisruptionBudgetStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        let status = plan(&Seen { pods: &[], old: &old, generation: 1, expected: 0, desired: 0, now }).status;
        assert_eq!(status.disruptions_allowed, Some(0));
        let failed = failed(&status, "why".into(), now);
        assert_eq!(failed.conditions.map(|c| (c.len(), c[0].reason.clone())), Some((1, "SyncFailed".into())));
    }
}
