//! Server-side apply over HTTP, on kinds as they are: who owns what, and what clients are told.

mod common;

use common::{Answer, Client, JSON, MAPS, Server};
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+yaml")];

async fn apply(client: &Client, uri: &str, body: &Value) -> Answer {
    client.send("PATCH", uri, APPLY, body.to_string()).await
}

/// `manager operation[ subresource] fields` of every entry.
fn owners(object: &Value) -> Vec<String> {
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let line = |e: &Value| {
        let text = |key: &str| e[key].as_str().unwrap_or_default().to_owned();
        let sub = if text("subresource").is_empty() { String::new() } else { format!(" {}", text("subresource")) };
        format!("{} {}{sub} {}", text("manager"), text("operation"), e["fieldsV1"])
    };
    list.iter().map(line).collect()
}

fn owned(object: &Value, who: &str) -> Value {
    let line = owners(object).into_iter().find(|line| line.starts_with(&format!("{who} {{")));
    line.map_or(Value::Null, |line| serde_json::from_str(&line[who.len()..]).expect("JSON"))
}

fn deployment(replicas: Option<i32>) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "c", "image": "nginx:1", "ports": [{"containerPort": 80}, {"containerPort": 443}]}],
        }},
    }});
    if let Some(replicas) = replicas {
        object["spec"]["replicas"] = json!(replicas);
    }
    object
}

#[tokio::test]
async fn a_deployment_is_applied_by_several() {
    let server = Server::start().await;
    let root = &server.root;
    let web = format!("{DEPLOYMENTS}/web");
    let made = apply(root, &format!("{web}?fieldManager=one"), &deployment(Some(2))).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let text = made.text();
    // Defaults belong to nobody; keys that are left out are what they are by default, in the order of numbers.
    let ports = text.find(r#""k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}"#);
    let more = text.find(r#""k:{\"containerPort\":443,\"protocol\":\"TCP\"}""#);
    assert!(ports.is_some() && ports < more, "{text}");
    let made = made.json();
    let set = owned(&made, "one Apply");
    assert_eq!(set["f:spec"]["f:replicas"], json!({}));
    assert_eq!(set["f:spec"].get("f:strategy"), None);
    assert_eq!(set["f:spec"]["f:selector"], json!({}), "{set}");

    // The same again changes nothing, not even times.
    let again = apply(root, &format!("{web}?fieldManager=one"), &deployment(Some(2))).await.ok();
    assert_eq!(again, made);

    // Others agree, and share; who disagrees is told with whom.
    let shared = apply(root, &format!("{web}?fieldManager=two"), &deployment(Some(2))).await.ok();
    assert_eq!(owned(&shared, "two Apply"), owned(&shared, "one Apply"));
    let mut other = deployment(Some(3));
    other["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:2");
    let refused = apply(root, &format!("{web}?fieldManager=three"), &other).await;
    assert_eq!(
        refused.failure(),
        "409 Conflict: Apply failed with 4 conflicts: conflicts with \"one\":\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"c\"].image\nconflicts with \"two\":\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"c\"].image"
    );
    let causes = refused.json()["details"]["causes"].clone();
    assert_eq!(
        causes[1],
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"one\"",
            "field": ".spec.template.spec.containers[name=\"c\"].image"})
    );
    let forced = apply(root, &format!("{web}?fieldManager=three&force=true"), &other).await.ok();
    assert_eq!(forced["spec"]["replicas"], 3);
    assert_eq!(owned(&forced, "one Apply")["f:spec"].get("f:replicas"), None);

    // What its manager no longer wants goes, unless someone else wants it: then it stays.
    let mut fewer = deployment(None);
    fewer["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
    let left = apply(root, &format!("{web}?fieldManager=three"), &fewer).await.ok();
    let ports = |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().map(Vec::len);
    assert_eq!((&left["spec"]["replicas"], ports(&left)), (&json!(1), Some(2)), "the default; others want both ports");
    for who in ["one", "two"] {
        apply(root, &format!("{web}?fieldManager={who}"), &fewer).await.ok();
    }
    assert_eq!(ports(&root.get(&web).await.ok()), Some(1));
}

#[tokio::test]
async fn updates_take_and_subresources_are_apart() {
    let server = Server::start().await;
    let root = &server.root;
    let web = format!("{DEPLOYMENTS}/web");
    apply(root, &format!("{web}?fieldManager=one"), &deployment(Some(2))).await.ok();
    let patched =
        root.patch("merge", &format!("{web}?fieldManager=edit"), &json!({"spec": {"replicas": 5}})).await.ok();
    assert_eq!(owned(&patched, "edit Update"), json!({"f:spec": {"f:replicas": {}}}));
    let refused = apply(root, &format!("{web}?fieldManager=one"), &deployment(Some(2))).await.failure();
    assert_eq!(
        refused,
        "409 Conflict: Apply failed with 1 conflict: conflict with \"edit\" using apps/v1: .spec.replicas"
    );

    // Status has owners of its own, and what the door does not let in is nobody's.
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"a": "b"}},
        "spec": {"replicas": 9}, "status": {"replicas": 4, "conditions": [
            {"type": "Available", "status": "True"}]}});
    let applied = apply(root, &format!("{web}/status?fieldManager=ctl"), &status).await.ok();
    assert_eq!((&applied["spec"]["replicas"], &applied["status"]["replicas"]), (&json!(5), &json!(4)));
    assert_eq!(
        owned(&applied, "ctl Apply status"),
        json!({"f:status": {"f:replicas": {}, "f:conditions": {
            "k:{\"type\":\"Available\"}": {".": {}, "f:type": {}, "f:status": {}}}}})
    );
    let mut with = deployment(None);
    with["status"] = json!({"replicas": 7});
    let main = apply(root, &format!("{web}?fieldManager=one"), &with).await.ok();
    assert_eq!(main["status"]["replicas"], 4);
    assert_eq!(owned(&main, "one Apply").get("f:status"), None);
}

