//! Who may do what, over the whole chain: bootstrap roles, RBAC, nodes, tokens, admission.

mod common;

use common::{Client, MAPS, Server, config_map, user};
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn server() -> Server {
    Server::start_with(|config| config.address = "192.0.2.7:6443".into()).await
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name},
           "spec": {"containers": [{"name": "c", "image": "x"}]}})
}

/// Until the caches show what has been acknowledged.
async fn settle(server: &Server) {
    server.api.security.objects.settle(apiserver::objects::PODS).await.unwrap();
}

async fn account(root: &Client, namespace: &str, name: &str) -> Value {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    root.post(&path, &json!({"metadata": {"name": name}})).await.ok()
}

#[tokio::test]
async fn a_new_cluster_holds_what_clusters_hold() {
    let server = server().await;
    let names = async |path: &str| -> Vec<String> {
        let list = server.root.get(path).await.ok();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("/api/v1/namespaces").await, ["default", "kube-node-lease", "kube-public", "kube-system"]);
    let classes = names("/apis/scheduling.k8s.io/v1/priorityclasses").await;
    assert_eq!(classes, ["system-cluster-critical", "system-node-critical"]);
    assert_eq!(names("/apis/networking.k8s.io/v1/servicecidrs").await, ["kubernetes"]);
    let range = server.root.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.ok();
    let ready = &range["status"]["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")), "{range}");
    let slice = server.root.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").await.ok();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
    let admin = server.root.get(&format!("{RBAC}/clusterroles/admin")).await.ok();
    assert!(admin["rules"].as_array().unwrap().len() > 20, "aggregated: {admin}");
    assert_eq!(admin["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    let roles = names(&format!("{RBAC}/clusterroles")).await.len();
    assert!(roles > 70, "{roles}");
    assert!(names(&format!("{RBAC}/clusterrolebindings")).await.len() > 50);
}

/// What of a fresh cluster holds anything, and each of it: a client finds what it expects, and nothing else.
#[tokio::test]
async fn a_new_cluster_holds_nothing_else() {
    let server = server().await;
    let root = &server.root;
    let mut held = Vec::new();
    for kind in kinds::ALL
        .iter()
        .filter(|kind| kind.shape().verbs.contains(&"list") && kind.shape().group != "explain.pintle.dev")
    {
        let shape = kind.shape();
        let prefix = if shape.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", shape.group) };
        let list = root.get(&format!("{prefix}/{}/{}", shape.version, shape.plural)).await.ok();
        let names = list["items"].as_array().into_iter().flatten().map(|item| {
            let text = |key: &str| item["metadata"][key].as_str().unwrap_or_default();
            format!("{}/{}", text("namespace"), text("name")).trim_start_matches('/').to_owned()
        });
        let names: Vec<String> = names.collect();
        if !names.is_empty() {
            // Roles have a table of their own (`src/bootstrap/roles.txt`).
            let names = match shape.plural {
                "apiservices" => "one for each version".to_owned(),
                _ if shape.group == "rbac.authorization.k8s.io" => "as in roles.txt".to_owned(),
                _ => names.join(" "),
            };
            held.push(format!("{}: {names}", shape.plural));
        }
    }
    let flows = "catch-all exempt global-default kube-controller-manager kube-scheduler kube-system-service-accounts \
                 probes service-accounts system-leader-election system-node-high system-nodes";
    let levels = "catch-all exempt global-default leader-election node-high system workload-high workload-low";
    // What another server finds in `extension-apiserver-authentication` is there where there are authorities.
    assert_eq!(
        held,
        [
            "componentstatuses: controller-manager etcd-0 scheduler",
            "endpoints: default/kubernetes",
            "namespaces: default kube-node-lease kube-public kube-system",
            "services: default/kubernetes",
            "apiservices: one for each version",
            "ipaddresses: 10.96.0.1",
            "servicecidrs: kubernetes",
            "clusterrolebindings: as in roles.txt",
            "clusterroles: as in roles.txt",
            "rolebindings: as in roles.txt",
            "roles: as in roles.txt",
            "priorityclasses: system-cluster-critical system-node-critical",
            "endpointslices: default/kubernetes",
            &format!("flowschemas: {flows}"),
            &format!("prioritylevelconfigurations: {levels}"),
        ]
    );
    let class = async |name: &str| root.get(&format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}")).await.ok();
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        let class = class(name).await;
        assert_eq!((&class["value"], &class["preemptionPolicy"]), (&json!(value), &json!("PreemptLowerPriority")));
        assert!(class.get("globalDefault").is_none(), "{class}");
    }
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let namespace = root.get(&format!("/api/v1/namespaces/{name}")).await.ok();
        assert_eq!(namespace["metadata"]["labels"], json!({"kubernetes.io/metadata.name": name}));
        assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
        assert_eq!(namespace["status"]["phase"], "Active");
    }
    let service = root.get("/api/v1/namespaces/default/services/kubernetes").await.ok();
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    assert!(service["spec"].get("selector").is_none(), "{service}");
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["ports"]),
        (&json!("10.96.0.1"), &json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]))
    );
    let slice = root.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").await.ok();
    assert_eq!(slice["metadata"]["labels"], json!({"kubernetes.io/service-name": "kubernetes"}));
    assert_eq!(slice["ports"], json!([{"name": "https", "port": 6443, "protocol": "TCP"}]));
    let flows = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let schemas = root.get(&format!("{flows}/flowschemas")).await.ok();
    let said = schemas["items"].as_array().into_iter().flatten().map(|schema| {
        let spec = &schema["spec"];
        let text = |pointer: &str| spec.pointer(pointer).map(|v| v.to_string().replace('"', "")).unwrap_or_default();
        let level = text("/priorityLevelConfiguration/name");
        let name = schema["metadata"]["name"].as_str().unwrap_or_default();
        format!("{name} {level} {} {}", text("/matchingPrecedence"), text("/distinguisherMethod/type"))
    });
    // As v1.37.0 has them.
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            "catch-all catch-all 10000 ByUser",
            "exempt exempt 1 ",
            "global-default global-default 9900 ByUser",
            "kube-controller-manager workload-high 800 ByNamespace",
            "kube-scheduler workload-high 800 ByNamespace",
            "kube-system-service-accounts workload-high 900 ByNamespace",
            "probes exempt 2 ",
            "service-accounts workload-low 9000 ByUser",
            "system-leader-election leader-election 100 ByUser",
            "system-node-high node-high 400 ByUser",
            "system-nodes system 500 ByUser",
        ]
    );
    let levels = root.get(&format!("{flows}/prioritylevelconfigurations")).await.ok();
    let said = levels["items"].as_array().into_iter().flatten().map(|level| {
        let spec =
            if level["spec"]["limited"].is_null() { &level["spec"]["exempt"] } else { &level["spec"]["limited"] };
        let queues = &spec["limitResponse"]["queuing"];
        let name = level["metadata"]["name"].as_str().unwrap_or_default();
        let (shares, lends) = (&spec["nominalConcurrencyShares"], &spec["lendablePercent"]);
        format!("{name} {shares} {lends} {} {} {}", queues["queues"], queues["handSize"], queues["queueLengthLimit"])
    });
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            "catch-all 5 0 null null null",
            "exempt 0 0 null null null",
            "global-default 20 50 128 6 50",
            "leader-election 10 0 16 4 50",
            "node-high 40 25 64 6 50",
            "system 30 33 64 6 50",
            "workload-high 40 50 128 6 50",
            "workload-low 100 90 128 6 50",
        ]
    );
}

