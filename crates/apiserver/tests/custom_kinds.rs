//! One kind served both ways, as a built-in one and as a custom one: every answer is the same but for what
//! the kind is called, and for what is known to differ.

mod common;

use common::custom::{definition, establish};
use common::{Answer, Server};
use serde_json::{Value, json};

const BUILT_IN: &str = "/api/v1/namespaces/default/configmaps";
const CUSTOM: &str = "/apis/stable.example.com/v1/namespaces/default/papers";

/// A definition that says of a Paper what is true of a ConfigMap.
fn papers() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let schema = json!({"type": "object", "properties": {"data": texts, "immutable": {"type": "boolean"}}});
    let mut papers = definition("papers", "Paper", &schema);
    papers["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]);
    papers
}

/// What is said of a ConfigMap, said of a Paper. Longer names go first.
fn renamed(text: &str) -> String {
    let names = [
        ("\"apiVersion\":\"v1\",\"kind\":\"ConfigMap", "\"apiVersion\":\"stable.example.com/v1\",\"kind\":\"Paper"),
        ("ConfigMap in version", "Paper in version"),
        ("ConfigMap \\\"", "Paper.stable.example.com \\\""),
        ("ConfigMap", "Paper"),
        ("configmaps", "papers.stable.example.com"),
    ];
    names.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// An answer without what differs between any two objects, and between these two kinds: a custom resource
/// has a generation, and says of every owner in which version it was.
fn shown(answer: &Answer) -> Value {
    let mut value = match answer.header("content-type") {
        "application/yaml" => machinery::yaml::read(&answer.body).expect("YAML"),
        _ => serde_json::from_slice(&answer.body).unwrap_or_else(|_| json!(answer.text())),
    };
    veil(&mut value);
    let details = value.get_mut("details").and_then(Value::as_object_mut);
    if let Some(details) = details {
        details.remove("group");
        if details.get("kind").is_some_and(|kind| kind == "papers") {
            details.insert("kind".into(), json!("papers.stable.example.com"));
        }
    }
    json!({"code": answer.code, "warnings": answer.warnings(), "type": answer.header("content-type"), "body": value})
}

fn veil(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["uid", "resourceVersion", "creationTimestamp", "generation", "time", "storageVersionHash"] {
                map.remove(key);
            }
            // Of an object, and not of what a Status is about.
            let about = map.contains_key("metadata") || map.contains_key("involvedObject");
            if about && map.get("kind").is_some_and(|kind| kind == "ConfigMap" || kind == "ConfigMapList") {
                map.insert("apiVersion".into(), json!("stable.example.com/v1"));
            }
            // Items of a built-in list do not say what they are.
            if map.contains_key("items") {
                for item in map["items"].as_array_mut().into_iter().flatten() {
                    let fields = item.as_object_mut().expect("an object");
                    fields.remove("kind");
                    fields.remove("apiVersion");
                }
            }
            if map.get("manager").is_some() {
                map.insert("apiVersion".into(), json!("stable.example.com/v1"));
            }
            // The router of built-in paths knows of no resource when it refuses a method; custom resources do.
            if map.get("reason").is_some_and(|reason| reason == "MethodNotAllowed") {
                map.remove("message");
                map.remove("details");
            }
            // The columns' texts, which every kind words for itself.
            map.remove("columnDefinitions");
            if let Some(cells) = map.get_mut("cells") {
                *cells = cells[0].take();
            }
            map.values_mut().for_each(veil);
        }
        Value::Array(items) => items.iter_mut().for_each(veil),
        Value::String(text) => {
            // Revisions and generated names.
            let digits = |c: char| c.is_ascii_digit();
            if text.starts_with("gen-") {
                *text = "gen-".into();
            } else if !text.is_empty() && text.chars().all(digits) {
                *text = "N".into();
            } else if let Some((head, tail)) = text.split_once("in record (") {
                *text = format!("{head}in record (N{}", tail.trim_start_matches(digits));
            }
        }
        _ => {}
    }
}

