//! Discovery against a table of what a default server serves, entry for entry, the columns of each kind
//! (`fixtures/surface.txt`), and what each subresource answers to whom.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::{Answer, Client, Server};
use kinds::Column;
use serde_json::{Value, json};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Groups of our own are no part of the table.
const OURS: &str = "explain.pintle.dev";
/// Upstream's metrics-server is a program of its own; ours is built in.
const METRICS: &str = "metrics.k8s.io";

/// One resource: its lines but the first, and which of them need not be there.
#[derive(Debug, Default, PartialEq)]
struct Entry {
    head: String,
    lines: Vec<String>,
}

fn table() -> (BTreeMap<String, Entry>, Vec<String>) {
    let text = include_str!("fixtures/surface.txt");
    let (mut entries, mut later) = (BTreeMap::new(), Vec::new());
    let mut key = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => {
                let head = line.trim_start_matches('-').to_owned();
                key = head.split(' ').take(2).collect::<Vec<_>>().join(" ");
                if line.starts_with('-') {
                    later.push(key.clone());
                }
                entries.insert(key.clone(), Entry { head, lines: Vec::new() });
            }
            Some(line) => {
                let plain = line.trim_start_matches('-').to_owned();
                if line.starts_with('-') {
                    later.push(format!("{key} {plain}"));
                }
                entries.get_mut(&key).expect("an entry").lines.push(plain);
            }
        }
    }
    (entries, later)
}

fn words(list: Option<&Value>) -> String {
    let words: Vec<&str> = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "-".into() } else { words.join(",") }
}

fn columns(columns: &[Column]) -> String {
    let mut out = "columns".to_owned();
    for column in columns {
        write!(out, " {}", column.name.replace(' ', "_")).expect("text");
        if column.kind != "string" {
            write!(out, ":{}", column.kind).expect("text");
        }
        out.push_str(if column.format == "name" { "*" } else { "" });
        out.push_str(if column.priority == 1 { "+" } else { "" });
    }
    out
}

/// What discovery says of one resource, in the words of the table.
fn said(group: &str, version: &str, resource: &Value) -> (String, Entry) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (plural, kind) = (text(&resource["resource"]), text(&resource["responseKind"]["kind"]));
    assert_eq!(text(&resource["singularResource"]), kind.to_lowercase(), "{plural}");
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let (short, categories) = (words(resource.get("shortNames")), words(resource.get("categories")));
    let scope = text(&resource["scope"]);
    let head = format!("{group_version} {plural} {kind} {scope} short={short} categories={categories}");
    let mut lines = vec![format!("verbs {}", words(resource.get("verbs")))];
    if let Some(found) = kinds::find(group, version, &plural) {
        if found.shape().verbs.contains(&"list") {
            lines.push(columns(&found.columns()));
        }
    }
    for sub in resource["subresources"].as_array().into_iter().flatten() {
        let of = &sub["responseKind"];
        let (sub_group, sub_version) = (text(&of["group"]), text(&of["version"]));
        let foreign = !sub_group.is_empty() && sub_group != group;
        let kind = if foreign { format!("{sub_group}/{sub_version}.{}", text(&of["kind"])) } else { text(&of["kind"]) };
        lines.push(format!("sub {} {kind} {}", text(&sub["subresource"]), words(sub.get("verbs"))));
    }
    (format!("{group_version} {plural}"), Entry { head, lines })
}

