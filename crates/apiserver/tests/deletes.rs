//! Deletes: what they answer with, what holds an object, what may be demanded of it.

mod common;

use common::{Answer, Client, JSON, MAPS, Server, config_map};
use serde_json::{Value, json};
use storage::{Expect, Op, Urgency};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn start() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
    server
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

async fn running_pod(root: &Client, name: &str) -> Value {
    let mut object = pod(name);
    object["spec"]["nodeName"] = json!("n");
    root.post(PODS, &object).await.ok()
}

async fn delete(root: &Client, uri: &str, options: &Value) -> Answer {
    root.send("DELETE", uri, JSON, options.to_string()).await
}

/// What a delete answers with, in a line.
fn told(answer: &Answer) -> String {
    let body = answer.json();
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
    if body["kind"] != "Status" {
        return format!("{} {} {}", answer.code, text("/kind"), text("/metadata/name"));
    }
    let known = if body["details"]["uid"].is_string() { "its uid" } else { "no uid" };
    format!("{} Status {} {} {} {known}", answer.code, text("/status"), text("/details/kind"), text("/details/name"))
}

#[tokio::test]
async fn some_kinds_answer_with_the_object_and_others_with_a_status() {
    let server = start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    assert_eq!(told(&root.delete(&format!("{MAPS}/a")).await), "200 Status Success configmaps a its uid");
    root.post(PODS, &pod("waits")).await.ok();
    assert_eq!(told(&root.delete(&format!("{PODS}/waits")).await), "200 Pod waits");
    assert_eq!(root.get(&format!("{PODS}/waits")).await.code, 404);
    running_pod(root, "runs").await;
    assert_eq!(told(&root.delete(&format!("{PODS}/runs")).await), "200 Pod runs");
    assert_eq!(told(&root.delete(&format!("{PODS}/runs")).await), "200 Pod runs");
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    root.post("/api/v1/namespaces/default/services", &service).await.ok();
    assert_eq!(told(&root.delete("/api/v1/namespaces/default/services/s").await), "200 Service s");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(told(&root.delete(&format!("{accounts}/default")).await), "200 ServiceAccount default");
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    root.post(MAPS, &held).await.ok();
    let one = format!("{MAPS}/held");
    assert_eq!(told(&root.delete(&one).await), "200 ConfigMap held");
    assert_eq!(told(&delete(root, &one, &json!({"orphanDependents": false})).await), "202 ConfigMap held");
}

