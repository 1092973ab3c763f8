//! Custom resources over HTTP: from a definition to its objects and back to nothing.

mod common;

use common::custom::{self, DEFINITIONS, condition, cron_tab, cron_tabs, definition, establish, gone, until};
use common::{Client, Server};
use serde_json::{Value, json};

const TABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

#[tokio::test]
async fn a_definition_is_served_once_it_is_established() {
    let server = Server::start().await;
    assert_eq!(server.root.get(TABS).await.code, 404);
    let made = establish(&server, &cron_tabs()).await;
    assert_eq!(condition(&made, "NamesAccepted"), Some(("True", "NoConflicts")));
    assert_eq!(condition(&made, "Established"), Some(("True", "InitialNamesAccepted")));
    assert_eq!(made["status"]["acceptedNames"]["plural"], "crontabs");
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "CronTabList");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    // With the condition there is everything else.
    let resources = server.root.get("/apis/stable.example.com/v1").await.ok();
    let names: Vec<&str> =
        resources["resources"].as_array().expect("resources").iter().filter_map(|r| r["name"].as_str()).collect();
    assert_eq!(names, ["crontabs", "crontabs/scale", "crontabs/status"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["ct"]));
    let created = server.root.post(TABS, &cron_tab("a")).await;
    assert_eq!(created.code, 201, "{}", created.text());
    let created = created.json();
    assert_eq!(created["spec"], json!({"cronSpec": "* * * * */5", "image": "busybox", "replicas": 1}));
    assert_eq!((&created["metadata"]["generation"], &created["kind"]), (&json!(1), &json!("CronTab")));
    // Its own path is good for creating it too, and for nothing else.
    let own = |name: &str| format!("{TABS}/{name}");
    assert_eq!(server.root.post(&own("b"), &cron_tab("b")).await.code, 201);
    assert_eq!(
        server.root.post(&own("b"), &cron_tab("c")).await.failure(),
        "400 BadRequest: the name of the object (c) does not match the name on the URL (b)"
    );
    assert_eq!(server.root.post(&own("b"), &cron_tab("b")).await.code, 409);
    assert_eq!(server.root.post("/api/v1/namespaces/default/configmaps/b", &json!({})).await.code, 405);
    server.root.delete(&own("b")).await.ok();
    let list = server.root.get("/apis/stable.example.com/v1/crontabs").await.ok();
    assert_eq!((&list["kind"], &list["items"][0]), (&json!("CronTabList"), &created));
    server.root.delete(&format!("{TABS}/a")).await.ok();
    assert_eq!(
        server.root.get(&format!("{TABS}/a")).await.failure(),
        "404 NotFound: crontabs.stable.example.com \"a\" not found"
    );
}

#[tokio::test]
async fn objects_are_checked_by_their_schema() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut object = cron_tab("a");
        change(&mut object);
        object
    };
    for (object, want) in [
        (
            with(&|o| o["spec"] = json!({})),
            "422 Invalid: CronTab.stable.example.com \"a\" is invalid: spec.cronSpec: Required value",
        ),
        (
            with(&|o| o["spec"]["replicas"] = json!("x")),
            "422 Invalid: CronTab.stable.example.com \"a\" is invalid: [spec.replicas: Invalid value: \"string\": \
             spec.replicas in body must be of type integer: \"string\", .spec.replicas: Invalid value: 0: \
             .spec.replicas accessor error: x is of the type string, expected int64]",
        ),
        (
            with(&|o| o["apiVersion"] = json!("stable.example.com/v2")),
            "400 BadRequest: the API version in the data (stable.example.com/v2) does not match the expected API \
             version (stable.example.com/v1)",
        ),
        (
            with(&|o| o["metadata"]["name"] = json!("A_")),
            "422 Invalid: CronTab.stable.example.com \"A_\" is invalid: metadata.name: Invalid value: \"A_\": a \
             lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
    ] {
        assert_eq!(server.root.post(TABS, &object).await.failure(), want);
    }
    let unknown = with(&|o| o["spec"]["what"] = json!(1));
    let strict = server.root.post(&format!("{TABS}?fieldValidation=Strict"), &unknown).await;
    assert_eq!(
        strict.failure(),
        "400 BadRequest: CronTab in version \"v1\" cannot be handled as a CronTab: strict decoding error: unknown \
         field \"spec.what\""
    );
    let warned = server.root.post(TABS, &unknown).await;
    assert_eq!((warned.code, warned.warnings()), (201, vec!["299 - \"unknown field \\\"spec.what\\\"\""]));
    assert!(warned.json()["spec"].get("what").is_none());
}

