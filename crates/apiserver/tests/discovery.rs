//! Discovery and OpenAPI over HTTP: what clients find out before they do anything.

mod common;

use apiserver::openapi::texts::Texts;
use common::{Answer, Server};
use machinery::proto;
use serde_json::{Value, json};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

async fn get(server: &Server, uri: &str, accept: &str) -> Answer {
    server.root.send("GET", uri, &[("accept", accept)], "").await
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Elements of a list of objects by one of their fields.
fn by<'v>(list: &'v Value, key: &str, value: &str) -> &'v Value {
    let found = list.as_array().into_iter().flatten().find(|item| item[key] == value);
    found.unwrap_or_else(|| panic!("no {key} {value} in {list}"))
}

#[tokio::test]
async fn resources_are_listed_with_their_names_and_subresources() {
    let server = Server::start().await;
    let core = server.root.get("/api/v1").await.ok();
    assert_eq!((&core["kind"], &core["groupVersion"]), (&json!("APIResourceList"), &json!("v1")));
    assert_eq!(core.get("apiVersion"), None, "the core group's list has no version of its own");
    let pods = by(&core["resources"], "name", "pods");
    assert_eq!(
        pods,
        &json!({
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "shortNames": ["po"],
            "categories": ["all"], "storageVersionHash": "xPOwRZ+Yhw8=",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        })
    );
    let token = by(&core["resources"], "name", "serviceaccounts/token");
    assert_eq!(
        token,
        &json!({
            "name": "serviceaccounts/token", "singularName": "", "namespaced": true, "kind": "TokenRequest",
            "group": "authentication.k8s.io", "version": "v1", "verbs": ["create"],
        })
    );
    assert_eq!(by(&core["resources"], "name", "pods/status").get("group"), None, "it is the parent's own");
    assert_eq!(by(&core["resources"], "name", "bindings").get("storageVersionHash"), None, "it is not stored");
    // Namespaces are not deleted by the dozen.
    assert!(!texts(&by(&core["resources"], "name", "namespaces")["verbs"]).contains(&"deletecollection"));
    let apps = server.root.get("/apis/apps/v1").await.ok();
    assert_eq!(apps["apiVersion"], "v1");
    let scale = by(&apps["resources"], "name", "deployments/scale");
    assert_eq!(
        (&scale["group"], &scale["version"], &scale["kind"]),
        (&json!("autoscaling"), &json!("v1"), &json!("Scale"))
    );
}

#[tokio::test]
async fn discovery_is_answered_in_every_form() {
    let server = Server::start().await;
    for (uri, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/api/v1", "APIResourceList"),
        ("/apis/apps", "APIGroup"),
        ("/apis/apps/v1", "APIResourceList"),
    ] {
        let json = get(&server, uri, "application/json").await;
        assert_eq!(json.header("content-type"), "application/json", "{uri}");
        let json = json.ok();
        let schema = api::schema::find("meta/v1", kind).expect("a schema");
        let answer = get(&server, uri, PROTOBUF).await;
        assert_eq!(answer.header("content-type"), PROTOBUF, "{uri}");
        let envelope = proto::open(&answer.body).expect("an envelope");
        assert_eq!((envelope.kind.as_str(), json["kind"].as_str()), (kind, Some(kind)), "{uri}");
        let mut read = proto::decode_body(envelope.body, &schema).expect("it decodes");
        for key in ["kind", "apiVersion"] {
            if let Some(value) = json.get(key) {
                read[key] = value.clone();
            }
        }
        let (read, json) = (machinery::encode::json(&read, &schema), machinery::encode::json(&json, &schema));
        assert_eq!(String::from_utf8(read), String::from_utf8(json), "{uri}");
        let yaml = get(&server, uri, "application/yaml").await;
        assert_eq!(yaml.header("content-type"), "application/yaml", "{uri}");
        assert!(yaml.text().contains(&format!("kind: {kind}")), "{uri}");
        assert_eq!(get(&server, uri, "image/png").await.code, 406, "{uri}");
    }
}