#[tokio::test]
async fn a_scale_owns_the_replicas_of_its_object() {
    let server = Server::start().await;
    let root = &server.root;
    let web = format!("{DEPLOYMENTS}/web");
    apply(root, &format!("{web}?fieldManager=one"), &deployment(Some(2))).await.ok();
    let scale = |replicas: i32| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"},
            "spec": {"replicas": replicas}})
    };
    let refused = apply(root, &format!("{web}/scale?fieldManager=hpa"), &scale(4)).await.failure();
    assert_eq!(refused, "409 Conflict: Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    let scaled = apply(root, &format!("{web}/scale?fieldManager=hpa&force=true"), &scale(4)).await.ok();
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    let object = root.get(&web).await.ok();
    assert_eq!(object["spec"]["replicas"], 4);
    assert_eq!(owned(&object, "hpa Apply scale"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&object, "one Apply")["f:spec"].get("f:replicas"), None);
    // Who leaves it alone keeps the rest without a quarrel.
    assert_eq!(apply(root, &format!("{web}?fieldManager=one"), &deployment(None)).await.code, 200);
    let put = root.put(&format!("{web}/scale?fieldManager=kubectl"), &scale(6)).await;
    assert_eq!(put.code, 200, "{}", put.text());
    let object = root.get(&web).await.ok();
    assert_eq!(owned(&object, "kubectl Update scale"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&object, "hpa Apply scale"), Value::Null);
    let none = apply(root, &format!("{DEPLOYMENTS}/none/scale?fieldManager=hpa"), &scale(1)).await;
    assert_eq!(none.code, 404);
}

