//! Pods that end and begin in their own way: stop signals, and pods that restart as a whole.

use std::time::Duration;

use serde_json::{Value, json};
use stdx::clock::Clock as _;

use super::sim::{Sim, UID, two};

fn with_signal(seed: u64) -> Sim {
    let mut spec = two("Always");
    spec["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    Sim::new(seed, spec)
}

fn delete(sim: &Sim) {
    sim.cluster.change(|pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    });
    sim.show();
}

#[tokio::test]
async fn a_container_is_ended_with_the_signal_it_wants() {
    let sim = with_signal(41);
    sim.until("ready", |s| s.is_ready()).await;
    let status = sim.cluster.status();
    let signals: Vec<_> = status.container_statuses.iter().flatten().map(|c| c.stop_signal.clone()).collect();
    assert_eq!(signals, [Some("SIGUSR1".to_owned()), None]);
    let id = sim.runtime.seen(UID).container("a").expect("runs").id.clone();
    sim.runtime.take_log();
    delete(&sim);
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    let log = sim.runtime.take_log();
    assert!(log.contains(&format!("signal {id} 10")), "{log:?}");
    assert!(!log.iter().any(|l| l.starts_with(&format!("stop_container {id}"))), "{log:?}");

    // One that does not listen has its grace, and is killed then.
    let sim = with_signal(42);
    sim.until("ready", |s| s.is_ready()).await;
    sim.runtime.be_deaf();
    let (id, before) = (sim.runtime.seen(UID).container("a").expect("runs").id.clone(), sim.clock.now());
    delete(&sim);
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    assert!(sim.runtime.take_log().contains(&format!("stop_container {id} 0")));
    assert!(sim.clock.now().since(before) >= Duration::from_secs(3));
}

fn restarts_all() -> Value {
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 3,
        "initContainers": [{"name": "i", "image": "x:1"}],
        "containers": [{"name": "a", "image": "x:1"},
            {"name": "b", "image": "x:1", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}]})
}

fn restarting(sim: &Sim) -> Option<String> {
    let status = sim.cluster.status();
    status.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting").map(|c| c.status.clone())
}

#[tokio::test]
async fn a_pod_begins_anew_in_its_sandbox() {
    let sim = Sim::new(43, restarts_all());
    let run = |s: &Sim| s.runs("i").then(|| s.exit("i", 0));
    sim.until("initialized", |s| run(s).is_some()).await;
    sim.until("ready", |s| s.is_ready()).await;
    let before = sim.runtime.seen(UID);
    assert_eq!(restarting(&sim).as_deref(), Some("False"));
    assert!(sim.exit("b", 42));
    // Initialization happens again, in the same sandbox, and every container counts a restart.
    sim.until("it begins anew", |s| s.runs("i") && !s.runs("a") && !s.runs("b")).await;
    assert!(sim.exit("i", 0));
    sim.until("ready again", |s| {
        let status = s.cluster.status();
        let counts: Vec<_> = status.container_statuses.iter().flatten().map(|c| c.restart_count).collect();
        s.is_ready() && counts == [1, 1] && restarting(s).as_deref() == Some("False")
    })
    .await;
    let (seen, status) = (sim.runtime.seen(UID), sim.cluster.status());
    assert_eq!(seen.sandboxes, before.sandboxes);
    assert!(before.containers.iter().all(|c| seen.by_id(&c.id).is_none()), "nothing of before is left");
    let last = |name: &str| {
        let found = status.container_statuses.iter().flatten().find(|c| c.name == name)?;
        found.last_state.as_ref()?.terminated.as_ref()?.reason.clone()
    };
    assert_eq!(last("a").as_deref(), Some("RestartingAllContainers"));
    assert_eq!(status.phase.as_deref(), Some("Running"));

    // Again so soon, it waits before it begins.
    let now = sim.clock.now();
    assert!(sim.exit("b", 42));
    sim.until("it begins anew", |s| s.runs("i")).await;
    assert!(sim.clock.now().since(now) >= Duration::from_secs(10));
    assert!(sim.exit("i", 0));
    sim.until("ready again", |s| s.is_ready()).await;

    // Another end is an end.
    assert!(sim.exit("b", 1) && sim.exit("a", 0));
    sim.until("failed", |s| s.cluster.status().phase.as_deref() == Some("Failed")).await;
}

#[tokio::test]
async fn a_kubelet_that_dies_while_a_pod_begins_anew_goes_on() {
    for call in ["stop_container", "remove_container"] {
        let mut sim = Sim::new(44, restarts_all());
        sim.until("initialized", |s| s.runs("i") && s.exit("i", 0)).await;
        sim.until("ready", |s| s.is_ready()).await;
        let before = sim.runtime.seen(UID);
        sim.runtime.fail(call, crate::runtime::Error::Failed { code: "Unknown", message: "a fault".into() });
        assert!(sim.exit("b", 42));
        sim.until("it is told", |s| restarting(s).as_deref() == Some("True")).await;
        sim.restart();
        sim.runtime.mend(call);
        sim.until("it begins anew", |s| s.runs("i") && s.exit("i", 0)).await;
        sim.until("ready again", |s| s.is_ready()).await;
        let seen = sim.runtime.seen(UID);
        assert!(before.containers.iter().all(|c| seen.by_id(&c.id).is_none()), "nothing of before is left");
    }
}
