//! Patches over HTTP: the three that rewrite an object, on objects and subresources, with what upstream
//! says of those that cannot be applied.

use common::{Answer, MAPS, Server, config_map};
use serde_json::{Value, json};

mod common;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(name: &str) -> Value {
    json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": name, "finalizers": ["a/a", "b/b"]},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "one", "image": "i:1", "ports": [{"containerPort": 80}, {"containerPort": 81}]},
                {"name": "two", "image": "i:2"},
            ], "volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {"x": "z", "z": "z"}}}}})
}

async fn patched(server: &Server, kind: &str, uri: &str, body: &Value) -> Value {
    server.root.patch(kind, uri, body).await.ok()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

#[tokio::test]
async fn strategic_merge_with_its_instructions() {
    let server = Server::start().await;
    server.root.post(DEPLOYMENTS, &deployment("d")).await.ok();
    let one = format!("{DEPLOYMENTS}/d");
    let pod = |body: Value| json!({"spec": {"template": {"spec": body}}});
    let patch = pod(json!({
        "$setElementOrder/containers": [{"name": "three"}, {"name": "two"}, {"name": "one"}],
        "containers": [
            {"name": "three", "image": "i:3"},
            {"name": "one", "ports": [{"containerPort": 80, "$patch": "delete"}, {"containerPort": 82}]},
        ],
        "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}],
    }));
    let after = patched(&server, "strategic-merge", &one, &patch).await;
    let spec = &after["spec"]["template"]["spec"];
    assert_eq!(names(&spec["containers"]), ["three", "two", "one"]);
    let ports: Vec<&Value> =
        spec["containers"][2]["ports"].as_array().into_iter().flatten().map(|p| &p["containerPort"]).collect();
    assert_eq!(ports, [82, 81]);
    assert_eq!(spec["volumes"], json!([{"name": "v", "hostPath": {"path": "/", "type": ""}}]));
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/a"]},
        "spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    let after = patched(&server, "strategic-merge", &one, &patch).await;
    assert_eq!(
        (&after["metadata"]["finalizers"], &after["spec"]["strategy"]),
        (&json!(["b/b"]), &json!({"type": "Recreate"}))
    );
    let patch = pod(json!({"containers": [{"$patch": "replace"}, {"name": "only", "image": "i"}],
        "nodeSelector": {"$patch": "replace", "x": "y"}, "volumes": null}));
    let after = patched(&server, "strategic-merge", &one, &patch).await;
    let spec = &after["spec"]["template"]["spec"];
    assert_eq!((names(&spec["containers"]), &spec["nodeSelector"]), (vec!["only"], &json!({"x": "y"})));
    assert!(spec["volumes"].is_null());
    for (patch, want) in [
        (pod(json!({"containers": [{"image": "x"}]})), "map: map[image:x] does not contain declared merge key: name"),
        (
            pod(json!({"containers": [{"name": "a", "$patch": "merge"}]})),
            "merging lists cannot yet be specified in the patch",
        ),
        (pod(json!({"containers": ["x"]})), "list element types are not identical: [["),
        (json!({"spec": {"strategy": {"$patch": "x"}}}), "unknown patch type: x in map: map[$patch:x]"),
        (json!({"spec": {"strategy": {"$retainKeys": 1}}}), "invalid patch format of retainKeys"),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["b/b"], "finalizers": ["c/c"]}}),
            "The order in patch list:\n[c/c]\n doesn't match $setElementOrder list:\n[b/b]\n",
        ),
    ] {
        let refused = server.root.patch("strategic-merge", &one, &patch).await.failure();
        assert!(refused.starts_with(&format!("400 BadRequest: {want}")), "{refused}");
    }
    let lists = server.root.patch("strategic-merge", &one, &pod(json!({"containers": [["x"]]}))).await.failure();
    assert!(lists.starts_with("400 BadRequest: list element types are not identical: "), "{lists}");
}

