//! `pods/eviction`: disruption budgets, exact under concurrency, with what clients are told.

mod common;

use common::{Answer, Server};
use futures::future::join_all;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn server() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    server.root.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.ok();
    server
}

/// A pod of application `a` on node `n1`; `ready`, or running without being ready.
async fn pod(server: &Server, name: &str, ready: bool) {
    let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.root.post(PODS, &pod).await.ok();
    let binding = json!({"metadata": {"name": name}, "target": {"name": "n1"}});
    server.root.post(&format!("{PODS}/{name}/binding"), &binding).await.ok();
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    server.root.patch("merge", &format!("{PODS}/{name}/status"), &status).await.ok();
}

/// A budget of application `a` whose status says that so many may go.
async fn budget(server: &Server, name: &str, spec: Value, allowed: i64, healthy: i64, desired: i64) {
    let mut budget = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "a"}}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        budget["spec"][key] = value.clone();
    }
    server.root.post(BUDGETS, &budget).await.ok();
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy,
        "desiredHealthy": desired, "expectedPods": healthy}});
    server.root.patch("merge", &format!("{BUDGETS}/{name}/status"), &status).await.ok();
}

async fn evict(server: &Server, name: &str, more: Value) -> Answer {
    let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"}});
    for (key, value) in more.as_object().into_iter().flatten() {
        eviction[key] = value.clone();
    }
    server.root.post(&format!("{PODS}/{name}/eviction"), &eviction).await
}

async fn status_of(server: &Server, name: &str) -> Value {
    server.root.get(&format!("{BUDGETS}/{name}")).await.ok()["status"].clone()
}

#[tokio::test]
async fn a_pod_goes_with_the_reason_noted() {
    let server = server().await;
    pod(&server, "p", true).await;
    let answer = evict(&server, "p", json!({})).await;
    let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    assert_eq!((answer.code, answer.json()), (201, want));
    let pod = server.root.get(&format!("{PODS}/p")).await.ok();
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    let mark = &pod["status"]["conditions"][1];
    assert_eq!(
        (&mark["type"], &mark["status"], &mark["reason"], &mark["message"]),
        (&json!("DisruptionTarget"), &json!("True"), &json!("EvictionByEvictionAPI"), &json!("Eviction API: evicting"))
    );
    // Once more: it is going already.
    assert_eq!(evict(&server, "p", json!({"deleteOptions": {"gracePeriodSeconds": 0}})).await.code, 201);
    assert_eq!(server.root.get(&format!("{PODS}/p")).await.code, 404);
    assert_eq!(evict(&server, "p", json!({})).await.failure(), "404 NotFound: pods \"p\" not found");
}

#[tokio::test]
async fn a_budget_refuses_in_upstreams_words() {
    let server = server().await;
    pod(&server, "p", true).await;
    budget(&server, "b", json!({"minAvailable": 1}), 0, 1, 1).await;
    let refused = evict(&server, "p", json!({})).await;
    let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "reason": "TooManyRequests", "code": 429, "details": {"causes": [{"reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently"}]}});
    assert_eq!((refused.code, refused.json(), refused.header("retry-after")), (429, want, ""));
    // A budget whose controller has not seen its newest form.
    server.root.patch("merge", &format!("{BUDGETS}/b"), &json!({"spec": {"minAvailable": 0}})).await.ok();
    let refused = evict(&server, "p", json!({})).await;
    let status = refused.json();
    assert_eq!((refused.code, refused.header("retry-after")), (429, "10"));
    assert_eq!(status["details"]["retryAfterSeconds"], 10);
    assert_eq!(
        status["details"]["causes"][0]["message"],
        "The disruption budget b is still being processed by the server."
    );
    // Two budgets.
    budget(&server, "c", json!({"minAvailable": 1}), 1, 1, 1).await;
    assert_eq!(
        evict(&server, "p", json!({})).await.failure(),
        "500 : This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    );
    assert!(server.root.get(&format!("{PODS}/p")).await.ok()["metadata"].get("deletionTimestamp").is_none());
}

