//! What is true of a node that may have stopped speaking, and which taints say so. Pure.
//!
//! ```text
//!   Lease or status seen to change ──► spoke at (our monotonic clock)
//!   silent for longer than the grace ──► Ready and the pressures become Unknown
//!   Ready Unknown ──► unreachable, Ready False ──► not-ready:
//!                     NoSchedule at once, NoExecute as fast as the zone's state allows
//! ```

use std::time::Duration;

use api::taint;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::views::{NodeCondition, NodeView};

/// The conditions that nobody can vouch for once the node is silent.
const JUDGED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The conditions a silent node gets, as a status patch holds them; empty when all are Unknown already.
pub(super) fn unknown_conditions(node: &NodeView, created: Option<Timestamp>, now: Timestamp) -> Vec<Value> {
    let text = machinery::time::rfc3339;
    let mut out = Vec::new();
    for kind in JUDGED {
        match node.condition(kind) {
            None => out.push(json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": created.map(text), "lastTransitionTime": text(now),
            })),
            Some(condition) if condition.status != "Unknown" => out.push(json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": condition.last_heartbeat_time.map(text), "lastTransitionTime": text(now),
            })),
            Some(_) => {}
        }
    }
    out
}

/// Is the node ready, as far as anybody knows?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Ready,
    NotReady,
    Unreachable,
    /// It has not said anything yet.
    New,
}

pub(super) fn health(node: &NodeView) -> Health {
    match node.condition("Ready").map(|c: &NodeCondition| c.status.as_str()) {
        Some("True") => Health::Ready,
        Some("False") => Health::NotReady,
        Some(_) => Health::Unreachable,
        None => Health::New,
    }
}

/// The taints the node should have; `None` when it has them. `evict` says whether a node that is
/// not ready may get the taints that drive its pods away now.
pub(super) fn taints(node: &NodeView, evict: Evict, now: Timestamp) -> Option<Vec<Taint>> {
    let mut out = node.spec.taints.clone();
    let is = |kind: &str, status: &str| node.condition(kind).is_some_and(|c| c.status == status);
    for (key, wanted) in [
        (taint::NOT_READY, is("Ready", "False")),
        (taint::UNREACHABLE, is("Ready", "Unknown")),
        (taint::MEMORY_PRESSURE, is("MemoryPressure", "True")),
        (taint::DISK_PRESSURE, is("DiskPressure", "True")),
        (taint::PID_PRESSURE, is("PIDPressure", "True")),
        (taint::NETWORK_UNAVAILABLE, is("NetworkUnavailable", "True")),
        (taint::UNSCHEDULABLE, node.spec.unschedulable),
    ] {
        set(&mut out, key, taint::NO_SCHEDULE, wanted, now);
    }
    let has = |key: &str| node.spec.taints.iter().any(|t| t.key == key && t.effect == taint::NO_EXECUTE);
    let evicted = has(taint::NOT_READY) || has(taint::UNREACHABLE);
    let may = match evict {
        Evict::Now => true,
        // One kind of trouble may become the other without waiting in line again.
        Evict::Later => evicted,
        Evict::Never => false,
    };
    set(&mut out, taint::NOT_READY, taint::NO_EXECUTE, may && is("Ready", "False"), now);
    set(&mut out, taint::UNREACHABLE, taint::NO_EXECUTE, may && is("Ready", "Unknown"), now);
    (out != node.spec.taints).then_some(out)
}

fn set(taints: &mut Vec<Taint>, key: &str, effect: &str, wanted: bool, now: Timestamp) {
    let at = taints.iter().position(|t| t.key == key && t.effect == effect);
    match (at, wanted) {
        (None, true) => {
            taints.push(Taint { key: key.into(), effect: effect.into(), value: None, time_added: Some(Time(now)) })
        }
        (Some(at), false) => drop(taints.remove(at)),
        _ => {}
    }
}

/// May a node that is not ready get its NoExecute taint?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evict {
    Now,
    /// Its turn has not come.
    Later,
    /// No node is ready: then it is us who cannot see, and nobody is driven away.
    Never,
}

