//! Kinds whose objects make pods, or say how many: what a client sees of them over HTTP.

mod common;

use common::Server;
use serde_json::{Value, json};

const APPS: &str = "/apis/apps/v1/namespaces/default";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn scaler() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 50,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}})
}

fn template(restart: &str) -> Value {
    json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "x"}]}})
}

#[tokio::test]
async fn an_autoscaler_is_one_object_in_two_versions() {
    let server = Server::start().await;
    let root = &server.root;
    let older = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let newer = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    assert_eq!(root.get("/apis/autoscaling").await.ok()["preferredVersion"]["version"], "v2");
    let made = root.post(older, &scaler()).await.ok();
    assert_eq!((&made["apiVersion"], &made["spec"]["minReplicas"]), (&json!("autoscaling/v1"), &json!(1)));

    let mut object = root.get(&format!("{newer}/a")).await.ok();
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 50}}});
    assert_eq!(object["spec"]["metrics"], json!([cpu]));
    let hits = json!({"type": "Pods", "pods": {"metric": {"name": "hits"},
        "target": {"type": "AverageValue", "averageValue": "5"}}});
    object["spec"]["metrics"] = json!([hits, cpu]);
    let put = root.put(&format!("{newer}/a"), &object).await.ok();
    assert_eq!(put["metadata"].get("annotations"), None, "v2 has a field for everything");

    let report = json!({"status": {"desiredReplicas": 2, "currentReplicas": 1,
        "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    root.patch("merge", &format!("{newer}/a/status"), &report).await.ok();
    let seen = root.get(&format!("{older}/a")).await.ok();
    let annotation = |object: &Value, name: &str| -> Value {
        let key = format!("/metadata/annotations/autoscaling.alpha.kubernetes.io~1{name}");
        let text = object.pointer(&key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {name} in {object}"));
        serde_json::from_str(text).expect("JSON")
    };
    let kept = json!([{"type": "Pods", "pods": {"metricName": "hits", "targetAverageValue": "5"}}]);
    assert_eq!((&seen["spec"]["targetCPUUtilizationPercentage"], &annotation(&seen, "metrics")), (&json!(50), &kept));
    assert_eq!(annotation(&seen, "conditions")[0]["type"], "AbleToScale");

    // A change by the older form keeps what only the newer one can say, and status what is status.
    let mut change = seen.clone();
    change["spec"]["maxReplicas"] = json!(9);
    change["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"] = json!("[]");
    root.put(&format!("{older}/a"), &change).await.ok();
    let after = root.get(&format!("{newer}/a")).await.ok();
    assert_eq!((&after["spec"]["maxReplicas"], &after["spec"]["metrics"]), (&json!(9), &json!([hits, cpu])));
    assert_eq!(after["status"]["conditions"], report["status"]["conditions"]);

    let tables = [older, newer].map(|uri| async move {
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        root.send("GET", uri, &accept, "").await.ok()["rows"][0]["cells"].clone()
    });
    let [one, other] = tables;
    let (one, other) = (one.await, other.await);
    assert_eq!(one, other);
    assert_eq!(one[2], "<unknown>/5, cpu: <unknown>/50%");
    let mut watch = root.watch(&format!("{older}?watch=1&resourceVersion=0&timeoutSeconds=5")).await;
    assert_eq!(watch.line("/apiVersion").await, "ADDED a autoscaling/v1");
    root.delete(&format!("{older}/a")).await.ok();
    assert_eq!(root.get(&format!("{newer}/a")).await.code, 404);
}

#[tokio::test]
async fn a_job_selects_its_own_pods_and_leaves_them_behind() {
    let server = Server::start().await;
    let root = &server.root;
    let job = json!({"metadata": {"name": "a"}, "spec": {"template": template("Never")}});
    let made = root.post(JOBS, &job).await.ok();
    let uid = &made["metadata"]["uid"];
    assert_eq!(made["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    let labels = &made["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&labels["job-name"], &labels["controller-uid"], &labels["a"]), (&json!("a"), uid, &json!("b")));
    assert_eq!(made["metadata"]["labels"], json!({"a": "b"}));
    // A dry run makes a uid, too, and nothing else.
    let again = json!({"metadata": {"name": "b"}, "spec": {"template": template("OnFailure")}});
    root.post(&format!("{JOBS}?dryRun=All"), &again).await.ok();

    let list = |value: &str| format!("{JOBS}?fieldSelector=status.successful%3D{value}");
    assert_eq!(root.get(&list("0")).await.ok()["items"].as_array().map(Vec::len), Some(1));
    root.patch("merge", &format!("{JOBS}/a/status"), &json!({"status": {"succeeded": 1}})).await.ok();
    assert_eq!(root.get(&list("0")).await.ok()["items"].as_array().map(Vec::len), Some(0));
    assert_eq!(root.get(&list("1")).await.ok()["items"].as_array().map(Vec::len), Some(1));
    let unknown = root.get(&format!("{JOBS}?fieldSelector=status.failed%3D1")).await.failure();
    assert_eq!(unknown, r#"400 BadRequest: field label "status.failed" not supported for Job"#);

    let wrong = json!({"metadata": {"name": "c"}, "spec": {"template": template("Always")}});
    let refused = root.post(JOBS, &wrong).await.failure();
    let text = "422 Invalid: Job.batch \"c\" is invalid: spec.template.spec.restartPolicy: Required value: \
                valid values: \"OnFailure\", \"Never\"";
    assert_eq!(refused, text);
    root.delete(&format!("{JOBS}/a")).await.ok();
    let left = root.get(&format!("{JOBS}/a")).await.ok();
    assert_eq!(left["metadata"]["finalizers"], json!(["orphan"]), "its pods are let go first");
}

#[tokio::test]
async fn every_kind_with_replicas_is_scaled() {
    let server = Server::start().await;
    let root = &server.root;
    let selected = json!({"matchLabels": {"a": "b"}});
    let set = json!({"metadata": {"name": "a"}, "spec": {"serviceName": "s", "template": template("Always"), "selector": selected}});
    let plain = json!({"metadata": {"name": "a"}, "spec": {"template": template("Always"), "selector": selected}});
    let controller = json!({"metadata": {"name": "a"}, "spec": {"template": template("Always")}});
    let (sets, controllers) = (format!("{APPS}/statefulsets"), "/api/v1/namespaces/default/replicationcontrollers");
    let (deployments, replicas) = (format!("{APPS}/deployments"), format!("{APPS}/replicasets"));
    let all = [(&*sets, set), (controllers, controller), (&*deployments, plain.clone()), (&*replicas, plain)];
    let scalable = kinds::ALL.iter().filter(|kind| kind.shape().scale.is_some());
    assert_eq!(scalable.count(), all.len(), "a kind that can be scaled is not scaled here");
    for (uri, object) in all {
        root.post(uri, &object).await.ok();
        let one = format!("{uri}/a/scale");
        let mut scale = root.get(&one).await.ok();
        assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")), "{uri}");
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("a=b")), "{uri}");
        let stale = scale.clone();
        scale["spec"]["replicas"] = json!(3);
        let dry = root.put(&format!("{one}?dryRun=All"), &scale).await.ok();
        assert_eq!(dry["spec"]["replicas"], 3, "{uri}");
        assert_eq!(root.get(&one).await.ok(), stale, "{uri}: a dry run leaves nothing");
        root.put(&one, &scale).await.ok();
        let after = root.get(&format!("{uri}/a")).await.ok();
        assert_eq!((&after["spec"]["replicas"], &after["metadata"]["generation"]), (&json!(3), &json!(2)), "{uri}");
        assert_eq!(root.put(&one, &stale).await.code, 409, "{uri}: a version that is no more");
        let mut other = stale.clone();
        other["metadata"]["resourceVersion"] = Value::Null;
        other["metadata"]["uid"] = json!("another");
        let refused = root.put(&one, &other).await;
        assert_eq!(refused.code, 409, "{uri}: another object of that name: {}", refused.text());
        let patched = root.patch("merge", &one, &json!({"spec": {"replicas": 4}})).await.ok();
        assert_eq!((&patched["kind"], &patched["spec"]["replicas"]), (&json!("Scale"), &json!(4)), "{uri}");
        let wrong = root.patch("merge", &one, &json!({"spec": {"replicas": -1}})).await.failure();
        assert!(wrong.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"), "{wrong}");
        let apply = [("content-type", "application/apply-patch+yaml")];
        let five = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 5}});
        let to = format!("{one}?fieldManager=m&force=true");
        root.send("PATCH", &to, &apply, five.to_string()).await.ok();
        assert_eq!(root.get(&format!("{uri}/a")).await.ok()["spec"]["replicas"], 5, "{uri}");
    }
}

