//! What admission does to storage, runtime classes, devices and the kinds nothing acts on yet, and how the server
//! keeps its flow schemas.

mod common;

use apiserver::bootstrap::authentication::Authorities;
use common::Server;
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

fn fixture(kind: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("fixtures/every_kind.json")).unwrap();
    all[kind]["object"].clone()
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }})
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_default_one_and_stays_while_it_is_used() {
    let server = Server::start().await;
    let root = &server.root;
    let none = root.post(CLAIMS, &claim("before")).await.ok();
    assert!(none["spec"].get("storageClassName").is_none(), "{none}");
    let mark = "storageclass.kubernetes.io/is-default-class";
    let class = json!({"metadata": {"name": "fast", "annotations": {mark: "true"}}, "provisioner": "a"});
    root.post(CLASSES, &class).await.ok();
    let made = root.post(CLAIMS, &claim("after")).await.ok();
    assert_eq!(made["spec"]["storageClassName"], "fast");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let mut other = claim("other");
    other["spec"]["storageClassName"] = json!("");
    assert_eq!(root.post(CLAIMS, &other).await.ok()["spec"]["storageClassName"], "");
    let going = root.delete(&format!("{CLAIMS}/after")).await.ok();
    assert!(going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    assert_eq!(root.get(&format!("{CLAIMS}/after")).await.code, 200);
}

#[tokio::test]
async fn a_claim_grows_when_it_is_bound_and_its_class_allows_it() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(CLASSES, &json!({"metadata": {"name": "slow"}, "provisioner": "a"})).await.ok();
    let grows = json!({"metadata": {"name": "grows"}, "provisioner": "a", "allowVolumeExpansion": true});
    root.post(CLASSES, &grows).await.ok();
    let bigger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    for (class, bound, want) in [
        ("grows", false, Some("spec is immutable after creation except resources.requests")),
        ("slow", true, Some("the storageclass that provisions the pvc must support resize")),
        ("grows", true, None),
    ] {
        let name = format!("{class}-{bound}");
        let mut object = claim(&name);
        object["spec"]["storageClassName"] = json!(class);
        object["spec"]["volumeName"] = json!("v");
        root.post(CLAIMS, &object).await.ok();
        let one = format!("{CLAIMS}/{name}");
        if bound {
            let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
            root.patch("merge", &format!("{one}/status"), &status).await.ok();
        }
        let answer = root.patch("merge", &one, &bigger).await;
        match want {
            Some(want) => assert!(answer.failure().contains(want), "{}", answer.text()),
            None => assert_eq!(answer.ok()["spec"]["resources"]["requests"]["storage"], "2Gi"),
        }
    }
}

#[tokio::test]
async fn a_pod_pays_for_its_runtime_class() {
    let server = Server::start().await;
    let root = &server.root;
    root.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "default"}})).await.ok();
    let class = json!({"metadata": {"name": "vm"}, "handler": "kata",
        "overhead": {"podFixed": {"memory": "64Mi"}}, "scheduling": {"nodeSelector": {"kvm": "true"}}});
    root.post("/apis/node.k8s.io/v1/runtimeclasses", &class).await.ok();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, class: Value, overhead: Value| {
        json!({"metadata": {"name": name}, "spec": {"runtimeClassName": class, "overhead": overhead,
            "containers": [{"name": "c", "image": "x"}]}})
    };
    let made = root.post(pods, &pod("a", json!("vm"), Value::Null)).await.ok();
    assert_eq!(made["spec"]["overhead"], json!({"memory": "64Mi"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"kvm": "true"}));
    let refused = root.post(pods, &pod("b", json!("none"), Value::Null)).await.failure();
    assert!(refused.ends_with(r#"pod rejected: RuntimeClass "none" not found"#), "{refused}");
    let refused = root.post(pods, &pod("c", Value::Null, json!({"memory": "1Gi"}))).await.failure();
    let want = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
    assert!(refused.ends_with(want), "{refused}");
}

#[tokio::test]
async fn an_administrators_devices_need_a_marked_namespace() {
    let server = Server::start().await;
    let root = &server.root;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let exactly = json!({"deviceClassName": "c", "adminAccess": true});
    let claim =
        json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
    let refused = root.post(claims, &claim).await.failure();
    let want = "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the \
                `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    assert!(refused.starts_with("422 Invalid") && refused.ends_with(want), "{refused}");
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    root.patch("merge", "/api/v1/namespaces/default", &label).await.ok();
    root.post(claims, &claim).await.ok();
    let jane = server.client("jane", &["system:authenticated"]);
    assert_eq!(jane.get(claims).await.code, 403);
}

#[tokio::test]
async fn what_nothing_calls_yet_says_so() {
    let server = Server::start().await;
    let group = "admissionregistration.k8s.io";
    for (kind, plural, what) in [
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "admission webhooks"),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "admission webhooks"),
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies", "admission policies"),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", "admission policies"),
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", "admission policies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "admission policies"),
    ] {
        let mut object = fixture(&format!("{group}/v1/{kind}"));
        object["metadata"] = json!({"name": "a"});
        let made = server.root.post(&format!("/apis/{group}/v1/{plural}"), &object).await;
        made.ok();
        let want = format!(r#"299 - "this server does not call {what} yet: the object is kept and has no effect""#);
        assert_eq!(made.warnings(), [want.as_str()], "{kind}");
    }
}

/// Until an object is as it should be.
async fn until(server: &Server, uri: &str, good: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let mut watch = server.root.watch(&format!("{FLOW}/{uri}?watch=true&timeoutSeconds=30")).await;
    while let Some(mut event) = watch.next().await {
        last = event["object"].take();
        if event["type"] != "DELETED" && good(&last) {
            return last;
        }
    }
    panic!("{uri} does not become what it should be: {last}")
}