struct Both {
    server: Server,
}

impl Both {
    /// Sends one request to each, and compares.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Value {
        let text = body.map(Value::to_string).unwrap_or_default();
        let own = self.server.root.send(method, &format!("{BUILT_IN}{path}"), headers, text.clone()).await;
        let custom_text = body.map(|body| self.custom(body)).unwrap_or_default();
        let custom = self.server.root.send(method, &format!("{CUSTOM}{path}"), headers, custom_text).await;
        let (own, custom) = (shown(&own), shown(&custom));
        let own: Value = serde_json::from_str(&renamed(&own.to_string())).expect("JSON");
        assert_eq!(custom, own, "{method} {path} {headers:?} {text}");
        custom
    }

    fn custom(&self, body: &Value) -> String {
        let mut body = body.clone();
        if body["kind"] == "ConfigMap" {
            body["kind"] = json!("Paper");
        }
        if body["apiVersion"] == "v1" {
            body["apiVersion"] = json!("stable.example.com/v1");
        }
        body.to_string()
    }

    async fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, path, common::JSON, Some(body)).await
    }
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": "v"}})
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("is there")[key] = value;
    object
}

#[tokio::test]
async fn every_answer_is_that_of_a_built_in_kind() {
    let server = Server::start().await;
    establish(&server, &papers()).await;
    let both = Both { server };
    // Creates, and what is wrong with them.
    assert_eq!(both.json("POST", "", &map("a")).await["code"], 201);
    both.json("POST", "", &map("a")).await;
    both.json("POST", "?dryRun=All", &map("dry")).await;
    both.json("POST", "?dryRun=Some", &map("dry")).await;
    both.json("POST", "", &with(map("x"), "/metadata/name", json!(""))).await;
    both.json("POST", "", &with(map("x"), "/metadata/name", json!("X_"))).await;
    both.json("POST", "", &with(map("x"), "/metadata/namespace", json!("other"))).await;
    both.json("POST", "", &with(map("x"), "/metadata/resourceVersion", json!("1"))).await;
    both.json("POST", "", &with(map("x"), "/metadata/labels", json!({"a b": "c"}))).await;
    both.json("POST", "", &with(map("x"), "/metadata/finalizers", json!(["a/b/c"]))).await;
    both.json("POST", "?fieldValidation=Strict", &with(map("x"), "/what", json!(1))).await;
    both.json("POST", "?fieldValidation=Warn", &with(map("warned"), "/what", json!(1))).await;
    both.json("POST", "?fieldValidation=Ignore", &with(map("ignored"), "/what", json!(1))).await;
    let mut generated = map("gen");
    generated["metadata"] = json!({"generateName": "gen-"});
    both.json("POST", "", &generated).await;
    both.send("POST", "", common::JSON, None).await;
    both.send("POST", "", &[("content-type", "text/plain")], Some(&json!({}))).await;
    // Reads, in all forms.
    for path in ["/a", "/none", "", "?limit=1", "?labelSelector=a%3Db", "?fieldSelector=metadata.name%3Da", "?limit=x"]
    {
        both.send("GET", path, &[], None).await;
        both.send("GET", path, &[("accept", "application/yaml")], None).await;
        both.send("GET", path, &[("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")], None).await;
    }
    for (path, kind) in [("/a", "PartialObjectMetadata"), ("", "PartialObjectMetadataList")] {
        let accept = format!("application/json;as={kind};g=meta.k8s.io;v=v1");
        both.send("GET", path, &[("accept", &accept)], None).await;
        let accept = format!("application/vnd.kubernetes.protobuf;as={kind};g=meta.k8s.io;v=v1");
        let own = both.server.root.send("GET", &format!("{CUSTOM}{path}"), &[("accept", &accept)], "").await;
        assert_eq!((own.code, own.header("content-type")), (200, "application/vnd.kubernetes.protobuf"));
    }
    // Patches.
    for (kind, body) in [
        ("merge", json!({"data": {"k": null, "n": "1"}, "metadata": {"labels": {"a": "b"}}})),
        ("merge", json!({"metadata": {"name": "b"}})),
        ("merge", json!({"metadata": {"uid": "b"}})),
        ("merge", json!({"metadata": {"resourceVersion": "1"}})),
        ("merge", json!([1])),
        ("json", json!([{"op": "add", "path": "/data/j", "value": "1"}])),
        ("json", json!([{"op": "test", "path": "/data/j", "value": "2"}])),
        ("json", json!([{"op": "remove", "path": "/data/none"}])),
        ("json", json!({})),
    ] {
        let media = format!("application/{kind}-patch+json");
        both.send("PATCH", "/a", &[("content-type", &media)], Some(&body)).await;
        both.send("PATCH", "/none", &[("content-type", &media)], Some(&body)).await;
    }
    // Apply: create, own, conflict, force, give up.
    let apply = [("content-type", "application/apply-patch+yaml")];
    for (manager, value) in [("one", "1"), ("one", "2"), ("two", "3")] {
        let body = with(map("applied"), "/data", json!({"k": value, manager: "x"}));
        both.send("PATCH", &format!("/applied?fieldManager={manager}"), &apply, Some(&body)).await;
    }
    let body = with(map("applied"), "/data", json!({"k": "3"}));
    both.send("PATCH", "/applied?fieldManager=two&force=true", &apply, Some(&body)).await;
    both.send("PATCH", "/applied?fieldManager=one", &apply, Some(&with(map("applied"), "/data", json!({})))).await;
    both.send("PATCH", "/applied", &apply, Some(&body)).await;
    // Deletes.
    both.json("DELETE", "/a", &json!({"preconditions": {"resourceVersion": "1"}})).await;
    both.send("DELETE", "/none", &[], None).await;
    let held = with(map("held"), "/metadata/finalizers", json!(["example.com/hold"]));
    both.json("POST", "", &held).await;
    let marked = both.send("DELETE", "/held", &[], None).await;
    assert_eq!(marked["body"]["metadata"]["deletionGracePeriodSeconds"], 0);
    both.json("POST", "", &held).await;
    let free = json!({"metadata": {"finalizers": null}});
    both.send("PATCH", "/held", &[("content-type", "application/merge-patch+json")], Some(&free)).await;
    both.send("DELETE", "?labelSelector=a%3Db", &[], None).await;
    both.send("GET", "", &[], None).await;
    // What neither has.
    both.send("GET", "/a/status", &[], None).await;
    both.send("GET", "/a/scale", &[], None).await;
}

#[tokio::test]
async fn watches_tell_the_same() {
    let server = Server::start().await;
    establish(&server, &papers()).await;
    let both = Both { server };
    both.json("POST", "", &map("before")).await;
    let query = "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut own =
        both.server.root.watch(&format!("{BUILT_IN}{query}&fieldSelector=metadata.name!%3Dkube-root-ca.crt")).await;
    let mut custom = both.server.root.watch(&format!("{CUSTOM}{query}")).await;
    both.json("POST", "", &with(map("a"), "/metadata/labels", json!({"a": "b"}))).await;
    let patch = json!({"data": {"k": "w"}});
    both.send("PATCH", "/a", &[("content-type", "application/merge-patch+json")], Some(&patch)).await;
    both.send("DELETE", "/a", &[], None).await;
    for _ in 0..5 {
        let (mut own, mut custom) = (own.next().await.expect("an event"), custom.next().await.expect("an event"));
        veil(&mut own);
        veil(&mut custom);
        let own: Value = serde_json::from_str(&renamed(&own.to_string())).expect("JSON");
        assert_eq!(custom, own);
    }
}
