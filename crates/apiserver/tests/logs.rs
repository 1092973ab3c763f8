//! `pods/log`: from the kubelet that is the pod's node, and from no other.

mod common;

use std::sync::Arc;

use common::Server;
use futures::{StreamExt, stream};
use pki::{Authority, Request};
use serde_json::json;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use transport::serve::{Limits, Peer};
use transport::tls::{self, Identity};
use transport::{Handler, Responding};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Says what it was asked; refuses for containers with such names.
struct Kubelet;

impl Handler for Kubelet {
    fn call(&self, request: transport::Request) -> Responding {
        Box::pin(async move {
            let shown = request.extensions().get::<Peer>().map_or(0, |p| p.certificates.len());
            let asked = request.uri().path_and_query().map_or("", |p| p.as_str()).to_owned();
            let (code, body) = match asked.rsplit('/').next().unwrap_or_default() {
                "waiting" => (400, transport::full("container \"waiting\" in pod \"a\" is waiting to start: Why")),
                "broken" => (500, transport::full("broken")),
                "none" => (404, transport::full("nothing here")),
                "endless" => {
                    let first = stream::iter([Ok("line\n".into())]);
                    (200, transport::stream(futures::StreamExt::chain(first, stream::pending())))
                }
                _ => (200, transport::full(format!("{asked} {shown}\n"))),
            };
            let mut response = http::Response::new(body);
            *response.status_mut() = http::StatusCode::from_u16(code).expect("code");
            Ok(response)
        })
    }
}

struct World {
    server: Server,
    serving: Stage,
}

