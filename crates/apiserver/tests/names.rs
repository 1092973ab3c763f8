//! Names and numbers: generated names, system fields, generations, what a name may be.

mod common;

use common::{MAPS, Server, config_map};
use machinery::names::ALPHABET;
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn a_generated_name_has_five_random_letters_and_fits() {
    let server = Server::start().await;
    let root = &server.root;
    let long = "x".repeat(80);
    for (base, kept) in [("web-", "web-"), (long.as_str(), &long[..58])] {
        let made = root.post(MAPS, &json!({"metadata": {"generateName": base}})).await.ok();
        let name = made["metadata"]["name"].as_str().expect("a name");
        let random = name.strip_prefix(kept).expect("the base");
        assert!(random.len() == 5 && random.bytes().all(|b| ALPHABET.contains(&b)), "{name}");
        assert_eq!(made["metadata"]["generateName"], base);
    }
    let named = root.post(MAPS, &json!({"metadata": {"name": "a", "generateName": "b-"}})).await.ok();
    assert_eq!(named["metadata"]["name"], "a");
    // Bounds need no name.
    let ranges = "/api/v1/namespaces/default/limitranges";
    let made = root.post(ranges, &json!({"spec": {"limits": []}})).await.ok();
    let name = made["metadata"]["name"].as_str().expect("a name");
    assert!(name.len() == 36 && name.bytes().filter(|byte| *byte == b'-').count() == 4, "{name}");
    assert_ne!(made["metadata"]["uid"], name);
    let taken = root.post(MAPS, &json!({"metadata": {"name": "a", "generateName": "b-"}})).await;
    assert_eq!(
        taken.failure(),
        "409 AlreadyExists: configmaps \"a\" already exists, the server was not able to generate a unique name for the object"
    );
    assert_eq!((&taken.json()["details"]["retryAfterSeconds"], taken.header("retry-after")), (&json!(1), "1"));
    for (metadata, want) in [
        (json!({}), "metadata.name: Required value: name or generateName is required"),
        (json!({"name": "A"}), "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of"),
        (json!({"generateName": "_x-"}), "metadata.generateName: Invalid value: \"_x-\": a lowercase RFC 1123"),
    ] {
        let refused = root.post(MAPS, &json!({"metadata": metadata})).await.failure();
        assert!(refused.starts_with("422 Invalid: ConfigMap ") && refused.contains(want), "{refused}");
    }
}

#[tokio::test]
async fn a_name_that_is_going_is_taken_until_it_is_gone() {
    let server = Server::start().await;
    let root = &server.root;
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    root.post(MAPS, &held).await.ok();
    let again = root.post(MAPS, &config_map("a", "2")).await.failure();
    assert_eq!(again, "409 AlreadyExists: configmaps \"a\" already exists");
    root.delete(&format!("{MAPS}/a")).await.ok();
    let again = root.post(MAPS, &config_map("a", "2")).await.failure();
    assert_eq!(again, "409 AlreadyExists: object is being deleted: configmaps \"a\" already exists");
}