#[tokio::test]
async fn grace_is_only_ever_shortened() {
    let server = start().await;
    let root = &server.root;
    running_pod(root, "a").await;
    let one = format!("{PODS}/a");
    let graces = |object: &Value| {
        let metadata = &object["metadata"];
        (metadata["deletionGracePeriodSeconds"].clone(), metadata["deletionTimestamp"].as_str().map(str::to_owned))
    };
    let (grace, first) = graces(&root.delete(&format!("{one}?gracePeriodSeconds=60")).await.ok());
    assert_eq!(grace, 60);
    let longer = graces(&delete(root, &one, &json!({"gracePeriodSeconds": 90})).await.ok());
    assert_eq!(longer, (json!(60), first.clone()));
    let unsaid = graces(&root.delete(&one).await.ok());
    assert_eq!(unsaid, (json!(60), first.clone()));
    let (grace, sooner) = graces(&delete(root, &one, &json!({"gracePeriodSeconds": 20})).await.ok());
    assert_eq!(grace, 20);
    assert!(sooner < first, "{sooner:?} {first:?}");
    let negative = graces(&delete(root, &one, &json!({"gracePeriodSeconds": -4})).await.ok()).0;
    assert_eq!(negative, 1);
    delete(root, &one, &json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(root.get(&one).await.code, 404);
}

#[tokio::test]
async fn preconditions_say_what_was_found() {
    let server = start().await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    let (uid, revision) = (made["metadata"]["uid"].as_str().expect("uid"), &made["metadata"]["resourceVersion"]);
    let revision = revision.as_str().expect("revision");
    for (demand, want) in [
        (
            json!({"uid": "x"}),
            format!(
                "the UID in the precondition (x) does not match the UID in record ({uid}). \
                 The object might have been deleted and then recreated"
            ),
        ),
        (
            json!({"resourceVersion": "1"}),
            format!(
                "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record \
                 ({revision}). The object might have been modified"
            ),
        ),
    ] {
        let refused = delete(root, &one, &json!({"preconditions": demand})).await;
        let want = format!("409 Conflict: Operation cannot be fulfilled on ConfigMap \"a\": {want}");
        assert_eq!((refused.failure(), &refused.json()["details"]["kind"]), (want, &json!("ConfigMap")));
    }
    let mut other = config_map("a", "2");
    other["metadata"]["uid"] = json!("x");
    let want = format!(
        "409 Conflict: Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, \
         Key: /registry/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         UID in precondition: x, UID in object meta: {uid}"
    );
    assert_eq!(root.put(&one, &other).await.failure(), want);
    // Where an update may create, it creates nothing that is said to exist.
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/r";
    let role = json!({"metadata": {"name": "r", "uid": "x"}, "rules": []});
    let refused = root.put(roles, &role).await.failure();
    assert!(refused.ends_with("UID in precondition: x, UID in object meta: "), "{refused}");
}

#[tokio::test]
async fn the_last_wish_about_dependents_counts() {
    let server = start().await;
    let root = &server.root;
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    root.post(MAPS, &held).await.ok();
    let one = format!("{MAPS}/a");
    for (policy, want) in [
        ("Foreground", json!(["a.b/c", "foregroundDeletion"])),
        ("Orphan", json!(["a.b/c", "orphan"])),
        ("Background", json!(["a.b/c"])),
    ] {
        let object = delete(root, &one, &json!({"propagationPolicy": policy})).await.ok();
        assert_eq!(object["metadata"]["finalizers"], want, "{policy}");
    }
    let before = root.get(&one).await.ok();
    assert_eq!(root.delete(&one).await.ok()["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    let late = root.patch("merge", &one, &json!({"metadata": {"finalizers": ["a.b/c", "d.e/f"]}})).await.failure();
    assert!(
        late.ends_with(
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
             found new finalizers []string{\"d.e/f\"}"
        ),
        "{late}"
    );
    root.patch("merge", &one, &json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(root.get(&one).await.code, 404);
    // The garbage collector knows nothing of events; nothing would ever let go of one.
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    root.post(events, &event).await.ok();
    delete(root, &format!("{events}/e"), &json!({"propagationPolicy": "Foreground"})).await.ok();
    assert_eq!(root.get(&format!("{events}/e")).await.code, 404);
}

#[tokio::test]
async fn options_come_in_every_form() {
    let server = start().await;
    let root = &server.root;
    let json = r#"{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}"#;
    let yaml = "kind: DeleteOptions\napiVersion: meta.k8s.io/v1\ndryRun: [All]\n";
    // dryRun is field 5.
    let raw: &[u8] = b"\x2a\x03All";
    let mut proto = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x05".to_vec();
    proto.extend_from_slice(raw);
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    for (media, body) in [
        ("application/json", json.as_bytes()),
        ("application/yaml", yaml.as_bytes()),
        ("application/vnd.kubernetes.protobuf", proto.as_slice()),
    ] {
        let answer = root.send("DELETE", &one, &[("content-type", media)], body.to_vec()).await;
        assert_eq!(answer.code, 200, "{media}: {}", answer.text());
        assert_eq!(root.get(&one).await.code, 200, "{media}");
    }
    assert_eq!(root.delete(&format!("{one}?dryRun=All")).await.code, 200);
    for (body, want) in [
        (
            json!({"propagationPolicy": "Sideways"}),
            "propagationPolicy: Unsupported value: \"Sideways\": supported values: \"Foreground\", \"Background\", \
             \"Orphan\", \"nil\"",
        ),
        (
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            "propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set",
        ),
        (
            json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true, "gracePeriodSeconds": 0}),
            "ignoreStoreReadErrorWithClusterBreakingPotential: Invalid value: true: \
             cannot be set together with .gracePeriodSeconds",
        ),
    ] {
        let refused = delete(root, &one, &body).await.failure();
        assert_eq!(refused, format!("422 Invalid: DeleteOptions.meta.k8s.io \"\" is invalid: {want}"));
    }
    let field = "Go struct field DeleteOptions";
    for (body, want) in [
        (
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            r#"no kind "Pod" is registered for version "v1" in scheme "pintle""#.to_owned(),
        ),
        (
            r#"{"gracePeriodSeconds":"x"}"#,
            format!("json: cannot unmarshal string into {field}.gracePeriodSeconds of type int64"),
        ),
        (
            r#"{"gracePeriodSeconds":1.5}"#,
            format!("json: cannot unmarshal number 1.5 into {field}.gracePeriodSeconds of type int64"),
        ),
        (r#"{"dryRun":"All"}"#, format!("json: cannot unmarshal string into {field}.dryRun of type []string")),
        (
            r#"{"preconditions":5}"#,
            format!("json: cannot unmarshal number into {field}.preconditions of type v1.Preconditions"),
        ),
        (
            r#"{"preconditions":{"uid":7}}"#,
            "json: cannot unmarshal number into Go struct field Preconditions.preconditions.uid of type types.UID"
                .to_owned(),
        ),
        ("{", "couldn't get version/kind; json parse error: unexpected end of JSON input".to_owned()),
        (r#"{"kind":"DeleteOptions","apiVersion":"a/b/c"}"#, "unexpected GroupVersion string: a/b/c".to_owned()),
    ] {
        let refused = root.send("DELETE", &one, JSON, body).await.failure();
        assert_eq!(refused, format!("400 BadRequest: {want}"), "{body}");
    }
    // Of any group, with fields that nobody knows and the last of those that come twice.
    let sloppy = r#"{"kind":"DeleteOptions","apiVersion":"apps/v1","zzz":1,"dryRun":[],"dryRun":["All"]}"#;
    assert_eq!(root.send("DELETE", &one, JSON, sloppy).await.code, 200);
    assert_eq!(root.get(&one).await.code, 200, "it was a dry run");
    let refused =
        delete(root, MAPS, &json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true})).await.failure();
    assert!(refused.contains("is not allowed with DELETECOLLECTION"), "{refused}");
    assert_eq!(root.get(&one).await.code, 200);
}

#[tokio::test]
async fn what_cannot_be_read_can_be_deleted_by_who_may() {
    let mut store = None;
    let server = Server::start_with(|config| store = Some(config.store.clone())).await;
    let store = store.expect("a store");
    let root = &server.root;
    let key = "/registry/configmaps/default/broken";
    let op =
        Op::Put { key: key.into(), value: "not an object".into(), expect: Expect::Absent, urgency: Urgency::default() };
    store.commit(op).await.expect("commits");
    let one = format!("{MAPS}/broken");
    assert_eq!(root.get(&one).await.code, 500);
    assert_eq!(root.delete(&one).await.code, 500);
    let unsafely = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let editor = server.client("editor", &[]);
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "delete"]}]);
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    root.post(&format!("{roles}/roles"), &json!({"metadata": {"name": "e"}, "rules": rules})).await.ok();
    let binding = json!({"metadata": {"name": "e"}, "subjects": [{"kind": "User", "name": "editor",
        "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "e"}});
    root.post(&format!("{roles}/rolebindings"), &binding).await.ok();
    let refused = delete(&editor, &one, &unsafely).await.failure();
    assert!(refused.contains("cannot unsafe-delete-ignore-read-errors resource \"configmaps\""), "{refused}");
    let gone = delete(root, &one, &unsafely).await;
    assert_eq!(told(&gone), "200 Status Success ConfigMap broken no uid");
    assert_eq!(root.get(&one).await.code, 404);
    assert_eq!(delete(root, &one, &unsafely).await.code, 404);
    root.post(MAPS, &config_map("sound", "1")).await.ok();
    let refused = delete(root, &format!("{MAPS}/sound"), &unsafely).await.failure();
    assert!(refused.ends_with("unsafe deletion is not allowed because the object is decodable from storage"));
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector_and_page() {
    let server = start().await;
    let root = &server.root;
    for (name, on) in [("a", "1"), ("b", "0"), ("c", "1"), ("d", "1")] {
        let mut map = config_map(name, "1");
        map["metadata"]["labels"] = json!({"on": on});
        root.post(MAPS, &map).await.ok();
    }
    let names = |list: &Value| {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|i| i["metadata"]["name"].as_str().map(str::to_owned)).collect::<Vec<_>>().join(" ")
    };
    let dry = root.delete(&format!("{MAPS}?labelSelector=on%3D1&dryRun=All")).await.ok();
    assert_eq!((names(&dry).as_str(), &dry["kind"]), ("a c d", &json!("ConfigMapList")));
    let page = root.delete(&format!("{MAPS}?labelSelector=on%3D1&limit=2")).await.ok();
    assert_eq!(names(&page), "a c");
    assert_eq!(names(&root.get(MAPS).await.ok()), "b d");
    assert_eq!(names(&root.delete(&format!("{MAPS}?fieldSelector=metadata.name%3Dd")).await.ok()), "d");
    for (query, code) in [
        ("fieldSelector=spec.x%3D1", 400),
        ("labelSelector=a%20b", 400),
        ("resourceVersionMatch=Exact", 422),
        ("propagationPolicy=x", 422),
    ] {
        assert_eq!(root.delete(&format!("{MAPS}?{query}")).await.code, code, "{query}");
    }
    assert_eq!(names(&root.delete(MAPS).await.ok()), "b");
    assert_eq!(names(&root.get(MAPS).await.ok()), "");
}
