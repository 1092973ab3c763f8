//! Pods that are to end while a start is under way.

use serde_json::json;

use super::sim::{Sim, UID, two};

/// A pod whose runtime is slow at `call` when the seconds pass that it may be active.
async fn overdue_while(call: &'static str) -> Sim {
    let sim = Sim::new(7, two("Never"));
    let door = sim.runtime.hold(call);
    sim.until("the runtime is slow", |s| s.runtime.is_held(call)).await;
    // Only now, so that it passes in just this moment.
    sim.cluster.change(|pod| pod["spec"]["activeDeadlineSeconds"] = json!(5));
    sim.show();
    sim.until("it waits for the runtime", |s| {
        let waits = s.report.waiting.lock().get(UID).cloned().unwrap_or_default();
        waits.iter().any(|w| w.code == "Termination" && w.on == "the container runtime")
    })
    .await;
    assert_ne!(sim.cluster.status().phase.as_deref(), Some("Failed"), "nothing is over while a call is under way");
    door.send_replace(true);
    sim.until("failed", |s| s.cluster.status().phase.as_deref() == Some("Failed")).await;
    sim.until("nothing runs", |s| !s.runtime.seen(UID).may_run()).await;
    assert_eq!(sim.cluster.status().reason.as_deref(), Some("DeadlineExceeded"));
    sim
}

#[tokio::test]
async fn a_deadline_that_passes_during_a_start_tells_what_became_of_it() {
    let sim = overdue_while("start_container").await;
    sim.until("its end is told", |s| {
        let status = s.cluster.status();
        let first = status.container_statuses.iter().flatten().find(|c| c.name == "a");
        let ended = first.and_then(|c| c.state.as_ref()?.terminated.clone());
        ended.is_some_and(|t| t.reason.as_deref() == Some("Error") && t.exit_code == 137)
    })
    .await;
    assert!(sim.runtime.seen(UID).container("b").is_none(), "nothing is begun after the deadline");
    let sim = overdue_while("run_sandbox").await;
    assert!(sim.runtime.seen(UID).containers.is_empty(), "nothing is begun after the deadline");
}

#[tokio::test]
async fn a_pull_does_not_keep_a_deadline_waiting() {
    let mut spec = two("Never");
    spec["activeDeadlineSeconds"] = json!(5);
    let sim = Sim::new(8, spec);
    let _door = sim.runtime.hold("pull");
    sim.until("failed", |s| s.cluster.status().phase.as_deref() == Some("Failed")).await;
    assert!(!sim.runtime.seen(UID).may_run());
}

#[tokio::test]
async fn a_runtime_that_hangs_is_given_up_in_the_end() {
    let mut spec = two("Always");
    spec["terminationGracePeriodSeconds"] = json!(3);
    let sim = Sim::new(9, spec);
    let door = sim.runtime.hold("run_sandbox");
    sim.until("the runtime hangs", |s| s.runtime.is_held("run_sandbox")).await;
    sim.cluster.change(|pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    });
    sim.show();
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    drop(door);
}
