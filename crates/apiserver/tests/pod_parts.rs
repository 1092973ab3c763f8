//! `pods/ephemeralcontainers` and `pods/resize`: what a running pod lets in, and through which door.

mod common;

use common::Server;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn server() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}},
            {"name": "r", "image": "i", "resources": {"requests": {"memory": "64Mi"}}}],
        "initContainers": [{"name": "i", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}});
    server.root.post(PODS, &pod).await.ok();
    server
}

fn debugger(name: &str) -> Value {
    json!({"spec": {"ephemeralContainers": [{"name": name, "image": "busybox", "targetContainerName": "c"}]}})
}

#[tokio::test]
async fn ephemeral_containers_come_and_stay() {
    let server = server().await;
    let url = format!("{PODS}/p/ephemeralcontainers");
    let root = &server.root;
    let made = root.patch("strategic-merge", &url, &debugger("d1")).await.ok();
    let container = &made["spec"]["ephemeralContainers"][0];
    assert_eq!(
        (&container["terminationMessagePath"], &made["metadata"]["generation"]),
        (&json!("/dev/termination-log"), &json!(2))
    );
    let two = root.patch("strategic-merge", &url, &debugger("d2")).await.ok();
    assert_eq!(two["spec"]["ephemeralContainers"].as_array().map(Vec::len), Some(2));
    let read = root.get(&url).await.ok();
    assert_eq!(read["metadata"]["generation"], 3);
    // Nothing else comes in by this door.
    let mut other = read.clone();
    other["metadata"]["labels"] = json!({"a": "b"});
    other["spec"]["containers"][0]["image"] = json!("other");
    let written = root.put(&url, &other).await.ok();
    assert_eq!(written["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"], "nothing changed");
    let mut gone = read.clone();
    gone["spec"]["ephemeralContainers"] = json!([read["spec"]["ephemeralContainers"][0]]);
    let refused = root.put(&url, &gone).await.failure();
    assert!(refused.contains("spec.ephemeralContainers: Forbidden: existing ephemeral containers \"d"), "{refused}");
    assert!(refused.contains("may not be removed"), "{refused}");
    let mut changed = read.clone();
    changed["spec"]["ephemeralContainers"][0]["image"] = json!("other");
    assert!(root.put(&url, &changed).await.failure().contains("may not be changed"));
    for (container, want) in [
        (json!({"name": "c", "image": "i"}), "name: Duplicate value: \"c\""),
        (json!({"name": "e", "image": "i", "targetContainerName": "x"}), "targetContainerName: Not found: \"x\""),
        (
            json!({"name": "e", "image": "i", "ports": [{"containerPort": 80}]}),
            "ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (json!({"name": "e"}), "image: Required value"),
    ] {
        let refused = root.patch("strategic-merge", &url, &json!({"spec": {"ephemeralContainers": [container]}})).await;
        assert_eq!(refused.code, 422);
        assert!(refused.failure().contains(want), "{}", refused.failure());
    }
    // The pod itself can still be changed by its own door, which does not let them in.
    root.patch("merge", &format!("{PODS}/p"), &json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    let through = json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c", "image": "i"}],
        "ephemeralContainers": [{"name": "e", "image": "i"}]}});
    assert!(
        root.post(PODS, &through)
            .await
            .failure()
            .contains("spec.ephemeralContainers: Forbidden: cannot be set on create")
    );
    assert_eq!(root.delete(&url).await.code, 405);
}

#[tokio::test]
async fn amounts_of_cpu_and_memory_move() {
    let server = server().await;
    let url = format!("{PODS}/p/resize");
    let root = &server.root;
    let of = |resources: Value| json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    let resized = root.patch("strategic-merge", &url, &of(json!({"requests": {"cpu": "200m"}}))).await.ok();
    assert_eq!(
        (&resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], &resized["metadata"]["generation"]),
        (&json!("200m"), &json!(2))
    );
    for (patch, want) in [
        (
            json!({"spec": {"containers": [{"name": "r", "resources": {"requests": {"memory": null}}}]}}),
            "spec.containers[1].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            of(json!({"limits": {"cpu": null}})),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (of(json!({"requests": {"cpu": "2"}})), "must be less than or equal to cpu limit of 1"),
        (
            of(json!({"limits": {"ephemeral-storage": "1Gi"}})),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (json!({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "5m"}}}]}}), ""),
        (
            json!({"spec": {"containers": [{"name": "d", "image": "i"}]}}),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (of(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}})), ""),
    ] {
        let answer = root.patch("strategic-merge", &format!("{url}?dryRun=All"), &patch).await;
        if want.is_empty() {
            answer.ok();
        } else {
            assert!(answer.failure().contains(want), "{want}: {}", answer.failure());
        }
    }
    let best = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    root.post(PODS, &best).await.ok();
    let refused =
        root.patch("strategic-merge", &format!("{PODS}/b/resize"), &of(json!({"requests": {"cpu": "1"}}))).await;
    assert!(
        refused
            .failure()
            .contains("spec: Invalid value: \"BestEffort\": Pod QOS Class may not change as a result of resizing"),
        "{}",
        refused.failure()
    );
    // A kubelet that reports no resources cannot change them.
    let running = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
        "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}]}});
    root.patch("merge", &format!("{PODS}/p/status"), &running).await.ok();
    let refused = root.patch("strategic-merge", &url, &of(json!({"requests": {"cpu": "300m"}}))).await;
    assert!(refused.failure().contains("spec: Forbidden: Pod running on node without support for resize"));
    // The main door lets no amounts in.
    let refused = root.patch("strategic-merge", &format!("{PODS}/p"), &of(json!({"requests": {"cpu": "300m"}}))).await;
    assert_eq!(refused.code, 422);
}
