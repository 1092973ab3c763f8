//! Objects through the whole chain: create, get, list, update, patch, delete, and what is refused.

mod common;

use common::{JSON, MAPS, Server, config_map};
use serde_json::json;

const STALE: &str = "the object has been modified; please apply your changes to the latest version and try again";

#[tokio::test]
async fn an_object_lives_its_life() {
    let server = Server::start().await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let made = made.json();
    assert_eq!((&made["kind"], &made["metadata"]["namespace"]), (&json!("ConfigMap"), &json!("default")));
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(made["metadata"][field].as_str().is_some_and(|v| !v.is_empty()), "{field}: {made}");
    }
    let one = format!("{MAPS}/a");
    assert_eq!(root.get(&one).await.ok(), made);
    let again = root.post(MAPS, &config_map("a", "1")).await.failure();
    assert_eq!(again, r#"409 AlreadyExists: configmaps "a" already exists"#);

    let mut changed = made.clone();
    changed["data"]["k"] = json!("2");
    let updated = root.put(&one, &changed).await.ok();
    assert_eq!(updated["data"]["k"], "2");
    assert_ne!(updated["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let stale = root.put(&one, &changed).await.failure();
    assert_eq!(stale, format!(r#"409 Conflict: Operation cannot be fulfilled on configmaps "a": {STALE}"#));
    let same = root.put(&one, &updated).await.ok();
    assert_eq!(same, updated, "an update that changes nothing writes nothing");

    let merged = root.patch("merge", &one, &json!({"data": {"k": null, "l": "3"}})).await.ok();
    assert_eq!(merged["data"], json!({"l": "3"}));
    let patched = root.patch("json", &one, &json!([{"op": "add", "path": "/data/m", "value": "4"}])).await.ok();
    assert_eq!(patched["data"], json!({"l": "3", "m": "4"}));
    let labelled = root.patch("strategic-merge", &one, &json!({"metadata": {"labels": {"x": "y"}}})).await.ok();
    assert_eq!(labelled["metadata"]["labels"], json!({"x": "y"}));

    let gone = root.delete(&one).await.ok();
    assert_eq!((&gone["status"], &gone["details"]["name"]), (&json!("Success"), &json!("a")));
    assert_eq!(root.get(&one).await.failure(), r#"404 NotFound: configmaps "a" not found"#);
    assert_eq!(root.delete(&one).await.code, 404);
}

#[tokio::test]
async fn names_are_generated_until_one_is_free() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "x-"}});
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let made = server.root.post(MAPS, &body).await.ok();
        names.insert(made["metadata"]["name"].as_str().expect("a name").to_owned());
    }
    assert_eq!(names.len(), 20);
    assert!(names.iter().all(|n| n.len() == 7 && n.starts_with("x-")), "{names:?}");
}

#[tokio::test]
async fn a_dry_run_answers_like_the_write_and_leaves_nothing() {
    let server = Server::start().await;
    let root = &server.root;
    let one = format!("{MAPS}/a");
    let dry = |uri: &str| format!("{uri}?dryRun=All");
    let made = root.post(&dry(MAPS), &config_map("a", "1")).await;
    assert_eq!((made.code, &made.json()["data"]["k"]), (201, &json!("1")));
    assert!(made.json()["metadata"]["uid"].is_string());
    assert_eq!(root.get(&one).await.code, 404);
    let real = root.post(MAPS, &config_map("a", "1")).await.ok();
    assert_eq!(root.post(&dry(MAPS), &config_map("a", "1")).await.code, 409);
    let updated = root.put(&dry(&one), &config_map("a", "2")).await.ok();
    assert_eq!((&updated["data"]["k"], &updated["metadata"]["uid"]), (&json!("2"), &real["metadata"]["uid"]));
    let patched = root.patch("merge", &dry(&one), &json!({"data": {"k": "3"}})).await.ok();
    assert_eq!(patched["data"]["k"], "3");
    assert_eq!(root.delete(&dry(&one)).await.code, 200);
    assert_eq!(root.delete(&format!("{MAPS}?dryRun=All")).await.code, 200);
    assert_eq!(root.get(&one).await.ok(), real);
    let refused = root.post(&format!("{MAPS}?dryRun=Some"), &config_map("b", "")).await.failure();
    assert_eq!(
        refused,
        r#"422 Invalid: CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All""#
    );
}