#[tokio::test]
async fn json_patch_with_all_its_operations() {
    let server = Server::start().await;
    server.root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    let patch = json!([
        {"op": "test", "path": "/data/k", "value": "1"},
        {"op": "add", "path": "/data/a.b", "value": "2"},
        {"op": "copy", "from": "/data/k", "path": "/data/copy"},
        {"op": "move", "from": "/data/a.b", "path": "/data/moved"},
        {"op": "replace", "path": "/data/k", "value": "3"},
        {"op": "add", "path": "/metadata/labels", "value": {"x~y": "no", "l": "1"}},
        {"op": "remove", "path": "/metadata/labels/x~0y"},
        {"op": "add", "path": "/metadata/finalizers", "value": ["a/a"]},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "c/c"},
        {"op": "add", "path": "/metadata/finalizers/1", "value": "b/b"},
        {"op": "remove", "path": "/metadata/finalizers/-1"},
    ]);
    let after = patched(&server, "json", &one, &patch).await;
    assert_eq!(after["data"], json!({"k": "3", "copy": "1", "moved": "2"}));
    assert_eq!(after["metadata"]["labels"], json!({"l": "1"}));
    assert_eq!(after["metadata"]["finalizers"], json!(["a/a", "b/b"]));
    let rejected = "422 Invalid: the server rejected our request due to an error in our request";
    for (patch, want) in [
        (json!([{"op": "test", "path": "/data/k", "value": "4"}]), rejected),
        (json!([{"op": "remove", "path": "/data/none"}]), rejected),
        (json!([{"op": "add", "path": "/none/k", "value": "4"}]), rejected),
        (json!([{"op": "fly", "path": "/data/k"}]), rejected),
        (
            json!({"op": "test"}),
            "400 BadRequest: error decoding patch: json: cannot unmarshal object into Go value of type \
             []handlers.jsonPatchOp",
        ),
        (
            json!([{"op": 1}]),
            "400 BadRequest: error decoding patch: json: cannot unmarshal number into Go struct field \
             jsonPatchOp.op of type string",
        ),
        (
            json!(vec![json!({"op": "test", "path": "/data/k", "value": "3"}); 10_001]),
            "413 RequestEntityTooLarge: Request entity too large: The allowed maximum operations in a JSON patch is \
             10000, got 10001",
        ),
    ] {
        assert_eq!(server.root.patch("json", &one, &patch).await.failure(), want);
    }
    let media = [("content-type", "application/json-patch+json")];
    let broken = server.root.send("PATCH", &one, &media, "[{]").await.failure();
    assert_eq!(broken, "400 BadRequest: invalid JSON patch");
    let unknown = json!([{"op": "test", "path": "/data/k", "value": "3", "why": 1}]);
    let warned = server.root.patch("json", &one, &unknown).await;
    assert_eq!((warned.code, warned.warnings()), (200, vec!["299 - \"json patch unknown field \\\"[0].why\\\"\""]));
}

