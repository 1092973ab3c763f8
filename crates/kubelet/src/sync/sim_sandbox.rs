//! What a sandbox is made with: its RuntimeClass's handler, and users of its own.

use serde_json::json;

use super::sim::{Sim, UID, two};
use crate::runtime::{Features, Handler};

#[tokio::test]
async fn the_class_names_the_handler_and_may_come_later() {
    let mut spec = two("Always");
    spec["runtimeClassName"] = json!("fast");
    let sim = Sim::new(21, spec);
    let event = "!FailedCreatePodSandBox Failed to create pod sandbox: runtimeclass.node.k8s.io \"fast\" not found";
    sim.until("told", |s| s.report.events.lock().iter().any(|e| e == event)).await;
    sim.cluster.classes.lock().insert("fast".into(), "crun".into());
    sim.until("ready", |s| s.is_ready()).await;
    let calls = sim.runtime.take_log();
    assert!(calls.contains(&"run_sandbox web 0 crun".to_owned()), "{calls:?}");
}

#[tokio::test]
async fn users_of_its_own_where_the_handler_can() {
    let mut spec = two("Always");
    spec["hostUsers"] = json!(false);
    let mut sim = Sim::new(22, spec);
    let why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let event = format!("!FailedCreatePodSandBox Failed to create pod sandbox: {why}");
    sim.until("refused", |s| s.report.events.lock().contains(&event)).await;
    let can = Handler { user_namespaces: true, ..Handler::default() };
    sim.ctx.features.write().clone_from(&Features { handlers: vec![can], ..Features::default() });
    sim.until("ready", |s| s.is_ready()).await;
    let block = sim.ctx.users.of(UID).expect("a block");
    assert_eq!((block.mapping().host_id, block.mapping().length), (65_536, 65_536));
    sim.restart();
    assert_eq!(sim.ctx.users.of(UID), Some(block), "a restarted kubelet knows it");
    sim.cluster.change(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    sim.show();
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    assert_eq!(sim.ctx.users.of(UID), None);
}
