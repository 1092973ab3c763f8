//! The forms answers and bodies have: protobuf beside JSON and YAML, views of objects, negotiation.

mod common;

use common::{Answer, Client, JSON, MAPS, Server, config_map, frames};
use http_body_util::BodyExt as _;
use machinery::proto;
use machinery::schema::Type;
use serde_json::{Value, json};
use transport::Body;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ACCEPT: (&str, &str) = ("accept", PROTOBUF);
const CONTENT: (&str, &str) = ("content-type", PROTOBUF);
const PODS: &str = "/api/v1/namespaces/default/pods";

fn schema(group: &str, version: &str, kind: &str) -> Type {
    api::schema::of(group, version, kind).unwrap_or_else(|| panic!("{kind} has no schema"))
}

/// An object in protobuf as the JSON the server would send; its envelope says what it is.
fn read(bytes: &[u8]) -> Value {
    let envelope = proto::open(bytes).expect("an envelope");
    let (group, version) = envelope.api_version.split_once('/').unwrap_or(("", &envelope.api_version));
    let schema = match envelope.api_version.as_str() {
        "meta.k8s.io/v1" => api::schema::find("meta/v1", &envelope.kind),
        "meta.k8s.io/v1beta1" if envelope.kind.ends_with("List") => api::schema::find("meta/v1beta1", &envelope.kind),
        "meta.k8s.io/v1beta1" => api::schema::find("meta/v1", &envelope.kind),
        _ => api::schema::of(group, version, &envelope.kind),
    };
    let schema = schema.unwrap_or_else(|| panic!("no schema of {} {}", envelope.api_version, envelope.kind));
    let mut object = json!({ "kind": envelope.kind, "apiVersion": envelope.api_version });
    let body = proto::decode_body(envelope.body, &schema).expect("a body");
    object.as_object_mut().expect("an object").extend(body.as_object().cloned().unwrap_or_default());
    serde_json::from_slice(&machinery::encode::json(&object, &schema)).expect("JSON")
}

trait Protobuf {
    /// The object, which came in protobuf.
    fn object(&self, code: u16) -> Value;
}

impl Protobuf for Answer {
    #[track_caller]
    fn object(&self, code: u16) -> Value {
        assert_eq!((self.code, self.header("content-type")), (code, PROTOBUF), "{}", self.text());
        read(&self.body)
    }
}

/// A list whose items do not say what they are: in protobuf they cannot, in JSON only some do. Nor does
/// protobuf tell no items from none given.
fn bare(mut list: Value) -> Value {
    if list["items"].is_null() {
        list["items"] = json!([]);
    }
    for item in list["items"].as_array_mut().into_iter().flatten() {
        if let Some(item) = item.as_object_mut() {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
    list
}

fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": name, "labels": { "a": "b", "c": "" }, "annotations": { "note": "\"q\" \u{e9} \u{1F980}\n" } },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "i", "args": ["", "x"], "stdin": true,
                "env": [{ "name": "E", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                "resources": { "requests": { "cpu": "1500m", "memory": "1Gi" } },
                "ports": [{ "containerPort": 80 }],
                "readinessProbe": { "httpGet": { "port": "http", "path": "/" }, "initialDelaySeconds": 3 },
            }],
            "volumes": [{ "name": "v", "emptyDir": { "sizeLimit": "10Mi" } }, { "name": "s", "secret": { "secretName": "s" } }],
            "tolerations": [{ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 }],
        },
    })
}

/// The account that pods run under.
async fn account(root: &Client) {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    root.post(accounts, &json!({"metadata": {"name": "default"}})).await.ok();
}

/// One object each of several shapes, beside what a fresh cluster has.
async fn filled(root: &Client) {
    account(root).await;
    for (path, object) in [
        (PODS, pod("a")),
        (PODS, pod("b")),
        (MAPS, config_map("m", "v")),
        (
            "/api/v1/namespaces/default/secrets",
            json!({"metadata": {"name": "s"}, "data": {"k": "AAEC/w=="}, "stringData": {"t": "x"}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "svc"}, "spec": {"ports": [{"port": 80, "targetPort": "http"}], "selector": {"a": "b"}}}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-02T03:04:05.000006Z", "holderIdentity": "h"}}),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            json!({"metadata": {"name": "e"}, "eventTime": "2026-01-02T03:04:05.000006Z", "action": "Do", "reason": "Why",
                "reportingController": "t", "reportingInstance": "t-1", "type": "Normal",
                "regarding": {"kind": "Pod", "namespace": "default", "name": "a"}}),
        ),
    ] {
        root.post(path, &object).await.ok();
    }
}

