//! Pods that are resized while they run.

use serde_json::{Value, json};

use super::sim::{Sim, UID, two};
use crate::admit::Place;

fn sized(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

/// A pod of two, the second of which restarts for memory, on a node of 4 cores.
async fn running(seed: u64) -> Sim {
    let mut spec = two("Always");
    spec["containers"][0]["resources"] = sized("1", "64Mi");
    spec["containers"][1]["resources"] = sized("1", "64Mi");
    spec["containers"][1]["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let sim = Sim::new(seed, spec);
    place(&sim, "4");
    sim.until("ready", |s| s.is_ready()).await;
    sim.runtime.take_log();
    sim
}

fn place(sim: &Sim, cpu: &str) {
    let allocatable = [("cpu", cpu), ("memory", "1Gi"), ("pods", "10")];
    let allocatable = allocatable.iter().map(|(k, v)| ((*k).to_owned(), v.parse().expect("a quantity"))).collect();
    sim.ctx.allocations.set_place(Place { allocatable, ..Place::default() });
}

fn resize(sim: &Sim, container: usize, resources: Value) {
    sim.cluster.change(|pod| {
        pod["spec"]["containers"][container]["resources"] = resources;
        let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
        pod["metadata"]["generation"] = json!(generation + 1);
    });
    sim.show();
}

/// Type, reason and message of the conditions about a resize.
fn said(sim: &Sim) -> Vec<String> {
    let status = sim.cluster.status();
    let all = status.conditions.iter().flatten().filter(|c| c.type_.starts_with("PodResize") && c.status == "True");
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    all.map(|c| format!("{} {}: {}", c.type_, text(&c.reason), text(&c.message))).collect()
}

/// What the status says that a container has: cpu limit, memory limit, allocated cpu.
fn has(sim: &Sim, name: &str) -> [String; 3] {
    let status = sim.cluster.status();
    let found = status.container_statuses.iter().flatten().find(|c| c.name == name).cloned().unwrap_or_default();
    let limits = found.resources.and_then(|r| r.limits).unwrap_or_default();
    let allocated = found.allocated_resources.unwrap_or_default();
    [limits.get("cpu"), limits.get("memory"), allocated.get("cpu")].map(|q| q.map(|q| q.0.clone()).unwrap_or_default())
}

fn events(sim: &Sim) -> Vec<String> {
    let all = sim.report.events.lock().clone();
    let resizes = all.iter().filter_map(|e| e.split_once(" Pod resize ")).map(|(reason, _)| reason.to_owned());
    resizes.collect()
}

#[tokio::test]
async fn a_container_has_more_without_noticing() {
    let sim = running(31).await;
    let before = sim.runtime.seen(UID);
    resize(&sim, 0, sized("2", "64Mi"));
    sim.until("told", |s| has(s, "a") == ["2", "64Mi", "2"] && said(s).is_empty()).await;
    let id = before.container("a").expect("runs").id.clone();
    let log = sim.runtime.take_log();
    let updates: Vec<_> = log.iter().filter(|l| l.starts_with("update_")).cloned().collect();
    let whole = "update_sandbox 3072 300000 128".to_owned();
    assert_eq!(updates, [format!("update_container {id} 2048 200000 64"), whole], "the pod as a whole is told last");
    let ids = |s: &Sim| s.runtime.seen(UID).containers.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&sim), before.containers.iter().map(|c| c.id.clone()).collect::<Vec<_>>());
    assert_eq!(events(&sim), ["ResizeStarted", "ResizeCompleted"]);
}

#[tokio::test]
async fn a_policy_restarts_the_container_it_is_about() {
    let sim = running(32).await;
    let before = sim.runtime.seen(UID);
    resize(&sim, 1, sized("1", "128Mi"));
    sim.until("told", |s| has(s, "b") == ["1", "128Mi", "1"] && said(s).is_empty() && s.is_ready()).await;
    let seen = sim.runtime.seen(UID);
    assert_eq!(seen.container("a"), before.container("a"));
    assert_ne!(seen.container("b").map(|c| &c.id), before.container("b").map(|c| &c.id));
    let limit = seen.container("b").and_then(|c| c.resources.clone()).map(|r| r.memory_limit_in_bytes >> 20);
    assert_eq!(limit, Some(128));
    let killing = "Killing [b] Container b resize requires restart".to_owned();
    assert!(sim.report.events.lock().contains(&killing));
}