/// What comes out of a patch is checked like what a client sends: its mistakes are the patch's.
#[tokio::test]
async fn what_a_patch_makes_is_checked() {
    let server = Server::start().await;
    server.root.post(DEPLOYMENTS, &deployment("d")).await.ok();
    let one = format!("{DEPLOYMENTS}/d");
    let cause = |answer: &Answer| {
        let status = answer.json();
        let cause = &status["details"]["causes"][0];
        (cause["reason"].clone(), cause["field"].clone())
    };
    let invalid = (json!("FieldValueInvalid"), json!("patch"));
    let typed = server.root.patch("merge", &one, &json!({"spec": {"replicas": "3"}})).await;
    let text = typed.failure();
    assert!(
        text.starts_with("422 Invalid:  \"\" is invalid: patch: Invalid value: \"{\\\"apiVersion\\\":\\\"apps/v1\\\""),
        "{text}"
    );
    assert!(
        text.ends_with(
            ": json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        ),
        "{text}"
    );
    assert_eq!(cause(&typed), invalid);
    let strict =
        server.root.patch("merge", &format!("{one}?fieldValidation=Strict"), &json!({"spec": {"foo": 1}})).await;
    assert!(strict.failure().ends_with(": strict decoding error: unknown field \"spec.foo\""), "{}", strict.text());
    assert_eq!(cause(&strict), invalid);
    let strategic = json!({"spec": {"foo": 1, "bar": {"x": [1, "y"]}}});
    let strict = server.root.patch("strategic-merge", &format!("{one}?fieldValidation=Strict"), &strategic).await;
    assert_eq!(
        strict.failure(),
        "422 Invalid:  \"\" is invalid: patch: Invalid value: \"map[spec:map[bar:map[x:[1 y]] foo:1]]\": strict \
         decoding error: unknown field \"spec.bar\", unknown field \"spec.foo\""
    );
    for (replicas, why) in [
        (json!("3"), "unrecognized type: int32"),
        (json!(1.5), "cannot convert float64 to int32"),
        (json!({}), "unrecognized type: int32"),
    ] {
        let refused =
            server.root.patch("strategic-merge", &one, &json!({"spec": {"replicas": replicas}})).await.failure();
        assert!(refused.ends_with(&format!(": {why}")), "{refused}");
    }
    // Whole numbers are whole however they are written, for this patch alone.
    let media = [("content-type", "application/strategic-merge-patch+json")];
    let whole = server.root.send("PATCH", &one, &media, r#"{"spec":{"replicas":4.0}}"#).await.ok();
    assert_eq!(whole["spec"]["replicas"], 4);
    let media = [("content-type", "application/merge-patch+json")];
    let doubled = server.root.send("PATCH", &one, &media, r#"{"spec":{"replicas":5,"replicas":6,"nope":1}}"#).await;
    assert_eq!(doubled.ok()["spec"]["replicas"], 6);
    let want = ["299 - \"duplicate field \\\"spec.replicas\\\"\"", "299 - \"unknown field \\\"spec.nope\\\"\""];
    assert_eq!(doubled.warnings(), want);
}

/// A patch changes an object; it does not make another of it.
#[tokio::test]
async fn an_object_stays_the_object_it_is() {
    let server = Server::start().await;
    let before = server.root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    for kind in ["merge", "strategic-merge"] {
        for (patch, want) in [
            (
                json!({"metadata": {"name": "b"}}),
                "400 BadRequest: the name of the object (b) does not match the name on the URL (a)",
            ),
            (
                json!({"metadata": {"name": null}}),
                "400 BadRequest: the name of the object (a based on URL) was undeterminable: name must be provided",
            ),
            (
                json!({"metadata": {"namespace": "other"}}),
                "400 BadRequest: the namespace of the provided object does not match the namespace sent on the request",
            ),
            (
                json!({"metadata": {"uid": "x"}}),
                "422 Invalid: ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"x\": field is immutable",
            ),
            (
                json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "2"}}),
                "409 Conflict: Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please \
                 apply your changes to the latest version and try again",
            ),
        ] {
            assert_eq!(server.root.patch(kind, &one, &patch).await.failure(), want, "{kind}");
        }
        let missing = server.root.patch(kind, &format!("{MAPS}/none"), &json!({"data": 5})).await.failure();
        assert_eq!(missing, "404 NotFound: configmaps \"none\" not found");
    }
    let other = server.root.patch("merge", &one, &json!({"kind": "Pod"})).await.failure();
    assert!(other.ends_with(": converting (v1.Pod) to (core.ConfigMap): unknown conversion"), "{other}");
    // Strategic merge has no kind to change.
    let same = patched(&server, "strategic-merge", &one, &json!({"kind": "Pod", "apiVersion": "v7"})).await;
    assert_eq!(same, before);
    let fresh = json!({"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "data": {"k": "2"}});
    assert_eq!(patched(&server, "merge", &one, &fresh).await["data"]["k"], "2");
    let media = [("content-type", "application/Merge-Patch+json")];
    assert_eq!(
        server.root.send("PATCH", &one, &media, "{}").await.failure(),
        "415 UnsupportedMediaType: the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
         application/apply-patch+yaml"
    );
}

#[tokio::test]
async fn subresources_take_patches_too() {
    let server = Server::start().await;
    server.root.post(DEPLOYMENTS, &deployment("d")).await.ok();
    let status =
        json!({"status": {"replicas": 1, "conditions": [{"type": "A", "status": "True"}]}, "spec": {"replicas": 9}});
    let after = patched(&server, "strategic-merge", &format!("{DEPLOYMENTS}/d/status"), &status).await;
    assert_eq!((&after["status"]["replicas"], &after["spec"]["replicas"]), (&json!(1), &json!(2)));
    let status = json!({"status": {"conditions": [{"type": "B", "status": "False"}]}});
    let after = patched(&server, "strategic-merge", &format!("{DEPLOYMENTS}/d/status"), &status).await;
    assert_eq!(after["status"]["conditions"].as_array().map(Vec::len), Some(2));
    let scale = format!("{DEPLOYMENTS}/d/scale");
    let scaled = patched(&server, "merge", &scale, &json!({"spec": {"replicas": 7}})).await;
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(7)));
    let scaled =
        patched(&server, "json", &scale, &json!([{"op": "replace", "path": "/spec/replicas", "value": 3}])).await;
    assert_eq!(scaled["spec"]["replicas"], 3);
    let warned = server.root.patch("merge", &scale, &json!({"spec": {"replica": 7}})).await;
    assert_eq!((warned.code, warned.warnings()), (200, vec!["299 - \"unknown field \\\"spec.replica\\\"\""]));
    let refused = server.root.patch("merge", &scale, &json!({"metadata": {"name": "e"}})).await.failure();
    assert_eq!(refused, "400 BadRequest: the name of the object (e) does not match the name on the URL (d)");
}
