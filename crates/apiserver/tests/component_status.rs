//! Whether the components beside the API server are well, as `kubectl get componentstatuses` is told.

mod common;

use std::sync::Arc;

use common::Server;
use futures::future::BoxFuture;
use pki::{Authority, Request};
use serde_json::{Value, json};
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use tokio::net::TcpStream;
use transport::once::{Dialer, Tcp};
use transport::serve::Limits;
use transport::tls::{self, Identity};
use transport::{Handler, Responding};

const ALL: &str = "/api/v1/componentstatuses";
const TABLE: &[(&str, &str)] = &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
const WARNING: &str = r#"299 - "v1 ComponentStatus is deprecated in v1.19+""#;

/// A component that answers its `/healthz` with a code and a text.
struct Component(u16, &'static str);

impl Handler for Component {
    fn call(&self, request: transport::Request) -> Responding {
        assert_eq!((request.method().as_str(), request.uri().path()), ("GET", "/healthz"));
        let (code, text) = (self.0, self.1);
        Box::pin(async move {
            let mut response = http::Response::new(transport::full(text));
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
            Ok(response)
        })
    }
}

/// The scheduler is played, nobody else is there.
struct OnlyScheduler(String);

impl Dialer for OnlyScheduler {
    fn dial(&self, address: &str) -> BoxFuture<'static, std::io::Result<TcpStream>> {
        if address == "127.0.0.1:10259" {
            return Tcp.dial(&self.0);
        }
        Box::pin(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)) })
    }
}

/// A server beside whose scheduler, in a process of its own, no controllers run.
async fn beside(scheduler: Component) -> (Server, Stage) {
    let clock = RealClock::shared();
    let authority = Authority::generate("nobody's", clock.wall()).expect("authority");
    let issued = authority.issue(&Request::server("kube-scheduler", ["localhost"]), clock.wall()).expect("issued");
    let identity = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let config = tls::server(&clock, identity).expect("TLS");
    let serving = Stage::new();
    let stage = serving.clone();
    serving.spawn(async move {
        let handler = Arc::new(scheduler);
        transport::serve::serve(listener, config, handler, Limits::default(), clock, &stage).await.expect("serves");
    });
    (Server::start_with(|config| config.dialer = Arc::new(OnlyScheduler(address))).await, serving)
}

/// Each component in its own words.
async fn told(server: &Server) -> Vec<String> {
    let list = server.root.get(ALL).await.ok();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |item: &Value| {
        let condition = &item["conditions"][0];
        assert_eq!(condition["type"], "Healthy");
        format!("{}: {} {}", text(&item["metadata"]["name"]), text(&condition["status"]), text(&condition["message"]))
    };
    list["items"].as_array().expect("items").iter().map(one).collect()
}

#[tokio::test]
async fn components_elsewhere_are_asked_where_they_serve_their_health() {
    let refused = r#"controller-manager: False Get "https://127.0.0.1:10257/healthz": dial tcp 127.0.0.1:10257: connect: connection refused"#;
    let (server, serving) = beside(Component(200, "ok")).await;
    assert_eq!(told(&server).await, [refused, "etcd-0: True ok", "scheduler: True ok"]);
    server.stage.finish(&server.clock, std::time::Duration::from_secs(5)).await;
    serving.finish(&server.clock, std::time::Duration::from_secs(5)).await;
    let (server, _serving) = beside(Component(500, "leaderElection failed")).await;
    let ill = "scheduler: False HTTP probe failed with statuscode: 500";
    assert_eq!(told(&server).await, [refused, "etcd-0: True ok", ill]);
}

#[tokio::test]
async fn components_of_this_process_are_well_as_long_as_they_run() {
    let (server, _serving) = beside(Component(200, "of somebody else")).await;
    let scheduler = server.api.components.begin("scheduler");
    let _controllers = server.api.components.begin("controller-manager");
    assert_eq!(told(&server).await, ["controller-manager: True ok", "etcd-0: True ok", "scheduler: True ok"]);
    drop(scheduler);
    let ill = "scheduler: False HTTP probe failed with statuscode: 500";
    assert_eq!(told(&server).await, ["controller-manager: True ok", "etcd-0: True ok", ill]);
}

#[tokio::test]
async fn they_are_read_like_any_object_and_nothing_else() {
    let (server, _serving) = beside(Component(200, "ok")).await;
    let root = &server.root;
    let list = root.get(ALL).await;
    assert_eq!(list.warnings(), [WARNING]);
    let list = list.json();
    assert_eq!((&list["kind"], &list["metadata"]), (&json!("ComponentStatusList"), &json!({})));
    let one = root.get(&format!("{ALL}/etcd-0")).await;
    assert_eq!(one.warnings(), [WARNING]);
    let wanted = json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": "etcd-0"},
        "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}]});
    assert_eq!(one.json(), wanted);
    let absent = root.get(&format!("{ALL}/dns")).await;
    assert_eq!(absent.failure(), r#"404 NotFound: componentstatus "dns" not found"#);
    let table = root.send("GET", ALL, TABLE, "").await.ok();
    let cells: Vec<&Value> = table["rows"].as_array().expect("rows").iter().map(|row| &row["cells"]).collect();
    assert_eq!(cells[1..], [&json!(["etcd-0", "Healthy", "ok", ""]), &json!(["scheduler", "Healthy", "ok", ""])]);
    assert_eq!(cells[0][1], "Unhealthy");
    for (query, count) in [
        ("labelSelector=a", 0),
        ("labelSelector=!a", 3),
        ("fieldSelector=metadata.name%3Dscheduler", 1),
        ("fieldSelector=metadata.name!%3Dscheduler", 2),
    ] {
        let list = root.get(&format!("{ALL}?{query}")).await.ok();
        assert_eq!(list["items"].as_array().map(Vec::len), Some(count), "{query}");
    }
    for (method, uri) in [
        ("GET", format!("{ALL}?watch=1")),
        ("POST", ALL.to_owned()),
        ("DELETE", format!("{ALL}/etcd-0")),
        ("PUT", format!("{ALL}/etcd-0")),
    ] {
        let refused = root.send(method, &uri, common::JSON, "{}").await;
        let why = match uri.ends_with("watch=1") {
            true => r#"watch is not supported on resources of kind "componentstatuses""#,
            false => "the server does not allow this method on the requested resource",
        };
        assert_eq!(refused.failure(), format!("405 MethodNotAllowed: {why}"), "{method} {uri}");
    }
}
