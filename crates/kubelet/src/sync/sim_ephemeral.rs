//! Ephemeral containers: they come to a pod that runs, and change nothing about it.

use serde_json::json;

use super::sim::{Sim, UID, two};
use crate::runtime::ContainerState;

#[tokio::test]
async fn it_runs_once_beside_a_pod_that_does_not_notice() {
    let mut sim = Sim::new(11, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    let before = sim.runtime.seen(UID);
    sim.cluster.change(|pod| {
        pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "y:1", "targetContainerName": "a"}]);
    });
    sim.show();
    let told = |s: &Sim, state: &str| {
        let status = s.cluster.status();
        let found = status.ephemeral_container_statuses.iter().flatten().find(|c| c.name == "debug").cloned();
        let found = found.and_then(|c| Some((serde_json::to_value(&c.state).ok()?, c)));
        found.filter(|(value, _)| value.get(state).is_some_and(|v| v.is_object()))
    };
    sim.until("it is told to run", |s| told(s, "running").is_some()).await;
    let (_, status) = told(&sim, "running").expect("told");
    assert!(!status.ready && status.started.is_none() && status.restart_count == 0, "{status:?}");
    let target = before.container("a").expect("runs").id.clone();
    assert_eq!(sim.runtime.target("debug").as_deref(), Some(target.as_str()));
    let is_same = |s: &Sim| ["a", "b"].iter().all(|n| s.runtime.seen(UID).container(n) == before.container(n));
    assert!(is_same(&sim) && sim.is_ready());

    // Its end is told, and it does not start again: not now, not after a restart of the kubelet.
    assert!(sim.exit("debug", 7));
    sim.until("its end is told", |s| told(s, "terminated").is_some()).await;
    sim.restart();
    sim.until("the restarted kubelet has looked", |s| s.has_looked()).await;
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
    let seen = sim.runtime.seen(UID);
    let states: Vec<_> = seen.containers.iter().filter(|c| c.name == "debug").map(|c| c.state).collect();
    assert_eq!(states, [ContainerState::Exited]);
    assert!(is_same(&sim) && sim.is_ready());
    assert_eq!(sim.cluster.status().phase.as_deref(), Some("Running"));
    sim.cluster.change(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    sim.show();
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    assert!(sim.runtime.seen(UID).is_empty());
}

#[tokio::test]
async fn a_target_that_does_not_run_is_named() {
    let sim = Sim::new(12, two("Always"));
    sim.runtime.no_image("x:1");
    sim.cluster.change(|pod| {
        pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "y:1", "targetContainerName": "a"}]);
    });
    sim.show();
    let event = "!Failed [debug] Error: unable to find target container a".to_owned();
    sim.until("told", |s| s.report.events.lock().contains(&event)).await;
    let waits = sim.report.waiting.lock().get(UID).cloned().unwrap_or_default();
    let wait = waits.iter().find(|w| w.code == "ContainerConfig").expect("a Wait");
    assert_eq!(wait.on, "container debug");
    sim.runtime.offer_image("x:1");
    sim.until("both run", |s| s.runs("a") && s.runs("debug")).await;
}

#[tokio::test]
async fn a_pod_is_over_without_it() {
    let sim = Sim::new(13, two("OnFailure"));
    sim.until("ready", |s| s.is_ready()).await;
    sim.cluster.change(|pod| pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "y:1"}]));
    sim.show();
    sim.until("it runs", |s| s.runs("debug")).await;
    assert!(sim.exit("a", 0) && sim.exit("b", 0));
    sim.until("succeeded", |s| s.cluster.status().phase.as_deref() == Some("Succeeded")).await;
    assert!(!sim.runtime.seen(UID).may_run(), "it ended with its pod");
}
