//! What every kind of the list must do over HTTP. A kind that is added needs a fixture
//! (`fixtures/every_kind.json`) and gets the whole walk.

mod common;

use std::collections::BTreeMap;

use common::{Answer, JSON, Server, Watch};
use kinds::{ALL, AnyKind, Keep};
use machinery::proto;
use machinery::schema::{Shape, TypeRef};
use serde::Deserialize;
use serde_json::{Value, json};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// An object of a kind, and what of it may change.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    #[serde(default = "every")]
    name: String,
    /// Answered by a handler, stored nowhere.
    #[serde(default, rename = "virtual")]
    transient: bool,
    object: Value,
    /// A pointer outside metadata and status, and another value for it.
    #[serde(default)]
    main: Option<(String, Value)>,
    /// The same inside of status.
    #[serde(default)]
    status: Option<(String, Value)>,
    /// What was once said in status stays.
    #[serde(default)]
    final_status: bool,
    /// What is said in status by others does not stay: the server minds it.
    #[serde(default)]
    minded_status: bool,
}

fn every() -> String {
    "every".into()
}

/// One kind on its way through the walk.
struct Walk<'a> {
    server: &'a Server,
    kind: &'static dyn AnyKind,
    fixture: Fixture,
    /// `apps/v1/Deployment`, for what fails.
    title: String,
}

fn walks(server: &Server) -> Vec<Walk<'_>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/every_kind.json");
    let text = std::fs::read_to_string(path).expect("the fixtures");
    let mut fixtures: BTreeMap<String, Fixture> = serde_json::from_str(&text).expect("the fixtures are fixtures");
    let walk = |kind: &&'static dyn AnyKind| {
        let title = format!("{}/{}", kind.shape().api_version(), kind.shape().kind);
        let fixture = fixtures.remove(&title).unwrap_or_else(|| panic!("{title} has no fixture"));
        assert_eq!(fixture.transient, kind.shape().keep == Keep::Virtual, "{title}");
        assert_eq!(fixture.status.is_some(), kind.shape().has_status, "{title}: a status to change");
        Walk { server, kind: *kind, fixture, title }
    };
    // The server itself writes the status of a definition, and keeps it until its objects are gone: it has
    // tests of its own (`custom_resources.rs`).
    let walked = |kind: &&&'static dyn AnyKind| kind.shape().kind != "CustomResourceDefinition";
    let found: Vec<Walk> = ALL.iter().filter(walked).map(walk).collect();
    assert!(fixtures.is_empty(), "no kind for {:?}", fixtures.keys());
    found
}

/// Nobody but the test writes to what it makes.
async fn server() -> Server {
    let server = Server::start_with(|config| config.priority_and_fairness = false).await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
    server
}

impl Walk<'_> {
    /// `/apis/apps/v1/namespaces/default/deployments`.
    fn all(&self) -> String {
        let shape = self.kind.shape();
        let group = if shape.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", shape.group) };
        let namespace = if shape.is_namespaced() { "/namespaces/default" } else { "" };
        format!("{group}/{}{namespace}/{}", shape.version, shape.plural)
    }

    fn one(&self) -> String {
        format!("{}/{}", self.all(), self.fixture.name)
    }

    /// The fixture with what every object has.
    fn object(&self) -> Value {
        let shape = self.kind.shape();
        let mut object = self.fixture.object.clone();
        object["apiVersion"] = json!(shape.api_version());
        object["kind"] = json!(shape.kind);
        if !self.fixture.transient {
            let (labels, annotations) = (json!({"every": "kind"}), json!({"a": "1"}));
            object["metadata"] = json!({"name": self.fixture.name, "labels": labels, "annotations": annotations});
        }
        object
    }

    async fn read(&self) -> Value {
        self.server.root.get(&self.one()).await.ok()
    }

    async fn with(&self, method: &str, uri: &str, media: &str, body: impl Into<bytes::Bytes>) -> Answer {
        self.server.root.send(method, uri, &[("content-type", media)], body).await
    }

    /// The event that the last write made.
    async fn shows(&self, watch: &mut Watch, kind: &str, object: &Value) {
        let event = watch.next().await.expect("an event");
        assert_eq!((&event["type"], &event["object"]), (&json!(kind), object), "{}", self.title);
    }

    fn read_protobuf(&self, bytes: &[u8]) -> Value {
        let object = proto::decode(bytes, &self.kind.schema()).expect("protobuf").value;
        // What protobuf cannot say (a zero that JSON shows) is said by whoever writes JSON.
        serde_json::from_slice(&machinery::encode::json(&object, &self.kind.schema())).expect("JSON")
    }
}