#[tokio::test]
async fn rules_are_applied_to_objects_and_to_changes() {
    let server = Server::start().await;
    let mut tabs = cron_tabs();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let rules = json!([
        {"rule": "self.replicas < 10", "message": "too many", "fieldPath": ".replicas"},
        {"rule": "self.image == oldSelf.image", "messageExpression": "'image stays ' + oldSelf.image"},
    ]);
    tabs.pointer_mut(spec).expect("a schema")["x-kubernetes-validations"] = rules;
    establish(&server, &tabs).await;
    let mut object = cron_tab("a");
    object["spec"]["replicas"] = json!(10);
    assert_eq!(
        server.root.post(TABS, &object).await.failure(),
        "422 Invalid: CronTab.stable.example.com \"a\" is invalid: spec.replicas: Invalid value: too many"
    );
    object["spec"]["replicas"] = json!(1);
    server.root.post(TABS, &object).await.ok();
    let refused = server.root.patch("merge", &format!("{TABS}/a"), &json!({"spec": {"image": "other"}})).await;
    assert!(refused.failure().contains("image stays busybox"), "{}", refused.text());
    // A rule that means nothing keeps its definition out.
    let mut wrong = definition("wrongs", "Wrong", &json!({"type": "object"}));
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
        json!([{"rule": "self.what"}]);
    assert_eq!(server.root.post(DEFINITIONS, &wrong).await.code, 422);
}

#[tokio::test]
async fn status_scale_and_generation_are_those_of_built_in_kinds() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    let one = format!("{TABS}/a");
    let mut object = cron_tab("a");
    object["status"] = json!({"replicas": 3});
    let made = server.root.post(TABS, &object).await.ok();
    assert!(made.get("status").is_none());
    let status = json!({"status": {"replicas": 2, "labelSelector": "a=b"}, "spec": {"replicas": 9},
        "metadata": {"labels": {"a": "b"}}});
    let made = server.root.patch("merge", &format!("{one}/status"), &status).await.ok();
    assert_eq!((&made["status"]["replicas"], &made["spec"]["replicas"]), (&json!(2), &json!(1)));
    assert_eq!((&made["metadata"]["generation"], made["metadata"].get("labels")), (&json!(1), None));
    let scale = server.root.get(&format!("{one}/scale")).await.ok();
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 1}), &json!({"replicas": 2, "selector": "a=b"}))
    );
    let scaled = server.root.patch("merge", &format!("{one}/scale"), &json!({"spec": {"replicas": 5}})).await.ok();
    assert_eq!(scaled["spec"]["replicas"], 5);
    let made = server.root.get(&one).await.ok();
    assert_eq!((&made["spec"]["replicas"], &made["metadata"]["generation"]), (&json!(5), &json!(2)));
    let mut blind = cron_tab("a");
    blind["spec"]["replicas"] = json!(6);
    assert_eq!(server.root.put(&one, &blind).await.code, 422);
    blind["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    blind["status"] = json!({"replicas": 9});
    let made = server.root.put(&one, &blind).await.ok();
    assert_eq!((&made["status"]["replicas"], &made["metadata"]["generation"]), (&json!(2), &json!(3)));
    assert_eq!(server.root.patch("strategic-merge", &one, &json!({})).await.code, 415);
}