fn path_of(shape: &kinds::Shape) -> String {
    let root = if shape.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", shape.api_version()) };
    format!("{root}/{}", shape.plural)
}

#[tokio::test]
async fn every_kind_is_listed_read_and_watched_in_protobuf() {
    let server = Server::start().await;
    let root = &server.root;
    filled(root).await;
    let mut seen = 0;
    for kind in kinds::ALL {
        let shape = kind.shape();
        if !shape.verbs.contains(&"list") {
            continue;
        }
        let path = path_of(&shape);
        let json = root.get(&path).await.ok();
        let list = root.send("GET", &path, &[ACCEPT], "").await.object(200);
        assert_eq!(bare(list), json, "{path}");
        let partial = "as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        let json_partial =
            root.send("GET", &path, &[("accept", &format!("application/json;{partial}"))], "").await.ok();
        let list = root.send("GET", &path, &[("accept", &format!("{PROTOBUF};{partial}"))], "").await.object(200);
        assert_eq!(bare(list), bare(json_partial), "{path}");
        let Some(first) = json["items"].as_array().and_then(|items| items.first()) else { continue };
        let text = |pointer: &str| first.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let one = match path.rsplit_once('/') {
            Some((root, plural)) if shape.is_namespaced() => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
            _ => format!("{path}/{name}"),
        };
        let json = root.get(&one).await.ok();
        assert_eq!(root.send("GET", &one, &[ACCEPT], "").await.object(200), json, "{one}");
        let partial = "as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        let json_partial = root.send("GET", &one, &[("accept", &format!("application/json;{partial}"))], "").await.ok();
        let got = root.send("GET", &one, &[("accept", &format!("{PROTOBUF};{partial}"))], "").await.object(200);
        assert_eq!(got, json_partial, "{one}");
        if shape.verbs.contains(&"watch") {
            let mut watch = Watch::start(root, &path, PROTOBUF).await;
            let (what, object) = watch.next().await.expect("an event");
            assert_eq!((what.as_str(), &object["metadata"]["name"]), ("ADDED", &json["metadata"]["name"]), "{path}");
            assert_eq!(object, json, "{path}");
        }
        seen += 1;
    }
    assert!(seen >= 10, "{seen} kinds have objects");
}

/// The events of a watch in protobuf.
struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Watch {
    async fn start(client: &Client, path: &str, accept: &str) -> Self {
        let path = format!("{path}{}watch=1", if path.contains('?') { '&' } else { '?' });
        let response = client.open("GET", &path, &[("accept", accept)], "").await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
        Self { body: response.into_body(), rest: Vec::new() }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((length, rest)) = self.rest.split_first_chunk::<4>()
                && let Some(event) = rest.get(..u32::from_be_bytes(*length) as usize)
            {
                let (what, object) = proto::read_watch_event(event).expect("an event");
                let found = (what, read(object));
                let used = 4 + event.len();
                self.rest.drain(..used);
                return Some(found);
            }
            let frame = self.body.frame().await?.expect("frame");
            self.rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}

#[tokio::test]
async fn writes_are_sent_and_answered_in_protobuf() {
    let server = Server::start().await;
    let root = &server.root;
    account(root).await;
    let pods = schema("", "v1", "Pod");
    let both = [ACCEPT, CONTENT];
    let created = root.send("POST", PODS, &both, proto::encode(&pod("a"), &pods)).await.object(201);
    let uid = created["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let one = format!("{PODS}/a");
    assert_eq!(root.get(&one).await.ok(), created);
    // Sent in JSON, the same is the same but for what tells objects apart.
    let mut other = root.post(PODS, &pod("b")).await.ok();
    for key in ["name", "uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        other["metadata"][key] = created["metadata"][key].clone();
    }
    assert_eq!(other, created);

    let mut changed = created.clone();
    changed["metadata"]["labels"] = json!({"new": "1"});
    let updated = root.send("PUT", &one, &both, proto::encode(&changed, &pods)).await.object(200);
    assert_eq!(updated["metadata"]["labels"], json!({"new": "1"}));
    let merge = ("content-type", "application/merge-patch+json");
    let patched = root.send("PATCH", &one, &[ACCEPT, merge], r#"{"metadata":{"labels":{"x":"y"}}}"#).await.object(200);
    assert_eq!(patched["metadata"]["labels"], json!({"new": "1", "x": "y"}));
    let apply = ("content-type", "application/apply-patch+yaml");
    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n";
    let map = root.send("PATCH", &format!("{MAPS}/m?fieldManager=t"), &[ACCEPT, apply], applied).await.object(201);
    assert_eq!(map["data"], json!({"a": "b"}));

    let options = schema("", "v1", "DeleteOptions");
    let wrong = json!({"preconditions": {"uid": "other"}});
    let refused = root.send("DELETE", &one, &both, proto::encode(&wrong, &options)).await.object(409);
    assert_eq!((&refused["kind"], &refused["reason"]), (&json!("Status"), &json!("Conflict")));
    let right = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}, "propagationPolicy": "Background"});
    root.send("DELETE", &one, &both, proto::encode(&right, &options)).await.object(200);
    assert_eq!(root.get(&one).await.code, 404);
    let gone = root.send("DELETE", &format!("{MAPS}/m"), &[ACCEPT], "").await.object(200);
    assert_eq!(
        (&gone["kind"], &gone["status"], &gone["details"]["name"]),
        (&json!("Status"), &json!("Success"), &json!("m"))
    );
    let rest = root.send("DELETE", PODS, &[ACCEPT], "").await.object(200);
    assert_eq!(rest["items"][0]["metadata"]["name"], "b");
}