#[tokio::test]
async fn a_daemon_set_counts_the_changes_of_its_template() {
    let server = Server::start().await;
    let root = &server.root;
    let uri = format!("{APPS}/daemonsets");
    let set = json!({"metadata": {"name": "a"}, "spec": {"template": template("Always"),
        "selector": {"matchLabels": {"a": "b"}}}});
    let count = |set: &Value| {
        let key = "/metadata/annotations/deprecated.daemonset.template.generation";
        (set.pointer(key).cloned().unwrap_or_default(), set["metadata"]["generation"].clone())
    };
    assert_eq!(count(&root.post(&uri, &set).await.ok()), (json!("1"), json!(1)));
    let one = format!("{uri}/a");
    for (patch, want) in [
        (json!({"spec": {"minReadySeconds": 5}}), ("1", 2)),
        (json!({"spec": {"template": {"metadata": {"labels": {"c": "d"}}}}}), ("2", 3)),
        (json!({"metadata": {"annotations": null}}), ("2", 3)),
    ] {
        let now = root.patch("merge", &one, &patch).await.ok();
        assert_eq!(count(&now), (json!(want.0), json!(want.1)), "{patch}");
    }
}

#[tokio::test]
async fn a_budget_is_only_overwritten_by_who_has_seen_it() {
    let server = Server::start().await;
    let root = &server.root;
    let uri = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "a"}, "spec": {"minAvailable": 1}});
    let made = root.post(uri, &budget).await.ok();
    let refused = root.put(&format!("{uri}/a"), &budget).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
    let mut seen = made;
    seen["spec"]["minAvailable"] = json!("50%");
    assert_eq!(root.put(&format!("{uri}/a"), &seen).await.ok()["metadata"]["generation"], 2);
}
