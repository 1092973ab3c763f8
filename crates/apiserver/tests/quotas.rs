//! ResourceQuota and LimitRange over HTTP: what is refused, what is charged, what is given back.

mod common;

use std::time::Duration;

use common::{Answer, Server};
use futures::future::join_all;
use serde_json::{Value, json};
use stdx::ClockExt;

const SPACE: &str = "/api/v1/namespaces/default";

async fn server() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post(&format!("{SPACE}/serviceaccounts"), &account).await.ok();
    server
}

/// A quota of this name, and its first count.
async fn quota(server: &Server, name: &str, spec: Value) {
    server.root.post(&format!("{SPACE}/resourcequotas"), &json!({"metadata": {"name": name}, "spec": spec})).await.ok();
    until(server, name, |status| status["hard"].is_object()).await;
}

/// Waits until the quota's status is as it should be; returns what is used.
async fn until(server: &Server, name: &str, is: impl Fn(&Value) -> bool + Sync) -> Value {
    let url = format!("{SPACE}/resourcequotas?watch=true&fieldSelector=metadata.name={name}");
    let mut watch = server.root.watch(&url).await;
    let mut last = Value::Null;
    let found = server.clock.timeout(Duration::from_secs(20), async {
        while let Some(event) = watch.next().await {
            last = event["object"]["status"].clone();
            if is(&last) {
                return;
            }
        }
    });
    assert!(found.await.is_ok(), "{name}: {last}");
    last["used"].clone()
}

