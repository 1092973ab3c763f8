//! What is passed on: to the kubelet that is the pod's node and to no other, to pods, to Services; upgraded
//! and not; by who may.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::Server;
use futures::future::BoxFuture;
use kinds::User;
use parking_lot::Mutex;
use pki::{Authority, Request};
use serde_json::{Value, json};
use stdx::shutdown::Stage;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use transport::near::{self, Near};
use transport::once::{self, Dialer, Secure, Tcp};
use transport::tls::{self, Identity};

const SPACE: &str = "/api/v1/namespaces/default";

/// Addresses of the cluster that are played by sockets of this test.
#[derive(Default)]
struct Plays {
    sockets: HashMap<String, String>,
    /// Every address that was dialled.
    dialled: Arc<Mutex<Vec<String>>>,
}

impl Dialer for Plays {
    fn dial(&self, address: &str) -> BoxFuture<'static, std::io::Result<TcpStream>> {
        self.dialled.lock().push(address.to_owned());
        match self.sockets.get(address) {
            Some(real) => Tcp.dial(real),
            None if address.starts_with("127.") => Tcp.dial(address),
            None => Box::pin(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)) }),
        }
    }
}

/// Reads a head; the rest stays.
async fn head(io: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match io.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Plays a server: tells what it was asked, and answers by the path.
async fn play(mut io: impl AsyncRead + AsyncWrite + Unpin, told: mpsc::Sender<String>) {
    let asked = head(&mut io).await;
    let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
    told.try_send(asked.clone()).ok();
    let answer = |code: &str, more: &str, body: &str| {
        format!("HTTP/1.1 {code}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    if path.starts_with("/exec/default/p/c") || path == "/upgrade" {
        io.write_all(upgraded.as_bytes()).await.ok();
        let mut buffer = [0; 64];
        while let Ok(n @ 1..) = io.read(&mut buffer).await {
            let loud = buffer[..n].to_ascii_uppercase();
            io.write_all(&loud).await.ok();
        }
        return;
    }
    if path.starts_with("/attach/default/two") {
        // It refuses, and listens on.
        io.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno").await.ok();
        let more = head(&mut io).await;
        if !more.is_empty() {
            told.try_send(more).ok();
        }
        return;
    }
    let text = match path.as_str() {
        path if path.starts_with("/exec/default/two/b") => {
            answer("500 Internal Server Error", "", "container not found (\"b\")\n")
        }
        path if path.starts_with("/exec/default/two") || path == "/astray" => {
            answer("302 Found", "Location: http://10.9.9.9:8080/stolen\r\n", "")
        }
        path if path.starts_with("/portForward/default/two") => answer("200 OK", "", "no stream"),
        "/moved" => answer("302 Found", "Location: /there\r\n", ""),
        "/elsewhere" => answer("302 Found", "Location: http://127.0.0.1:1/\r\nAccess-Control-Allow-Origin: *\r\n", ""),
        "/page" => answer("200 OK", "Content-Type: text/html\r\n", "<a href=\"/login\">in</a><a href=\"x\">"),
        path if path.starts_with("/attach") => answer("404 Not Found", "", "404 page not found\n"),
        path if path.starts_with("/portForward") => upgraded.to_owned(),
        _ => answer("200 OK", "", &format!("{} {path}\n", asked.split(' ').next().unwrap_or_default())),
    };
    io.write_all(text.as_bytes()).await.ok();
    io.shutdown().await.ok();
}

struct World {
    server: Server,
    authority: Authority,
    /// What the played servers were asked.
    heads: mpsc::Receiver<String>,
    dialled: Arc<Mutex<Vec<String>>>,
    address: String,
    serving: Stage,
}

fn identity(server: &Server, authority: &Authority, request: &Request) -> Arc<Identity> {
    let issued = authority.issue(request, server.clock.wall()).expect("issued");
    Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
}

/// A server on the network, a kubelet that shows a certificate for `kubelet`, and a pod on Node `n1`.
async fn world(kubelet: &str) -> World {
    world_with(kubelet, None).await
}

/// The same, with a kubelet of the server's own process, too.
async fn world_with(kubelet: &str, nearby: Option<Near>) -> World {
    let clock = stdx::clock::RealClock::shared();
    let authority = Authority::generate("test", clock.wall()).expect("authority");
    let roots = authority.roots().expect("roots");
    let (told, heads) = mpsc::channel(64);
    let plain = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let pod_address = plain.local_addr().expect("address").to_string();
    let tell = told.clone();
    tokio::spawn(async move {
        while let Ok((io, _)) = plain.accept().await {
            tokio::spawn(play(io, tell.clone()));
        }
    });
    let secure = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = secure.local_addr().expect("address").port();
    let issued =
        authority.issue(&Request::server(format!("system:node:{kubelet}"), [kubelet]), clock.wall()).expect("issued");
    let own = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
    let mut config = tls::server(&clock, own).expect("TLS");
    config.alpn_protocols.clear();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((io, _)) = secure.accept().await {
            let (acceptor, told) = (acceptor.clone(), told.clone());
            tokio::spawn(async move {
                if let Ok(io) = acceptor.accept(io).await {
                    play(io, told).await;
                }
            });
        }
    });
    let issued = authority.issue(&Request::client("kubelet-client", "system:masters"), clock.wall()).expect("issued");
    let shown = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
    let client = tls::client(&clock, roots.clone(), Some(shown)).expect("TLS");
    let plays = [("10.9.9.9:8080", &pod_address), ("10.9.9.9:80", &pod_address)];
    let sockets = plays.into_iter().map(|(a, b)| (a.to_owned(), b.clone())).collect();
    let plays = Plays { sockets, ..Plays::default() };
    let dialled = plays.dialled.clone();
    let server = Server::start_with(|config| {
        config.client_ca = Some(roots.into());
        config.kubelet_client = Some(Arc::new(client));
        config.kubelet_nearby = nearby;
        config.dialer = Arc::new(plays);
    })
    .await;
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    server.root.post("/api/v1/nodes", &node).await.ok();
    server.root.post(&format!("{SPACE}/serviceaccounts"), &json!({"metadata": {"name": "default"}})).await.ok();
    for (name, containers) in [("p", vec!["c"]), ("two", vec!["a", "b"]), ("waiting", vec!["c"])] {
        let containers: Vec<Value> =
            containers.iter().map(|c| json!({"name": c, "image": "i", "ports": [{"containerPort": 8080}]})).collect();
        server
            .root
            .post(&format!("{SPACE}/pods"), &json!({"metadata": {"name": name}, "spec": {"containers": containers}}))
            .await
            .ok();
        if name != "waiting" {
            let binding = json!({"metadata": {"name": name}, "target": {"name": "n1"}});
            server.root.post(&format!("{SPACE}/pods/{name}/binding"), &binding).await.ok();
        }
    }
    for (name, ip) in [("p", "10.9.9.9"), ("two", "127.0.0.1")] {
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        server.root.patch("merge", &format!("{SPACE}/pods/{name}/status"), &status).await.ok();
    }
    let serving = Stage::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let own = identity(&server, &authority, &Request::server("kube-apiserver", ["kubernetes"]));
    let config = tls::server(&server.clock, own).expect("TLS");
    let (api, stage) = (server.api.clone(), serving.clone());
    serving.spawn(async move { drop(api.serve(listener, config, &stage).await) });
    World { server, authority, heads, dialled, address, serving }
}