#[tokio::test]
async fn what_does_not_fit_waits_or_never_comes() {
    let mut sim = running(33).await;
    resize(&sim, 0, sized("8", "64Mi"));
    let infeasible =
        "PodResizePending Infeasible: Node didn't have enough capacity: cpu, requested: 9000, capacity: 4000";
    sim.until("infeasible", |s| said(s) == [infeasible]).await;
    assert_eq!(has(&sim, "a"), ["1", "64Mi", "1"]);

    // The spec's wish is a wish still after a restart, and a node that grows can grant it.
    sim.restart();
    place(&sim, "4");
    sim.until("the restarted kubelet has looked", |s| s.has_looked()).await;
    sim.until("infeasible still", |s| said(s) == [infeasible]).await;
    assert_eq!(sim.runtime.take_log().iter().filter(|l| l.starts_with("update_")).count(), 0);
    place(&sim, "16");
    sim.show();
    sim.until("granted", |s| has(s, "a") == ["8", "64Mi", "8"] && said(s).is_empty()).await;
    assert_eq!(events(&sim), ["!ResizeInfeasible", "ResizeStarted", "ResizeCompleted"]);
}

#[tokio::test]
async fn room_that_another_pod_leaves_is_taken() {
    let sim = running(34).await;
    let other = json!({"metadata": {"name": "other", "namespace": "default", "uid": "u-2"},
        "spec": {"containers": [{"name": "c", "resources": sized("1500m", "1Mi")}]}});
    let other = crate::pod::tests::pod(other);
    sim.ctx.allocations.admit(&other, |_, _, _| Ok(Vec::new())).expect("admitted");
    resize(&sim, 0, sized("2", "64Mi"));
    let deferred = "PodResizePending Deferred: Node didn't have enough resource: cpu, requested: 3000, used: 1500, \
                    capacity: 4000";
    sim.until("deferred", |s| said(s) == [deferred]).await;
    sim.ctx.allocations.forget("u-2");
    sim.until("granted", |s| has(s, "a") == ["2", "64Mi", "2"] && said(s).is_empty()).await;
}

#[tokio::test]
async fn memory_in_use_is_not_taken_away() {
    let sim = running(35).await;
    sim.runtime.use_memory(48 << 20);
    resize(&sim, 0, sized("1", "32Mi"));
    let error = "PodResizeInProgress Error: cannot decrease memory limits: attempting to set container \"a\" memory \
                 limit (33554432) below current usage (50331648)";
    sim.until("told", |s| said(s) == [error]).await;
    assert_eq!(has(&sim, "a"), ["1", "64Mi", "1"], "it has what it had");
    assert!(sim.is_ready());
    sim.runtime.use_memory(1 << 20);
    sim.until("done", |s| has(s, "a") == ["1", "32Mi", "1"] && said(s).is_empty()).await;
    assert_eq!(events(&sim), ["ResizeStarted", "!ResizeError", "ResizeCompleted"]);
}

#[tokio::test]
async fn a_kubelet_that_dies_between_goes_on() {
    let mut sim = running(36).await;
    let fault = crate::runtime::Error::Failed { code: "Unknown", message: "a fault".into() };
    sim.runtime.fail("update_container", fault);
    resize(&sim, 0, sized("2", "64Mi"));
    sim.until("under way", |s| said(s) == ["PodResizeInProgress Error: a fault"]).await;
    sim.restart();
    place(&sim, "4");
    sim.until("the restarted kubelet has looked", |s| s.has_looked()).await;
    assert_eq!(has(&sim, "a"), ["1", "64Mi", "2"], "what it has and what it is to have");
    sim.runtime.mend("update_container");
    sim.until("done", |s| has(s, "a") == ["2", "64Mi", "2"] && said(s).is_empty()).await;
    assert!(sim.runtime.take_log().iter().all(|l| !l.starts_with("create_") && !l.starts_with("stop_container")));
}
