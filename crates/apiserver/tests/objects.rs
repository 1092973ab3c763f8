//! Objects through the whole chain: create, get, list, update, patch, delete, and what is refused.

mod common;

use common::{MAPS, Server, config_map};
use serde_json::json;

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
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!(stale, format!(r#"409 Conflict: Operation cannot be fulfilled on configmaps "a": {why}"#));
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