#[tokio::test]
async fn ports_of_a_service_have_two_keys() {
    let server = Server::start().await;
    let root = &server.root;
    let service = |ports: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns"},
            "spec": {"selector": {"app": "dns"}, "ports": ports}})
    };
    let dns = format!("{SERVICES}/dns");
    let both = json!([{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53}]);
    let made = apply(root, &format!("{dns}?fieldManager=one"), &service(both.clone())).await.ok();
    let ports = &owned(&made, "one Apply")["f:spec"]["f:ports"];
    assert_eq!(
        ports.as_object().map(|p| p.keys().cloned().collect::<Vec<_>>()),
        Some(vec![r#"k:{"port":53,"protocol":"TCP"}"#.to_owned(), r#"k:{"port":53,"protocol":"UDP"}"#.to_owned()])
    );
    let more = json!([{"name": "m", "port": 9153, "protocol": "TCP"}]);
    let other = apply(root, &format!("{dns}?fieldManager=two"), &service(more)).await.ok();
    assert_eq!(other["spec"]["ports"].as_array().map(Vec::len), Some(3));
    let doubled = json!([{"name": "t", "port": 53}, {"name": "v", "port": 53, "protocol": "TCP"}]);
    let refused = apply(root, &format!("{dns}?fieldManager=one"), &service(doubled)).await.failure();
    assert_eq!(
        refused,
        "400 BadRequest: failed to create typed patch object (/dns; /v1, Kind=Service): .spec.ports: duplicate entries \
         for key [port=53,protocol=\"TCP\"]"
    );
    let one = json!([{"name": "t", "port": 53, "protocol": "TCP"}]);
    let left = apply(root, &format!("{dns}?fieldManager=one"), &service(one)).await.ok();
    let names: Vec<&str> =
        left["spec"]["ports"].as_array().into_iter().flatten().flat_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["t", "m"]);
}

/// Where a changed configuration is sent, the change, and what is said of it.
type Case = (String, fn(&mut Value), &'static str);

#[tokio::test]
async fn what_cannot_be_applied_is_told() {
    let server = Server::start().await;
    let root = &server.root;
    let map = |change: fn(&mut Value)| {
        let mut object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        change(&mut object);
        object
    };
    let one = format!("{MAPS}/a?fieldManager=me");
    let long = "m".repeat(129);
    let cases: [Case; 13] = [
        (
            format!("{MAPS}/a"),
            |_| {},
            "422 Invalid: PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (format!("{MAPS}/a?fieldManager={long}"), |_| {}, "fieldManager: Too long: may not be more than 128 bytes"),
        (format!("{MAPS}/a?fieldManager=a%07"), |_| {}, "should only contain printable characters"),
        (one.clone(), |o| o["kind"] = json!("Secret"), "400 BadRequest: invalid object type: /v1, Kind=Secret"),
        (
            one.clone(),
            |o| drop(o.as_object_mut().map(|o| o.remove("kind"))),
            "400 BadRequest: invalid object type: /v1, Kind=",
        ),
        (
            one.clone(),
            |o| o["apiVersion"] = json!("apps/v1"),
            "400 BadRequest: invalid object type: apps/v1, Kind=ConfigMap",
        ),
        (
            one.clone(),
            |o| o["metadata"]["managedFields"] = json!([{}]),
            "400 BadRequest: metadata.managedFields must be nil",
        ),
        (
            one.clone(),
            |o| o["dota"] = json!({}),
            "400 BadRequest: failed to create typed patch object (/a; /v1, Kind=ConfigMap): .dota: field not declared in schema",
        ),
        (one.clone(), |o| o["data"]["k"] = json!(1), ".data.k: expected string, got &value.valueUnstructured{Value:1}"),
        (
            one.clone(),
            |o| o["metadata"]["name"] = json!("b"),
            "400 BadRequest: the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            one.clone(),
            |o| o["metadata"] = json!({"generateName": "a"}),
            "400 BadRequest: the name of the object (a based on URL) was undeterminable: name must be provided",
        ),
        (
            one.clone(),
            |o| o["metadata"]["namespace"] = json!("other"),
            "400 BadRequest: the namespace of the object (other) does not match the namespace on the request (default)",
        ),
        (
            one.clone(),
            |o| o["metadata"]["uid"] = json!("1"),
            "409 Conflict: Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid 1, and no existing object was found",
        ),
    ];
    for (uri, change, want) in cases {
        let refused = apply(root, &uri, &map(change)).await.failure();
        assert!(refused.contains(want), "{refused}");
    }
    let force = root.patch("merge", &format!("{MAPS}/a?force=true"), &json!({})).await.failure();
    assert!(force.contains("force: Forbidden: may not be specified for non-apply patch"), "{force}");
    assert_eq!(root.get(&format!("{MAPS}/a")).await.code, 404);

    // A key that is set twice is told, or refused; the later counts.
    let doubled = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: '1'\n  k: '2'\n";
    let send = |query: &str| {
        let uri = format!("{one}{query}");
        async move { root.send("PATCH", &uri, APPLY, doubled.to_owned()).await }
    };
    let strict = send("&fieldValidation=Strict").await.failure();
    let text = "yaml: unmarshal errors:\n  line 7: key \"k\" already set in map";
    assert_eq!(strict, format!("400 BadRequest: error strict decoding YAML: error converting YAML to JSON: {text}"));
    let warned = send("").await;
    assert_eq!((warned.code, warned.warnings()), (201, vec![r#"299 - "line 7: key \"k\" already set in map""#]));
    assert_eq!(warned.ok()["data"]["k"], "2");
}

#[tokio::test]
async fn versions_dry_runs_and_absent_names() {
    let server = Server::start().await;
    let root = &server.root;
    let one = format!("{MAPS}/a?fieldManager=me");
    let map = |value: &str, version: Option<&str>| {
        let mut object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = json!(version);
        }
        object
    };
    let dry = apply(root, &format!("{one}&dryRun=All"), &map("1", None)).await;
    assert_eq!((dry.code, dry.json()["data"]["k"].clone()), (201, json!("1")));
    assert_eq!(root.get(&format!("{MAPS}/a")).await.code, 404);
    let made = apply(root, &one, &map("1", None)).await.ok();
    let version = made["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let stale = apply(root, &one, &map("2", Some("1"))).await.failure();
    assert!(stale.starts_with("409 Conflict: Operation cannot be fulfilled on configmaps \"a\""), "{stale}");
    let next = apply(root, &one, &map("2", Some(&version))).await.ok();
    assert_eq!(next["data"]["k"], "2");
    assert_eq!(owned(&next, "me Apply"), json!({"f:data": {"f:k": {}}}));
    // An object that is there has its name.
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "3"}});
    assert_eq!(apply(root, &one, &nameless).await.ok()["data"]["k"], "3");
    // Null takes a value away and owns that it is gone.
    let gone = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "3"}, "immutable": null});
    let gone = apply(root, &one, &gone).await.ok();
    assert_eq!(gone.get("immutable"), None);
    assert_eq!(owned(&gone, "me Apply"), json!({"f:data": {"f:k": {}}, "f:immutable": {}}));
}

