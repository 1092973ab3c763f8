//! Explanations of pods in the usual broken states.

use std::sync::Arc;

use client::fake::Fake;
use client::{Client, Resource};
use serde_json::{Value, json};
use stdx::Rng;
use stdx::clock::ManualClock;

use super::*;

const NOW: &str = "2026-07-01T12:10:00Z";

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

fn seen(pod: Value, waits: Vec<Value>, events: Vec<Value>) -> Seen {
    let events = events
        .into_iter()
        .map(|e| Happened::from(serde_json::from_value::<k8s_openapi::api::core::v1::Event>(e).expect("an event")));
    Seen {
        namespace: "default".into(),
        name: "web-1".into(),
        pod: if pod.is_null() { None } else { Some(serde_json::from_value(pod).expect("a pod")) },
        owners: vec![
            Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "r".into() },
            Owner { kind: "Deployment".into(), name: "web".into(), uid: "d".into() },
        ],
        waits: waits.into_iter().map(|w| serde_json::from_value(w).expect("a wait")).collect(),
        history: events.collect(),
    }
}

fn event(kind: &str, name: &str, at: &str, reason: &str, message: &str) -> Value {
    json!({"metadata": {}, "involvedObject": {"kind": kind, "name": name}, "type": if reason.starts_with("Failed") {"Warning"} else {"Normal"},
        "lastTimestamp": at, "count": if reason.starts_with("Failed") {3} else {1}, "reason": reason, "message": message})
}

#[test]
fn a_pod_without_a_node() {
    let pod = json!({"metadata": {"name": "web-1", "creationTimestamp": "2026-07-01T12:00:00Z"}, "status": {"phase": "Pending"}});
    let wait = json!({"layer": "scheduler", "code": "Unschedulable", "on": "NodeResourcesFit on 1 of 1 nodes",
        "object": {"kind": "Pod", "name": "web-1"}, "since": "2026-07-01T12:00:01Z",
        "text": "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."});
    let events = vec![
        event(
            "Deployment",
            "web",
            "2026-07-01T12:00:00Z",
            "ScalingReplicaSet",
            "Scaled up replica set web from 0 to 1",
        ),
        event(
            "Pod",
            "web-1",
            "2026-07-01T12:05:00Z",
            "FailedScheduling",
            "0/1 nodes are available: 1 Insufficient cpu.",
        ),
        event("ReplicaSet", "web", "2026-07-01T12:00:00Z", "SuccessfulCreate", "Created pod: web-1"),
    ];
    assert_eq!(
        render(&seen(pod, vec![wait], events), now()),
        "\
pod default/web-1 is Pending, 10m old, on no node
of ReplicaSet web, of Deployment web

waiting
  scheduler: Unschedulable, on NodeResourcesFit on 1 of 1 nodes for 9m59s
      0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption
      is not helpful for scheduling.

history
  10m   created
  10m   Deployment web: ScalingReplicaSet Scaled up replica set web from 0 to 1
  10m   ReplicaSet web: SuccessfulCreate Created pod: web-1
   5m ! FailedScheduling (×3) 0/1 nodes are available: 1 Insufficient cpu.
"
    );
}

#[test]
fn a_pod_that_does_well() {
    let pod = json!({"metadata": {"name": "web-1", "creationTimestamp": "2026-07-01T12:00:00Z"}, "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-07-01T12:00:01Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-07-01T12:00:03Z"}]}});
    let mut seen = seen(pod, vec![], vec![]);
    seen.owners.clear();
    assert_eq!(
        render(&seen, now()),
        "\
pod default/web-1 is Running and ready, 10m old, on node n

it waits for nothing

history
    10m   created
  9m59s   has a node n
  9m57s   ready
"
    );
}

#[test]
fn what_happened_in_one_second_stands_in_the_order_it_was_written() {
    let pod = json!({"metadata": {"name": "web-1", "creationTimestamp": "2026-07-01T12:00:00Z"}, "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-07-01T12:00:00Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-07-01T12:00:00Z"}]}});
    // The scheduler counts in fractions of a second, the kubelet in whole ones.
    let mut scheduled = event("Pod", "web-1", "2026-07-01T12:00:00.7Z", "Scheduled", "assigned to n");
    let mut started = event("Pod", "web-1", "2026-07-01T12:00:00Z", "Started", "Container started");
    scheduled["metadata"]["resourceVersion"] = json!("9");
    started["metadata"]["resourceVersion"] = json!("10");
    let text = render(&seen(pod, vec![], vec![started, scheduled]), now());
    let (_, history) = text.split_once("history\n").expect("a history");
    let lines: Vec<&str> = history.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        ["10m   created", "10m   Scheduled assigned to n", "10m   Started Container started", "10m   ready"]
    );
}