async fn used(server: &Server, name: &str) -> Value {
    server.root.get(&format!("{SPACE}/resourcequotas/{name}")).await.ok()["status"]["used"].clone()
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

async fn make(server: &Server, plural: &str, object: &Value) -> Answer {
    server.root.post(&format!("{SPACE}/{plural}"), object).await
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

#[tokio::test]
async fn a_quota_refuses_in_upstreams_words() {
    let server = server().await;
    quota(&server, "q", json!({"hard": {"pods": "2", "requests.cpu": "1", "limits.memory": "1Gi"}})).await;
    assert_eq!(used(&server, "q").await, json!({"limits.memory": "0", "pods": "0", "requests.cpu": "0"}));
    let small = json!({"requests": {"cpu": "600m"}, "limits": {"memory": "512Mi"}});
    make(&server, "pods", &pod("a", small.clone())).await.ok();
    assert_eq!(used(&server, "q").await, json!({"limits.memory": "512Mi", "pods": "1", "requests.cpu": "600m"}));
    assert_eq!(
        make(&server, "pods", &pod("b", small)).await.failure(),
        "403 Forbidden: pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: \
         requests.cpu=600m, limited: requests.cpu=1"
    );
    assert_eq!(
        make(&server, "pods", &pod("b", json!({"requests": {"cpu": "1m"}}))).await.failure(),
        "403 Forbidden: pods \"b\" is forbidden: failed quota: q: must specify limits.memory for: c"
    );
    let generated = json!({"metadata": {"generateName": "g-"}, "spec": pod("", json!({}))["spec"]});
    let refused = make(&server, "pods", &generated).await.failure();
    assert!(refused.contains("must specify limits.memory for: c; requests.cpu for: c"), "{refused}");
    assert_eq!(used(&server, "q").await["pods"], "1");
}

#[tokio::test]
async fn what_fails_is_given_back_and_a_dry_run_takes_nothing() {
    let server = server().await;
    make(&server, "configmaps", &map("there")).await.ok();
    quota(&server, "one", json!({"hard": {"count/configmaps": "3", "configmaps": "3"}})).await;
    quota(&server, "two", json!({"hard": {"configmaps": "2"}})).await;
    assert_eq!(used(&server, "one").await, json!({"configmaps": "1", "count/configmaps": "1"}));
    // It exists.
    assert_eq!(make(&server, "configmaps", &map("there")).await.code, 409);
    assert_eq!(used(&server, "one").await["configmaps"], "1");
    let dry = server.root.post(&format!("{SPACE}/configmaps?dryRun=All"), &map("dry")).await;
    assert_eq!((dry.code, used(&server, "two").await["configmaps"].clone()), (201, json!("1")));
    make(&server, "configmaps", &map("second")).await.ok();
    // The first quota has room, the second has none: the first gets back what it gave.
    assert_eq!(
        make(&server, "configmaps", &map("third")).await.failure(),
        "403 Forbidden: configmaps \"third\" is forbidden: exceeded quota: two, requested: configmaps=1, used: \
         configmaps=2, limited: configmaps=2"
    );
    assert_eq!(used(&server, "one").await, json!({"configmaps": "2", "count/configmaps": "2"}));
    let dry = server.root.post(&format!("{SPACE}/configmaps?dryRun=All"), &map("dry")).await;
    assert!(dry.failure().contains("exceeded quota: two"));
    server.root.delete(&format!("{SPACE}/configmaps/second")).await.ok();
    until(&server, "two", |status| status["used"]["configmaps"] == "1").await;
    make(&server, "configmaps", &map("third")).await.ok();
}

#[tokio::test]
async fn a_quota_is_exact_when_many_ask_at_once() {
    let server = server().await;
    quota(&server, "q", json!({"hard": {"count/configmaps": "10"}})).await;
    let names: Vec<String> = (0..40).map(|i| format!("m{i}")).collect();
    let maps: Vec<Value> = names.iter().map(|name| map(name)).collect();
    let answers = join_all(maps.iter().map(|map| make(&server, "configmaps", map))).await;
    let made: Vec<&String> = names.iter().zip(&answers).filter(|(_, a)| a.code == 201).map(|(n, _)| n).collect();
    assert_eq!(made.len(), 10);
    assert_eq!(answers.iter().filter(|answer| answer.code == 403).count(), 30);
    assert_eq!(used(&server, "q").await["count/configmaps"], "10");
    // Deletes and creates at once: never more than ten, and in the end as many as there are.
    let urls: Vec<String> = made.iter().map(|name| format!("{SPACE}/configmaps/{name}")).collect();
    let (gone, answers) = futures::join!(
        join_all(urls.iter().map(|url| server.root.delete(url))),
        join_all(maps.iter().map(|map| make(&server, "configmaps", map)))
    );
    assert!(gone.iter().all(|answer| answer.code == 200));
    drop(answers);
    let list = server.root.get(&format!("{SPACE}/configmaps")).await.ok();
    let there = list["items"].as_array().map_or(0, Vec::len);
    assert!(there <= 10, "{there}");
    let count = there.to_string();
    until(&server, "q", |status| status["used"]["count/configmaps"] == count.as_str()).await;
}

#[tokio::test]
async fn scopes_and_other_measures() {
    let server = server().await;
    quota(&server, "best", json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]})).await;
    let high = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
    quota(&server, "high", json!({"hard": {"pods": "0"}, "scopeSelector": high})).await;
    quota(
        &server,
        "ports",
        json!({"hard": {"services.nodeports": "2", "services": "3", "count/deployments.apps": "0"}}),
    )
    .await;
    make(&server, "pods", &pod("a", json!({}))).await.ok();
    assert!(make(&server, "pods", &pod("b", json!({}))).await.failure().contains("exceeded quota: best"));
    make(&server, "pods", &pod("c", json!({"requests": {"cpu": "1"}}))).await.ok();
    let class = json!({"metadata": {"name": "high"}, "value": 5});
    server.root.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await.ok();
    let mut urgent = pod("d", json!({"requests": {"cpu": "1"}}));
    urgent["spec"]["priorityClassName"] = json!("high");
    assert!(make(&server, "pods", &urgent).await.failure().contains("exceeded quota: high, requested: pods=1"));
    let ports: Vec<Value> = (1..=2).map(|n| json!({"port": n, "name": format!("p{n}")})).collect();
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": ports}});
    make(&server, "services", &service).await.ok();
    let url = format!("{SPACE}/services/s");
    server.root.patch("merge", &url, &json!({"spec": {"type": "NodePort"}})).await.ok();
    assert_eq!(used(&server, "ports").await["services.nodeports"], "2");
    let three: Vec<Value> = (1..=3).map(|n| json!({"port": n, "name": format!("p{n}")})).collect();
    let grown = server.root.patch("merge", &url, &json!({"spec": {"ports": three}})).await;
    assert!(grown.failure().contains(
        "exceeded quota: ports, requested: services.nodeports=1, used: services.nodeports=2, limited: \
         services.nodeports=2"
    ));
    // What was refused has taken no port.
    server.root.patch("merge", &url, &json!({"spec": {"type": "ClusterIP"}})).await.ok();
    until(&server, "ports", |status| status["used"]["services.nodeports"] == "0").await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let refused = server.root.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await.failure();
    assert!(refused.contains("count/deployments.apps=1, used: count/deployments.apps=0"), "{refused}");
}

