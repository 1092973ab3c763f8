//! APIs that other servers answer for: requests are passed on in the name of who asks and of nobody else, what
//! is served there is seen here, and a server that is dead, slow or lying harms nobody.

mod common;

use common::aggregated::{AGGREGATED, API_SERVICES, Manner, World};
use common::custom::{self, DEFINITIONS};
use kinds::User;
use pki::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use transport::once::{self, Secure, Tcp};
use transport::tls::{self, Identity};

const IP: &str = "10.96.0.50";
const FOOS: &str = "/apis/good.example.com/v1/namespaces/default/foos";

/// A world with one good server, which is found.
async fn good() -> (World, std::sync::Arc<common::aggregated::Backend>) {
    let world = World::start().await;
    let backend = world.backend("good", IP, Manner::Good).await;
    world.register("good", IP).await;
    world.available("good", "True", "Passed").await;
    (world, backend)
}

#[tokio::test]
async fn requests_are_passed_on_in_the_name_of_who_asks() {
    let (world, _) = good().await;
    world.allow("alice", "good").await;
    let mut alice = User { name: "alice".into(), uid: "u-1".into(), groups: vec!["staff".into()], ..User::default() };
    alice.extra.insert("example.com/why".into(), vec!["because".into()]);
    let alice = common::Client(world.server.api.handler(alice));
    let lies = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-uid", "0"),
        ("x-remote-extra-scopes", "all"),
        ("authorization", "Bearer secret"),
        ("x-mine", "1"),
        ("connection", "x-mine"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
    ];
    let answer = alice.send("GET", &format!("{FOOS}/a%2Fb?x=1%2F2"), &lies, "").await;
    // As it was understood here, where it was authorized.
    assert!(answer.text().starts_with(&format!("GET {FOOS}/a/b?x=1%2F2\n")), "{}", answer.text());
    let answer = alice.send("GET", &format!("{FOOS}/a%20b?x=1%2F2"), &lies, "").await;
    let text = answer.text();
    assert_eq!(answer.code, 200, "{text}");
    assert!(text.starts_with(&format!("GET {FOOS}/a%20b?x=1%2F2\n")), "{text}");
    for line in [
        "x-remote-user: alice",
        "x-remote-uid: u-1",
        "x-remote-group: staff",
        "x-remote-extra-example.com%2fwhy: because",
        // Of which trace it is a part.
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    for lie in ["root", "masters", "x-remote-uid: 0", "scopes", "secret", "x-mine"] {
        assert!(!text.contains(lie), "{lie} in {text}");
    }
    // A body is passed on that this server would not read.
    let large = vec![b'x'; 5 << 20];
    let answer = alice.send("POST", FOOS, common::JSON, large).await;
    assert!(answer.text().ends_with(&format!("{} bytes", 5 << 20)), "{}", answer.code);
    // Paths that mean nothing here mean something there.
    let deep = format!("{FOOS}/a/portforward/22/tcp");
    assert!(alice.get(&deep).await.text().starts_with(&format!("GET {deep}\n")));
    let moved = alice.get(&format!("{FOOS}/moved")).await;
    assert_eq!((moved.code, moved.header("location")), (302, "https://127.0.0.1:1/"), "nobody follows it");
}

#[tokio::test]
async fn who_may_not_is_refused_here() {
    let (world, backend) = good().await;
    let bob = world.server.client("bob", &["system:authenticated"]);
    for (method, path) in [("GET", FOOS.to_owned()), ("POST", FOOS.to_owned()), ("DELETE", format!("{FOOS}/a"))] {
        let answer = bob.send(method, &path, common::JSON, "{}").await;
        assert_eq!(answer.code, 403, "{method} {path}: {}", answer.text());
    }
    assert!(backend.asked.lock().is_empty());
    // What everybody may, he may.
    assert_eq!(bob.get("/apis/good.example.com/v1").await.ok()["resources"][0]["name"], "foos");
}

#[tokio::test]
async fn watches_and_upgrades_pass_through() {
    let (world, _) = good().await;
    let mut watch = world.root().watch(&format!("{FOOS}?watch=1")).await;
    assert_eq!(watch.line("/kind").await, "ADDED a Foo");
    assert_eq!(watch.line("/kind").await, "ADDED b Foo");
    // Over the network, where connections can be taken over.
    let clock = world.server.clock.clone();
    let issue = |request: &Request| {
        let issued = world.authority.issue(request, clock.wall()).expect("issued");
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let config = tls::server(&clock, issue(&Request::server("kube-apiserver", ["kubernetes"]))).expect("TLS");
    let (api, stage) = (world.server.api.clone(), world.serving.clone());
    world.serving.spawn(async move { drop(api.serve(listener, config, &stage).await) });
    let roots = world.authority.roots().expect("roots");
    let shown = issue(&Request::client("admin", "system:masters"));
    let config = tls::client(&clock, roots, Some(shown)).expect("TLS");
    let secure = Secure { config: &config, server_name: "kubernetes" };
    let mut io = once::connect(&Tcp, &address, Some(secure), &clock).await.expect("connects");
    let request = format!(
        "GET {FOOS}/a/console HTTP/1.1\r\nHost: kubernetes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    io.write_all(request.as_bytes()).await.expect("sent");
    io.flush().await.expect("sent");
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(io.read_u8().await.expect("a head"));
    }
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("HTTP/1.1 101 ") && text.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{text}");
    let mut frames = [0; 14];
    io.read_exact(&mut frames).await.expect("frames");
    assert_eq!(&frames, b"\x81\x05hello\x81\x05again");
    // A watch ends with this server, whatever the other does.
    world.server.stage.stop();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn what_is_served_elsewhere_is_found_here() {
    let (world, backend) = good().await;
    let fresh = |group: &Value| group["versions"][0]["freshness"] == "Current";
    let group = world.until_discovered("good", fresh).await;
    let foos = &group["versions"][0]["resources"][0];
    assert_eq!((&foos["resource"], &foos["shortNames"]), (&json!("foos"), &json!(["fo"])), "{group}");
    assert_eq!(foos["responseKind"]["kind"], "Foo");
    let list = world.root().get("/apis").await.ok();
    let groups: Vec<&str> =
        list["groups"].as_array().expect("groups").iter().filter_map(|g| g["name"].as_str()).collect();
    // Before what has no priority, behind what came with the server.
    let place = |name: &str| groups.iter().position(|group| *group == name).expect("a group");
    assert!(place("storagemigration.k8s.io") < place("good.example.com"), "{groups:?}");
    assert!(place("good.example.com") < place("explain.pintle.dev"), "{groups:?}");
    let one = world.root().get("/apis/good.example.com").await.ok();
    assert_eq!(one["preferredVersion"]["groupVersion"], "good.example.com/v1");
    assert_eq!(world.root().get("/apis/good.example.com/v1").await.ok()["resources"][0]["kind"], "Foo");
    // Documents come after resources.
    let index =
        custom::until(&world.server, "/openapi/v3", |_, index| index["paths"]["apis/good.example.com/v1"].is_object())
            .await;
    let url = index["paths"]["apis/good.example.com/v1"]["serverRelativeURL"].as_str().expect("a URL");
    assert_eq!(url, "/openapi/v3/apis/good.example.com/v1?hash=AB");
    let document = world.root().get(url).await.ok();
    assert_eq!(document["components"]["schemas"]["com.example.Foo"]["description"], "A foo.");
    let merged = custom::until(&world.server, "/openapi/v2", |_, document| {
        document["definitions"]["com.example.Foo"].is_object()
    })
    .await;
    assert!(merged["paths"]["/apis/good.example.com/v1/foos"].is_object());
    // Its ObjectMeta is another than ours, which stays.
    let reference = &merged["definitions"]["com.example.Foo"]["properties"]["metadata"]["$ref"];
    assert_eq!(*reference, "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2");
    assert!(merged["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"].is_object());
    let packed = [("accept", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")];
    let packed = world.root().send("GET", "/openapi/v2", &packed, "").await;
    assert!(packed.code == 200 && packed.body.windows(15).any(|bytes| bytes == b"com.example.Foo"));
    // It goes with its APIService, at once.
    world.root().delete(&format!("{API_SERVICES}/v1.good.example.com")).await.ok();
    world.until_discovered("good", Value::is_null).await;
    assert_eq!(world.root().get("/apis/good.example.com/v1").await.code, 404);
    assert_eq!(world.root().get(FOOS).await.code, 404);
    let after = world.root().get("/openapi/v3").await.ok();
    assert!(after["paths"]["apis/good.example.com/v1"].is_null());
    assert!(backend.asked.lock().is_empty(), "nobody has asked for objects");
}

#[tokio::test]
async fn a_server_of_the_old_form_is_found_too() {
    let world = World::start().await;
    let backend = world.backend("old", IP, Manner::Old).await;
    world.register("old", IP).await;
    world.available("old", "True", "Passed").await;
    let fresh = |group: &Value| group["versions"][0]["freshness"] == "Current";
    let group = world.until_discovered("old", fresh).await;
    assert_eq!(group["versions"][0]["resources"][0]["singularResource"], "foo", "{group}");
    drop(backend);
}

#[tokio::test]
async fn a_server_without_openapi_v3_is_explained_too() {
    let world = World::start().await;
    let backend = world.backend("aged", IP, Manner::Aged).await;
    world.register("aged", IP).await;
    world.available("aged", "True", "Passed").await;
    let index =
        custom::until(&world.server, "/openapi/v3", |_, index| index["paths"]["apis/aged.example.com/v1"].is_object())
            .await;
    let url = index["paths"]["apis/aged.example.com/v1"]["serverRelativeURL"].as_str().expect("a URL").to_owned();
    let document = world.root().get(&url).await.ok();
    assert_eq!(document["openapi"], "3.0.0");
    let foo = &document["components"]["schemas"]["com.example.Foo"];
    assert_eq!(foo["properties"]["size"]["description"], "How large it is.");
    let reference = &foo["properties"]["metadata"]["$ref"];
    assert_eq!(*reference, "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    let answer = &document["paths"]["/apis/aged.example.com/v1/foos"]["get"]["responses"]["200"]["content"];
    assert_eq!(answer["*/*"]["schema"]["$ref"], "#/components/schemas/com.example.Foo", "{answer}");
    let packed = [("accept", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")];
    let packed = world.root().send("GET", &url, &packed, "").await;
    assert!(packed.code == 200 && packed.body.windows(15).any(|bytes| bytes == b"com.example.Foo"));
    // One that learns v3 is asked itself.
    *backend.manner.lock() = Manner::Good;
    let one = format!("{API_SERVICES}/v1.aged.example.com");
    world.root().patch("merge", &one, &json!({"spec": {"versionPriority": 11}})).await.ok();
    custom::until(&world.server, "/openapi/v3", |_, index| {
        index["paths"]["apis/aged.example.com/v1"]["serverRelativeURL"]
            == "/openapi/v3/apis/aged.example.com/v1?hash=AB"
    })
    .await;
}

#[tokio::test]
async fn it_is_said_why_nobody_answers() {
    let world = World::start().await;
    world.root().post(API_SERVICES, &world.api_service("good")).await.ok();
    let message = world.available("good", "False", "ServiceNotFound").await;
    assert_eq!(message, "service/good in \"default\" is not present");
    assert_eq!(world.root().get(FOOS).await.text(), "service unavailable\n");
    // Everything that changes is seen when it changes.
    world.service("good", IP).await;
    let message = world.available("good", "False", "EndpointsNotFound").await;
    assert_eq!(message, "cannot find endpointslices for service/good in \"default\"");
    world.endpoints("good").await;
    let message = world.available("good", "False", "FailedDiscoveryCheck").await;
    let url = format!("https://{IP}:443/apis/good.example.com/v1");
    let refused = format!("dial tcp {IP}:443: connect: connection refused");
    assert_eq!(message, format!("failing or missing response from {url}: Get \"{url}\": {refused}"));
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/good";
    world
        .root()
        .patch(
            "merge",
            slices,
            &json!({"endpoints": [{"addresses": ["10.9.9.9"],
        "conditions": {"ready": false}}]}),
        )
        .await
        .ok();
    let message = world.available("good", "False", "MissingEndpoints").await;
    assert_eq!(message, "endpointslices for service/good in \"default\" have no addresses with port name \"https\"");
    let one = format!("{API_SERVICES}/v1.good.example.com");
    world.root().patch("merge", &one, &json!({"spec": {"service": {"port": 8443}}})).await.ok();
    let message = world.available("good", "False", "ServicePortError").await;
    assert_eq!(message, "service/good in \"default\" is not listening on port 8443");
    world.root().patch("merge", &one, &json!({"spec": {"service": {"port": 443}}})).await.ok();
    world.root().patch("merge", slices, &json!({"endpoints": [{"addresses": ["10.9.9.9"]}]})).await.ok();
    // Who is not believed is not spoken to.
    let backend = world.backend("good", IP, Manner::Good).await;
    world.available("good", "True", "Passed").await;
    let other = pki::Authority::generate("other", world.server.clock.wall()).expect("authority");
    let bundle = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(other.certificate())
    };
    world.root().patch("merge", &one, &json!({"spec": {"caBundle": bundle}})).await.ok();
    let message = world.available("good", "False", "FailedDiscoveryCheck").await;
    assert!(message.contains("certificate"), "{message}");
    let trusting = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    world.root().patch("merge", &one, &trusting).await.ok();
    world.available("good", "True", "Passed").await;
    // What somebody else says of it does not stay.
    let lie = json!({"status": {"conditions": [{"type": "Available", "status": "False", "reason": "Lie",
        "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    world.root().patch("merge", &format!("{one}/status"), &lie).await.ok();
    world.available("good", "True", "Passed").await;
    assert!(world.root().get(FOOS).await.text().starts_with("GET "));
    drop(backend);
}

#[tokio::test]
async fn what_is_dead_slows_nothing_and_is_stale() {
    let (world, _) = good().await;
    let fresh = |group: &Value| group["versions"][0]["freshness"] == "Current";
    world.until_discovered("good", fresh).await;
    // One that never was there, and one that never answers.
    world.register("dead", "10.96.0.51").await;
    let silent = world.backend("silent", "10.96.0.52", Manner::Silent).await;
    world.register("silent", "10.96.0.52").await;
    world.available("dead", "False", "FailedDiscoveryCheck").await;
    let stale = |group: &Value| group["versions"][0]["freshness"] == "Stale";
    for name in ["dead", "silent"] {
        let group = world.until_discovered(name, stale).await;
        assert_eq!(group["versions"][0]["resources"].as_array().map_or(0, Vec::len), 0, "{group}");
        let answer = world.root().get(&format!("/apis/{name}.example.com/v1")).await;
        assert_eq!((answer.code, answer.text().as_str()), (503, "service unavailable\n"));
        assert_eq!(
            world.root().get(&format!("/apis/{name}.example.com")).await.ok()["name"],
            format!("{name}.example.com")
        );
    }
    assert!(fresh(&world.discovered("good").await), "the others are as they were");
    assert_eq!(world.root().get("/openapi/v3").await.code, 200);
    // One that dies keeps what it had, and says so.
    world.kill(IP);
    world
        .root()
        .patch("merge", "/api/v1/namespaces/default/services/good", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok();
    world.available("good", "False", "FailedDiscoveryCheck").await;
    let group = world.until_discovered("good", stale).await;
    assert_eq!(group["versions"][0]["resources"][0]["resource"], "foos", "{group}");
    assert_eq!(world.root().get(FOOS).await.code, 503);
    let metrics = world.root().get("/metrics").await.text();
    for line in [
        "aggregator_unavailable_apiservice{name=\"v1.apps\"} 0",
        "aggregator_unavailable_apiservice{name=\"v1.good.example.com\"} 1",
        "aggregator_unavailable_apiservice_total{name=\"v1.good.example.com\",reason=\"FailedDiscoveryCheck\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    // And comes back.
    let backend = world.backend("good", IP, Manner::Good).await;
    world.available("good", "True", "Passed").await;
    world.until_discovered("good", fresh).await;
    drop((silent, backend));
}

#[tokio::test]
async fn lies_cost_a_bounded_amount() {
    let (world, _) = good().await;
    let fresh = |group: &Value| group["versions"][0]["freshness"] == "Current";
    let before = world.root().get("/openapi/v3").await.ok();
    let mut backends = Vec::new();
    for (name, ip, manner) in [
        ("endless", "10.96.0.61", Manner::Endless),
        ("babbling", "10.96.0.62", Manner::Babbling),
        ("greedy", "10.96.0.63", Manner::Greedy),
    ] {
        backends.push(world.backend(name, ip, manner).await);
        world.register(name, ip).await;
        world.available(name, "True", "Passed").await;
    }
    world.until_discovered("greedy", fresh).await;
    world.until_discovered("good", fresh).await;
    for name in ["endless", "babbling"] {
        let group = world.until_discovered(name, |group| group.is_object()).await;
        assert_eq!(group["versions"][0]["freshness"], "Stale", "{name}");
    }
    // Nobody takes what is another's.
    let list = world.root().send("GET", "/apis", &[("accept", AGGREGATED)], "").await.ok();
    let apps =
        list["items"].as_array().expect("groups").iter().find(|g| g["metadata"]["name"] == "apps").expect("apps");
    assert!(apps["versions"][0]["resources"].as_array().is_some_and(|all| all.len() > 3), "{apps}");
    let index = custom::until(&world.server, "/openapi/v3", |_, index| {
        index["paths"]["apis/greedy.example.com/v1"].is_object()
    })
    .await;
    assert_eq!(index["paths"]["apis/apps/v1"], before["paths"]["apis/apps/v1"]);
    let merged = custom::until(&world.server, "/openapi/v2", |_, document| {
        document["paths"]["/apis/greedy.example.com/v1/foos"].is_object()
    })
    .await;
    assert_ne!(merged["definitions"]["io.k8s.api.core.v1.Pod"]["description"], "lie");
    assert_ne!(merged["paths"]["/apis/apps/v1/deployments"]["get"]["operationId"], "lie");
}

#[tokio::test]
async fn what_is_answered_here_is_registered_here() {
    let world = World::start().await;
    let list = world.root().get(API_SERVICES).await.ok();
    let names: Vec<&str> =
        list["items"].as_array().expect("items").iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
    for name in ["v1.", "v1.apps", "v2.autoscaling", "v1.rbac.authorization.k8s.io"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert!(!names.contains(&"v1.apiregistration.k8s.io"));
    let apps = world.root().get(&format!("{API_SERVICES}/v1.apps")).await.ok();
    assert_eq!(apps["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    let spec = json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15});
    assert_eq!(apps["spec"], spec);
    let condition = &apps["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Local")));
    // One of a definition comes and goes with it, and is kept.
    custom::establish(&world.server, &custom::cron_tabs()).await;
    let path = format!("{API_SERVICES}/v1.stable.example.com");
    let one = custom::until(&world.server, &path, |code, _| code == 200).await;
    assert_eq!(one["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    assert_eq!(one["spec"]["groupPriorityMinimum"], 1000);
    world.root().patch("merge", &path, &json!({"spec": {"versionPriority": 7}})).await.ok();
    custom::until(&world.server, &path, |_, value| value["spec"]["versionPriority"] == 100).await;
    world.root().delete(&path).await.ok();
    custom::until(&world.server, &path, |code, value| {
        code == 200 && value["metadata"]["uid"] != one["metadata"]["uid"]
    })
    .await;
    world.root().delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.ok();
    custom::gone(&world.server, &path).await;
    // A version that somebody else registered before is theirs.
    let theirs = json!({"metadata": {"name": "v1.stable.example.com"}, "spec": {"group": "stable.example.com",
        "version": "v1", "groupPriorityMinimum": 50, "versionPriority": 5}});
    world.root().post(API_SERVICES, &theirs).await.ok();
    custom::establish(&world.server, &custom::cron_tabs()).await;
    assert_eq!(world.root().get(&path).await.ok()["spec"]["groupPriorityMinimum"], 50);
}

/// The group of APIServices is answered here, whoever registers for it; every other version is theirs who register.
#[tokio::test]
async fn nobody_takes_the_registration_itself() {
    let world = World::start().await;
    let spec = json!({"group": "apiregistration.k8s.io", "version": "v2", "groupPriorityMinimum": 2000,
        "versionPriority": 10, "caBundle": "Z2FyYmFnZQ==", "service": {"namespace": "default", "name": "thief"}});
    for version in ["v1", "v2"] {
        let mut spec = spec.clone();
        spec["version"] = json!(version);
        let name = format!("{version}.apiregistration.k8s.io");
        let answer = world.root().post(API_SERVICES, &json!({"metadata": {"name": name}, "spec": spec})).await;
        let warning = "spec.caBundle: has no certificate that can be read; nobody is believed until it has";
        assert!(answer.header("warning").contains(warning), "{}", answer.header("warning"));
        answer.ok();
        let is_told = |value: &Value| custom::condition(value, "Available") == Some(("False", "ServiceNotFound"));
        custom::until(&world.server, &format!("{API_SERVICES}/{name}"), |_, value| is_told(value)).await;
    }
    assert_eq!(world.root().get(API_SERVICES).await.ok()["kind"], "APIServiceList");
    assert_eq!(world.root().get("/apis/apiregistration.k8s.io/v2").await.code, 404);
    let group = world.root().get("/apis/apiregistration.k8s.io").await.ok();
    assert_eq!(group["versions"].as_array().map(Vec::len), Some(1), "{group}");
    world.service("thief", IP).await;
    world.endpoints("thief").await;
    let why = custom::until(&world.server, &format!("{API_SERVICES}/v2.apiregistration.k8s.io"), |_, value| {
        custom::condition(value, "Available") == Some(("False", "FailedDiscoveryCheck"))
    })
    .await;
    let message = why["status"]["conditions"][0]["message"].as_str().expect("a message");
    assert!(message.contains("unable to load root certificates"), "{message}");
}