#[tokio::test]
async fn tables_selectors_and_apply_work_as_for_built_in_kinds() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    for (name, image) in [("a", "x"), ("b", "y")] {
        let mut object = cron_tab(name);
        object["spec"]["image"] = json!(image);
        server.root.post(TABS, &object).await.ok();
    }
    let accept = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let table = server.root.send("GET", TABS, &accept, "").await.ok();
    let columns: Vec<&str> =
        table["columnDefinitions"].as_array().expect("columns").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(columns, ["Name", "Spec", "Replicas", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().map(|c| c[..3].to_vec()),
        Some(vec![json!("a"), json!("* * * * */5"), json!(1)])
    );
    let selected = server.root.get(&format!("{TABS}?fieldSelector=spec.image%3Dy")).await.ok();
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(selected["items"][0]["metadata"]["name"], "b");
    let unknown = server.root.get(&format!("{TABS}?fieldSelector=spec.what%3Dy")).await;
    assert_eq!(unknown.failure(), "400 BadRequest: field label not supported: spec.what");
    let apply = |manager: &str, replicas: i64| {
        let body = json!({"kind": "CronTab", "apiVersion": "stable.example.com/v1", "metadata": {"name": "c"},
            "spec": {"cronSpec": "x", "replicas": replicas}});
        let path = format!("{TABS}/c?fieldManager={manager}");
        let root = server.root.clone();
        async move { root.send("PATCH", &path, &[("content-type", "application/apply-patch+yaml")], body.to_string()).await }
    };
    assert_eq!(apply("one", 1).await.code, 201);
    let refused = apply("two", 2).await;
    assert_eq!(refused.failure(), "409 Conflict: Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let answer = server.root.send("GET", TABS, &protobuf, "").await;
    assert_eq!(answer.header("content-type"), "application/json");
    let only = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(server.root.send("GET", TABS, &only, "").await.code, 406);
}

#[tokio::test]
async fn a_definition_that_is_deleted_takes_its_objects_along() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    let mut held = cron_tab("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    for object in [cron_tab("a"), held] {
        server.root.post(TABS, &object).await.ok();
    }
    let mut watch = server.root.watch(&format!("{TABS}?watch=1")).await;
    assert_eq!(
        [watch.line("/none").await, watch.line("/none").await].map(|l| l.trim().to_owned()),
        ["ADDED a", "ADDED held"]
    );
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let marked = server.root.delete(&path).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let ending =
        until(&server, &path, |_, d| condition(d, "Terminating").is_some_and(|c| c.1 == "InstanceDeletionInProgress"))
            .await;
    assert_eq!(condition(&ending, "Terminating"), Some(("True", "InstanceDeletionInProgress")));
    let refused = server.root.post(TABS, &cron_tab("late")).await;
    assert_eq!(
        refused.failure(),
        "405 MethodNotAllowed: create not allowed while custom resource definition is terminating"
    );
    let seen: Vec<Value> = [watch.next().await, watch.next().await].into_iter().flatten().collect();
    assert!(seen.iter().any(|e| e["type"] == "DELETED" && e["object"]["metadata"]["name"] == "a"), "{seen:?}");
    server.root.patch("merge", &format!("{TABS}/held"), &json!({"metadata": {"finalizers": null}})).await.ok();
    gone(&server, &path).await;
    // Whatever is still to come, the watch ends.
    while watch.next().await.is_some() {}
    gone(&server, TABS).await;
    let groups = server.root.get("/apis").await.text();
    assert!(!groups.contains("stable.example.com"), "{groups}");
    // And it can come again, empty.
    establish(&server, &cron_tabs()).await;
    assert_eq!(server.root.get(TABS).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn names_are_given_once() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    let schema = json!({"type": "object"});
    let mut other = definition("others", "CronTab", &schema);
    other["spec"]["names"]["singular"] = json!("other");
    server.root.post(DEFINITIONS, &other).await.ok();
    let path = format!("{DEFINITIONS}/others.stable.example.com");
    let refused = until(&server, &path, |_, d| condition(d, "NamesAccepted").is_some()).await;
    assert_eq!(condition(&refused, "NamesAccepted"), Some(("False", "ListKindConflict")));
    assert_eq!(condition(&refused, "Established"), Some(("False", "NotAccepted")));
    assert_eq!(server.root.get("/apis/stable.example.com/v1/others").await.code, 404);
    // Who gives a name up lets the other have it.
    server.root.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.ok();
    custom::established(&server, "others.stable.example.com").await;
    assert_eq!(server.root.get("/apis/stable.example.com/v1/others").await.code, 200);
}

#[tokio::test]
async fn a_built_in_resource_keeps_its_name() {
    let server = Server::start().await;
    let mut roles = definition("roles", "Role", &json!({"type": "object"}));
    roles["metadata"] = json!({"name": "roles.rbac.authorization.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    roles["spec"]["group"] = json!("rbac.authorization.k8s.io");
    server.root.post(DEFINITIONS, &roles).await.ok();
    let path = format!("{DEFINITIONS}/roles.rbac.authorization.k8s.io");
    let refused = until(&server, &path, |_, d| condition(d, "NamesAccepted").is_some()).await;
    assert_eq!(condition(&refused, "NamesAccepted").map(|c| c.0), Some("False"));
    let approval = condition(&refused, "KubernetesAPIApprovalPolicyConformant");
    assert_eq!(approval, Some(("False", "UnapprovedAnnotation")));
    assert_eq!(server.root.get("/apis/rbac.authorization.k8s.io/v1/roles").await.ok()["kind"], "RoleList");
    server.root.delete(&path).await.ok();
    gone(&server, &path).await;
    assert_eq!(server.root.get("/apis/rbac.authorization.k8s.io/v1/roles").await.code, 200);
}

#[tokio::test]
async fn versions_without_a_webhook_differ_in_name_and_schema() {
    let server = Server::start().await;
    let mut tabs = cron_tabs();
    let mut beta = tabs["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    beta["deprecated"] = json!(true);
    // The same in both, where the schemas differ, is refused.
    beta.as_object_mut().expect("an object").remove("selectableFields");
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["old"] =
        json!({"type": "string", "default": "yes"});
    tabs["spec"]["versions"].as_array_mut().expect("versions").push(beta);
    establish(&server, &tabs).await;
    let old = TABS.replace("/v1/", "/v1beta1/");
    let mut watch = server.root.watch(&format!("{old}?watch=1")).await;
    let mut object = cron_tab("a");
    object["apiVersion"] = json!("stable.example.com/v1beta1");
    object["spec"]["old"] = json!("no");
    let made = server.root.post(&old, &object).await;
    assert_eq!(
        made.warnings(),
        ["299 - \"stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab\""]
    );
    let made = made.ok();
    assert_eq!((&made["apiVersion"], &made["spec"]["old"]), (&json!("stable.example.com/v1beta1"), &json!("no")));
    let event = watch.next().await.expect("an event");
    assert_eq!(
        (&event["object"]["apiVersion"], &event["object"]["spec"]["old"]),
        (&json!("stable.example.com/v1beta1"), &json!("yes"))
    );
    // What the stored version does not know was lost on the way there, and defaulted on the way back.
    let (new, back) =
        (server.root.get(&format!("{TABS}/a")).await.ok(), server.root.get(&format!("{old}/a")).await.ok());
    assert_eq!((&new["apiVersion"], new["spec"].get("old")), (&json!("stable.example.com/v1"), None));
    assert_eq!((&back["apiVersion"], &back["spec"]["old"]), (&json!("stable.example.com/v1beta1"), &json!("yes")));
    let list = server.root.get(&old).await.ok();
    assert_eq!(list["items"][0], back);
    let patched = server.root.patch("merge", &format!("{old}/a"), &json!({"spec": {"replicas": 7}})).await.ok();
    assert_eq!(
        (&patched["apiVersion"], &patched["spec"]["replicas"]),
        (&json!("stable.example.com/v1beta1"), &json!(7))
    );
    // The stored version changes: what is stored is read all the same.
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let switch = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let switched = server.root.patch("json", &path, &switch).await.ok();
    assert_eq!(switched["status"]["storedVersions"], json!(["v1", "v1beta1"]));
    assert_eq!(server.root.get(&format!("{TABS}/a")).await.ok()["spec"]["replicas"], 7);
    assert_eq!(server.root.get(&format!("{old}/a")).await.ok()["spec"]["replicas"], 7);
}

#[tokio::test]
async fn a_change_of_the_schema_is_seen_by_what_is_stored() {
    let server = Server::start().await;
    establish(&server, &cron_tabs()).await;
    server.root.post(TABS, &cron_tab("a")).await.ok();
    let mut watch = server.root.watch(&format!("{TABS}?watch=1")).await;
    assert_eq!(watch.line("/none").await.trim(), "ADDED a");
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let change = json!([{"op": "add", "path": format!("{schema}/new"), "value": {"type": "string", "default": "here"}},
        {"op": "remove", "path": format!("{schema}/image")},
        {"op": "remove", "path": "/spec/versions/0/selectableFields"}]);
    server.root.patch("json", &path, &change).await.ok();
    // Watches end with the schema they began under.
    while watch.next().await.is_some() {}
    let object = until(&server, &format!("{TABS}/a"), |_, object| object["spec"].get("new").is_some()).await;
    assert_eq!(object["spec"], json!({"cronSpec": "* * * * */5", "new": "here", "replicas": 1}));
}

#[tokio::test]
async fn discovery_and_openapi_follow() {
    let server = Server::start().await;
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let discover = |client: Client| async move { client.send("GET", "/apis", &[("accept", AGGREGATED)], "").await };
    let before = discover(server.root.clone()).await;
    establish(&server, &cron_tabs()).await;
    let after = discover(server.root.clone()).await;
    assert_ne!(before.header("etag"), after.header("etag"));
    let after = after.ok();
    let group =
        after["items"].as_array().expect("groups").iter().find(|g| g["metadata"]["name"] == "stable.example.com");
    let resource = &group.expect("the group")["versions"][0]["resources"][0];
    assert_eq!(
        (&resource["resource"], &resource["singularResource"], &resource["scope"]),
        (&json!("crontabs"), &json!("crontab"), &json!("Namespaced"))
    );
    assert_eq!(resource["subresources"].as_array().map(Vec::len), Some(2));
    let index = server.root.get("/openapi/v3").await.ok();
    let url =
        index["paths"]["apis/stable.example.com/v1"]["serverRelativeURL"].as_str().expect("a document").to_owned();
    let document = server.root.get(&url).await.ok();
    let schema = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(schema["properties"]["spec"]["properties"]["replicas"]["type"], "integer");
    assert_eq!(
        schema["x-kubernetes-group-version-kind"],
        json!([{"group": "stable.example.com", "kind": "CronTab", "version": "v1"}])
    );
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for part in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().expect("a name");
        assert!(schemas.contains_key(name), "{name} is named but not there");
    }
    assert!(document["paths"]["/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}/scale"].is_object());
    let v2 = server.root.get("/openapi/v2").await.ok();
    assert!(v2["definitions"]["com.example.stable.v1.CronTab"].is_object());
    server.root.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.ok();
    gone(&server, &format!("{DEFINITIONS}/crontabs.stable.example.com")).await;
    gone(&server, "/apis/stable.example.com/v1").await;
    let index = server.root.get("/openapi/v3").await.ok();
    assert!(index["paths"].get("apis/stable.example.com/v1").is_none());
}

#[tokio::test]
async fn definitions_are_there_again_after_a_restart() {
    let clock = stdx::clock::RealClock::shared();
    let (store, memory) = (common::config(&clock, 1).store, common::config(&clock, 1).memory);
    for round in 0..2 {
        let (store, memory) = (store.clone(), memory.clone());
        let mut config = common::config(&clock, round);
        (config.store, config.memory) = (store, memory);
        let server = Server::from(config, clock.clone()).await;
        if round == 0 {
            establish(&server, &cron_tabs()).await;
            server.root.post(TABS, &cron_tab("a")).await.ok();
        }
        // Before anything else is answered.
        assert_eq!(server.root.get(&format!("{TABS}/a")).await.ok()["metadata"]["name"], "a");
        assert!(server.stage.finish(&clock, std::time::Duration::from_secs(10)).await, "round {round}");
    }
}

#[tokio::test]
async fn many_definitions_and_large_ones() {
    let server = Server::start().await;
    let many = 500;
    for i in 0..many {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        server.root.post(DEFINITIONS, &definition(&format!("things{i}"), &format!("Thing{i}"), &schema)).await.ok();
    }
    for i in 0..many {
        custom::established(&server, &format!("things{i}.stable.example.com")).await;
    }
    let resources = server.root.get("/apis/stable.example.com/v1").await.ok();
    assert_eq!(resources["resources"].as_array().map(Vec::len), Some(many));
    // A schema of a megabyte.
    let fields: serde_json::Map<String, Value> =
        (0..8000).map(|i| (format!("field{i}"), json!({"type": "string", "description": "x".repeat(80)}))).collect();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    let large = definition("larges", "Large", &schema);
    assert!(large.to_string().len() > 1_000_000);
    establish(&server, &large).await;
    let path = "/apis/stable.example.com/v1/namespaces/default/larges";
    let object = json!({"kind": "Large", "apiVersion": "stable.example.com/v1", "metadata": {"name": "a"}, "spec": {"field7": "x"}});
    assert_eq!(server.root.post(path, &object).await.ok()["spec"], json!({"field7": "x"}));
    for i in 0..many {
        server.root.delete(&format!("{DEFINITIONS}/things{i}.stable.example.com")).await.ok();
    }
    until(&server, "/apis/stable.example.com/v1", |_, v| v["resources"].as_array().map(Vec::len) == Some(1)).await;
}
