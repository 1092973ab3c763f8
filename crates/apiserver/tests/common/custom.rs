//! Definitions of custom resources, and waiting until they are served or gone.

use std::time::Duration;

use serde_json::{Value, json};
use stdx::ClockExt;

use super::{Client, Server};

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A definition in the group `stable.example.com` with one version, `v1`, of this schema.
pub fn definition(plural: &str, kind: &str, schema: &Value) -> Value {
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": format!("{plural}.stable.example.com")},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
        },
    })
}

/// The CronTab of every introduction, with a status and a scale.
pub fn cron_tabs() -> Value {
    let mut definition = definition(
        "crontabs",
        "CronTab",
        &json!({"type": "object", "properties": {
            "spec": {"type": "object", "required": ["cronSpec"], "properties": {
                "cronSpec": {"type": "string"},
                "image": {"type": "string", "default": "busybox"},
                "replicas": {"type": "integer", "minimum": 0, "default": 1},
            }},
            "status": {"type": "object", "properties": {
                "replicas": {"type": "integer"}, "labelSelector": {"type": "string"},
            }},
        }}),
    );
    let version = &mut definition["spec"]["versions"][0];
    version["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.labelSelector"}});
    version["additionalPrinterColumns"] = json!([
        {"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec", "description": "When it runs."},
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    version["selectableFields"] = json!([{"jsonPath": ".spec.image"}]);
    definition["spec"]["names"]["shortNames"] = json!(["ct"]);
    definition["spec"]["names"]["categories"] = json!(["all"]);
    definition
}

pub fn cron_tab(name: &str) -> Value {
    json!({"kind": "CronTab", "apiVersion": "stable.example.com/v1", "metadata": {"name": name},
        "spec": {"cronSpec": "* * * * */5"}})
}

/// Ends when `done` says so of what the path answers.
pub async fn until(server: &Server, path: &str, done: impl Fn(u16, &Value) -> bool + Sync) -> Value {
    let ask = async {
        loop {
            let answer = server.root.get(path).await;
            let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if done(answer.code, &value) {
                return value;
            }
            server.clock.sleep(Duration::from_millis(2)).await;
        }
    };
    match server.clock.timeout(PATIENCE, ask).await {
        Ok(value) => value,
        Err(_) => panic!("{path} stays {}", server.root.get(path).await.text()),
    }
}

/// `True`, `False` or nothing.
pub fn condition<'a>(definition: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = definition.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|c| c["type"] == kind)?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

/// Creates a definition and waits until it is established.
pub async fn establish(server: &Server, definition: &Value) -> Value {
    server.root.post(DEFINITIONS, definition).await.ok();
    let name = definition["metadata"]["name"].as_str().expect("a name");
    established(server, name).await
}

pub async fn established(server: &Server, name: &str) -> Value {
    let path = format!("{DEFINITIONS}/{name}");
    until(server, &path, |_, value| condition(value, "Established").is_some_and(|(status, _)| status == "True")).await
}

/// Waits until the path is not found.
pub async fn gone(server: &Server, path: &str) {
    until(server, path, |code, _| code == 404).await;
}

pub fn client(server: &Server) -> &Client {
    &server.root
}
