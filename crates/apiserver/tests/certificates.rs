//! Certificates over the API: who asks, who approves, who signs, who speaks for a signer.

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Client, Server};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// What the walk over all kinds has of a kind.
fn fixture(kind: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("fixtures/every_kind.json")).unwrap();
    all[kind]["object"].clone()
}

fn request(name: &str, signer: &str) -> Value {
    let mut object = fixture("certificates.k8s.io/v1/CertificateSigningRequest");
    object["metadata"] = json!({"name": name});
    object["spec"]["signerName"] = json!(signer);
    object
}

/// A user with one rule.
async fn who_may(server: &Server, name: &str, rules: Value) -> Client {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    server.root.post(&format!("{RBAC}/clusterroles"), &role).await.ok();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}]});
    server.root.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.ok();
    server.client(name, &["system:authenticated"])
}

fn rule(resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

#[tokio::test]
async fn a_request_says_who_asks_and_waits_for_its_signer() {
    let server = Server::start().await;
    let doors =
        ["certificatesigningrequests", "certificatesigningrequests/approval", "certificatesigningrequests/status"];
    let all = &["get", "list", "create", "update", "patch"];
    let jane = who_may(&server, "jane", json!([rule(&doors, all, &[])])).await;
    let mut asked = request("r", "example.com/s");
    asked["spec"]["username"] = json!("system:admin");
    asked["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    let made = jane.post(REQUESTS, &asked).await.ok();
    assert_eq!(made["spec"]["username"], "jane");
    assert_eq!(made["spec"]["groups"], json!(["system:authenticated"]));
    assert_eq!(made["status"], json!({}));

    let (one, approval) = (format!("{REQUESTS}/r"), format!("{REQUESTS}/r/approval"));
    let approved = |object: &Value| {
        let mut object = object.clone();
        object["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R"}]});
        object
    };
    let why = r#"user not permitted to approve requests with signerName "example.com/s""#;
    let refused = jane.put(&approval, &approved(&made)).await.failure();
    assert_eq!(
        refused,
        format!(r#"403 Forbidden: certificatesigningrequests.certificates.k8s.io "r" is forbidden: {why}"#)
    );
    let joe = who_may(
        &server,
        "joe",
        json!([rule(&doors, all, &[]), rule(&["signers"], &["approve", "sign"], &["example.com/*"])]),
    )
    .await;
    let told = joe.put(&approval, &approved(&made)).await.ok();
    let condition = &told["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Approved"), &json!("R")));
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string(), "{condition}");
    assert_eq!(joe.get(&approval).await.ok(), told);

    // The main door lets neither the wish nor the answer through.
    let mut changed = told.clone();
    changed["spec"]["signerName"] = json!("example.com/other");
    changed["status"] = json!({});
    assert_eq!(joe.put(&one, &changed).await.ok(), told);
    let gone = joe.patch("merge", &approval, &json!({"status": {"conditions": null}})).await.failure();
    assert!(gone.contains(r#"updates may not remove a condition of type "Approved""#), "{gone}");

    let pem = fixture("certificates.k8s.io/v1/ClusterTrustBundle")["spec"]["trustBundle"].as_str().unwrap().to_owned();
    let status = format!("{one}/status");
    let certificate = STANDARD.encode(&pem);
    let signed = json!({"status": {"certificate": certificate}});
    assert_eq!(jane.patch("merge", &status, &signed).await.code, 403);
    let answer = joe.patch("merge", &status, &signed).await.ok();
    assert_eq!(
        (&answer["status"]["certificate"], &answer["status"]["conditions"]),
        (&json!(certificate), &told["status"]["conditions"])
    );
    assert_eq!(
        server.root.get(&format!("{REQUESTS}?fieldSelector=spec.signerName%3Dexample.com/s")).await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn nobody_asks_to_become_a_master_and_a_node_asks_for_itself() {
    let server = Server::start().await;
    let client = "kubernetes.io/kube-apiserver-client";
    server.root.post(REQUESTS, &request("plain", client)).await.ok();
    let mut masters = request("masters", client);
    masters["spec"]["request"] = json!(include_str!("fixtures/masters.csr.base64").trim());
    let refused = server.root.post(REQUESTS, &masters).await.failure();
    let why = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    assert!(refused.starts_with("403 Forbidden") && refused.ends_with(why), "{refused}");

    let node = server.client("system:node:n", &["system:nodes", "system:authenticated"]);
    let refused = node.post(REQUESTS, &request("node", "kubernetes.io/kubelet-serving")).await.failure();
    assert!(refused.ends_with("can only create a node CSR with CN=system:node:n"), "{refused}");
}

#[tokio::test]
async fn a_signers_authorities_are_published_by_who_may_attest() {
    let server = Server::start().await;
    let own = [rule(&["clustertrustbundles"], &["create", "update", "get"], &[])];
    let jane = who_may(&server, "jane", json!(own)).await;
    let mut bundle = fixture("certificates.k8s.io/v1/ClusterTrustBundle");
    bundle["metadata"] = json!({"name": "plain"});
    jane.post(BUNDLES, &bundle).await.ok();
    bundle["metadata"] = json!({"name": "example.com:s:v1"});
    bundle["spec"]["signerName"] = json!("example.com/s");
    let refused = jane.post(BUNDLES, &bundle).await.failure();
    assert!(refused.ends_with(r#"user not permitted to attest for signerName "example.com/s""#), "{refused}");
    let attest = json!([own[0], rule(&["signers"], &["attest"], &["example.com/s"])]);
    let joe = who_may(&server, "joe", attest).await;
    let made = joe.post(BUNDLES, &bundle).await.ok();
    // Who owns it is no claim about the signer.
    let mut owned = made.clone();
    owned["metadata"]["finalizers"] = json!(["example.com/f"]);
    let held = jane.put(&format!("{BUNDLES}/example.com:s:v1"), &owned).await.ok();
    owned = held;
    owned["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(jane.put(&format!("{BUNDLES}/example.com:s:v1"), &owned).await.code, 403);
}