#[tokio::test]
async fn subresources_and_reviews_speak_protobuf() {
    let server = Server::start().await;
    let root = &server.root;
    filled(root).await;
    let both = [ACCEPT, CONTENT];
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    let mut got = root.send("GET", scale, &[ACCEPT], "").await.object(200);
    assert_eq!((&got["kind"], &got["status"]["replicas"]), (&json!("Scale"), &json!(0)));
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let shown = server.root.send("GET", scale, &table, "").await.ok();
    let names: Vec<&str> =
        shown["columnDefinitions"].as_array().expect("columns").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(
        shown["rows"][0]["cells"].as_array().expect("cells")[..3],
        [got["metadata"]["name"].clone(), json!(0), json!(0)]
    );
    got["spec"]["replicas"] = json!(3);
    let body = proto::encode(&got, &schema("autoscaling", "v1", "Scale"));
    assert_eq!(root.send("PUT", scale, &both, body).await.object(200)["spec"]["replicas"], 3);
    let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let body = proto::encode(&review, &schema("authorization.k8s.io", "v1", "SelfSubjectAccessReview"));
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(root.send("POST", path, &both, body).await.object(201)["status"]["allowed"], true);
    let token =
        json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 600}});
    let body = proto::encode(&token, &schema("authentication.k8s.io", "v1", "TokenRequest"));
    root.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "sa"}})).await.ok();
    let path = "/api/v1/namespaces/default/serviceaccounts/sa/token";
    let got = root.send("POST", path, &both, body).await.object(201);
    assert!(got["status"]["token"].as_str().is_some_and(|token| !token.is_empty()), "{got}");
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    let body = proto::encode(&binding, &schema("", "v1", "Binding"));
    let bound = root.send("POST", &format!("{PODS}/a/binding"), &both, body).await.object(201);
    assert_eq!((&bound["kind"], &bound["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(root.get(&format!("{PODS}/a")).await.ok()["spec"]["nodeName"], "n");
}

#[tokio::test]
async fn a_watch_in_protobuf_tells_what_one_in_json_does() {
    let server = Server::start_with(|config| config.limits.changes = 3).await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let query = "?allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let partial = format!("{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let mut watches = [
        Watch::start(root, &format!("{MAPS}{query}"), PROTOBUF).await,
        Watch::start(root, &format!("{MAPS}{query}"), &partial).await,
    ];
    let mut json = root.watch(&format!("{MAPS}{query}&watch=1")).await;
    root.put(&format!("{MAPS}/a"), &config_map("a", "2")).await.ok();
    // Longer than what is copied into an event.
    root.post(MAPS, &config_map("large", &"x".repeat(100_000))).await.ok();
    root.delete(&format!("{MAPS}/a")).await.ok();
    for _ in 0..5 {
        let want = json.next().await.expect("an event");
        for (watch, whole) in watches.iter_mut().zip([true, false]) {
            let (what, object) = watch.next().await.expect("an event");
            assert_eq!(what, want["type"].as_str().expect("a type"));
            if !whole {
                assert_eq!(object["kind"], "PartialObjectMetadata");
                assert_eq!(object["metadata"], want["object"]["metadata"]);
            } else if what == "BOOKMARK" {
                assert_eq!(object["metadata"], want["object"]["metadata"]);
                assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
            } else {
                assert_eq!(object, want["object"]);
            }
        }
    }
    // What goes wrong once the stream has begun is told in it.
    for value in ["3", "4", "5"] {
        root.put(&format!("{MAPS}/large"), &config_map("large", value)).await.ok();
    }
    let mut late = Watch::start(root, &format!("{MAPS}?resourceVersion=1"), PROTOBUF).await;
    let (what, status) = late.next().await.expect("an event");
    assert_eq!((what.as_str(), &status["kind"], &status["code"]), ("ERROR", &json!("Status"), &json!(410)));
    assert!(late.next().await.is_none());
}

#[tokio::test]
async fn errors_come_in_the_form_that_is_accepted() {
    let server = Server::start().await;
    let root = &server.root;
    let missing = format!("{MAPS}/nope");
    let status = root.send("GET", &missing, &[ACCEPT], "").await.object(404);
    assert_eq!(status, root.get(&missing).await.json());
    let yaml = root.send("GET", &missing, &[("accept", "application/yaml")], "").await;
    assert_eq!((yaml.code, yaml.header("content-type")), (404, "application/yaml"));
    assert!(yaml.text().contains("reason: NotFound"), "{}", yaml.text());
    // Nothing that is spoken: indented JSON, as if asked by eyes.
    let none = root.send("GET", &missing, &[("accept", "text/html")], "").await;
    assert_eq!((none.code, none.header("content-type")), (406, "application/json"));
    assert!(none.text().starts_with("{\n  \"kind\": \"Status\""), "{}", none.text());
    let want = "406 NotAcceptable: only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(none.failure(), want);
    let stream = root.send("GET", &format!("{MAPS}?watch=1"), &[("accept", "application/yaml")], "").await;
    let want = "406 NotAcceptable: only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    assert_eq!((stream.code, stream.header("content-type")), (406, "application/yaml"));
    assert!(stream.text().contains(want.trim_start_matches("406 NotAcceptable: ")), "{}", stream.text());
    let table = [("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")];
    let want = "406 NotAcceptable: you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)";
    assert_eq!(root.send("GET", MAPS, &table, "").await.failure(), want);
    let body = root.send("POST", MAPS, &[("content-type", "text/plain")], "x").await;
    let want = "415 UnsupportedMediaType: the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(body.failure(), want);
}

#[tokio::test]
async fn several_accepts_and_parameters() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    for (accept, media, kind) in [
        (vec!["text/html", "application/yaml"], "application/yaml", "ConfigMap"),
        (vec!["application/json;q=0.2", "application/yaml;q=0.3"], "application/yaml", "ConfigMap"),
        (vec!["application/json; charset=utf-8"], "application/json", "ConfigMap"),
        (vec!["application/json;as=Chart;g=meta.k8s.io;v=v1, application/yaml"], "application/yaml", "ConfigMap"),
        (vec!["application/json;as=Table;g=meta.k8s.io;v=v1beta1"], "application/json", "Table"),
        (vec!["application/yaml;as=Table;g=meta.k8s.io;v=v1"], "application/yaml", "Table"),
        (
            vec!["application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json"],
            "application/json",
            "ConfigMap",
        ),
        (vec!["*/*"], "application/json", "ConfigMap"),
    ] {
        let headers: Vec<(&str, &str)> = accept.iter().map(|value| ("accept", *value)).collect();
        let answer = root.send("GET", &one, &headers, "").await;
        assert_eq!((answer.code, answer.header("content-type")), (200, media), "{accept:?}");
        assert!(answer.header("vary").contains("Accept"), "{accept:?}");
        let text = answer.text();
        assert!(text.contains(&format!("kind: {kind}")) || text.contains(&format!("\"kind\":\"{kind}\"")), "{text}");
        if accept[0].contains("v1beta1") {
            assert!(text.contains(r#""apiVersion":"meta.k8s.io/v1beta1","metadata""#), "{text}");
        }
    }
    let beta = "as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io";
    let json = root.send("GET", MAPS, &[("accept", &format!("application/json;{beta}"))], "").await.ok();
    assert_eq!(
        (&json["apiVersion"], &json["items"][0]["apiVersion"]),
        (&json!("meta.k8s.io/v1beta1"), &json!("meta.k8s.io/v1beta1"))
    );
    let list = root.send("GET", MAPS, &[("accept", &format!("{PROTOBUF};{beta}"))], "").await.object(200);
    assert_eq!(list["items"][0]["metadata"], json["items"][0]["metadata"]);
    assert_eq!(list["metadata"], json["metadata"]);
}

#[tokio::test]
async fn eyes_get_what_is_indented() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    let indented = |answer: &Answer| answer.text().starts_with("{\n  \"kind\"");
    for (query, accept, agent, want) in [
        ("", "", "kubectl/1", false),
        ("", "", "curl/8", true),
        ("?pretty=0", "", "curl/8", false),
        ("?pretty=false", "", "Mozilla/5.0 (X)", false),
        ("?pretty=true", "", "kubectl/1", true),
        ("?pretty=1", "", "kubectl/1", true),
        ("", "application/json;pretty=1", "kubectl/1", true),
        ("", "application/json;pretty=0", "kubectl/1", false),
    ] {
        for (path, code) in [(one.as_str(), 200), (MAPS, 200), (&format!("{MAPS}/nope"), 404)] {
            let request =
                http::Request::get(format!("{path}{query}")).header("user-agent", agent).header("accept", accept);
            let response = root.0.call(request.body(transport::empty()).expect("a request")).await.expect("answered");
            let (head, body) = response.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let answer = Answer { code: head.status.as_u16(), headers: head.headers, body };
            assert_eq!((answer.code, indented(&answer)), (code, want), "{path}{query} {accept} {agent}");
            assert_eq!(answer.body.ends_with(b"\n"), !want, "one line has an end");
        }
    }
}

/// Long lists come in pieces in every form, and are the same in every form.
#[tokio::test]
async fn long_lists_are_the_same_in_every_form() {
    let server = Server::start().await;
    let root = &server.root;
    for i in 0..10 {
        root.post(MAPS, &config_map(&format!("m{i}"), &format!("{i} ").repeat(40_000))).await.ok();
    }
    let want = root.get(MAPS).await.ok();
    let partial = root
        .send("GET", MAPS, &[("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")], "")
        .await
        .ok();
    let partial = bare(partial);
    for (accept, query) in [
        ("application/json", ""),
        ("application/json", "?pretty=1"),
        (PROTOBUF, ""),
        ("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ""),
        ("application/yaml", ""),
        ("application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ""),
    ] {
        let response = root.open("GET", &format!("{MAPS}{query}"), &[("accept", accept)], "").await;
        let pieces = frames(response.into_body()).await;
        let longest = pieces.iter().map(bytes::Bytes::len).max().unwrap_or_default();
        assert!(longest < 300_000, "{accept}{query}: {longest} bytes at once");
        let whole = pieces.concat();
        let list = if accept.starts_with(PROTOBUF) {
            bare(read(&whole))
        } else if accept.starts_with("application/yaml") {
            let list: Value = serde_saphyr::from_slice(&whole).expect("YAML");
            if accept.contains("Partial") { bare(list) } else { list }
        } else {
            serde_json::from_slice(&whole).expect("JSON")
        };
        assert_eq!(&list, if accept.contains("Partial") { &partial } else { &want }, "{accept}{query}");
        // Compressed they are the same bytes.
        let zipped =
            root.send("GET", &format!("{MAPS}{query}"), &[("accept", accept), ("accept-encoding", "gzip")], "").await;
        if zipped.header("content-encoding") == "gzip" {
            let mut back = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.body[..]), &mut back).expect("gzip");
            assert_eq!(back, whole, "{accept}{query}");
        } else {
            assert!(whole.len() < 200_000, "{accept}{query}: {} bytes were not compressed", whole.len());
        }
    }
}

/// YAML is what upstream's is: keys sorted, lists not indented, and what is no text told from what is one.
#[tokio::test]
async fn yaml_reads_like_upstreams() {
    let server = Server::start().await;
    let root = &server.root;
    let yaml = |view: &str| format!("application/yaml{view}");
    let empty = root.send("GET", MAPS, &[("accept", &yaml(""))], "").await.text();
    assert!(
        empty.starts_with("apiVersion: v1\nitems: []\nkind: ConfigMapList\nmetadata:\n  resourceVersion: \""),
        "{empty}"
    );
    let mut map = config_map("a", "line\nline\n");
    map["data"]["n"] = json!("1");
    map["metadata"]["labels"] = json!({"b": "true", "a": "x"});
    root.post(MAPS, &map).await.ok();
    let one = root.send("GET", &format!("{MAPS}/a"), &[("accept", &yaml(""))], "").await.text();
    assert!(
        one.starts_with(
            "apiVersion: v1\ndata:\n  k: |\n    line\n    line\n  \"n\": \"1\"\nkind: ConfigMap\nmetadata:\n"
        ),
        "{one}"
    );
    assert!(
        one.contains(
            "  labels:\n    a: x\n    b: \"true\"\n  managedFields:\n  - apiVersion: v1\n    fieldsType: FieldsV1\n"
        ),
        "{one}"
    );
    let list = root.send("GET", MAPS, &[("accept", &yaml(""))], "").await.text();
    assert!(
        list.starts_with(
            "apiVersion: v1\nitems:\n- data:\n    k: |\n      line\n      line\n    \"n\": \"1\"\n  metadata:\n"
        ),
        "{list}"
    );
    let json = root.get(MAPS).await.ok();
    assert_eq!(serde_saphyr::from_str::<Value>(&list).expect("YAML"), json);
    let table = root.send("GET", MAPS, &[("accept", &yaml(";as=Table;v=v1;g=meta.k8s.io"))], "").await.text();
    assert!(table.starts_with("apiVersion: meta.k8s.io/v1\ncolumnDefinitions:\n- description:"), "{table}");
    let rows: Value = serde_saphyr::from_str(&table).expect("YAML");
    assert_eq!((&rows["kind"], &rows["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
}

/// Whatever comes in protobuf is answered, and what is refused leaves nothing.
#[tokio::test]
async fn hostile_protobuf_is_refused() {
    let server = Server::start().await;
    let root = &server.root;
    let maps = schema("", "v1", "ConfigMap");
    let sound = proto::encode(&config_map("sound", "1"), &maps);
    let field = |tag: u8, bytes: &[u8]| {
        let mut out = vec![tag << 3 | 2];
        let mut length = bytes.len();
        while length > 0x7f {
            out.push(0x80 | (length & 0x7f) as u8);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(bytes);
        out
    };
    let sealed = |body: &[u8]| proto::seal("v1", "ConfigMap", body);
    let mut deep = Vec::new();
    for _ in 0..100_000 {
        deep = field(1, &deep[..deep.len().min(2_000_000)]);
        if deep.len() > 1_000_000 {
            break;
        }
    }
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("no magic", sound[4..].to_vec()),
        ("only magic", sound[..4].to_vec()),
        ("a length beyond the end", sealed(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f])),
        ("a length of 64 bits", sealed(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])),
        ("a varint without end", sealed(&[0xff; 32])),
        ("the tag 0", sealed(&[0x02, 0])),
        ("a group", sealed(&[0x0b, 0x0c])),
        ("a number for metadata", sealed(&[0x08, 1])),
        ("text that is no UTF-8", sealed(&field(1, &field(1, &[0xff, 0xfe])))),
        ("depth", sealed(&deep)),
        ("another kind", proto::seal("v1", "Secret", &[])),
        ("another version", proto::seal("v9", "ConfigMap", &field(1, &field(1, b"other")))),
        ("too much", vec![0; 4 * 1024 * 1024]),
    ];
    for (what, body) in bad {
        let answer = root.send("POST", MAPS, &[CONTENT], body).await;
        assert!((400..500).contains(&answer.code), "{what}: {} {}", answer.code, answer.text());
        assert_eq!(answer.json()["kind"], "Status", "{what}");
    }
    for cut in 0..sound.len() {
        let answer = root.send("POST", MAPS, &[CONTENT], sound[..cut].to_vec()).await;
        // The last four bytes are empty fields, which say nothing.
        assert!((400..500).contains(&answer.code) || cut >= sound.len() - 4, "{cut}: {}", answer.code);
        root.delete(&format!("{MAPS}/sound")).await;
    }
    let items = root.get(MAPS).await.ok()["items"].as_array().map(|items| items.len());
    assert_eq!(items, Some(0));
    // Fields that nobody knows are skipped, as in every reader of protobuf.
    let body = [field(1, &field(1, b"known")), field(15, b"unknown"), vec![0x78, 1]].concat();
    root.send("POST", MAPS, &[CONTENT], sealed(&body)).await.ok();
    assert_eq!(root.send("POST", MAPS, JSON, sound).await.code, 400);
}