impl World {
    /// Sends a request over the network as this user and returns the head of the answer, and the connection.
    async fn raw(&self, user: &User, method: &str, path: &str, headers: &str) -> (String, Box<dyn once::Io>) {
        let group = user.groups.first().map_or("none", String::as_str);
        let shown = identity(&self.server, &self.authority, &Request::client(user.name.clone(), group));
        let roots = self.authority.roots().expect("roots");
        let config = tls::client(&self.server.clock, roots, Some(shown)).expect("TLS");
        let secure = Secure { config: &config, server_name: "kubernetes" };
        let mut io = once::connect(&Tcp, &self.address, Some(secure), &self.server.clock).await.expect("connects");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: tests\r\n{headers}\r\n");
        io.write_all(request.as_bytes()).await.expect("sent");
        io.flush().await.expect("sent");
        (head(&mut io).await, io)
    }
}

const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";
const SOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn admin() -> User {
    common::user("admin", &["system:masters"])
}

#[tokio::test]
async fn a_stream_reaches_the_pods_kubelet_and_carries_bytes_both_ways() {
    let mut world = world("n1").await;
    let path = format!("{SPACE}/pods/p/exec?command=echo&command=hi&stdin=true&stdout=true");
    let (answer, mut io) = world.raw(&admin(), "POST", &path, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("upgrade: spdy/3.1"), "{answer}");
    let asked = world.heads.recv().await.expect("asked");
    assert!(
        asked.starts_with("POST /exec/default/p/c?command=echo&command=hi&input=1&output=1 HTTP/1.1\r\n"),
        "{asked}"
    );
    let lower = asked.to_ascii_lowercase();
    assert!(
        lower.contains("x-stream-protocol-version: v4.channel.k8s.io") && !lower.contains("authorization"),
        "{asked}"
    );
    for word in ["hello", "again"] {
        io.write_all(word.as_bytes()).await.expect("written");
        io.flush().await.expect("written");
        let mut back = vec![0; word.len()];
        io.read_exact(&mut back).await.expect("read");
        assert_eq!(back, word.to_ascii_uppercase().as_bytes());
    }
    // It ends with the server.
    world.server.stage.stop();
    let mut rest = Vec::new();
    io.read_to_end(&mut rest).await.ok();
    world.serving.stop();
}