#[tokio::test]
async fn groups_stand_in_the_order_in_which_names_are_looked_up() {
    let server = Server::start().await;
    let list = server.root.get("/apis").await.ok();
    let names: Vec<&str> = list["groups"].as_array().into_iter().flatten().filter_map(|g| g["name"].as_str()).collect();
    let place = |name: &str| names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{name} in {names:?}"));
    for pair in ["apps", "events.k8s.io", "authentication.k8s.io", "networking.k8s.io", "scheduling.k8s.io"].windows(2)
    {
        assert!(place(pair[0]) < place(pair[1]), "{names:?}");
    }
    assert_eq!(list["groups"][0]["preferredVersion"]["groupVersion"], "apiregistration.k8s.io/v1");
    assert_eq!(list["groups"][1]["preferredVersion"]["groupVersion"], "apps/v1");
    let aggregated = get(&server, "/apis", AGGREGATED).await.ok();
    let same: Vec<&str> =
        aggregated["items"].as_array().into_iter().flatten().filter_map(|g| g["metadata"]["name"].as_str()).collect();
    assert_eq!(names, same);
}

#[tokio::test]
async fn everything_at_once_is_sent_once() {
    let server = Server::start().await;
    // As kubectl asks: the old forms are refused, the plain one is taken where there is no other.
    let accept = format!(
        "{AGGREGATED},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    );
    for uri in ["/api", "/apis"] {
        let answer = get(&server, uri, &accept).await;
        assert_eq!(answer.header("content-type"), AGGREGATED);
        assert_eq!(answer.header("cache-control"), "public");
        assert!(answer.header("vary").contains("Accept"));
        let list = answer.ok();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
        );
        let tag = answer.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() == 130, "{tag}");
        let again = server.root.send("GET", uri, &[("accept", &accept), ("if-none-match", &tag)], "").await;
        assert_eq!((again.code, again.body.len()), (304, 0));
        let other = server.root.send("GET", uri, &[("accept", &accept), ("if-none-match", "\"x\"")], "").await;
        assert_eq!(other.code, 200);
        let packed = get(&server, uri, &AGGREGATED.replace("application/json", PROTOBUF)).await;
        let schema = api::schema::of("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList").expect("a schema");
        let read = proto::decode(&packed.body, &schema).expect("it decodes").value;
        assert_eq!(machinery::encode::json(&read, &schema), machinery::encode::json(&list, &schema), "{uri}");
    }
    let core = get(&server, "/api", AGGREGATED).await.ok();
    let resources = &core["items"][0]["versions"][0]["resources"];
    let accounts = by(resources, "resource", "serviceaccounts");
    assert_eq!(accounts["responseKind"], json!({"group": "", "version": "", "kind": "ServiceAccount"}));
    assert_eq!((&accounts["scope"], &accounts["singularResource"]), (&json!("Namespaced"), &json!("serviceaccount")));
    let token = by(&accounts["subresources"], "subresource", "token");
    assert_eq!(
        token["responseKind"],
        json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"})
    );
    let only_old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    assert_eq!(get(&server, "/apis", only_old).await.code, 406);
}

#[tokio::test]
async fn documents_of_v3_are_kept_under_their_hash() {
    let server = Server::start().await;
    let index = get(&server, "/openapi/v3", "application/json").await;
    let tag = index.header("etag").to_owned();
    let again = server.root.send("GET", "/openapi/v3", &[("if-none-match", &tag)], "").await;
    assert_eq!(again.code, 304);
    let index = index.ok();
    for path in ["api", "api/v1", "apis", "apis/apps", "apis/apps/v1", "version", ".well-known/openid-configuration"] {
        assert!(index["paths"][path].is_object(), "{path}");
    }
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().expect("a URL");
    let (path, hash) = url.split_once("?hash=").expect("a hash");
    let document = get(&server, url, "application/json").await;
    assert_eq!(document.header("etag"), format!("\"{hash}\""));
    assert_eq!(document.header("cache-control"), "public, immutable");
    assert!(document.header("expires").ends_with(" GMT"), "{}", document.header("expires"));
    assert!(document.header("last-modified").ends_with(" GMT"));
    let plain = get(&server, path, "application/json").await;
    assert_eq!((plain.header("cache-control"), plain.header("expires")), ("no-cache, private", ""));
    assert_eq!(plain.body, document.body);
    let known = server.root.send("GET", url, &[("if-none-match", document.header("etag"))], "").await;
    assert_eq!((known.code, known.body.len()), (304, 0));
    let old = get(&server, &format!("{path}?hash=OLD"), "application/json").await;
    assert_eq!((old.code, old.header("location")), (301, url));
    for accept in [V3_PROTOBUF, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"] {
        let packed = get(&server, url, accept).await;
        assert_eq!(packed.header("content-type"), V3_PROTOBUF);
        assert_eq!(packed.header("etag"), format!("\"{hash}\""));
        assert!(packed.body.starts_with(b"\x0a\x053.0.0"), "the version comes first");
    }
    assert_eq!(get(&server, url, "text/html").await.code, 406);
    assert_eq!(get(&server, "/openapi/v3/apis/none/v1", "application/json").await.code, 404);
}