/// A server and a kubelet that shows a certificate for `name`, at the address of Node `n1`.
async fn world(name: &str) -> World {
    let clock = RealClock::shared();
    let authority = Authority::generate("test", clock.wall()).expect("authority");
    let issue = |request: &Request| {
        let issued = authority.issue(request, clock.wall()).expect("issued");
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
    };
    let own = issue(&Request::client("kube-apiserver-kubelet-client", "system:masters"));
    let roots = authority.roots().expect("roots");
    let client = Arc::new(tls::client(&clock, roots, Some(own)).expect("TLS"));
    let server = Server::start_with(|config| config.kubelet_client = Some(client)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let config = tls::server(&clock, issue(&Request::server(format!("system:node:{name}"), [name]))).expect("TLS");
    let serving = Stage::new();
    let stage = serving.clone();
    serving.spawn(async move {
        transport::serve::serve(listener, config, Arc::new(Kubelet), Limits::default(), clock, &stage)
            .await
            .expect("serves");
    });
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    server.root.post("/api/v1/nodes", &node).await.ok();
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    World { server, serving }
}

impl World {
    async fn pod(&self, name: &str, containers: &[&str], node: &str) {
        let containers: Vec<_> = containers.iter().map(|c| json!({"name": c, "image": "i"})).collect();
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": containers}});
        self.server.root.post(PODS, &pod).await.ok();
        if !node.is_empty() {
            let binding = json!({"metadata": {"name": name}, "target": {"name": node}});
            self.server.root.post(&format!("{PODS}/{name}/binding"), &binding).await.ok();
        }
    }
}

#[tokio::test]
async fn a_log_comes_from_the_pods_node() {
    let world = world("n1").await;
    world.pod("a", &["one", "waiting", "broken", "none", "endless"], "n1").await;
    world.pod("single", &["only"], "n1").await;
    world.pod("early", &["only"], "").await;
    world.pod("lost", &["only"], "n2").await;
    let root = &world.server.root;
    let log = root.get(&format!("{PODS}/single/log?tailLines=5&follow=true")).await;
    assert_eq!((log.code, log.header("content-type")), (200, "text/plain"), "{}", log.text());
    assert_eq!(log.text(), "/containerLogs/default/single/only?follow=true&tailLines=5 1\n");
    let one = root.get(&format!("{PODS}/a/log?container=one")).await;
    assert_eq!(one.text(), "/containerLogs/default/a/one 1\n");
    for (uri, code, text) in [
        (
            "a/log",
            400,
            "a container name must be specified for pod a, choose one of: [one waiting broken none endless]",
        ),
        ("a/log?container=x", 400, "container x is not valid for pod a"),
        ("a/log?container=waiting", 400, "container \"waiting\" in pod \"a\" is waiting to start: Why"),
        ("a/log?container=broken", 500, "Internal error occurred: broken"),
        ("a/log?container=none", 404, "the server could not find the requested resource ( pods/log a)"),
        (
            "a/log?container=one&tailLines=-1",
            422,
            "PodLogOptions \"a\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        ("absent/log", 404, "pods \"absent\" not found"),
        ("lost/log", 404, "nodes \"n2\" not found"),
    ] {
        let answer = root.get(&format!("{PODS}/{uri}")).await;
        assert_eq!((answer.code, answer.json()["message"].as_str().unwrap_or_default()), (code, text), "{uri}");
    }
    let early = root.get(&format!("{PODS}/early/log")).await;
    assert_eq!((early.code, early.text().as_str()), (200, ""));
}

#[tokio::test]
async fn a_log_that_goes_on_ends_with_the_server() {
    let world = world("n1").await;
    world.pod("a", &["endless"], "n1").await;
    let response = world.server.root.open("GET", &format!("{PODS}/a/log?follow=true&container=endless"), &[], "").await;
    let mut body = response.into_body();
    let first = http_body_util::BodyExt::frame(&mut body).await.expect("a frame").expect("fine");
    assert!(first.into_data().is_ok_and(|data| !data.is_empty()));
    world.server.stage.stop();
    common::frames(body).await;
    world.serving.stop();
}

#[tokio::test]
async fn another_server_at_the_nodes_address_is_not_believed() {
    let world = world("n2").await;
    world.pod("a", &["only"], "n1").await;
    let answer = world.server.root.get(&format!("{PODS}/a/log")).await;
    assert_eq!(answer.code, 500);
    let text = answer.failure();
    assert!(text.contains("Get \"https://127.0.0.1:"), "{text}");
    assert!(!text.contains("containerLogs/default/a/only 1"), "{text}");
}

#[tokio::test]
async fn a_log_over_a_websocket_is_as_its_client_can_take_it() {
    let world = world("n1").await;
    world.pod("a", &["only"], "n1").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (handler, clock, stage) = (world.server.root.0.clone(), world.server.clock.clone(), world.serving.clone());
    world.serving.spawn(async move {
        transport::serve::serve_plain(listener, handler, Limits::default(), clock, &stage).await.expect("serves");
    });
    let open = async |protocols: Option<&'static str>| {
        let mut request = format!("ws://kubernetes{PODS}/a/log").into_client_request().expect("a request");
        if let Some(protocols) = protocols {
            request.headers_mut().insert("sec-websocket-protocol", http::HeaderValue::from_static(protocols));
        }
        let connection = tokio::net::TcpStream::connect(address).await.expect("connects");
        match tokio_tungstenite::client_async(request, connection).await {
            Ok((mut socket, response)) => {
                let agreed = response.headers().get("sec-websocket-protocol").and_then(|v| v.to_str().ok());
                let mut said = vec![agreed.unwrap_or("-").to_owned()];
                while let Some(Ok(message)) = socket.next().await {
                    said.push(match message {
                        Message::Text(text) => format!("text {text}"),
                        Message::Binary(bytes) => format!("bytes {}", String::from_utf8_lossy(&bytes)),
                        Message::Close(_) => "farewell".to_owned(),
                        other => format!("{other:?}"),
                    });
                }
                said
            }
            Err(tungstenite::Error::Http(response)) => vec![response.status().as_u16().to_string()],
            Err(other) => panic!("{other}"),
        }
    };
    let line = "/containerLogs/default/a/only 1\n";
    let bytes = ["bytes ".to_owned(), format!("bytes {line}"), "farewell".to_owned()];
    assert_eq!(open(None).await, [&["-".to_owned()], &bytes[..]].concat());
    assert_eq!(open(Some("x, binary.k8s.io")).await, [&["binary.k8s.io".to_owned()], &bytes[..]].concat());
    let encoded = "L2NvbnRhaW5lckxvZ3MvZGVmYXVsdC9hL29ubHkgMQo=";
    let texts = ["base64.binary.k8s.io", "text ", format!("text {encoded}").as_str(), "farewell"].map(str::to_owned);
    assert_eq!(open(Some("base64.binary.k8s.io")).await, texts);
    assert_eq!(open(Some("v4.channel.k8s.io")).await, ["403"]);
    world.serving.stop();
}