/// How fast nodes of a zone may be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// One node per this long.
    Every(Duration),
    Stopped,
}

/// The pace of a zone, from how many of its nodes are ready and not, in a cluster of `total`.
pub(super) fn pace(ready: usize, not_ready: usize, total: usize) -> Pace {
    const NORMAL: Pace = Pace::Every(Duration::from_secs(10));
    let is_partly_down = not_ready > 2 && not_ready * 100 >= 55 * (ready + not_ready);
    match (ready, is_partly_down) {
        // The zone alone is down; the rest of the cluster can tell.
        (0, _) => NORMAL,
        (_, false) => NORMAL,
        (_, true) if total > 50 => Pace::Every(Duration::from_secs(100)),
        (_, true) => Pace::Stopped,
    }
}

/// How much longer a node may be silent.
pub(super) fn left(silent: Duration, grace: Duration) -> Duration {
    grace.saturating_sub(silent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;

    fn node(ready: &str, taints: Value) -> NodeView {
        let conditions = if ready.is_empty() {
            json!([])
        } else {
            json!([{"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": "True"}])
        };
        cached::<NodeView>(&json!({"metadata": {}, "spec": {"taints": taints}, "status": {"conditions": conditions}}))
            .view
    }

    fn show(taints: Option<Vec<Taint>>) -> String {
        let Some(taints) = taints else { return "same".into() };
        let one = |t: &Taint| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect);
        taints.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn taints_follow_conditions() {
        let now = Timestamp::UNIX_EPOCH;
        let none = json!([]);
        let down = json!([
            {"key": "mine", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
        ]);
        for (ready, taints_before, evict, after) in [
            ("True", &none, Evict::Now, "disk-pressure:NoSchedule"),
            ("False", &none, Evict::Now, "not-ready:NoSchedule disk-pressure:NoSchedule not-ready:NoExecute"),
            ("False", &none, Evict::Later, "not-ready:NoSchedule disk-pressure:NoSchedule"),
            (
                "Unknown",
                &down,
                Evict::Later,
                "mine:NoSchedule disk-pressure:NoSchedule unreachable:NoSchedule unreachable:NoExecute",
            ),
            ("False", &down, Evict::Later, "same"),
            ("False", &down, Evict::Never, "mine:NoSchedule not-ready:NoSchedule disk-pressure:NoSchedule"),
            ("True", &down, Evict::Now, "mine:NoSchedule disk-pressure:NoSchedule"),
        ] {
            assert_eq!(show(taints(&node(ready, taints_before.clone()), evict, now)), after, "{ready} {evict:?}");
        }
    }

    #[test]
    fn a_silent_node_is_unknown_once() {
        let now = Timestamp::UNIX_EPOCH;
        let reasons = |node: &NodeView| {
            let list = unknown_conditions(node, None, now);
            list.iter().map(|c| format!("{} {}", c["type"], c["reason"]).replace('"', "")).collect::<Vec<_>>()
        };
        assert_eq!(
            reasons(&node("True", json!([]))),
            [
                "Ready NodeStatusUnknown",
                "MemoryPressure NodeStatusNeverUpdated",
                "DiskPressure NodeStatusUnknown",
                "PIDPressure NodeStatusNeverUpdated",
            ]
        );
        let silent = cached::<NodeView>(
            &json!({"metadata": {}, "status": {"conditions": JUDGED.map(|k| json!({"type": k, "status": "Unknown"}))}}),
        );
        assert!(reasons(&silent.view).is_empty());
    }

    #[test]
    fn a_zone_that_is_largely_down_slows_down() {
        assert_eq!(pace(3, 1, 4), Pace::Every(Duration::from_secs(10)));
        assert_eq!(pace(2, 3, 5), Pace::Stopped);
        assert_eq!(pace(40, 60, 100), Pace::Every(Duration::from_secs(100)));
        assert_eq!(pace(1, 2, 3), Pace::Every(Duration::from_secs(10)));
        assert_eq!(pace(0, 5, 10), Pace::Every(Duration::from_secs(10)));
    }
}