#[tokio::test]
async fn the_document_of_v2_has_two_forms() {
    let server = Server::start().await;
    let json = get(&server, "/openapi/v2", "application/json").await;
    let tag = json.header("etag").to_owned();
    assert_eq!(json.header("content-type"), "application/json");
    for accept in [V2_PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"] {
        let packed = get(&server, "/openapi/v2", accept).await;
        assert_eq!((packed.header("content-type"), packed.header("etag")), (V2_PROTOBUF, tag.as_str()));
        assert!(packed.body.starts_with(b"\x0a\x032.0"), "the version comes first");
    }
    let zipped =
        server.root.send("GET", "/openapi/v2", &[("accept", V2_PROTOBUF), ("accept-encoding", "gzip")], "").await;
    assert_eq!(zipped.header("content-encoding"), "gzip");
    assert_eq!(get(&server, "/openapi/v2", "text/html").await.code, 406);
    let json = json.ok();
    let parameters = json["parameters"].as_object().expect("shared parameters");
    let mut references = 0;
    for part in json.to_string().split("\"$ref\":\"#/parameters/").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        assert!(parameters.contains_key(name), "{name} is named but not there");
        references += 1;
    }
    assert!(references > parameters.len(), "{references}");
    assert_eq!(json["security"], json!([{"BearerToken": []}]));
}

/// Walks a schema as `kubectl explain --recursive` does: by the names of fields, through references,
/// lists and maps. What is found at the end.
fn explain<'d>(document: &'d Value, definition: &str, path: &[&str]) -> &'d Value {
    fn inner<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference {
            Some(to) => &document["components"]["schemas"][to.rsplit('/').next().unwrap_or_default()],
            None if schema["items"].is_object() => inner(document, &schema["items"]),
            None => schema,
        }
    }
    let start = &document["components"]["schemas"][definition];
    path.iter().fold(start, |at, field| &inner(document, at)["properties"][*field])
}

#[tokio::test]
async fn fields_are_explained() {
    let server = Server::start().await;
    let core = get(&server, "/openapi/v3/api/v1", "application/json").await.ok();
    let pod = "io.k8s.api.core.v1.Pod";
    let own = |path: &[&str]| explain(&core, pod, path).clone();
    let texts = Texts::unpack();
    let said = |definition: &str, field: &str| json!(texts.field(definition, field, true).expect("a text"));
    assert_eq!(own(&["spec", "containers"])["description"], said("io.k8s.api.core.v1.PodSpec", "containers"));
    assert_eq!(own(&["kind"])["description"], said(pod, "kind"));
    let pull = own(&["spec", "containers", "imagePullPolicy"]);
    assert_eq!((&pull["type"], pull.get("default")), (&json!("string"), None));
    assert_eq!(own(&["spec", "containers", "name"])["default"], "", "what is always written has a zero value");
    assert_eq!(own(&["spec", "containers", "ports", "protocol"])["default"], "TCP", "what is declared is told");
    assert_eq!(own(&["spec", "containers", "ports", "containerPort"])["format"], "int32");
    assert_eq!(own(&["metadata"])["default"], json!({}));
    assert_eq!(own(&["metadata", "creationTimestamp"]).get("default"), None, "a time has no zero value");
    let hooks = own(&["spec", "containers", "lifecycle", "preStop", "exec", "command"]);
    assert_eq!(hooks["items"], json!({"type": "string", "default": ""}));
    let limits = own(&["spec", "containers", "resources", "limits"]);
    let quantity = "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity";
    assert_eq!(limits["additionalProperties"], json!({"$ref": quantity}));
    let quantity = &core["components"]["schemas"]["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
    // Recursion through every field that can be reached: each has a type or leads to one.
    let schemas = core["components"]["schemas"].as_object().expect("schemas");
    let (mut fields, mut silent) = (0, Vec::new());
    for (name, schema) in schemas {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            fields += 1;
            let typed = property["type"].is_string() || property["$ref"].is_string() || property["allOf"].is_array();
            assert!(typed, "{name}.{field}: {property}");
            if property["description"].as_str().is_none_or(str::is_empty) {
                silent.push(format!("{name}.{field}"));
            }
        }
    }
    // The sources have no text for a watch's events, and for everything else.
    silent.retain(|field| !field.contains(".WatchEvent."));
    assert!(fields > 800, "{fields}");
    assert_eq!(silent, [""; 0]);
}