#[tokio::test]
async fn what_is_asked_is_checked() {
    let server = server().await;
    pod(&server, "p", true).await;
    budget(&server, "b", json!({"minAvailable": 1}), 1, 2, 1).await;
    let url = format!("{PODS}/p/eviction");
    let other = json!({"metadata": {"name": "q"}});
    assert_eq!(
        server.root.post(&url, &other).await.failure(),
        "400 BadRequest: name in URL does not match name in Eviction object"
    );
    let elsewhere = json!({"metadata": {"name": "p", "namespace": "other"}});
    assert_eq!(
        server.root.post(&url, &elsewhere).await.failure(),
        "400 BadRequest: the namespace of the provided object does not match the namespace sent on the request"
    );
    assert_eq!(evict(&server, "p", json!({"deleteOptions": {"preconditions": {"uid": "x"}}})).await.code, 409);
    assert_eq!(
        evict(&server, "p", json!({"deleteOptions": {"preconditions": {"resourceVersion": "1"}}})).await.code,
        409
    );
    assert_eq!(evict(&server, "p", json!({"deleteOptions": {"propagationPolicy": "No"}})).await.code, 422);
    assert_eq!(server.root.get(&url).await.code, 405);
    assert_eq!(evict(&server, "p", json!({"deleteOptions": {"dryRun": ["All"]}})).await.code, 201);
    let dry = json!({"metadata": {"name": "p"}});
    assert_eq!(server.root.post(&format!("{url}?dryRun=All"), &dry).await.code, 201);
    // Nothing of all that left a trace.
    let pod = server.root.get(&format!("{PODS}/p")).await.ok();
    assert!(
        pod["metadata"].get("deletionTimestamp").is_none() && pod["status"]["conditions"].get(1).is_none(),
        "{pod}"
    );
    assert_eq!(status_of(&server, "b").await["disruptionsAllowed"], 1);
    let stranger = server.client("somebody", &[]);
    assert_eq!(stranger.post(&url, &dry).await.code, 403);
    let discovered = server.root.get("/api/v1").await.ok();
    let found = discovered["resources"].as_array().into_iter().flatten().find(|r| r["name"] == "pods/eviction");
    assert_eq!(found.map(|r| (r["group"].clone(), r["kind"].clone())), Some((json!("policy"), json!("Eviction"))));
}

#[tokio::test]
async fn pods_that_are_not_ready_follow_the_policy() {
    for (policy, healthy, desired, code) in
        [("AlwaysAllow", 0, 2, 201), ("IfHealthyBudget", 0, 2, 429), ("IfHealthyBudget", 2, 2, 201)]
    {
        let server = server().await;
        pod(&server, "p", false).await;
        budget(&server, "b", json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": policy}), 0, healthy, desired)
            .await;
        assert_eq!(evict(&server, "p", json!({})).await.code, code, "{policy} {healthy}");
        let status = status_of(&server, "b").await;
        assert!(status.get("disruptedPods").is_none(), "it is not charged: {status}");
    }
}

#[tokio::test]
async fn a_budget_is_exact_when_many_evict_at_once() {
    let server = server().await;
    let names: Vec<String> = (0..20).map(|i| format!("p{i}")).collect();
    for name in &names {
        pod(&server, name, true).await;
    }
    budget(&server, "b", json!({"minAvailable": 13}), 7, 20, 13).await;
    let answers = join_all(names.iter().map(|name| evict(&server, name, json!({})))).await;
    let codes: Vec<u16> = answers.iter().map(|answer| answer.code).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 7, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 429).count(), 13, "{codes:?}");
    let status = status_of(&server, "b").await;
    assert_eq!(status["disruptionsAllowed"], 0);
    assert_eq!(status["disruptedPods"].as_object().map(|pods| pods.len()), Some(7));
    assert_eq!(status["conditions"][0]["reason"], "InsufficientPods");
}