#[tokio::test]
async fn system_fields_are_the_servers() {
    let server = Server::start().await;
    let root = &server.root;
    let lies = json!({"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5, "selfLink": "/x"});
    let made = root.post(MAPS, &json!({"metadata": lies})).await.ok();
    let metadata = &made["metadata"];
    let uid = metadata["uid"].as_str().expect("uid");
    assert_eq!((uid.len(), uid.as_bytes()[14]), (36, b'4'), "{uid}");
    assert!(!metadata["creationTimestamp"].as_str().expect("time").starts_with("2001"));
    for absent in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        assert!(metadata.get(absent).is_none(), "{absent}: {metadata}");
    }
    let one = format!("{MAPS}/a");
    let mut update = config_map("a", "2");
    update["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    update["metadata"]["generation"] = json!(77);
    let updated = root.put(&one, &update).await.ok();
    assert_eq!(updated["metadata"]["creationTimestamp"], metadata["creationTimestamp"]);
    assert_eq!((&updated["metadata"]["uid"], updated["metadata"].get("generation")), (&json!(uid), None));
    update["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    let refused = root.put(&one, &update).await.failure();
    assert!(refused.contains("metadata.deletionTimestamp: Invalid value: "), "{refused}");
}

#[tokio::test]
async fn generations_count_what_is_wanted() {
    let server = Server::start().await;
    let root = &server.root;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut object = json!({"metadata": {"name": "d", "generation": 9},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let made = root.post(DEPLOYMENTS, &object).await.ok();
    let one = format!("{DEPLOYMENTS}/d");
    let generation = |object: &Value| object["metadata"]["generation"].clone();
    assert_eq!(generation(&made), 1);
    object["spec"]["replicas"] = json!(3);
    let changed = root.put(&one, &object).await.ok();
    assert_eq!(generation(&changed), 2);
    // What was not said again was not meant to go.
    let again = root.put(&one, &object).await.ok();
    assert_eq!(again["metadata"]["resourceVersion"], changed["metadata"]["resourceVersion"]);
    assert_eq!(generation(&again), 2);
    object["metadata"]["labels"] = json!({"l": "1"});
    assert_eq!(generation(&root.put(&one, &object).await.ok()), 2);
    let status = json!({"status": {"observedGeneration": 2}});
    assert_eq!(generation(&root.patch("merge", &format!("{one}/status"), &status).await.ok()), 2);
    object["metadata"]["finalizers"] = json!(["a.b/c"]);
    root.put(&one, &object).await.ok();
    assert_eq!(generation(&root.delete(&one).await.ok()), 3);
    assert_eq!(generation(&root.delete(&one).await.ok()), 3);
}

#[tokio::test]
async fn versions_are_demanded_where_the_kind_says_so() {
    let server = Server::start().await;
    let root = &server.root;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}});
    // An update may create it, and may not overwrite it.
    assert_eq!(root.put(&format!("{leases}/l"), &lease).await.code, 201);
    assert_eq!(
        root.put(&format!("{leases}/l"), &lease).await.failure(),
        "422 Invalid: leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: \
         must be specified for an update"
    );
    assert_eq!(root.put(&format!("{MAPS}/m"), &config_map("m", "1")).await.code, 404);
    let made = root.post(MAPS, &config_map("m", "1")).await.ok();
    root.put(&format!("{MAPS}/m"), &config_map("m", "2")).await.ok();
    let stale = root.put(&format!("{MAPS}/m"), &made).await.failure();
    assert_eq!(
        stale,
        "409 Conflict: Operation cannot be fulfilled on configmaps \"m\": the object has been modified; \
         please apply your changes to the latest version and try again"
    );
}

#[tokio::test]
async fn owners_are_checked() {
    let server = Server::start().await;
    let root = &server.root;
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true});
    for (owners, want) in [
        (
            json!([{"kind": "Pod", "name": "p", "uid": "u"}]),
            "ownerReferences[0].apiVersion: Required value: must not be empty",
        ),
        (
            json!([{"apiVersion": "a/b/c", "kind": "Pod", "name": "p", "uid": "u"}]),
            "ownerReferences[0].apiVersion: Invalid value: \"a/b/c\": must be <group>/<version> or <version>",
        ),
        (
            json!([owner("a"), owner("b")]),
            "Only one reference can have Controller set to true. Found \"true\" in references for Pod/a and Pod/b",
        ),
        (
            json!([{"apiVersion": "v1", "kind": "Event", "name": "p", "uid": "u"}]),
            "/v1, Kind=Event is disallowed from being an owner",
        ),
    ] {
        let object = json!({"metadata": {"name": "a", "ownerReferences": owners}});
        let refused = root.post(MAPS, &object).await.failure();
        assert!(refused.starts_with("422 ") && refused.contains(want), "{refused}");
    }
    let twice = json!({"metadata": {"name": "a", "ownerReferences": [owner("a"), owner("a")]}});
    let made = root.post(MAPS, &twice).await;
    assert_eq!(made.ok()["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
    assert!(made.warnings()[0].contains("duplicate UID(s) observed: a"), "{:?}", made.warnings());
}