#[tokio::test]
async fn a_pod_that_has_ended_takes_nothing_and_limits_may_change() {
    let server = server().await;
    quota(&server, "q", json!({"hard": {"pods": "1", "count/pods": "5"}})).await;
    make(&server, "pods", &pod("a", json!({}))).await.ok();
    let ended = json!({"status": {"phase": "Succeeded"}});
    server.root.patch("merge", &format!("{SPACE}/pods/a/status"), &ended).await.ok();
    until(&server, "q", |status| status["used"] == json!({"count/pods": "1", "pods": "0"})).await;
    make(&server, "pods", &pod("b", json!({}))).await.ok();
    let wider = json!({"spec": {"hard": {"pods": "2", "secrets": "4", "count/widgets.example.com": "1"}}});
    server.root.patch("merge", &format!("{SPACE}/resourcequotas/q"), &wider).await.ok();
    let used = until(&server, "q", |status| status["hard"]["pods"] == "2").await;
    assert_eq!(used, json!({"count/pods": "2", "pods": "1", "secrets": "0"}));
    let table = server
        .root
        .send(
            "GET",
            &format!("{SPACE}/resourcequotas"),
            &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
            "",
        )
        .await
        .ok();
    assert_eq!(
        table["rows"][0]["cells"][1],
        "count/pods: 2/5, count/widgets.example.com: 0/1, pods: 1/2, secrets: 0/4"
    );
}

