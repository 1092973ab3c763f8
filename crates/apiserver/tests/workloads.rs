//! Kinds with more to them: status, scale, binding, grace, namespaces on their way out, Services and
//! their addresses, events in two versions, questions that are answered.

mod common;

use common::{JSON, Server, user};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}})
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}}})
}

async fn start() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    let made = server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.text());
    server
}

async fn bind(server: &Server, pod: &str, node: &str) -> common::Answer {
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": pod},
        "target": {"kind": "Node", "name": node}});
    server.root.post(&format!("{PODS}/{pod}/binding"), &binding).await
}

#[tokio::test]
async fn a_pod_is_created_bound_reported_and_deleted_with_grace() {
    let server = start().await;
    let root = &server.root;
    let made = root.post(PODS, &pod("a")).await.ok();
    assert_eq!((&made["status"]["phase"], &made["spec"]["restartPolicy"]), (&json!("Pending"), &json!("Always")));
    assert_eq!((&made["metadata"]["generation"], &made["status"]["qosClass"]), (&json!(1), &json!("BestEffort")));
    let one = format!("{PODS}/a");

    let bound = bind(&server, "a", "n1").await;
    assert_eq!((bound.code, &bound.json()["status"]), (201, &json!("Success")));
    let again = bind(&server, "a", "n2").await.failure();
    let text =
        r#"409 Conflict: Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1""#;
    assert_eq!(again, text);
    assert_eq!(bind(&server, "none", "n1").await.failure(), r#"404 NotFound: pods "none" not found"#);
    let now = root.get(&one).await.ok();
    assert_eq!((&now["spec"]["nodeName"], &now["metadata"]["generation"]), (&json!("n1"), &json!(1)));
    assert_eq!(now["status"]["conditions"][0]["type"], "PodScheduled");

    let report = json!({"status": {"phase": "Running"}, "spec": {"nodeName": "elsewhere"}});
    let reported = root.patch("strategic-merge", &format!("{one}/status"), &report).await.ok();
    assert_eq!((&reported["status"]["phase"], &reported["spec"]["nodeName"]), (&json!("Running"), &json!("n1")));
    let refused = root.patch("merge", &one, &json!({"spec": {"nodeName": "n3"}})).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
    let ignored = root.patch("merge", &one, &json!({"status": {"phase": "Failed"}})).await.ok();
    assert_eq!(ignored["status"]["phase"], "Running");

    let marked = root.delete(&one).await.ok();
    let metadata = &marked["metadata"];
    assert_eq!((&marked["kind"], &metadata["deletionGracePeriodSeconds"]), (&json!("Pod"), &json!(30)));
    assert_eq!(metadata["generation"], 2);
    let shorter = root.send("DELETE", &one, JSON, r#"{"gracePeriodSeconds":5}"#).await.ok();
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = root.send("DELETE", &one, JSON, r#"{"gracePeriodSeconds":50}"#).await.ok();
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(root.send("DELETE", &one, JSON, r#"{"gracePeriodSeconds":0}"#).await.code, 200);
    assert_eq!(root.get(&one).await.code, 404);
}

#[tokio::test]
async fn a_pod_that_nobody_runs_goes_at_once() {
    let server = start().await;
    server.root.post(PODS, &pod("a")).await.ok();
    let gone = server.root.delete(&format!("{PODS}/a")).await.ok();
    assert_eq!((&gone["kind"], &gone["metadata"]["name"]), (&json!("Pod"), &json!("a")));
    assert_eq!(server.root.get(&format!("{PODS}/a")).await.code, 404);
    let bad = json!({"metadata": {"name": "b"}, "spec": {"containers": []}});
    let refused = server.root.post(PODS, &bad).await.failure();
    assert_eq!(refused, r#"422 Invalid: Pod "b" is invalid: spec.containers: Required value"#);
}

#[tokio::test]
async fn status_and_spec_go_through_different_doors() {
    let server = start().await;
    let root = &server.root;
    let mut wanted = deployment("web");
    wanted["status"] = json!({"replicas": 7});
    let made = root.post(DEPLOYMENTS, &wanted).await.ok();
    assert!(made["status"].get("replicas").is_none(), "{made}");
    let one = format!("{DEPLOYMENTS}/web");
    let mut changed = made.clone();
    changed["status"] = json!({"replicas": 2, "observedGeneration": 1});
    changed["spec"]["replicas"] = json!(9);
    let status = root.put(&format!("{one}/status"), &changed).await.ok();
    assert_eq!((&status["status"]["replicas"], &status["spec"]["replicas"]), (&json!(2), &json!(2)));
    assert_eq!(status["metadata"]["generation"], 1);
    let spec = root.patch("merge", &one, &json!({"spec": {"replicas": 4}, "status": {"replicas": 9}})).await.ok();
    assert_eq!((&spec["status"]["replicas"], &spec["spec"]["replicas"]), (&json!(2), &json!(4)));
    assert_eq!(spec["metadata"]["generation"], 2);
    let mut managers: Vec<String> = spec["metadata"]["managedFields"]
        .as_array()
        .expect("managers")
        .iter()
        .map(|m| format!("{}/{}", m["manager"].as_str().unwrap_or(""), m["subresource"].as_str().unwrap_or("")))
        .collect();
    // In the order of their seconds, which may be one or two.
    managers.sort();
    assert_eq!(managers, ["tests/", "tests/status"]);
    assert_eq!(root.post(&format!("{one}/status"), &changed).await.code, 405);
    assert_eq!(root.get(&format!("{one}/nothing")).await.code, 404);
}

#[tokio::test]
async fn scale_is_a_view_of_replicas() {
    let server = start().await;
    let root = &server.root;
    root.post(DEPLOYMENTS, &deployment("web")).await.ok();
    let door = format!("{DEPLOYMENTS}/web/scale");
    let mut scale = root.get(&door).await.ok();
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    assert_eq!(scale["status"]["selector"], "app=web");
    scale["spec"]["replicas"] = json!(5);
    assert_eq!(root.put(&door, &scale).await.ok()["spec"]["replicas"], 5);
    let stale = root.put(&door, &scale).await;
    assert_eq!(stale.code, 409, "{}", stale.text());
    assert_eq!(root.patch("merge", &door, &json!({"spec": {"replicas": 6}})).await.ok()["spec"]["replicas"], 6);
    let now = root.get(&format!("{DEPLOYMENTS}/web")).await.ok();
    assert_eq!((&now["spec"]["replicas"], &now["metadata"]["generation"]), (&json!(6), &json!(3)));
    let negative = root.patch("merge", &door, &json!({"spec": {"replicas": -1}})).await.failure();
    let text = r#"422 Invalid: Scale.autoscaling "web" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#;
    assert_eq!(negative, text);
    assert_eq!(root.get(&format!("{PODS}/x/scale")).await.code, 404);
}

#[tokio::test]
async fn a_namespace_goes_when_it_is_let_go() {
    let server = start().await;
    let root = &server.root;
    let made = root.post("/api/v1/namespaces", &json!({"metadata": {"name": "x"}})).await.ok();
    assert_eq!((&made["status"]["phase"], &made["spec"]["finalizers"]), (&json!("Active"), &json!(["kubernetes"])));
    let one = "/api/v1/namespaces/x";
    let marked = root.delete(one).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    let inside = root.post("/api/v1/namespaces/x/configmaps", &json!({"metadata": {"name": "a"}})).await.failure();
    assert!(inside.contains("unable to create new content in namespace x because it is being terminated"), "{inside}");
    let mut freed = root.get(one).await.ok();
    freed["spec"]["finalizers"] = json!([]);
    let kept = root.put(one, &freed).await.ok();
    assert_eq!(kept["spec"]["finalizers"], json!(["kubernetes"]), "only finalize lets go");
    freed["metadata"]["resourceVersion"] = json!("");
    assert_eq!(root.put(&format!("{one}/finalize"), &freed).await.code, 200);
    assert_eq!(root.get(one).await.code, 404);
    assert_eq!(root.delete("/api/v1/namespaces").await.code, 405);
}

#[tokio::test]
async fn a_service_has_an_address_until_it_goes() {
    let server = start().await;
    let root = &server.root;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let dry = root.post(&format!("{SERVICES}?dryRun=All"), &service).await.ok();
    assert!(dry["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{dry}");
    let made = root.post(SERVICES, &service).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().expect("address").to_owned();
    let mut thief = service.clone();
    thief["metadata"]["name"] = json!("thief");
    thief["spec"]["clusterIP"] = json!(ip);
    let taken = root.post(SERVICES, &thief).await.failure();
    assert!(taken.contains(&format!("failed to allocate IP {ip}: provided IP is already allocated")), "{taken}");
    assert_eq!(root.get(&format!("{SERVICES}/thief")).await.code, 404);
    let one = format!("{SERVICES}/web");
    let node_port = root.patch("merge", &one, &json!({"spec": {"type": "NodePort"}})).await.ok();
    let port = node_port["spec"]["ports"][0]["nodePort"].as_i64().expect("a port");
    assert!((30000..=32767).contains(&port), "{port}");
    assert_eq!(node_port["spec"]["clusterIP"], json!(ip));
    root.delete(&one).await.ok();
    assert_eq!(root.post(SERVICES, &thief).await.ok()["spec"]["clusterIP"], json!(ip));
}

#[tokio::test]
async fn events_are_one_store_in_two_versions() {
    let server = start().await;
    let root = &server.root;
    let (old, new) = ("/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events");
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "example.com/c", "reportingInstance": "c-1", "action": "Did", "reason": "Because",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "a"}, "note": "it happened", "type": "Normal"});
    let made = root.post(new, &event).await.ok();
    assert_eq!((&made["apiVersion"], &made["note"]), (&json!("events.k8s.io/v1"), &json!("it happened")));
    let seen = root.get(&format!("{old}/e")).await.ok();
    assert_eq!((&seen["apiVersion"], &seen["message"]), (&json!("v1"), &json!("it happened")));
    assert_eq!(seen["involvedObject"]["name"], "a");
    for (uri, selector) in [(old, "involvedObject.name%3Da"), (new, "regarding.name%3Da")] {
        let list = root.get(&format!("{uri}?fieldSelector={selector}")).await.ok();
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{uri}: {list}");
        let none = root.get(&format!("{uri}?fieldSelector={}b", selector.trim_end_matches('a'))).await.ok();
        assert_eq!(none["items"].as_array().map(Vec::len), Some(0));
    }
    let mut watch = root.watch(&format!("{new}?watch=1")).await;
    assert_eq!(watch.line("/note").await, "ADDED e it happened");
    let patched = root.patch("merge", &format!("{new}/e"), &json!({"metadata": {"labels": {"x": "y"}}})).await.ok();
    assert_eq!(patched["metadata"]["labels"]["x"], "y");
    assert_eq!(watch.line("/metadata/labels/x").await, "MODIFIED e y");
}

#[tokio::test]
async fn questions_are_answered_and_not_stored() {
    let server = start().await;
    let root = &server.root;
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}});
    let uri = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mine = root.post(uri, &review).await;
    assert_eq!((mine.code, &mine.json()["status"]["allowed"]), (201, &json!(true)), "{}", mine.text());
    let who = root.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await.ok();
    assert_eq!(who["status"]["userInfo"]["username"], "root");
    assert_eq!(root.get(uri).await.code, 405);
    let request = json!({"spec": {"audiences": ["https://example.com"]}});
    let token = root.post("/api/v1/namespaces/default/serviceaccounts/default/token", &request).await.ok();
    assert_eq!(token["kind"], "TokenRequest");
    let review = json!({"spec": {"token": token["status"]["token"], "audiences": ["https://example.com"]}});
    let judged = root.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.ok();
    assert_eq!(judged["status"]["user"]["username"], "system:serviceaccount:default:default", "{judged}");
}

/// Reviews of which nothing is looked at but what cannot be read, or asks nothing.
#[tokio::test]
async fn what_is_asked_badly_is_told() {
    let server = start().await;
    let groups = "/apis/authentication.k8s.io/v1";
    let rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let strict = "?fieldValidation=Strict";
    for (uri, body, want) in [
        (
            format!("{groups}/tokenreviews"),
            json!({"spec": {}}),
            "400 BadRequest: token is required for TokenReview in authentication",
        ),
        (
            format!("{groups}/tokenreviews"),
            json!({"spec": {"token": 1}}),
            "400 BadRequest: TokenReview in version \"v1\" cannot be handled as a TokenReview: json: cannot unmarshal number into Go struct field TokenReviewSpec.spec.token of type string",
        ),
        (
            format!("{groups}/tokenreviews{strict}"),
            json!({"spec": {"token": "x", "tokn": "y"}}),
            "400 BadRequest: TokenReview in version \"v1\" cannot be handled as a TokenReview: strict decoding error: unknown field \"spec.tokn\"",
        ),
        (
            format!("{groups}/selfsubjectreviews"),
            json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}),
            "400 BadRequest: TokenReview in version \"v1\" cannot be handled as a SelfSubjectReview: converting (v1.TokenReview) to (authentication.SelfSubjectReview): unknown conversion",
        ),
        (
            format!("{groups}/selfsubjectreviews"),
            json!({"status": {"userInfo": 1}}),
            "400 BadRequest: SelfSubjectReview in version \"v1\" cannot be handled as a SelfSubjectReview: json: cannot unmarshal number into Go struct field SelfSubjectReviewStatus.status.userInfo of type v1.UserInfo",
        ),
        (
            format!("{groups}/selfsubjectreviews{strict}"),
            json!({"spec": {}}),
            "400 BadRequest: SelfSubjectReview in version \"v1\" cannot be handled as a SelfSubjectReview: strict decoding error: unknown field \"spec\"",
        ),
        (rules.to_owned(), json!({"spec": {}}), "400 BadRequest: no namespace on request"),
        (
            rules.to_owned(),
            json!({"spec": {"namespace": true}}),
            "400 BadRequest: SelfSubjectRulesReview in version \"v1\" cannot be handled as a SelfSubjectRulesReview: json: cannot unmarshal bool into Go struct field SelfSubjectRulesReviewSpec.spec.namespace of type string",
        ),
        (
            format!("{rules}{strict}"),
            json!({"spec": {"namespace": "a", "namspace": "b"}}),
            "400 BadRequest: SelfSubjectRulesReview in version \"v1\" cannot be handled as a SelfSubjectRulesReview: strict decoding error: unknown field \"spec.namspace\"",
        ),
    ] {
        let answer = server.root.post(&uri, &body).await;
        assert_eq!(answer.failure(), want, "{uri} {body}");
    }
}