#[tokio::test]
async fn unknown_fields_are_dropped_told_or_refused() {
    let server = Server::start().await;
    let root = &server.root;
    let mut object = config_map("a", "1");
    object["dota"] = json!(1);
    let uri = |validation: &str| format!("{MAPS}?dryRun=All&fieldValidation={validation}");
    let strict = root.post(&uri("Strict"), &object).await.failure();
    let text =
        r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dota""#;
    assert_eq!(strict, format!("400 BadRequest: {text}"));
    let warned = root.post(&uri("Warn"), &object).await;
    assert_eq!((warned.code, warned.warnings()), (201, vec![r#"299 - "unknown field \"dota\"""#]));
    assert!(warned.json().get("dota").is_none());
    let ignored = root.post(&uri("Ignore"), &object).await;
    assert_eq!((ignored.code, ignored.warnings().len()), (201, 0));
    assert_eq!(root.post(&uri("Maybe"), &object).await.code, 422);
}

#[tokio::test]
async fn yaml_goes_in_and_out() {
    let server = Server::start().await;
    let yaml = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: a\ndata:\n  k: 'yes'\n";
    let headers = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let made = server.root.send("POST", MAPS, &headers, yaml).await;
    assert_eq!((made.code, made.header("content-type")), (201, "application/yaml"), "{}", made.text());
    let back: serde_json::Value = serde_saphyr::from_slice(&made.body).expect("YAML");
    assert_eq!(back["data"]["k"], "yes");
    let missing = server.root.send("GET", &format!("{MAPS}/b"), &headers, "").await;
    assert_eq!((missing.code, missing.header("content-type")), (404, "application/yaml"));
}

#[tokio::test]
async fn what_the_url_says_must_be_what_the_object_says() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let mut elsewhere = config_map("a", "1");
    elsewhere["metadata"]["namespace"] = json!("other");
    let mut other_version = config_map("a", "1");
    other_version["apiVersion"] = json!("v2");
    let mut versioned = config_map("b", "1");
    versioned["metadata"]["resourceVersion"] = json!("1");
    let one = format!("{MAPS}/a");
    for (put, uri, body, want) in [
        (
            false,
            MAPS,
            &elsewhere,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (false, MAPS, &versioned, "resourceVersion should not be set on objects to be created"),
        (
            false,
            MAPS,
            &other_version,
            "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for \
             version \"v2\" in scheme \"pintle\"",
        ),
        (
            true,
            one.as_str(),
            &config_map("b", "1"),
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            true,
            one.as_str(),
            &elsewhere,
            "the namespace of the object (other) does not match the namespace on the request (default)",
        ),
        (
            true,
            one.as_str(),
            &json!({"data": {}}),
            "the name of the object (a based on URL) was undeterminable: name must be provided",
        ),
    ] {
        let answer = if put { root.put(uri, body).await } else { root.post(uri, body).await };
        assert_eq!(answer.failure(), format!("400 BadRequest: {want}"));
    }
    let mut reborn = config_map("a", "1");
    reborn["metadata"]["uid"] = json!("someone else's");
    assert_eq!(root.put(&one, &reborn).await.code, 409);
}

#[tokio::test]
async fn a_delete_may_demand_which_object_it_is() {
    let server = Server::start().await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await.ok();
    let (uid, revision) = (&made["metadata"]["uid"], &made["metadata"]["resourceVersion"]);
    let one = format!("{MAPS}/a");
    let demand = |preconditions: serde_json::Value| json!({"preconditions": preconditions}).to_string();
    let refused = root.send("DELETE", &one, JSON, demand(json!({"uid": "other"}))).await.failure();
    assert!(refused.starts_with("409 Conflict: "), "{refused}");
    assert!(refused.contains("the UID in the precondition (other) does not match the UID in record"), "{refused}");
    let refused = root.send("DELETE", &one, JSON, demand(json!({"resourceVersion": "1"}))).await;
    assert_eq!(refused.code, 409);
    let both = demand(json!({"uid": uid, "resourceVersion": revision}));
    assert_eq!(root.send("DELETE", &one, JSON, both).await.code, 200);
}

#[tokio::test]
async fn finalizers_hold_an_object_and_the_last_one_lets_it_go() {
    let server = Server::start().await;
    let root = &server.root;
    let one = format!("{MAPS}/a");
    let mut object = config_map("a", "1");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    root.post(MAPS, &object).await.ok();
    let marked = root.delete(&one).await.ok();
    assert_eq!((&marked["kind"], &marked["metadata"]["deletionGracePeriodSeconds"]), (&json!("ConfigMap"), &json!(0)));
    let deleted_at = marked["metadata"]["deletionTimestamp"].clone();
    assert!(deleted_at.is_string());
    let again = root.delete(&one).await.ok();
    assert_eq!(again["metadata"]["resourceVersion"], marked["metadata"]["resourceVersion"], "nothing more to write");
    let patched = root.patch("merge", &one, &json!({"metadata": {"deletionTimestamp": null}})).await.ok();
    assert_eq!(patched["metadata"]["deletionTimestamp"], deleted_at, "deletion is not taken back");
    let added =
        root.patch("merge", &one, &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/b"]}})).await;
    assert_eq!(added.code, 422, "{}", added.text());
    let freed = root.patch("merge", &one, &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(freed.code, 200, "{}", freed.text());
    assert_eq!(root.get(&one).await.code, 404);
}

#[tokio::test]
async fn propagation_is_told_to_the_garbage_collector_by_finalizers() {
    let server = Server::start().await;
    let root = &server.root;
    for (name, policy, finalizers) in [
        ("a", "Foreground", json!(["foregroundDeletion"])),
        ("b", "Orphan", json!(["orphan"])),
        ("c", "Background", json!(null)),
    ] {
        root.post(MAPS, &config_map(name, "1")).await.ok();
        let answer = root.delete(&format!("{MAPS}/{name}?propagationPolicy={policy}")).await.ok();
        assert_eq!(answer["metadata"]["finalizers"], finalizers, "{policy}");
    }
    assert_eq!(root.get(&format!("{MAPS}/c")).await.code, 404);
    let old = root.post(MAPS, &config_map("d", "1")).await.ok();
    assert!(old.is_object());
    let refused = root.delete(&format!("{MAPS}/d?propagationPolicy=Sideways")).await.failure();
    assert!(refused.contains(r#"propagationPolicy: Unsupported value: "Sideways""#), "{refused}");
}

#[tokio::test]
async fn a_collection_is_deleted_as_it_is_listed() {
    let server = Server::start().await;
    let root = &server.root;
    for (name, tier) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut object = config_map(name, "1");
        object["metadata"]["labels"] = json!({"tier": tier});
        root.post(MAPS, &object).await.ok();
    }
    let gone = root.delete(&format!("{MAPS}?labelSelector=tier%3Dx")).await.ok();
    assert_eq!((&gone["kind"], gone["items"].as_array().map(Vec::len)), (&json!("ConfigMapList"), Some(2)));
    let left = root.get(MAPS).await.ok();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn every_write_says_whose_fields_it_set() {
    let server = Server::start().await;
    let root = &server.root;
    let made = root.post(&format!("{MAPS}?fieldManager=me"), &config_map("a", "1")).await.ok();
    let managers = |object: &serde_json::Value| {
        let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let line = |e: &serde_json::Value| format!("{} {} {}", text(e, "manager"), text(e, "operation"), e["fieldsV1"]);
        list.iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(managers(&made), [r#"me Update {"f:data":{".":{},"f:k":{}}}"#]);
    let patched = root.patch("merge", &format!("{MAPS}/a"), &json!({"data": {"l": "2"}})).await.ok();
    assert_eq!(
        managers(&patched),
        [r#"me Update {"f:data":{".":{},"f:k":{}}}"#, r#"tests Update {"f:data":{"f:l":{}}}"#]
    );
}

#[tokio::test]
async fn apply_owns_what_it_says_and_conflicts_with_others() {
    let server = Server::start().await;
    let root = &server.root;
    let headers = [("content-type", "application/apply-patch+yaml")];
    let one = format!("{MAPS}/a");
    let config =
        |value: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: '{value}'\n");
    let applied = root.send("PATCH", &format!("{one}?fieldManager=x"), &headers, config("1")).await;
    assert_eq!(applied.code, 201, "{}", applied.text());
    let again = root.send("PATCH", &format!("{one}?fieldManager=x"), &headers, config("1")).await;
    assert_eq!((again.code, again.json()), (200, applied.json()), "nothing changed");
    let other = root.send("PATCH", &format!("{one}?fieldManager=y"), &headers, config("2")).await;
    assert_eq!(other.failure(), r#"409 Conflict: Apply failed with 1 conflict: conflict with "x": .data.k"#);
    let forced = root.send("PATCH", &format!("{one}?fieldManager=y&force=true"), &headers, config("2")).await.ok();
    assert_eq!(forced["data"]["k"], "2");
    let nobody = root.send("PATCH", &one, &headers, config("1")).await.failure();
    assert!(nobody.contains("fieldManager: Required value: is required for apply patch"), "{nobody}");
    let unknown =
        root.send("PATCH", &format!("{one}?fieldManager=x"), &headers, config("1").replace("data", "dota")).await;
    assert_eq!(unknown.code, 400, "{}", unknown.text());
}

#[tokio::test]
async fn writes_at_once_lose_nothing() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    let patches = (0..24).map(|i| {
        let (root, one) = (root.clone(), one.clone());
        tokio::spawn(async move { root.patch("merge", &one, &json!({"data": {format!("k{i}"): "v"}})).await.code })
    });
    for patch in patches.collect::<Vec<_>>() {
        assert_eq!(patch.await.expect("joins"), 200);
    }
    let data = root.get(&one).await.ok()["data"].as_object().map(serde_json::Map::len);
    assert_eq!(data, Some(25));
}