/// A kubelet of the server's process: says what it was asked and by whom, takes streams of `c` over, and refuses others.
struct Nearby(mpsc::Sender<String>);

impl transport::Handler for Nearby {
    fn call(&self, request: transport::Request) -> transport::Responding {
        let told = self.0.clone();
        Box::pin(async move {
            let (head, _) = request.into_parts();
            let peer = head.extensions.get::<transport::serve::Peer>().expect("who asks");
            let shown = x509_parser::parse_x509_certificate(peer.certificates.first().expect("a certificate"));
            told.try_send(format!("{} {} by {}", head.method, head.uri, shown.expect("readable").1.subject())).ok();
            let mut response = http::Response::new(transport::full("no stream"));
            if !head.uri.path().ends_with("/c") {
                *response.status_mut() = http::StatusCode::NOT_FOUND;
                return Ok(response);
            }
            let takeover = transport::websocket::Takeover::of(&head.extensions).expect("a connection");
            tokio::spawn(async move {
                let mut io = takeover.io().await.expect("handed over");
                let mut buffer = [0; 64];
                while let Ok(n @ 1..) = io.read(&mut buffer).await {
                    let loud = buffer[..n].to_ascii_uppercase();
                    io.write_all(&loud).await.ok();
                    io.flush().await.ok();
                }
            });
            *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", http::HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert("upgrade", http::HeaderValue::from_static("SPDY/3.1"));
            Ok(response)
        })
    }
}