#[tokio::test]
async fn the_next_start_completes_and_keeps() {
    let server = server().await;
    let root = &server.root;
    let path = format!("{RBAC}/clusterroles/system:basic-user");
    let mut role = root.get(&path).await.ok();
    role["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    root.put(&path, &role).await.ok();
    let gone = format!("{RBAC}/clusterrolebindings/system:basic-user");
    root.delete(&gone).await.ok();
    let options = apiserver::bootstrap::Options::default();
    let door = server.api.handler(apiserver::bootstrap::myself());
    apiserver::bootstrap::run(&door, &server.api.security.objects, &options).await.unwrap();
    assert_eq!(root.get(&path).await.ok()["rules"].as_array().unwrap().len(), 3, "ours and the missing two");
    root.get(&gone).await.ok();
    let before = root.get(&path).await.ok();
    apiserver::bootstrap::run(&door, &server.api.security.objects, &options).await.unwrap();
    assert_eq!(root.get(&path).await.ok(), before, "nothing to do, nothing written");
}

#[tokio::test]
async fn a_binding_counts_at_once_and_ends_at_once() {
    let server = server().await;
    let jane = server.client("jane", &["system:authenticated"]);
    let refusal = jane.get(MAPS).await.failure();
    let why = r#"configmaps is forbidden: User "jane" cannot list resource "configmaps" in API group "" in the namespace "default""#;
    assert_eq!(refusal, format!("403 Forbidden: {why}"));
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let binding = json!({
        "metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    server.root.post(&bindings, &binding).await.ok();
    jane.get(MAPS).await.ok();
    jane.post(MAPS, &config_map("a", "1")).await.ok();
    assert_eq!(jane.get("/api/v1/namespaces/kube-system/configmaps").await.code, 403);
    let grant = jane.post(&bindings, &binding).await;
    assert_eq!(grant.code, 403, "edit may not bind");
    server.root.delete(&format!("{bindings}/b")).await.ok();
    settle(&server).await;
    assert_eq!(jane.get(MAPS).await.code, 403);
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_hold() {
    let server = server().await;
    let role = |name: &str, verbs: &[&str]| {
        json!({"metadata": {"name": name}, "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs},
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create", "update", "get"]}]})
    };
    server.root.post(&format!("{RBAC}/clusterroles"), &role("granter", &["get"])).await.ok();
    let binding = json!({
        "metadata": {"name": "granter"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "granter"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "joe"}]});
    server.root.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.ok();
    let joe = server.client("joe", &["g"]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    joe.post(&roles, &role("same", &["get"])).await.ok();
    let more = joe.post(&roles, &role("more", &["get", "delete"])).await.failure();
    assert_eq!(
        more,
        "403 Forbidden: roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"joe\" (groups=[\"g\" \"system:authenticated\"]) \
         is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"delete\"]}"
    );
}

#[tokio::test]
async fn pods_get_their_account_priority_and_tolerations() {
    let server = server().await;
    let root = &server.root;
    let pods = "/api/v1/namespaces/default/pods";
    let mut other = pod("x");
    other["spec"]["serviceAccountName"] = json!("none");
    assert_eq!(
        root.post(pods, &other).await.failure(),
        r#"403 Forbidden: pods "x" is forbidden: error looking up service account default/none: serviceaccount "none" not found"#
    );
    // The account is about to be made: the pod waits for it.
    let first = pod("a");
    let (made, _) = tokio::join!(root.post(pods, &first), account(root, "default", "default"));
    let made = made.ok();
    let spec = &made["spec"];
    assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == 21, "{volume}");
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], volume);
    let mut critical = pod("b");
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    assert_eq!(root.post(pods, &critical).await.ok()["spec"]["priority"], 2_000_001_000);
    critical["spec"]["priorityClassName"] = json!("nope");
    assert_eq!(
        root.post(pods, &critical).await.failure(),
        r#"403 Forbidden: pods "b" is forbidden: no PriorityClass with name nope was found"#
    );
    let lost = root.post("/api/v1/namespaces/none/pods", &pod("a")).await.failure();
    assert_eq!(lost, r#"404 NotFound: namespaces "none" not found"#);
    let stays = root.delete("/api/v1/namespaces/kube-system").await.failure();
    assert_eq!(stays, r#"403 Forbidden: namespaces "kube-system" is forbidden: this namespace may not be deleted"#);
}

#[tokio::test]
async fn a_token_lives_as_long_as_what_it_is_bound_to() {
    let server = server().await;
    let root = &server.root;
    account(root, "default", "default").await;
    let pod = root.post("/api/v1/namespaces/default/pods", &pod("a")).await.ok();
    let ask = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": {
        "apiVersion": "v1", "kind": "Pod", "name": "a", "uid": pod["metadata"]["uid"]}}});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let reply = root.post(path, &ask).await.ok();
    let token = reply["status"]["token"].as_str().unwrap().to_owned();
    let review = async || {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        root.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.ok()["status"].clone()
    };
    let status = review().await;
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:default", "{status}");
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["a"]));
    root.delete("/api/v1/namespaces/default/pods/a?gracePeriodSeconds=0").await.ok();
    settle(&server).await;
    let status = review().await;
    assert_eq!(status["error"], "[invalid bearer token, service account token has been invalidated]", "{status}");
    let configuration = root.get("/.well-known/openid-configuration").await.ok();
    assert_eq!(configuration["issuer"], "https://kubernetes.default.svc.cluster.local");
    assert_eq!(root.get("/openid/v1/jwks").await.ok()["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_kubelet_minds_its_own_business() {
    let server = server().await;
    let kubelet = Client(server.api.handler(user("system:node:n1", &["system:nodes"])));
    let node = |name: &str| json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    let made = kubelet.post("/api/v1/nodes", &node("n1")).await.ok();
    assert_eq!(made["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    let other = kubelet.post("/api/v1/nodes", &node("n2")).await.failure();
    assert_eq!(other, r#"403 Forbidden: nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2""#);
    let mut untainted = made.clone();
    untainted["spec"]["taints"] = json!([]);
    let refused = kubelet.put("/api/v1/nodes/n1", &untainted).await.failure();
    assert_eq!(refused, r#"403 Forbidden: nodes "n1" is forbidden: node "n1" is not allowed to modify taints"#);
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    kubelet.post(leases, &lease("n1")).await.ok();
    assert_eq!(kubelet.post(leases, &lease("n2")).await.code, 403);
    assert_eq!(kubelet.get("/api/v1/pods").await.code, 403);
    kubelet.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.ok();
    kubelet.get("/api/v1/nodes?fieldSelector=metadata.name%3Dn1").await.ok();

    let root = &server.root;
    account(root, "default", "default").await;
    let secret = |name: &str| json!({"metadata": {"name": name}, "stringData": {"a": "b"}});
    for name in ["used", "unused"] {
        root.post("/api/v1/namespaces/default/secrets", &secret(name)).await.ok();
    }
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = json!("n1");
    bound["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "used"}}]);
    root.post("/api/v1/namespaces/default/pods", &bound).await.ok();
    kubelet.get("/api/v1/namespaces/default/secrets/used").await.ok();
    let refused = kubelet.get("/api/v1/namespaces/default/secrets/unused").await.failure();
    assert!(refused.ends_with("no relationship found between node 'n1' and this object"), "{refused}");
}

#[tokio::test]
async fn reviews_answer_what_would_happen() {
    let server = server().await;
    let jane = server.client("jane", &["system:authenticated"]);
    let review = |kind: &str, spec: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let pods = json!({"verb": "list", "resource": "pods", "namespace": "default"});
    let own = review("SelfSubjectAccessReview", json!({"resourceAttributes": pods}));
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(jane.post(path, &own).await.ok()["status"], json!({"allowed": false}));
    assert_eq!(server.root.post(path, &own).await.ok()["status"]["allowed"], true);
    let about =
        review("SubjectAccessReview", json!({"resourceAttributes": pods, "user": "x", "groups": ["system:masters"]}));
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(server.root.post(path, &about).await.ok()["status"]["allowed"], true);
    assert_eq!(jane.post(path, &about).await.code, 403);
    let rules = review("SelfSubjectRulesReview", json!({"namespace": "default"}));
    let answer = jane.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &rules).await.ok();
    assert!(!answer["status"]["resourceRules"].as_array().unwrap().is_empty());
    let me = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = jane.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &me).await.ok();
    assert_eq!(answer["status"]["userInfo"]["username"], "jane");
}

#[tokio::test]
async fn what_is_served_is_discovered() {
    let server = server().await;
    let root = &server.root;
    let core = root.get("/api/v1").await.ok();
    let pods = core["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods").unwrap();
    assert_eq!(pods["storageVersionHash"], "xPOwRZ+Yhw8=");
    let groups = root.get("/apis").await.ok();
    assert_eq!(groups["groups"][0]["name"], "apiregistration.k8s.io");
    assert_eq!(groups["groups"][1]["name"], "apps");
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let all = root.send("GET", "/apis", &[("accept", accept)], "").await;
    assert_eq!(all.header("content-type"), "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let tag = all.header("etag").to_owned();
    let again = root.send("GET", "/apis", &[("accept", accept), ("if-none-match", &tag)], "").await;
    assert_eq!(again.code, 304);
    assert!(root.get("/openapi/v3").await.ok()["paths"]["apis/apps/v1"].is_object());
    assert_eq!(root.get("/apis/none.example").await.code, 404);
}

/// What is granted in one namespace, for one name, or for one verb says nothing about another.
#[tokio::test]
async fn a_grant_reaches_no_further_than_it_says() {
    let server = server().await;
    let root = &server.root;
    for name in ["a", "b"] {
        root.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.ok();
    }
    for name in ["x", "y"] {
        root.post("/api/v1/namespaces/a/secrets", &json!({"metadata": {"name": name}})).await.ok();
    }
    let grant = async |user: &str, rule: Value| {
        let role = json!({"metadata": {"name": user}, "rules": [rule]});
        root.post(&format!("{RBAC}/namespaces/a/roles"), &role).await.ok();
        let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}});
        root.post(&format!("{RBAC}/namespaces/a/rolebindings"), &binding).await.ok();
        server.client(user, &[])
    };
    // Everything in `a` is nothing in `b`, nor `b` itself.
    let admin = grant("admin", json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})).await;
    let other = json!({"metadata": {"name": "b"}});
    assert_eq!(admin.get("/api/v1/namespaces/a").await.code, 200);
    for (method, path) in [
        ("GET", "/api/v1/namespaces/a/namespaces/b"),
        ("GET", "/api/v1/namespaces/a/namespaces"),
        ("DELETE", "/api/v1/namespaces/a/namespaces/b"),
        ("PUT", "/api/v1/namespaces/a/namespaces/b/finalize"),
        ("GET", "/api/v1/watch/namespaces/a/namespaces/b"),
    ] {
        assert_eq!(admin.send(method, path, common::JSON, other.to_string()).await.code, 404, "{method} {path}");
    }
    // One name is one name, however it is selected.
    let one = json!({"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["x"]});
    let one = grant("one", one).await;
    assert_eq!(one.get("/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Dx").await.code, 200);
    let watch = "/api/v1/watch/namespaces/a/secrets/x?timeoutSeconds=1";
    assert!(!one.get(watch).await.text().contains(r#""name":"y""#));
    let more = one.get(&format!("{watch}&fieldSelector=metadata.namespace%3Da")).await.failure();
    assert_eq!(more, "400 BadRequest: fieldSelector metadata.name doesn't match requested name");
    let hidden = "/api/v1/namespaces/a/secrets?fieldSelector=metadata.namespace!%3D%5C%2Cmetadata.name%5C%3Dx";
    assert_eq!(one.get(hidden).await.code, 403);
    // Who may change may not create by changing what is not there.
    let verbs = json!({"verbs": ["get", "update", "patch"], "apiGroups": ["", "coordination.k8s.io"],
        "resources": ["configmaps", "leases"]});
    let changer = grant("changer", verbs).await;
    let (map, lease) = ("/api/v1/namespaces/a/configmaps/new", "/apis/coordination.k8s.io/v1/namespaces/a/leases/new");
    let apply = [("content-type", "application/apply-patch+yaml")];
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}).to_string();
    let refused = changer.send("PATCH", &format!("{map}?fieldManager=m"), &apply, body.clone()).await.failure();
    assert_eq!(
        refused,
        "403 Forbidden: configmaps \"new\" is forbidden: User \"changer\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"a\""
    );
    assert_eq!(changer.put(lease, &json!({"metadata": {"name": "new"}})).await.code, 403);
    assert_eq!(root.get(map).await.code, 404);
    root.send("PATCH", &format!("{map}?fieldManager=m"), &apply, body.clone()).await.ok();
    changer.send("PATCH", &format!("{map}?fieldManager=m"), &apply, body).await.ok();
}