#[tokio::test]
async fn structs_say_how_they_merge_and_what_they_are() {
    let server = Server::start().await;
    let core = get(&server, "/openapi/v3/api/v1", "application/json").await.ok();
    let schemas = &core["components"]["schemas"];
    let property = |definition: &str, field: &str| {
        schemas[format!("io.k8s.api.core.v1.{definition}")]["properties"][field].clone()
    };
    let env = property("Container", "env");
    assert_eq!(
        [&env["x-kubernetes-list-type"], &env["x-kubernetes-patch-merge-key"], &env["x-kubernetes-patch-strategy"]],
        ["map", "name", "merge"]
    );
    assert_eq!(env["x-kubernetes-list-map-keys"], json!(["name"]));
    let conditions = property("PodStatus", "containerStatuses");
    assert!(conditions.get("x-kubernetes-list-type").is_some(), "{conditions}");
    assert_eq!(property("PodSpec", "tolerations")["x-kubernetes-list-type"], "atomic");
    assert_eq!(property("PodSpec", "volumes")["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(property("PodSpec", "nodeSelector")["x-kubernetes-map-type"], "atomic");
    assert_eq!(schemas["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"], "atomic");
    // A list about which nothing is said is not said to be anything.
    assert_eq!(property("PodList", "items").get("x-kubernetes-list-type"), None);
    assert_eq!(
        schemas["io.k8s.api.core.v1.SeccompProfile"]["x-kubernetes-unions"],
        json!([{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}])
    );
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["x-kubernetes-group-version-kind"], json!([{"group": "", "version": "v1", "kind": "Pod"}]));
    assert_eq!(schemas["io.k8s.api.core.v1.Container"]["required"], json!(["name"]));
    // Options are everybody's, and say so for the group of the document only.
    let apps = get(&server, "/openapi/v3/apis/apps/v1", "application/json").await.ok();
    let kinds = &apps["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert_eq!(
        kinds["x-kubernetes-group-version-kind"],
        json!([
            {"group": "", "version": "v1", "kind": "DeleteOptions"},
            {"group": "apps", "version": "v1", "kind": "DeleteOptions"},
        ])
    );
}

#[tokio::test]
async fn every_served_verb_has_its_operation() {
    let server = Server::start().await;
    let document = get(&server, "/openapi/v2", "application/json").await.ok();
    let mut ids = std::collections::HashSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().into_iter().flatten().filter(|(key, _)| *key != "parameters") {
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no name"));
            assert!(ids.insert(id.to_owned()), "{id} twice");
            assert!(operation["responses"]["401"].is_object() && operation["tags"].is_array(), "{method} {path}");
        }
    }
    for id in [
        "listCoreV1NamespacedPod",
        "listCoreV1PodForAllNamespaces",
        "createCoreV1NamespacedPod",
        "deleteCoreV1CollectionNamespacedPod",
        "readCoreV1NamespacedPod",
        "replaceCoreV1NamespacedPodStatus",
        "patchAppsV1NamespacedDeploymentScale",
        "readCoreV1NamespacedPodLog",
        "createCoreV1NamespacedServiceAccountToken",
        "replaceCoreV1NamespaceFinalize",
        "watchCoreV1NamespacedPodList",
        "watchCoreV1NamespacedPod",
        "createAuthenticationV1TokenReview",
        "getAppsAPIGroup",
        "getAppsV1APIResources",
        "getCodeVersion",
    ] {
        assert!(ids.contains(id), "{id} is missing");
    }
    let path = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"];
    // A pod that is gone is answered with, other kinds with a Status.
    let reply = |path: &Value| path["delete"]["responses"]["200"]["schema"]["$ref"].clone();
    assert_eq!(reply(path), "#/definitions/io.k8s.api.core.v1.Pod");
    let other = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"];
    assert_eq!(reply(other), "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status");
    assert_eq!(path["patch"]["x-kubernetes-action"], "patch");
    assert_eq!(
        texts(&path["patch"]["consumes"]),
        [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml"
        ]
    );
    // What all operations take belongs to the path, in the order of names.
    let common: Vec<&Value> = path["parameters"].as_array().into_iter().flatten().collect();
    assert_eq!(common.len(), 3, "{common:?}");
    assert_eq!((&common[0]["name"], &common[0]["description"]), (&json!("name"), &json!("name of the Pod")));
}