#[tokio::test]
async fn a_limit_range_fills_and_bounds() {
    let server = server().await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "100m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}});
    let made = make(&server, "limitranges", &range).await.ok();
    assert_eq!(made["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "1"}));
    let filled = make(&server, "pods", &pod("a", json!({}))).await.ok();
    let container = &filled["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}));
    assert_eq!(
        filled["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(
        make(&server, "pods", &pod("b", json!({"requests": {"cpu": "50m"}, "limits": {"cpu": "2"}}))).await.failure(),
        "403 Forbidden: pods \"b\" is forbidden: [minimum cpu usage per Container is 100m, but request is 50m, \
         maximum cpu usage per Container is 1, but limit is 2]"
    );
    let claim = json!({"metadata": {"name": "p"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        make(&server, "persistentvolumeclaims", &claim).await.failure(),
        "403 Forbidden: persistentvolumeclaims \"p\" is forbidden: maximum storage usage per PersistentVolumeClaim \
         is 1Gi, but request is 2Gi"
    );
    // A quota counts what a range has filled in.
    quota(&server, "q", json!({"hard": {"requests.cpu": "1500m"}})).await;
    assert!(
        make(&server, "pods", &pod("c", json!({})))
            .await
            .failure()
            .contains("exceeded quota: q, requested: requests.cpu=1")
    );
}

#[tokio::test]
async fn custom_resources_are_counted_by_their_full_name() {
    use common::custom::{self, DEFINITIONS};
    let server = server().await;
    custom::establish(&server, &custom::cron_tabs()).await;
    quota(&server, "q", json!({"hard": {"count/crontabs.stable.example.com": "2"}})).await;
    let tabs = "/apis/stable.example.com/v1/namespaces/default/crontabs";
    let make = async |name: &str| server.root.post(tabs, &custom::cron_tab(name)).await;
    make("a").await.ok();
    make("b").await.ok();
    assert_eq!(used(&server, "q").await, json!({"count/crontabs.stable.example.com": "2"}));
    assert_eq!(
        make("c").await.failure(),
        "403 Forbidden: crontabs.stable.example.com \"c\" is forbidden: exceeded quota: q, requested: \
         count/crontabs.stable.example.com=1, used: count/crontabs.stable.example.com=2, limited: \
         count/crontabs.stable.example.com=2"
    );
    // An update takes nothing, a deletion gives back, and so does the end of the definition.
    server.root.patch("merge", &format!("{tabs}/a"), &json!({"spec": {"replicas": 3}})).await.ok();
    server.root.delete(&format!("{tabs}/a")).await.ok();
    until(&server, "q", |status| status["used"]["count/crontabs.stable.example.com"] == "1").await;
    make("c").await.ok();
    server.root.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.ok();
    until(&server, "q", |status| status["used"]["count/crontabs.stable.example.com"].as_str() != Some("2")).await;
}

#[tokio::test]
async fn devices_are_counted_by_class() {
    let server = server().await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    server.root.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.ok();
    let hard = json!({
        "count/resourceclaims.resource.k8s.io": "5", "gpu.deviceclass.resource.k8s.io/devices": "3",
        "requests.deviceclass.resource.kubernetes.io/gpu": "9",
    });
    quota(&server, "q", json!({"hard": hard})).await;
    let claim = |name: &str, count: i64| {
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
        json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}})
    };
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    server.root.post(claims, &claim("a", 2)).await.ok();
    assert_eq!(
        used(&server, "q").await,
        json!({"count/resourceclaims.resource.k8s.io": "1", "gpu.deviceclass.resource.k8s.io/devices": "2",
            "requests.deviceclass.resource.kubernetes.io/gpu": "2"})
    );
    assert_eq!(
        server.root.post(claims, &claim("b", 2)).await.failure(),
        "403 Forbidden: resourceclaims.resource.k8s.io \"b\" is forbidden: exceeded quota: q, requested: \
         gpu.deviceclass.resource.k8s.io/devices=2, used: gpu.deviceclass.resource.k8s.io/devices=2, limited: \
         gpu.deviceclass.resource.k8s.io/devices=3"
    );
    server.root.post(claims, &claim("b", 1)).await.ok();
    server.root.delete(&format!("{claims}/a")).await.ok();
    until(&server, "q", |status| status["used"]["gpu.deviceclass.resource.k8s.io/devices"] == "1").await;
}

/// A pod that asks for devices by the name of a resource is charged for them; the claim that is made for it is
/// charged for what it has beyond that.
#[tokio::test]
async fn devices_of_a_pod_are_charged_once() {
    let server = server().await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    server.root.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.ok();
    let hard = json!({"requests.example.com/gpu": "4", "gpu.deviceclass.resource.k8s.io/devices": "9",
        "requests.deviceclass.resource.kubernetes.io/gpu": "9"});
    quota(&server, "q", json!({"hard": hard})).await;
    let two = json!({"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}});
    let pod = make(&server, "pods", &pod("p", two)).await.ok();
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": true});
    let claim = |name: &str, count: i64, owner: &Value| {
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
        json!({"metadata": {"name": name, "ownerReferences": [owner],
                "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}})
    };
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    server.root.post(claims, &claim("first", 3, &owner)).await.ok();
    let held = |resource: &str, class: &str, devices: &str| {
        json!({"requests.example.com/gpu": resource, "requests.deviceclass.resource.kubernetes.io/gpu": class,
            "gpu.deviceclass.resource.k8s.io/devices": devices})
    };
    assert_eq!(used(&server, "q").await, held("3", "3", "3"), "two of the three are the pod's");
    // A second one for the same pod, and one whose pod is another, are charged in full.
    assert_eq!(server.root.post(claims, &claim("second", 2, &owner)).await.code, 403);
    let mut other = owner.clone();
    other["uid"] = json!("another");
    server.root.post(claims, &claim("third", 1, &other)).await.ok();
    assert_eq!(used(&server, "q").await, held("4", "4", "4"));
    // A count finds the same, and the claim counts in full when its pod names another.
    let status = json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "third", "requestMappings": [
        {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}]}}});
    server.root.patch("merge", "/api/v1/namespaces/default/pods/p/status", &status).await.ok();
    server
        .root
        .patch(
            "merge",
            "/api/v1/namespaces/default/resourcequotas/q",
            &json!({"spec": {"hard": {"requests.example.com/gpu": "8"}}}),
        )
        .await
        .ok();
    until(&server, "q", |status| status["used"] == held("6", "4", "4")).await;
}

#[tokio::test]
async fn a_resize_is_charged_and_judged() {
    let server = server().await;
    quota(&server, "q", json!({"hard": {"requests.cpu": "1", "limits.cpu": "4"}})).await;
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": "2"}});
    make(&server, "pods", &pod("p", asks("400m"))).await.ok();
    let pods = format!("{SPACE}/pods");
    let of = |resources: Value| json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    let resize =
        async |cpu: &str| server.root.patch("strategic-merge", &format!("{pods}/p/resize"), &of(asks(cpu))).await;
    resize("900m").await.ok();
    assert_eq!(used(&server, "q").await["requests.cpu"], "900m");
    assert_eq!(
        resize("1100m").await.failure(),
        "403 Forbidden: pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=200m, used: \
         requests.cpu=900m, limited: requests.cpu=1"
    );
    // What the node still holds counts until it is given back.
    let held = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}, "resources": asks("900m"), "allocatedResources": {"cpu": "900m"}}]}});
    server.root.patch("strategic-merge", &format!("{pods}/p/status"), &held).await.ok();
    resize("100m").await.ok();
    assert_eq!(used(&server, "q").await["requests.cpu"], "900m");
    // The bounds of a range hold for it, too.
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Pod", "min": {"cpu": "200m"}}]}});
    server.root.post(&format!("{SPACE}/limitranges"), &range).await.ok();
    assert_eq!(
        resize("150m").await.failure(),
        "403 Forbidden: pods \"p\" is forbidden: minimum cpu usage per Pod is 200m, but request is 150m"
    );
    // Into another scope: charged there.
    let scoped = json!({"hard": {"pods": "0"}, "scopes": ["Terminating"]});
    quota(&server, "ending", scoped).await;
    let end = json!({"spec": {"activeDeadlineSeconds": 600}});
    assert_eq!(
        server.root.patch("merge", &format!("{pods}/p"), &end).await.failure(),
        "403 Forbidden: pods \"p\" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=0, limited: pods=0"
    );
}

#[tokio::test]
async fn what_a_pod_is_given_as_a_whole_needs_no_words_from_its_containers() {
    let server = server().await;
    quota(&server, "q", json!({"hard": {"requests.cpu": "1", "requests.memory": "1Gi"}})).await;
    let mut whole = pod("whole", json!({}));
    whole["spec"]["resources"] = json!({"requests": {"cpu": "500m"}});
    make(&server, "pods", &whole).await.ok();
    assert_eq!(used(&server, "q").await["requests.cpu"], "500m");
    // Two containers with one mistake are told it once.
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"},
        "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m", "memory": "1Mi"}}]}});
    server.root.post(&format!("{SPACE}/limitranges"), &range).await.ok();
    let big = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "2"}});
    let mut two = pod("two", big.clone());
    two["spec"]["containers"] = json!([
        {"name": "a", "image": "i", "resources": big}, {"name": "b", "image": "i", "resources": big}
    ]);
    assert_eq!(
        make(&server, "pods", &two).await.failure(),
        "403 Forbidden: pods \"two\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
    );
}