#[test]
fn a_pod_that_nobody_has_looked_at() {
    let pod = json!({"metadata": {"name": "web-1"}, "spec": {"schedulerName": "mine", "containers": []},
        "status": {"phase": "Pending"}});
    let mut seen = seen(pod, vec![], vec![]);
    seen.owners.clear();
    assert_eq!(
        render(&seen, now()),
        "\
pod default/web-1 is Pending, on no node

no layer says what it waits for; its status says
  no node
      no scheduler named mine has bound it or said why it cannot
"
    );
}

#[test]
fn without_waits_the_status_is_asked() {
    let pod = json!({"metadata": {"name": "web-1"}, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [c]"}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}}}]}});
    let mut seen = seen(pod, vec![], vec![]);
    seen.owners.clear();
    assert_eq!(
        render(&seen, now()),
        "\
pod default/web-1 is Pending, on node n

no layer says what it waits for; its status says
  Ready ContainersNotReady
      containers with unready status: [c]
  container c ImagePullBackOff
      Back-off pulling image \"x\"
"
    );
    let gone = render(&Seen { pod: None, ..seen }, now());
    assert_eq!(gone, "pod default/web-1 is gone\n");
}

#[tokio::test]
async fn it_is_gathered_through_the_api() {
    let clock = Arc::new(ManualClock::new(now()));
    let resources = vec![
        Resource::of::<k8s_openapi::api::core::v1::Pod>(),
        Resource::of::<k8s_openapi::api::core::v1::Event>(),
        Resource::of::<k8s_openapi::api::apps::v1::ReplicaSet>(),
        Resource::of::<k8s_openapi::api::apps::v1::Deployment>(),
        client::waits::resource(),
    ];
    let fake = Fake::new(resources.clone(), clock, Rng::seeded(1));
    let client = Client::new(fake.handler(), "test");
    let create = async |at: usize, object: Value| {
        client.dynamic(resources[at].clone()).namespace("default").create(&object).await.expect("created")
    };
    let owner = |kind: &str, object: &Value| json!([{"apiVersion": "apps/v1", "kind": kind, "name": machinery::meta::name(object), "uid": machinery::meta::uid(object), "controller": true}]);
    let deployment = create(3, json!({"metadata": {"name": "web"}})).await;
    let set =
        create(2, json!({"metadata": {"name": "web-x", "ownerReferences": owner("Deployment", &deployment)}})).await;
    let pod = create(0, json!({"metadata": {"name": "web-x-1", "ownerReferences": owner("ReplicaSet", &set)}, "spec": {"containers": []}})).await;
    let event = |name: &str, of: &Value, kind: &str, message: &str| {
        json!({"metadata": {"name": name}, "message": message, "reason": "R", "type": "Normal",
            "involvedObject": {"kind": kind, "name": machinery::meta::name(of), "uid": machinery::meta::uid(of)}})
    };
    create(1, event("e1", &set, "ReplicaSet", "Created pod: web-x-1")).await;
    create(1, event("e2", &set, "ReplicaSet", "Created pod: web-x-2")).await;
    create(1, event("e3", &pod, "Pod", "Pulled")).await;
    let object = json!({"kind": "Pod", "namespace": "default", "name": "web-x-1", "uid": machinery::meta::uid(&pod)});
    create(
        4,
        json!({"metadata": {"name": "w"}, "layer": "kubelet", "code": "ImagePull", "on": "nginx", "object": object}),
    )
    .await;
    create(4, json!({"metadata": {"name": "v"}, "layer": "kubelet", "object": {"uid": "other"}})).await;

    let seen = gather(&client, "default", "web-x-1").await.expect("gathered");
    let owners: Vec<&str> = seen.owners.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(owners, ["web-x", "web"]);
    assert_eq!(seen.waits.len(), 1);
    assert!(seen.history.iter().any(|h| h.message == "Created pod: web-x-1"));
    assert!(!seen.history.iter().any(|h| h.kind == "ReplicaSet" && h.message == "Created pod: web-x-2"));
    assert!(matches!(why(&client, "other", "pod", "none", now()).await, Err(Error::Unknown { .. })));
}

#[tokio::test]
async fn what_has_pods_below_it_is_explained_by_any_name() {
    let clock = Arc::new(ManualClock::new(now()));
    let resources = vec![
        Resource::of::<k8s_openapi::api::core::v1::Pod>(),
        Resource::of::<k8s_openapi::api::core::v1::Event>(),
        Resource::of::<k8s_openapi::api::core::v1::Service>(),
        Resource::of::<k8s_openapi::api::core::v1::Node>(),
        Resource::of::<k8s_openapi::api::apps::v1::ReplicaSet>(),
        Resource::of::<k8s_openapi::api::apps::v1::Deployment>(),
        client::waits::resource(),
    ];
    let fake = Fake::new(resources.clone(), clock, Rng::seeded(1));
    let client = Client::new(fake.handler(), "test");
    let create = async |at: usize, object: Value| {
        let api = client.dynamic(resources[at].clone());
        let api = if resources[at].namespaced { api.namespace("default") } else { api };
        api.create(&object).await.expect("created")
    };
    let owner = |kind: &str, object: &Value| json!([{"apiVersion": "apps/v1", "kind": kind, "name": machinery::meta::name(object), "uid": machinery::meta::uid(object), "controller": true}]);
    let labels = json!({"app": "web"});
    let deployment = create(
        5,
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}},
        "status": {"conditions": [{"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable",
            "message": "Deployment does not have minimum availability."}]}}),
    )
    .await;
    fake.change("deployments.apps", "default", "web", |d| {
        d["status"] = json!({"conditions": [{"type": "Available", "status": "False",
            "reason": "MinimumReplicasUnavailable", "message": "Deployment does not have minimum availability."}]});
    });
    let set =
        create(4, json!({"metadata": {"name": "web-x", "ownerReferences": owner("Deployment", &deployment)}})).await;
    let mut pods = Vec::new();
    for (name, of) in [("web-x-1", Some(&set)), ("web-x-2", Some(&set)), ("web-y-1", None)] {
        let owners = of.map(|set| owner("ReplicaSet", set)).unwrap_or_else(|| json!([]));
        let pod = json!({"metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"containers": [], "nodeName": "n"}});
        pods.push(create(0, pod).await);
        fake.change("pods", "default", name, |p| {
            let ready = if name == "web-x-1" { "True" } else { "False" };
            p["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        });
    }
    let node = create(3, json!({"metadata": {"name": "n"}})).await;
    let service =
        create(2, json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "selector": labels}})).await;
    let wait = |name: &str, kind: &str, of: &Value, layer: &str, code: &str, text: &str| {
        json!({"metadata": {"name": name}, "layer": layer, "code": code, "on": "it", "text": text,
            "object": {"kind": kind, "namespace": "default", "name": machinery::meta::name(of), "uid": machinery::meta::uid(of)}})
    };
    create(6, wait("a", "Pod", &pods[1], "kubelet", "Probe", "not yet")).await;
    create(6, wait("b", "Service", &service, "controllers", "NoLoadBalancer", "no provider")).await;
    create(6, wait("c", "Pod", &pods[2], "kubelet", "ImagePull", "no image")).await;
    let event = json!({"metadata": {"name": "e"}, "message": "Scaled up", "reason": "ScalingReplicaSet", "type": "Normal",
        "involvedObject": {"kind": "Deployment", "name": "web", "uid": machinery::meta::uid(&deployment)}});
    create(1, event).await;
    let why = async |kind: &str, name: &str| {
        let text = super::why(&client, "default", kind, name, now()).await?;
        // Ages are those of the server's clock.
        Ok::<_, Error>(text.replace(", 0s old", ""))
    };

    let expected = "\
deployment default/web, 1 of 2 pods are well

its status says
  Available is False: MinimumReplicasUnavailable
      Deployment does not have minimum availability.

pod default/web-x-2 is Running, not ready, on node n

waiting
  kubelet: Probe, on it
      not yet

history
  0s   ScalingReplicaSet Scaled up
";
    for kind in ["deployment", "deployments", "Deployment", "deployment.apps"] {
        assert_eq!(why(kind, "web").await.expect("explained"), expected, "{kind}");
    }
    let text = why("replicaset", "web-x").await.expect("explained");
    assert!(text.starts_with("replicaset default/web-x, 1 of 2 pods are well\n"), "{text}");
    let text = why("service", "web").await.expect("explained");
    assert!(
        text.starts_with("service default/web, 1 of 3 pods are well\n\nwaiting\n  controllers: NoLoadBalancer"),
        "{text}"
    );
    assert!(text.contains("ImagePull") && text.contains("Probe"), "{text}");
    let text = why("node", "n").await.expect("explained");
    assert!(text.starts_with("node n, "), "{text}");
    assert!(matches!(why("deployment", "none").await, Err(Error::Absent { .. })));
    assert!(matches!(why("nonesuch", "x").await, Err(Error::NoKind(_))));
    let _ = node;
}