#[tokio::test]
async fn what_a_document_promises_of_deletes_holds() {
    let server = Server::start().await;
    let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "a"}});
    let at = "/api/v1/namespaces/default/serviceaccounts";
    server.root.post(at, &account).await.ok();
    let gone = server.root.delete(&format!("{at}/a")).await.ok();
    assert_eq!((&gone["kind"], &gone["metadata"]["name"]), (&json!("ServiceAccount"), &json!("a")));
    server.root.post(common::MAPS, &common::config_map("a", "1")).await.ok();
    let gone = server.root.delete(&format!("{}/a", common::MAPS)).await.ok();
    assert_eq!((&gone["kind"], &gone["details"]["name"]), (&json!("Status"), &json!("a")));
}

#[tokio::test]
async fn what_is_passed_on_is_documented_with_every_method_and_path() {
    let server = Server::start().await;
    let v2 = get(&server, "/openapi/v2", "application/json").await.ok();
    let v3 = get(&server, "/openapi/v3/api/v1", "application/json").await.ok();
    for (base, kind, id) in [
        ("/api/v1/namespaces/{namespace}/pods", "Pod", "NamespacedPod"),
        ("/api/v1/namespaces/{namespace}/services", "Service", "NamespacedService"),
        ("/api/v1/nodes", "Node", "Node"),
    ] {
        for (below, suffix) in [("", ""), ("/{path}", "WithPath")] {
            let path = format!("{base}/{{name}}/proxy{below}");
            for document in [&v2, &v3] {
                let item = document["paths"][&path].as_object().unwrap_or_else(|| panic!("{path}"));
                let methods: Vec<&str> = item.keys().map(String::as_str).filter(|key| *key != "parameters").collect();
                assert_eq!(methods, ["delete", "get", "head", "options", "patch", "post", "put"], "{path}");
                for (method, word) in [("head", "Head"), ("options", "Options"), ("get", "Get")] {
                    let operation = &item[method];
                    assert_eq!(operation["operationId"], format!("connectCoreV1{word}{id}Proxy{suffix}"));
                    assert_eq!(operation["x-kubernetes-action"], "connect");
                    let gvk = json!({"group": "", "version": "v1", "kind": format!("{kind}ProxyOptions")});
                    assert_eq!(operation["x-kubernetes-group-version-kind"], gvk);
                }
            }
            let places: Vec<(&str, &str)> = v3["paths"][&path]["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|p| (p["name"].as_str().unwrap_or_default(), p["in"].as_str().unwrap_or_default()))
                .collect();
            assert_eq!(places.contains(&("path", "path")), !below.is_empty(), "{path} {places:?}");
            assert!(places.contains(&("path", "query")) && places.contains(&("name", "path")), "{path} {places:?}");
        }
    }
}