#[tokio::test]
async fn the_list_itself_may_be_edited_and_cleared() {
    let server = Server::start().await;
    let root = &server.root;
    let one = format!("{MAPS}/a");
    let made = root.post(&format!("{MAPS}?fieldManager=old"), &common::config_map("a", "1")).await.ok();
    // As kubectl moves what it owned to server-side apply: a JSON patch of the list.
    let entry = json!([{"manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "time": "2026-01-02T03:04:05Z", "fieldsV1": {"f:data": {".": {}, "f:k": {}}}}]);
    let patch = json!([
        {"op": "test", "path": "/metadata/managedFields/0/fieldsV1/f:data/f:k", "value": {}},
        {"op": "replace", "path": "/metadata/managedFields", "value": entry},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]);
    let moved = root.patch("json", &one, &patch).await.ok();
    assert_eq!(owners(&moved), [r#"kubectl Apply {"f:data":{".":{},"f:k":{}}}"#]);
    // It is what is stored, too.
    assert_eq!(root.get(&one).await.ok(), moved);
    let mut emptied = moved.clone();
    emptied["metadata"]["managedFields"] = json!([{}]);
    let cleared = root.put(&one, &emptied).await.ok();
    assert_eq!(cleared["metadata"].get("managedFields"), None);
    // Nobody is written down until somebody applies.
    let later = root.patch("merge", &one, &json!({"data": {"l": "1"}})).await.ok();
    assert_eq!(later["metadata"].get("managedFields"), None);
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"m": "1"}});
    let applied = apply(root, &format!("{one}?fieldManager=me"), &config).await.ok();
    assert_eq!(
        owners(&applied),
        [r#"me Apply {"f:data":{"f:m":{}}}"#, r#"before-first-apply Update {"f:data":{".":{},"f:k":{},"f:l":{}}}"#]
    );
    // What is no set of fields is not believed, however it is written.
    for bad in [json!("{\"f:data\""), json!({"f:data": 1}), json!(7)] {
        let mut sent = applied.clone();
        sent["metadata"]["managedFields"][0]["fieldsV1"] = bad;
        let kept = root.send("PUT", &one, JSON, sent.to_string()).await.ok();
        assert_eq!(owners(&kept), owners(&applied));
    }
}