#[tokio::test]
async fn discovery_and_columns_are_as_in_the_table() {
    let server = Server::start().await;
    let (table, later) = table();
    let mut served = BTreeMap::new();
    for uri in ["/api", "/apis"] {
        let document = server.root.send("GET", uri, &[("accept", AGGREGATED)], "").await.ok();
        for group in document["items"].as_array().expect("groups") {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().expect("versions") {
                let version_name = version["version"].as_str().expect("a version");
                let resources = version["resources"].as_array().expect("resources");
                served.extend(resources.iter().map(|resource| said(name, version_name, resource)));
            }
        }
    }
    served.retain(|key, _| !key.starts_with(OURS) && !key.starts_with(METRICS));
    let mut wrong = Vec::new();
    for (key, entry) in &served {
        let Some(wanted) = table.get(key) else {
            wrong.push(format!("{key} is not in the table"));
            continue;
        };
        if entry.head != wanted.head {
            wrong.push(format!("{} instead of {}", entry.head, wanted.head));
        }
        for line in entry.lines.iter().filter(|line| !wanted.lines.contains(line)) {
            wrong.push(format!("{key}: {line}"));
        }
        let missing = wanted.lines.iter().filter(|line| !entry.lines.contains(line));
        wrong.extend(
            missing.filter(|line| !later.contains(&format!("{key} {line}"))).map(|l| format!("{key} lacks: {l}")),
        );
    }
    let missing = table.keys().filter(|key| !served.contains_key(*key) && !later.contains(key));
    wrong.extend(missing.map(|key| format!("{key} is not served")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What HTTP calls each verb.
const METHODS: [(&str, &str); 5] =
    [("GET", "get"), ("POST", "create"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete")];
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A user who may do everything to this resource, or part of one.
async fn who_may(server: &Server, name: &str, group: &str, resource: &str) -> Client {
    let rule = json!({"verbs": ["*"], "apiGroups": [group], "resources": [resource]});
    let role = json!({"metadata": {"name": name}, "rules": [rule]});
    server.root.post(&format!("{RBAC}/clusterroles"), &role).await.ok();
    let binding = json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": name}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}});
    server.root.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.ok();
    server.client(name, &[])
}

async fn send(client: &Client, method: &str, uri: &str) -> Answer {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    client.send(method, uri, &[("content-type", media)], "{}").await
}

/// Each part of each resource answers its own verbs and no others, and is granted apart: who may do
/// everything to pods may not run a program in one, and who may do that may not read one.
#[tokio::test]
async fn every_subresource_has_its_own_verbs_and_rights() {
    let server = Server::start().await;
    let (entries, later) = table();
    let mut walked = 0;
    for (key, entry) in entries.iter().filter(|(key, _)| !later.contains(key)) {
        let (group_version, plural) = key.split_once(' ').expect("a version and a resource");
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        let namespace = if entry.head.contains(" Namespaced ") { "namespaces/default/" } else { "" };
        let prefix = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let main = format!("{prefix}/{version}/{namespace}{plural}/none");
        for line in entry.lines.iter().filter_map(|line| line.strip_prefix("sub ")) {
            let mut words = line.split(' ');
            let (sub, verbs) = (words.next().expect("a name"), words.next_back().expect("verbs"));
            let (uri, resource) = (format!("{main}/{sub}"), format!("{plural}/{sub}"));
            let name = |what: &str| format!("{what}:{group_version}:{plural}:{sub}").replace('/', ":");
            let whole = who_may(&server, &name("whole"), group, plural).await;
            let part = who_may(&server, &name("part"), group, &resource).await;
            for (method, verb) in METHODS {
                let answer = send(&server.root, method, &uri).await;
                if !verbs.split(',').any(|one| one == verb) {
                    let want = "405 MethodNotAllowed: the server does not allow this method on the requested resource";
                    assert_eq!(answer.failure(), want, "{method} {uri}");
                    continue;
                }
                assert!(answer.code != 405 && answer.code < 500, "{method} {uri}: {} {}", answer.code, answer.text());
                assert_ne!(answer.text(), "404 page not found\n", "{method} {uri}");
                let refused = send(&whole, method, &uri).await.failure();
                assert!(refused.starts_with("403 Forbidden: "), "{method} {uri}: {refused}");
                assert!(refused.contains(&format!("resource \"{resource}\"")), "{method} {uri}: {refused}");
                let allowed = send(&part, method, &uri).await;
                assert_ne!(allowed.code, 403, "{method} {uri}: {}", allowed.text());
                walked += 1;
            }
            let refused = part.get(&main).await.failure();
            assert!(refused.starts_with("403 Forbidden: "), "{main}: {refused}");
        }
        // A part that there is not is no path at all.
        assert_eq!(server.root.get(&format!("{main}/nothing")).await.text(), "404 page not found\n", "{main}");
    }
    assert!(walked > 100, "{walked}");
}