/// What was sent is in what came back.
fn contains(whole: &Value, part: &Value, path: &str) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                contains(whole.get(key).unwrap_or(&Value::Null), value, &format!("{path}.{key}"));
            }
        }
        (Value::Array(whole), Value::Array(part)) => {
            assert!(whole.len() >= part.len(), "{path}: {whole:?}");
            whole.iter().zip(part).for_each(|(w, p)| contains(w, p, path));
        }
        _ => assert_eq!(whole, part, "{path}"),
    }
}

/// Without what protobuf cannot say: the kind of an object within another (a claim of a StatefulSet).
fn bare(mut object: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                if map.contains_key("metadata") {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    object.as_object_mut().expect("an object").values_mut().for_each(strip);
    object
}

/// Every place where a field could be misspelt: a pointer to the object, and the field's path.
fn places(value: &Value, shape: Shape, pointer: &str, path: &str, found: &mut Vec<(String, String)>) {
    match (value, shape) {
        (Value::Object(map), Shape::Struct(t)) => places_of(map, t, pointer, path, found),
        (Value::Object(map), Shape::Map(inner)) => {
            for (key, value) in map {
                places(value, inner.shape(), &format!("{pointer}/{key}"), &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(items), Shape::List(inner)) => {
            for (index, item) in items.iter().enumerate() {
                places(item, inner.shape(), &format!("{pointer}/{index}"), &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn places_of(
    map: &serde_json::Map<String, Value>,
    of: TypeRef,
    pointer: &str,
    path: &str,
    found: &mut Vec<(String, String)>,
) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    found.push((pointer.to_owned(), below("tpyo")));
    for (name, value) in map {
        if let Some(field) = of.field(name) {
            places(value, field.shape(), &format!("{pointer}/{name}"), &below(name), found);
        }
    }
}

#[tokio::test]
async fn a_typo_is_found_at_every_depth() {
    let server = server().await;
    for walk in walks(&server).into_iter().filter(|walk| walk.kind.shape().verbs.contains(&"create")) {
        let object = walk.object();
        let mut found = Vec::new();
        let schema = walk.kind.schema();
        places_of(object.as_object().expect("an object"), schema.get(), "", "", &mut found);
        let (uri, warned) = (
            format!("{}?dryRun=All&fieldValidation=Strict", walk.all()),
            format!("{}?dryRun=All&fieldValidation=Warn", walk.all()),
        );
        for (pointer, path) in found {
            let mut wrong = object.clone();
            wrong.pointer_mut(&pointer).expect("a place")["tpyo"] = json!(1);
            let refused = server.root.post(&uri, &wrong).await.failure();
            let shape = walk.kind.shape();
            let want = format!(
                "400 BadRequest: {} in version \"{}\" cannot be handled as a {}: strict decoding error: unknown field \"{path}\"",
                shape.kind, shape.version, shape.kind
            );
            assert_eq!(refused, want, "{}", walk.title);
            if !walk.fixture.transient {
                let answer = server.root.post(&warned, &wrong).await;
                assert_eq!(answer.code, 201, "{}: {}", walk.title, answer.text());
                let text = format!(r#"299 - "unknown field \"{path}\"""#);
                assert!(answer.warnings().contains(&text.as_str()), "{path}: {:?}", answer.warnings());
            }
        }
    }
}

#[tokio::test]
async fn every_verb_and_every_patch() {
    let server = server().await;
    for walk in walks(&server).into_iter().filter(|walk| !walk.fixture.transient) {
        let (root, all, one, title) = (&server.root, walk.all(), walk.one(), walk.title.as_str());
        let object = walk.object();
        let dry = format!("{all}?dryRun=All");
        root.post(&dry, &object).await.ok();
        assert_eq!(root.get(&one).await.code, 404, "{title}: a dry run leaves nothing");

        let before = root.get(&format!("{all}?limit=1")).await.ok();
        let from = before["metadata"]["resourceVersion"].as_str().expect("a revision");
        let mut watch =
            root.watch(&format!("{all}?watch=true&resourceVersion={from}&labelSelector=every%3Dkind")).await;
        let made = root.post(&all, &object).await;
        assert_eq!(made.code, 201, "{title}: {}", made.text());
        let made = made.json();
        contains(&made, &object, title);
        walk.shows(&mut watch, "ADDED", &made).await;
        assert_eq!(root.post(&all, &object).await.code, 409, "{title}");
        assert_eq!(walk.read().await, made, "{title}");
        let list = root.get(&format!("{all}?labelSelector=every%3Dkind")).await.ok();
        assert_eq!(list["kind"], format!("{}List", walk.kind.shape().kind));
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{title}");
        contains(&list["items"][0]["metadata"], &object["metadata"], title);

        let mut changed = made.clone();
        changed["metadata"]["annotations"]["a"] = json!("2");
        let updated = root.put(&one, &changed).await.ok();
        assert_eq!(updated["metadata"]["annotations"]["a"], "2", "{title}");
        walk.shows(&mut watch, "MODIFIED", &updated).await;
        assert_eq!(root.put(&one, &changed).await.code, 409, "{title}: a stale update");

        let apply = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"annotations": {"apply": "1"}}});
        let mut with = updated;
        for (media, uri, body) in [
            ("json-patch", one.clone(), json!([{"op": "add", "path": "/metadata/annotations/json", "value": "1"}])),
            ("merge-patch", one.clone(), json!({"metadata": {"annotations": {"merge": "1", "json": null}}})),
            ("strategic-merge-patch", one.clone(), json!({"metadata": {"annotations": {"strategic": "1"}}})),
            ("apply-patch", format!("{one}?fieldManager=applier"), apply),
        ] {
            let ending = if media == "apply-patch" { "yaml" } else { "json" };
            let media = format!("application/{media}+{ending}");
            let dry = format!("{uri}{}dryRun=All", if uri.contains('?') { '&' } else { '?' });
            walk.with("PATCH", &dry, &media, body.to_string()).await.ok();
            assert_eq!(walk.read().await, with, "{title}: a dry run of {media} leaves nothing");
            with = walk.with("PATCH", &uri, &media, body.to_string()).await.ok();
            walk.shows(&mut watch, "MODIFIED", &with).await;
        }
        let annotations =
            json!({"metadata": {"annotations": {"a": "2", "merge": "1", "strategic": "1", "apply": "1"}}});
        contains(&with, &annotations, title);
        assert!(with.pointer("/metadata/annotations/json").is_none(), "{title}: what a merge patch took away");
        let applied = json!({"f:metadata": {"f:annotations": {"f:apply": {}}}});
        let managers = with["metadata"]["managedFields"].as_array().expect("managers");
        let applier = managers.iter().find(|m| m["manager"] == "applier");
        let applier = applier.unwrap_or_else(|| panic!("{title}: {managers:?}"));
        assert_eq!((&applier["operation"], &applier["fieldsV1"]), (&json!("Apply"), &applied), "{title}");

        if let Some((pointer, value)) = &walk.fixture.main {
            let mut changed = walk.read().await;
            put(&mut changed, pointer, value.clone());
            let updated = root.put(&one, &changed).await.ok();
            assert_eq!(updated.pointer(pointer), Some(value), "{title}");
            walk.shows(&mut watch, "MODIFIED", &updated).await;
        }
        names_are_generated(&walk, &mut watch).await;
        everything_goes(&walk, &mut watch).await;
    }
}

async fn names_are_generated(walk: &Walk<'_>, watch: &mut Watch) {
    let mut object = walk.object();
    object["metadata"]["generateName"] = json!("generated-");
    object["metadata"].as_object_mut().expect("metadata").remove("name");
    let made = walk.server.root.post(&walk.all(), &object).await;
    if walk.fixture.name != "every" {
        // Its names follow a rule of their own, which no generated one meets.
        assert_eq!(made.code, 422, "{}: {}", walk.title, made.text());
        return;
    }
    assert_eq!(made.code, 201, "{}: {}", walk.title, made.text());
    let made = made.json();
    let name = made["metadata"]["name"].as_str().expect("a name");
    assert!(name.len() == 15 && name.starts_with("generated-"), "{}: {name}", walk.title);
    walk.shows(watch, "ADDED", &made).await;
    remove(walk, name, watch).await;
}

/// Deletes one, which shows.
async fn remove(walk: &Walk<'_>, name: &str, watch: &mut Watch) {
    let (root, uri) = (&walk.server.root, format!("{}/{name}", walk.all()));
    root.delete(&format!("{uri}?dryRun=All")).await.ok();
    assert_eq!(root.get(&uri).await.code, 200, "{}: a dry run leaves it", walk.title);
    // Said, so that the kinds whose dependents are orphaned by default go at once, too.
    root.delete(&format!("{uri}?propagationPolicy=Background")).await.ok();
    if walk.kind.shape().kind == "Namespace" {
        // It stays until whoever empties it says that it is empty.
        let mut going = watch.next().await.expect("an event")["object"].take();
        assert_eq!(going["status"]["phase"], "Terminating");
        going["spec"]["finalizers"] = json!([]);
        root.put(&format!("{uri}/finalize"), &going).await.ok();
    }
    let event = gone(walk, watch).await;
    let told = (&event["type"], &event["object"]["metadata"]["name"]);
    assert_eq!(told, (&json!("DELETED"), &json!(name)), "{}", walk.title);
    assert_eq!(root.get(&uri).await.code, 404, "{}", walk.title);
}

/// The last event of what was deleted. What is born with a finalizer waits for who takes it away.
async fn gone(walk: &Walk<'_>, watch: &mut Watch) -> Value {
    let event = watch.next().await.expect("an event");
    if event["type"] != "MODIFIED" {
        return event;
    }
    let metadata = &event["object"]["metadata"];
    assert!(metadata["deletionTimestamp"].is_string() && metadata["finalizers"].is_array(), "{event}");
    let uri = format!("{}/{}", walk.all(), metadata["name"].as_str().expect("a name"));
    walk.server.root.patch("merge", &uri, &json!({"metadata": {"finalizers": null}})).await.ok();
    watch.next().await.expect("an event")
}

async fn everything_goes(walk: &Walk<'_>, watch: &mut Watch) {
    let (root, all) = (&walk.server.root, walk.all());
    remove(walk, &walk.fixture.name, watch).await;
    assert_eq!(root.delete(&walk.one()).await.code, 404, "{}", walk.title);
    let selected = format!("{all}?labelSelector=every%3Dkind");
    if !walk.kind.shape().verbs.contains(&"deletecollection") {
        assert_eq!(root.delete(&selected).await.code, 405, "{}", walk.title);
        return;
    }
    let made = root.post(&all, &walk.object()).await.ok();
    walk.shows(watch, "ADDED", &made).await;
    root.delete(&format!("{selected}&dryRun=All")).await.ok();
    assert_eq!(root.get(&walk.one()).await.code, 200, "{}: a dry run leaves it", walk.title);
    root.delete(&format!("{selected}&propagationPolicy=Background")).await.ok();
    assert_eq!(gone(walk, watch).await["type"], "DELETED", "{}", walk.title);
    assert_eq!(root.get(&selected).await.ok()["items"], json!([]), "{}", walk.title);
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    match object.pointer_mut(parent) {
        Some(Value::Array(items)) => items[key.parse::<usize>().expect("an index")] = value,
        Some(parent) => parent[key] = value,
        None => {
            put(object, parent, json!({}));
            put(object, pointer, value);
        }
    }
}

#[tokio::test]
async fn spec_and_status_do_not_leak_into_each_other() {
    let server = server().await;
    for walk in walks(&server) {
        let Some((pointer, value)) = &walk.fixture.status else { continue };
        let (root, title) = (&server.root, walk.title.as_str());
        let mut object = walk.object();
        put(&mut object, pointer, value.clone());
        let made = root.post(&walk.all(), &object).await.ok();
        let kept = made.pointer(pointer) == Some(value);
        assert_eq!(kept, walk.kind.shape().status_on_create, "{title}: a status that was sent with a create");

        let status = format!("{}/status", walk.one());
        assert_eq!(root.get(&status).await.ok(), made, "{title}");
        let other = if kept { json!("other") } else { value.clone() };
        let mut both = made.clone();
        put(&mut both, pointer, other.clone());
        let written = |changed: &Value| changed["metadata"]["generation"].as_i64();
        let mut expected = made.clone();
        if let Some((main, value)) = &walk.fixture.main {
            put(&mut both, main, value.clone());
            put(&mut expected, main, value.clone());
        }
        let updated = root.put(&walk.one(), &both).await.ok();
        assert_eq!(updated["status"], made["status"], "{title}: a status through the main resource");
        if let Some((main, _)) = &walk.fixture.main {
            assert_eq!(updated.pointer(main), expected.pointer(main), "{title}");
            if walk.kind.shape().has_generation {
                assert_eq!(written(&updated), written(&made).map(|g| g + 1), "{title}");
            }
        }
        let mut both = made.clone();
        both["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"].clone();
        put(&mut both, pointer, other.clone());
        let told = root.put(&status, &both).await.ok();
        assert_eq!(told.pointer(pointer), Some(&other), "{title}");
        assert_eq!(told["spec"], updated["spec"], "{title}: a spec through status");
        assert_eq!(written(&told), written(&updated), "{title}: a status moves no generation");
        if walk.fixture.minded_status {
            continue;
        }
        if walk.fixture.final_status {
            let refused = root.patch("merge", &status, &json!({"status": null})).await.failure();
            assert!(refused.starts_with("422 Invalid"), "{title}: {refused}");
            continue;
        }
        let mut patched = json!({"spec": {"nothing": "here"}, "metadata": {"annotations": {"b": "2"}}});
        put(&mut patched, pointer, Value::Null);
        let cleared = root.patch("merge", &status, &patched).await.ok();
        assert_eq!(cleared["spec"], updated["spec"], "{title}: a patch of status");
        assert_ne!(cleared.pointer(pointer), Some(&other), "{title}: a status that is taken away");
        let patched = root.patch("merge", &walk.one(), &json!({"status": told["status"]})).await.ok();
        assert_eq!(patched["status"], cleared["status"], "{title}: a status through a patch of the main resource");
        let manager = json!({"apiVersion": made["apiVersion"], "kind": made["kind"], "status": told["status"]});
        let uri = format!("{status}?fieldManager=applier&force=true");
        let applied = walk.with("PATCH", &uri, "application/apply-patch+yaml", manager.to_string()).await.ok();
        assert_eq!(applied.pointer(pointer), Some(&other), "{title}");
        assert_eq!(applied["spec"], updated["spec"], "{title}: apply to status");
        let managers = applied["metadata"]["managedFields"].as_array().expect("managers");
        let applier = managers.iter().find(|m| m["manager"] == "applier");
        let applier = applier.unwrap_or_else(|| panic!("{title}: {managers:?}"));
        assert_eq!(applier["subresource"], "status", "{title}");
        // An autoscaler of either version is the same autoscaler.
        root.delete(&format!("{}?propagationPolicy=Background", walk.one())).await.ok();
    }
}

#[tokio::test]
async fn every_form_is_the_same_object() {
    let server = server().await;
    for walk in walks(&server).into_iter().filter(|walk| !walk.fixture.transient) {
        let (root, title) = (&server.root, walk.title.as_str());
        let object = walk.object();
        let sent = proto::encode(&object, &walk.kind.schema());
        let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
        let made = root.send("POST", &walk.all(), &headers, sent).await;
        assert_eq!((made.code, made.header("content-type")), (201, PROTOBUF), "{title}: {}", made.text());
        let stored = walk.read().await;
        contains(&stored, &object, title);
        assert_eq!(walk.read_protobuf(&made.body), bare(stored.clone()), "{title}: the answer in protobuf");
        let read = root.send("GET", &walk.one(), &[("accept", PROTOBUF)], "").await;
        assert_eq!(read.body, made.body, "{title}");
        let again = root.send("PUT", &walk.one(), &headers, read.body.clone()).await;
        assert_eq!(again.body, read.body, "{title}: an update that changes nothing writes nothing");
        let yaml = root.send("GET", &walk.one(), &[("accept", "application/yaml")], "").await;
        let from_yaml: Value = serde_saphyr::from_slice(&yaml.body).expect("YAML");
        assert_eq!(from_yaml, stored, "{title}");
        let unchanged = walk.with("PUT", &walk.one(), "application/yaml", yaml.body).await.ok();
        assert_eq!(unchanged, stored, "{title}: the same as YAML");

        let selected = format!("{}?labelSelector=every%3Dkind", walk.all());
        let table = root.send("GET", &selected, &[("accept", TABLE)], "").await.ok();
        let columns: Vec<&str> = walk.kind.columns().iter().map(|column| column.name).collect();
        let shown: Vec<&str> =
            table["columnDefinitions"].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(shown, columns, "{title}");
        let rows = table["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 1, "{title}");
        assert_eq!(rows[0]["cells"].as_array().map(Vec::len), Some(columns.len()), "{title}");
        let name_at = walk.kind.columns().iter().position(|column| column.format == "name").expect("a name");
        assert_eq!(rows[0]["cells"][name_at], json!(walk.fixture.name), "{title}");
        let metadata = &rows[0]["object"];
        assert_eq!(metadata["kind"], "PartialObjectMetadata", "{title}");
        assert_eq!(metadata["metadata"], stored["metadata"], "{title}");
        let partial = root.send("GET", &selected, &[("accept", PARTIAL)], "").await.ok();
        assert_eq!(partial["kind"], "PartialObjectMetadataList", "{title}");
        assert_eq!(partial["items"][0]["metadata"], stored["metadata"], "{title}");
        assert!(partial["items"][0].get("spec").is_none(), "{title}");
        // An Event of either group is the same Event, an autoscaler of either version the same one.
        root.delete(&format!("{}?propagationPolicy=Background", walk.one())).await.ok();
    }
}

#[tokio::test]
async fn what_is_stored_nowhere_is_answered_in_every_form() {
    let server = server().await;
    let created = |walk: &Walk| walk.fixture.transient && walk.kind.shape().verbs.contains(&"create");
    for walk in walks(&server).into_iter().filter(created) {
        let (root, title, all) = (&server.root, walk.title.as_str(), walk.all());
        if walk.kind.shape().kind == "Binding" {
            let pod = json!({"metadata": {"name": "every"}, "spec": {"containers": [{"name": "c", "image": "example.invalid/a:1"}]}});
            root.post("/api/v1/namespaces/default/pods", &pod).await.ok();
        }
        let object = walk.object();
        let dry = format!("{all}?dryRun=All");
        let answered = root.post(&dry, &object).await.ok();
        let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
        let sent = proto::encode(&object, &walk.kind.schema());
        let again = root.send("POST", &dry, &headers, sent).await;
        assert_eq!((again.code, again.header("content-type")), (201, PROTOBUF), "{title}: {}", again.text());
        if answered["kind"] == "Status" {
            assert_eq!(proto::open(&again.body).expect("protobuf").kind, "Status", "{title}");
        } else {
            contains(&answered, &object, title);
            assert_eq!(walk.read_protobuf(&again.body), answered, "{title}");
        }
        assert_eq!(root.get(&all).await.code, 405, "{title}: there is nothing to list");
        assert_eq!(root.get(&walk.one()).await.code, 405, "{title}: there is nothing to get");
        let headers = [JSON[0], ("accept", "application/yaml")];
        let yaml = root.send("POST", &all, &headers, object.to_string()).await;
        assert_eq!((yaml.code, yaml.header("content-type")), (201, "application/yaml"), "{title}: {}", yaml.text());
    }
}