#[tokio::test]
async fn flow_schemas_and_priority_levels_are_kept() {
    let server = Server::start().await;
    let root = &server.root;
    let names = async |plural: &str| -> Vec<String> {
        let list = root.get(&format!("{FLOW}/{plural}")).await.ok();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let levels = [
        "catch-all",
        "exempt",
        "global-default",
        "leader-election",
        "node-high",
        "system",
        "workload-high",
        "workload-low",
    ];
    assert_eq!(names("prioritylevelconfigurations").await, levels);
    assert_eq!(names("flowschemas").await.len(), 11);
    let named = |name: &'static str| move |object: &Value| object["metadata"]["name"] == name;
    // A suggested one that is deleted comes back; one that is its owner's stays as it is.
    let before = root.get(&format!("{FLOW}/flowschemas/probes")).await.ok();
    root.delete(&format!("{FLOW}/flowschemas/probes")).await.ok();
    let uid = before["metadata"]["uid"].clone();
    until(&server, "flowschemas", |object| named("probes")(object) && object["metadata"]["uid"] != uid).await;
    let wish = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}},
        "spec": {"matchingPrecedence": 9}});
    root.patch("merge", &format!("{FLOW}/flowschemas/system-nodes"), &wish).await.ok();
    let theft = json!({"spec": {"matchingPrecedence": 9}});
    root.patch("merge", &format!("{FLOW}/flowschemas/service-accounts"), &theft).await.ok();
    let is_back = |object: &Value| named("service-accounts")(object) && object["spec"]["matchingPrecedence"] == 9000;
    until(&server, "flowschemas", is_back).await;
    assert_eq!(root.get(&format!("{FLOW}/flowschemas/system-nodes")).await.ok()["spec"]["matchingPrecedence"], 9);
    // A mandatory one cannot be changed at all.
    let refused = root.patch("merge", &format!("{FLOW}/flowschemas/catch-all"), &theft).await.failure();
    assert!(refused.contains("spec of 'catch-all' must equal the fixed value"), "{refused}");
}

#[tokio::test]
async fn flow_schemas_say_whether_their_level_is_there() {
    let server = Server::start().await;
    let root = &server.root;
    let schema = json!({"metadata": {"name": "mine"}, "spec": {"matchingPrecedence": 50,
        "priorityLevelConfiguration": {"name": "later"}}});
    root.post(&format!("{FLOW}/flowschemas"), &schema).await.ok();
    let says = |name: &'static str, status: &'static str| {
        move |object: &Value| {
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            object["metadata"]["name"] == name
                && conditions.into_iter().any(|c| c["type"] == "Dangling" && c["status"] == status)
        }
    };
    until(&server, "flowschemas", says("mine", "True")).await;
    until(&server, "flowschemas", says("probes", "False")).await;
    let shown = root.get(&format!("{FLOW}/flowschemas/mine")).await.ok();
    assert_eq!(shown["status"]["conditions"][0]["reason"], "NotFound", "{shown}");
    let managers = shown["metadata"]["managedFields"].as_array().into_iter().flatten();
    let ours = |entry: &Value| entry["manager"] == "api-priority-and-fairness-config-consumer-v1";
    assert!(managers.into_iter().any(ours), "{shown}");
    let level = json!({"metadata": {"name": "later"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "limitResponse": {"type": "Reject"}}}});
    root.post(&format!("{FLOW}/prioritylevelconfigurations"), &level).await.ok();
    until(&server, "flowschemas", says("mine", "False")).await;
    root.delete(&format!("{FLOW}/prioritylevelconfigurations/later")).await.ok();
    until(&server, "flowschemas", says("mine", "True")).await;
}

#[tokio::test]
async fn whom_to_believe_is_told_again() {
    use std::sync::Arc;
    let now = stdx::clock::RealClock::shared().wall();
    let pem = |name: &str| pki::Authority::generate(name, now).expect("authority").certificate().to_owned();
    let (first, second, proxies) = (pem("first"), pem("second"), pem("proxies"));
    let own = Arc::new(parking_lot::Mutex::new(Authorities { client_ca: first, front_proxy_ca: proxies }));
    let shared = own.clone();
    let server = Server::start_with(move |config| {
        config.read_authorities = Some(Arc::new(move || Some(shared.lock().clone())));
    })
    .await;
    let root = &server.root;
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    let path = format!("{maps}/extension-apiserver-authentication");
    let bundles = |map: &Value| map["data"]["client-ca-file"].as_str().unwrap_or_default().matches("BEGIN").count();
    let before = root.get(&path).await.ok();
    assert_eq!(
        (bundles(&before), &before["data"]["requestheader-username-headers"]),
        (1, &json!("[\"X-Remote-User\"]"))
    );
    root.delete(&path).await.ok();
    let back = common::custom::until(&server, &path, |code, map| code == 200 && bundles(map) == 1).await;
    assert_ne!(back["metadata"]["uid"], before["metadata"]["uid"]);
    // What somebody takes out comes back, what they add stays; another authority is added.
    root.patch("merge", &path, &json!({"data": {"requestheader-client-ca-file": null, "mine": "x"}})).await.ok();
    let whole = |code: u16, map: &Value| code == 200 && map["data"]["requestheader-client-ca-file"].is_string();
    let mended = common::custom::until(&server, &path, whole).await;
    assert_eq!(mended["data"]["mine"], "x");
    own.lock().client_ca = second;
    root.patch("merge", &path, &json!({"metadata": {"labels": {"looked": "at"}}})).await.ok();
    common::custom::until(&server, &path, |_, map| bundles(map) == 2).await;
}