#[tokio::test]
async fn a_put_creates_where_the_kind_allows_it() {
    let server = start().await;
    let root = &server.root;
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let uri = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let made = root.put(uri, &lease).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let unversioned = root.put(uri, &lease).await.failure();
    assert!(unversioned.contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"));
    let renewed = root.put(uri, &made.json()).await;
    assert_eq!(renewed.code, 200, "{}", renewed.text());
    assert_eq!(root.put(&format!("{PODS}/a"), &pod("a")).await.code, 404);
}

#[tokio::test]
async fn waits_live_in_memory() {
    let server = start().await;
    let root = &server.root;
    let uri = "/apis/explain.pintle.dev/v1alpha1/namespaces/default/waits";
    let wait = json!({"metadata": {"name": "w"}, "layer": "scheduler", "code": "NoNode", "text": "no node fits",
        "object": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "u"}, "since": "2026-01-02T03:04:05Z"});
    let made = root.post(uri, &wait).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let list = root.get(uri).await.ok();
    assert_eq!(list["items"][0]["layer"], "scheduler");
    let table = root.send("GET", uri, &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], "").await.ok();
    assert_eq!(table["rows"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn who_may_not_is_told_so() {
    let server = start().await;
    let nobody = server.client("jane", &["dev"]);
    for (method, uri, want) in [
        (
            "GET",
            PODS,
            r#"403 Forbidden: pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
        ),
        (
            "GET",
            "/api/v1/nodes/n1",
            r#"403 Forbidden: nodes "n1" is forbidden: User "jane" cannot get resource "nodes" in API group "" at the cluster scope"#,
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/default/deployments/a/scale",
            r#"403 Forbidden: deployments.apps "a" is forbidden: User "jane" cannot get resource "deployments/scale" in API group "apps" in the namespace "default""#,
        ),
        (
            "GET",
            "/debug/pintle/causes",
            r#"403 Forbidden: forbidden: User "jane" cannot get path "/debug/pintle/causes""#,
        ),
    ] {
        let answer = nobody.send(method, uri, &[], "").await;
        assert_eq!(answer.failure(), want);
    }
    let impersonating = server.root.send("GET", PODS, &[("impersonate-user", "root")], "").await;
    assert_eq!(impersonating.code, 403);
    assert_eq!(user("a", &[]).name, "a");
}

#[tokio::test]
async fn the_journal_knows_who_wrote_what_and_why() {
    let server = start().await;
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("pintle-cause", "deployments.apps/default/web@7"),
    ];
    let made = server.root.send("POST", PODS, &headers, pod("a").to_string()).await.ok();
    let answer = server.root.get("/debug/pintle/causes?key=pods/default/a").await.ok();
    let record = &answer["records"][0];
    let revision: u64 = made["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("revision");
    assert_eq!(
        (&record["revision"], &record["actor"], &record["verb"]),
        (&json!(revision), &json!("root"), &json!("create"))
    );
    assert_eq!(record["list"], json!([{"resource": "deployments.apps", "name": "default/web", "revision": 7}]));
    assert_eq!((&record["trusted"], &record["trace"]), (&json!(true), &json!(headers[1].1)));
    assert_eq!(server.root.get("/debug/pintle/causes?limit=x").await.code, 400);
    // A client that names no cause: the object's controller is taken for it.
    let owner = server.root.post(DEPLOYMENTS, &deployment("web")).await.ok();
    let mut owned = pod("b");
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web",
        "uid": owner["metadata"]["uid"], "controller": true}]);
    server.root.post(PODS, &owned).await.ok();
    let answer = server.root.get("/debug/pintle/causes?key=pods/default/b").await.ok();
    let cause = &answer["records"][0]["list"][0];
    assert_eq!((&cause["resource"], &cause["name"]), (&json!("deployments.apps"), &json!("default/web")));
}