#[tokio::test]
async fn a_kubelet_of_this_process_is_asked_by_the_same_user_and_takes_the_connection_over() {
    let ((door, near), (told, mut asked)) = (near::pair(), mpsc::channel(8));
    let mut world = world_with("n1", Some(near)).await;
    let kubelet: transport::SharedHandler = Arc::new(Nearby(told));
    let exec = format!("{SPACE}/pods/p/exec?command=echo&stdout=true");
    // Of another node's name it is not asked, nor once it does not serve: the network leads to that node.
    for open in [Some(door.open("n2", kubelet.clone())), None] {
        let (answer, _io) = world.raw(&admin(), "POST", &exec, SPDY).await;
        assert!(answer.starts_with("HTTP/1.1 101 ") && world.heads.recv().await.is_some(), "{answer}");
        drop(open);
    }
    let begun = async |way: &str, count: u32| {
        let page = world.server.root.get("/metrics").await.text();
        let want = format!("pintle_kubelet_streams_total{{way=\"{way}\"}} {count}");
        assert!(page.lines().any(|line| line == want), "{want} is not in\n{page}");
    };
    begun("network", 2).await;
    world.dialled.lock().clear();
    let _open = door.open("n1", kubelet);
    let (answer, mut io) = world.raw(&admin(), "POST", &exec, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("upgrade: spdy/3.1"), "{answer}");
    assert_eq!(
        asked.recv().await.expect("asked"),
        "POST /exec/default/p/c?command=echo&output=1 by O=system:masters, CN=kubelet-client"
    );
    for word in ["hello", "again"] {
        io.write_all(word.as_bytes()).await.expect("written");
        io.flush().await.expect("written");
        let mut back = vec![0; word.len()];
        io.read_exact(&mut back).await.expect("read");
        assert_eq!(back, word.to_ascii_uppercase().as_bytes());
    }
    begun("process", 1).await;
    // It runs as long as the stream does.
    let page = world.server.root.get("/metrics").await.text();
    let mut running = page.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
    assert!(running.any(|line| line.contains("subresource=\"exec\"") && !line.ends_with(" 0")), "{page}");
    // What it refuses is told as any kubelet's refusal.
    let (answer, mut io) = world.raw(&admin(), "POST", &format!("{SPACE}/pods/p/portforward"), SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let mut body = vec![0; 60];
    io.read_exact(&mut body).await.expect("a body");
    assert!(String::from_utf8_lossy(&body).contains("\"kind\":\"Status\""), "{}", String::from_utf8_lossy(&body));
    // Who may not is told so before any kubelet hears of it.
    let (answer, _) = world.raw(&common::user("nobody", &[]), "POST", &exec, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(asked.recv().await.is_some_and(|last| last.starts_with("POST /portForward/default/p by ")));
    assert!(asked.try_recv().is_err() && world.dialled.lock().is_empty());
}

#[tokio::test]
async fn what_cannot_be_streamed_is_told() {
    let world = world("n1").await;
    let root = &world.server.root;
    for (path, code, text) in [
        ("p/exec?command=x", 400, "Upgrade request required"),
        ("two/exec?command=x", 400, "a container name must be specified for pod two, choose one of: [a b]"),
        ("p/attach?container=z", 400, "container z is not valid for pod p"),
        ("waiting/exec", 400, "pod waiting does not have a host assigned"),
        ("none/portforward", 404, "pods \"none\" not found"),
        ("p/portforward?ports=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax"),
    ] {
        let answer = root.send("POST", &format!("{SPACE}/pods/{path}"), &[], "").await;
        assert_eq!((answer.code, answer.json()["message"].as_str()), (code, Some(text)), "{path}");
    }
    let (answer, mut io) = world.raw(&admin(), "POST", &format!("{SPACE}/pods/p/attach?stdout=1"), SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let mut body = vec![0; 60];
    io.read_exact(&mut body).await.expect("a body");
    assert!(String::from_utf8_lossy(&body).contains("\"kind\":\"Status\""), "{}", String::from_utf8_lossy(&body));
    let gone = format!("{SPACE}/pods/two/exec?container=b&command=x");
    let (answer, mut io) = world.raw(&admin(), "POST", &gone, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    let mut body = vec![0; 200];
    io.read_exact(&mut body).await.expect("a body");
    let told = "Internal error occurred: unable to upgrade connection: container not found (\\\"b\\\")";
    assert!(String::from_utf8_lossy(&body).contains(told), "{}", String::from_utf8_lossy(&body));
    assert_eq!(root.delete(&format!("{SPACE}/pods/p/exec")).await.code, 405);
}

#[tokio::test]
async fn another_server_at_the_nodes_address_gets_nothing() {
    let world = world("n2").await;
    let (answer, _) = world.raw(&admin(), "POST", &format!("{SPACE}/pods/p/exec?command=x"), SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
}

#[tokio::test]
async fn a_websocket_needs_what_a_post_needs() {
    let world = world("n1").await;
    let rule = |verbs: &[&str]| json!([{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    for (name, verbs) in [("reader", &["get"][..]), ("user", &["get", "create"])] {
        world
            .server
            .root
            .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": name}, "rules": rule(verbs)}))
            .await
            .ok();
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]});
        world.server.root.post(&format!("{rbac}/rolebindings"), &binding).await.ok();
    }
    for (name, method, headers, code) in [
        ("reader", "GET", SOCKET, 403),
        ("reader", "GET", SPDY, 403),
        ("reader", "POST", SPDY, 403),
        ("user", "GET", SOCKET, 101),
        ("user", "POST", SPDY, 101),
    ] {
        let user = common::user(name, &[]);
        let (answer, _) = world.raw(&user, method, &format!("{SPACE}/pods/p/exec?command=x"), headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{name} {method}: {answer}");
    }
}

#[tokio::test]
async fn requests_are_passed_on_to_pods_services_and_nodes() {
    let mut world = world("n1").await;
    let root = world.server.root.clone();
    let service =
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    root.post(&format!("{SPACE}/services"), &service).await.ok();
    let slice = json!({"metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": ["10.9.9.9"],
            "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "p", "namespace": "default"}}]});
    root.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.ok();
    for (method, path, want) in [
        ("GET", "/api/v1/namespaces/default/pods/p/proxy/a/b?x=1%2F2", "GET /a/b?x=1%2F2\n"),
        ("GET", "/api/v1/namespaces/default/pods/p:80/proxy/%2e/c", "404"),
        ("PUT", "/api/v1/namespaces/default/pods/http:p:8080/proxy/", "PUT /\n"),
        ("GET", "/api/v1/namespaces/default/services/s:http/proxy/x/", "GET /x/\n"),
        ("GET", "/api/v1/namespaces/default/services/s:80/proxy/x", "GET /x\n"),
        ("GET", "/api/v1/nodes/n1/proxy/healthz", "GET /healthz\n"),
        ("POST", "/api/v1/namespaces/default/pods/p/proxy", "POST /\n"),
        ("OPTIONS", "/api/v1/namespaces/default/pods/p/proxy/o", "OPTIONS /o\n"),
    ] {
        let answer = root.send(method, path, &[("authorization", "Bearer secret"), ("x-mine", "1")], "").await;
        if want == "404" {
            assert_eq!(answer.code, 404, "{path}");
            continue;
        }
        assert_eq!((answer.code, answer.text().as_str()), (200, want), "{path}");
        let asked = world.heads.recv().await.expect("asked").to_ascii_lowercase();
        assert!(asked.contains("x-mine: 1") && !asked.contains("secret"), "{asked}");
    }
    for (path, code, text) in [
        (
            "namespaces/default/pods/p:99/proxy/",
            503,
            "error trying to reach service: dial tcp 10.9.9.9:99: connect: connection refused",
        ),
        ("namespaces/default/pods/two/proxy/", 400, "address not allowed"),
        ("namespaces/default/pods/ftp:p:1/proxy/", 400, "invalid pod request \"ftp:p:1\""),
        ("namespaces/default/services/s:other/proxy/", 503, "no endpoints available for service \"s\""),
        ("namespaces/default/services/s:9/proxy/", 503, "no service port 9 found for service \"s\""),
        ("namespaces/default/services/none/proxy/", 404, "services \"none\" not found"),
        ("nodes/n1:22/proxy/", 400, "address not allowed"),
        ("nodes/n9/proxy/", 404, "nodes \"n9\" not found"),
    ] {
        let answer = root.get(&format!("/api/v1/{path}")).await;
        assert_eq!((answer.code, answer.json()["message"].as_str()), (code, Some(text)), "{path}");
    }
    let moved = root.get(&format!("{SPACE}/pods/p/proxy?x=1")).await;
    assert_eq!((moved.code, moved.header("location")), (301, "/api/v1/namespaces/default/pods/p/proxy/?x=1"));
    let moved = root.get(&format!("{SPACE}/pods/p/proxy/moved")).await;
    assert_eq!((moved.code, moved.header("location")), (302, "/api/v1/namespaces/default/pods/p/proxy/there"));
    let moved = root.get(&format!("{SPACE}/pods/p/proxy/elsewhere")).await;
    assert_eq!((moved.code, moved.header("location")), (302, "http://127.0.0.1:1/"));
    assert_eq!(moved.header("access-control-allow-origin"), "");
    for place in [format!("{SPACE}/pods/p"), format!("{SPACE}/services/s:http"), "/api/v1/nodes/n1".to_owned()] {
        let page = root.get(&format!("{place}/proxy/page")).await;
        let want = format!("<a href=\"{place}/proxy/login\">in</a><a href=\"x\">");
        assert_eq!((page.code, page.text()), (200, want), "{place}");
    }
    let stranger = world.server.client("somebody", &[]);
    assert_eq!(stranger.get(&format!("{SPACE}/pods/p/proxy/")).await.code, 403);
    for path in ["pods/p/proxy/upgrade", "services/s:http/proxy/upgrade", "../../nodes/n1/proxy/upgrade"] {
        let path = match path.strip_prefix("../../") {
            Some(path) => format!("/api/v1/{path}"),
            None => format!("{SPACE}/{path}"),
        };
        // Who may only look gets no connection.
        let (answer, _) = world.raw(&common::user("somebody", &[]), "GET", &path, SPDY).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
        let (answer, mut io) = world.raw(&admin(), "GET", &path, SPDY).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{path}: {answer}");
        io.write_all(b"x").await.expect("written");
        io.flush().await.expect("written");
        assert_eq!(io.read_u8().await.expect("read"), b'X', "{path}");
    }
}

/// A kubelet runs commands for who gets a WebSocket of it; what a pod does with one is its own business, as
/// upstream has it.
#[tokio::test]
async fn an_upgrade_through_a_node_needs_what_a_post_needs() {
    let world = world("n1").await;
    let rule = json!([{"apiGroups": [""], "resources": ["pods/proxy", "nodes/proxy"], "verbs": ["get"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "looks"}, "rules": rule});
    world.server.root.post(&format!("{rbac}/clusterroles"), &role).await.ok();
    let binding = json!({"metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looks"},
        "subjects": [{"kind": "User", "name": "looks", "apiGroup": "rbac.authorization.k8s.io"}]});
    world.server.root.post(&format!("{rbac}/clusterrolebindings"), &binding).await.ok();
    let looks = common::user("looks", &[]);
    let pod = format!("{SPACE}/pods/p/proxy/upgrade");
    for (path, headers, code) in [
        ("/api/v1/nodes/n1/proxy/upgrade", SPDY, 403),
        ("/api/v1/nodes/n1/proxy/upgrade", SOCKET, 403),
        ("/api/v1/nodes/n1/proxy/healthz", "", 200),
        (pod.as_str(), SPDY, 101),
    ] {
        let (answer, _) = world.raw(&looks, "GET", path, headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{path}: {answer}");
    }
}

/// An upgrade that the kubelet refuses leaves nothing behind on which a client could speak to it as the API
/// server does.
#[tokio::test]
async fn cve_2018_1002105_a_refused_upgrade_is_no_way_to_the_kubelet() {
    let mut world = world("n1").await;
    let path = format!("{SPACE}/pods/two/attach?container=a&stdout=1");
    let (answer, mut io) = world.raw(&admin(), "POST", &path, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let stolen = b"GET /runningpods/ HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n";
    io.write_all(stolen).await.expect("sent");
    io.flush().await.expect("sent");
    let mut rest = Vec::new();
    io.read_to_end(&mut rest).await.ok();
    // The server answers it itself, in the name of who asks.
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.contains("HTTP/1.1 404 ") && rest.contains("could not find the requested resource"), "{rest}");
    let asked = world.heads.recv().await.expect("asked");
    assert!(asked.starts_with("POST /attach/default/two/a"), "{asked}");
    assert!(world.heads.try_recv().is_err(), "the kubelet heard more");
}

/// A kubelet that sends us elsewhere (with our credentials) is not obeyed, nor is its word passed on.
#[tokio::test]
async fn cve_2020_8559_no_redirection_is_followed() {
    let mut world = world("n1").await;
    for (path, code) in [
        ("pods/two/exec?container=a&command=x&stdout=1", 502),
        ("pods/two/portforward", 502),
        ("../../nodes/n1/proxy/astray", 302),
    ] {
        let path = match path.strip_prefix("../../") {
            Some(path) => format!("/api/v1/{path}"),
            None => format!("{SPACE}/{path}"),
        };
        let (answer, _) = world.raw(&admin(), "POST", &path, SPDY).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{path}: {answer}");
        assert!(code == 302 || !answer.to_lowercase().contains("location"), "{answer}");
        assert!(!world.heads.recv().await.expect("asked").contains("stolen"));
        assert!(world.heads.try_recv().is_err(), "{path}: somebody else was asked");
    }
    assert!(!world.dialled.lock().iter().any(|address| address.contains("10.9.9.9")));
}

/// What is looked at is what is dialled: no name is resolved twice, for none is resolved.
#[tokio::test]
async fn cve_2020_8562_no_name_leads_to_an_address_that_is_not_allowed() {
    let world = world("n1").await;
    let node = |name: &str, kind: &str, address: &str| json!({"metadata": {"name": name}, "status": {"addresses": [{"type": kind, "address": address}]}});
    for (name, kind, address) in [
        ("named", "Hostname", "localhost"),
        ("metadata", "InternalIP", "169.254.169.254"),
        ("mapped", "InternalIP", "::ffff:127.0.0.1"),
    ] {
        world.server.root.post("/api/v1/nodes", &node(name, kind, address)).await.ok();
        let answer = world.server.root.get(&format!("/api/v1/nodes/{name}:8080/proxy/")).await;
        assert_eq!((answer.code, answer.json()["message"].as_str()), (400, Some("address not allowed")), "{address}");
    }
    assert_eq!(world.dialled.lock().len(), 0, "{:?}", world.dialled.lock());
}

/// Who may say where a Node is gets nobody to speak to what is there: it must prove that it is the Node.
#[tokio::test]
async fn cve_2022_3294_a_nodes_address_is_not_its_identity() {
    let mut world = world("n2").await;
    let root = world.server.root.clone();
    assert_eq!(root.get("/api/v1/nodes/n1/proxy/healthz").await.code, 503);
    assert_eq!(root.get(&format!("{SPACE}/pods/p/log")).await.code, 500);
    for path in ["pods/p/exec?command=x&stdout=1", "pods/p/attach?stdout=1", "pods/p/portforward?ports=80"] {
        for (method, headers) in [("POST", SPDY), ("GET", SOCKET)] {
            let (answer, _) = world.raw(&admin(), method, &format!("{SPACE}/{path}"), headers).await;
            assert!(answer.starts_with("HTTP/1.1 500 "), "{method} {path}: {answer}");
        }
    }
    assert!(world.heads.try_recv().is_err(), "it was told something");
}

/// Whoever may write slices leads nobody to what is no pod of the namespace, whatever a slice says.
#[tokio::test]
async fn a_slice_that_lies_leads_nowhere() {
    let mut world = world("n1").await;
    let root = world.server.root.clone();
    let service =
        json!({"metadata": {"name": "liar"}, "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    root.post(&format!("{SPACE}/services"), &service).await.ok();
    let slice = json!({"metadata": {"name": "liar-1", "labels": {"kubernetes.io/service-name": "liar"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.0.0.7"], "targetRef": {"kind": "Pod", "name": "p", "namespace": "default"}},
            {"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "name": "nobody", "namespace": "default"}},
            {"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "name": "p", "namespace": "kube-system"}}]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    root.post(slices, &slice).await.ok();
    let path = format!("{SPACE}/services/liar:80/proxy/");
    let answer = root.get(&path).await;
    let told = answer.json()["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!((answer.code, told.as_str()), (503, "no endpoints available for service \"liar\""));
    assert!(!world.dialled.lock().iter().any(|address| address.contains("10.0.0.7")));
    // One that is right is found among them, every time.
    let right = json!({"metadata": {"name": "liar-2", "labels": {"kubernetes.io/service-name": "liar"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "name": "p", "namespace": "default"}}]});
    root.post(slices, &right).await.ok();
    for _ in 0..10 {
        assert_eq!(root.get(&path).await.code, 200);
        world.heads.recv().await.expect("asked");
    }
}

#[tokio::test]
async fn a_command_with_a_word_that_is_no_text_is_not_run_without_it() {
    let mut world = world("n1").await;
    let path = format!("{SPACE}/pods/p/exec?command=find&command=%FF&command=-delete&stdout=1");
    let (answer, _) = world.raw(&admin(), "POST", &path, SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(world.heads.try_recv().is_err(), "the kubelet was asked");
}
