//! The door to the network: TLS, both protocols, who gets in, an orderly end.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::{Client, MAPS, Server, config_map, frames};
use futures::{SinkExt, StreamExt};
use jiff::Timestamp;
use pki::{Authority, Request};
use serde_json::json;
use stdx::shutdown::Stage;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use transport::dial::{Https, Target};
use transport::tls::{self, Identity};

struct Open {
    server: Server,
    authority: Authority,
    address: SocketAddr,
    serving: Stage,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

fn identity(authority: &Authority, request: &Request, now: Timestamp) -> Arc<Identity> {
    let issued = authority.issue(request, now).expect("issued");
    Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
}

async fn open() -> Open {
    open_with(|_| {}).await
}

async fn open_with(change: impl FnOnce(&mut apiserver::Config)) -> Open {
    let now = stdx::clock::RealClock::shared().wall();
    let authority = Authority::generate("test", now).expect("authority");
    let roots = authority.roots().expect("roots");
    let server = Server::start_with(|config| {
        config.client_ca = Some(roots.into());
        change(config);
    })
    .await;
    let serving = Stage::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let own = identity(&authority, &Request::server("kube-apiserver", ["kubernetes"]), now);
    let config = tls::server(&server.clock, own).expect("TLS");
    let (api, stage) = (server.api.clone(), serving.clone());
    let ended = tokio::spawn(async move { api.serve(listener, config, &stage).await });
    Open { server, authority, address, serving, ended }
}

impl Open {
    fn target(&self) -> Target {
        Target { address: self.address.to_string(), server_name: "kubernetes".into() }
    }

    fn client(&self, shown: Option<Arc<Identity>>, http2: bool) -> Client {
        let roots = self.authority.roots().expect("roots");
        let config = tls::client(&self.server.clock, roots, shown.map(|own| own as _)).expect("TLS");
        let made = if http2 {
            Https::new(&self.target(), &config, &self.server.clock)
        } else {
            Https::http1(&self.target(), &config, &self.server.clock)
        };
        Client(Arc::new(made.expect("client")))
    }

    fn as_user(&self, name: &str, group: &str, http2: bool) -> Client {
        let now = self.server.clock.wall();
        self.client(Some(identity(&self.authority, &Request::client(name, group), now)), http2)
    }
}

#[tokio::test]
async fn objects_and_watches_over_both_protocols() {
    let open = open().await;
    for http2 in [false, true] {
        let root = open.as_user("admin", "system:masters", http2);
        let name = format!("over-{}", u8::from(http2));
        let mut watch = root.watch(&format!("{MAPS}?watch=1&fieldSelector=metadata.name%3D{name}")).await;
        assert_eq!(root.post(MAPS, &config_map(&name, "1")).await.code, 201);
        assert_eq!(watch.line("/data/k").await, format!("ADDED {name} 1"));
        let big = "x".repeat(2_000_000);
        let huge = root.patch("merge", &format!("{MAPS}/{name}"), &json!({"data": {"big": &big[..900_000]}})).await;
        assert_eq!(huge.code, 200, "{}", huge.text());
        assert_eq!(watch.line("/data/k").await, format!("MODIFIED {name} 1"));
        let refused = root.send("POST", MAPS, common::JSON, config_map("b", &big.repeat(2)).to_string()).await;
        assert_eq!(refused.code, 413, "{}", refused.text());
        assert_eq!(root.get(&format!("{MAPS}/{name}")).await.code, 200, "the connection goes on");
    }
    let managers = open.server.root.get(&format!("{MAPS}/over-1")).await.ok();
    assert_eq!(managers["metadata"]["managedFields"][0]["manager"], "tests");
}

#[tokio::test]
async fn the_certificate_says_who_asks() {
    let open = open().await;
    let jane = open.as_user("jane", "dev", true);
    let who = jane.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await.ok();
    assert_eq!(who["status"]["userInfo"]["username"], "jane");
    assert_eq!(who["status"]["userInfo"]["groups"], json!(["dev", "system:authenticated"]));
    assert!(jane.get(MAPS).await.failure().starts_with("403 Forbidden: "));
    let now = open.server.clock.wall();
    let stranger = Authority::generate("other", now).expect("authority");
    let forged = open.client(Some(identity(&stranger, &Request::client("admin", "system:masters"), now)), true);
    assert_eq!(forged.get(MAPS).await.failure(), "401 Unauthorized: Unauthorized");
    let serving = identity(&open.authority, &Request::server("admin", ["admin"]), now);
    assert_eq!(open.client(Some(serving), true).get(MAPS).await.code, 401, "a serving certificate is no user");
}

#[tokio::test]
async fn nobody_gets_health_and_version_only() {
    let open = open().await;
    let nobody = open.client(None, true);
    for (uri, code) in [
        ("/healthz", 200),
        ("/livez/ping", 200),
        ("/readyz?verbose", 200),
        ("/version", 200),
        ("/api", 401),
        ("/apis/apps/v1", 401),
        ("/openapi/v2", 401),
        ("/debug/pintle/causes", 401),
        (MAPS, 401),
        ("/nothing", 401),
    ] {
        let answer = nobody.get(uri).await;
        assert_eq!(answer.code, code, "{uri}: {}", answer.text());
    }
    assert_eq!(nobody.get("/version").await.json()["major"], "1");
    let wrong = nobody.send("GET", "/healthz", &[("authorization", "Bearer nonsense")], "").await;
    assert_eq!(wrong.code, 401);
    let post = nobody.send("POST", "/healthz", &[], "").await;
    assert_eq!(post.code, 401);
}

#[tokio::test]
async fn a_token_says_who_asks() {
    let open = open().await;
    let root = &open.server.root;
    let account = json!({"metadata": {"name": "robot"}});
    root.post("/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
    let asked = root.post("/api/v1/namespaces/default/serviceaccounts/robot/token", &json!({"spec": {}})).await.ok();
    let token = asked["status"]["token"].as_str().expect("token").to_owned();
    let nobody = open.client(None, false);
    let bearer = format!("Bearer {token}");
    let answer = nobody.send("GET", MAPS, &[("authorization", &bearer)], "").await;
    let text = answer.failure();
    assert!(text.starts_with("403 Forbidden: "), "{text}");
    assert!(text.contains(r#"User "system:serviceaccount:default:robot" cannot list"#), "{text}");
    let cut = &bearer[..bearer.len() - 3];
    assert_eq!(nobody.send("GET", MAPS, &[("authorization", cut)], "").await.code, 401);
    // A certificate of somebody else's cluster takes nothing from a good token, and adds nothing to it.
    let now = open.server.clock.wall();
    let stranger = Authority::generate("other", now).expect("authority");
    let shown = identity(&stranger, &Request::client("admin", "system:masters"), now);
    let both = open.client(Some(shown), true);
    let text = both.send("GET", MAPS, &[("authorization", &bearer)], "").await.failure();
    assert!(text.contains(r#"User "system:serviceaccount:default:robot" cannot list"#), "{text}");
    assert_eq!(both.send("GET", MAPS, &[("authorization", cut)], "").await.code, 401);
    for uri in [MAPS, "/healthz"] {
        assert_eq!(both.get(uri).await.code, 401, "{uri}: whoever shows a wrong certificate is not nobody");
    }
    // A certificate that is believed counts before the token, whose it is.
    let jane = open.as_user("jane", "dev", true);
    let text = jane.send("GET", MAPS, &[("authorization", &bearer)], "").await.failure();
    assert!(text.contains(r#"User "jane" cannot list"#), "{text}");
}

#[tokio::test]
async fn an_identity_of_this_process_cannot_be_had_from_outside() {
    let open = open().await;
    let nobody = open.client(None, false);
    for header in ["x-remote-user", "x-remote-group", "impersonate-user"] {
        let answer = nobody.send("GET", MAPS, &[(header, "system:masters")], "").await;
        assert_eq!(answer.code, 401, "{header}");
    }
    let root = open.as_user("admin", "system:masters", false);
    let claimed = root.send("GET", MAPS, &[("impersonate-user", "jane")], "").await;
    assert_eq!(claimed.code, 403);
}

#[tokio::test]
async fn the_end_is_orderly() {
    let open = open().await;
    let root = open.as_user("admin", "system:masters", true);
    let watch = root.open("GET", &format!("{MAPS}?watch=1"), &[], "").await;
    let reading = tokio::spawn(frames(watch.into_body()));
    open.server.stage.stop();
    assert!(reading.await.expect("the watch ends, and ends well").is_empty());
    let ready = root.get("/readyz").await;
    assert_eq!((ready.code, root.get("/livez").await.code), (500, 200), "{}", ready.text());
    open.serving.stop();
    open.ended.await.expect("joins").expect("ends");
}

#[tokio::test]
async fn many_clients_at_once() {
    let open = open().await;
    let root = open.as_user("admin", "system:masters", true);
    let writes = (0..100).map(|i| {
        let root = root.clone();
        tokio::spawn(async move { root.post(MAPS, &config_map(&format!("m{i}"), "1")).await.code })
    });
    for write in writes.collect::<Vec<_>>() {
        assert_eq!(write.await.expect("joins"), 201);
    }
    let list = root.get(MAPS).await.ok();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(100));
}

/// A refusal does not read the body; the connection lives on all the same, and with it the next request.
#[tokio::test]
async fn a_refusal_costs_no_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let open = open().await;
    let roots = (*open.authority.roots().expect("roots")).clone();
    let mut config = tls::client(&open.server.clock, roots, None).expect("TLS");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tcp = tokio::net::TcpStream::connect(open.address).await.expect("connects");
    let name = rustls::pki_types::ServerName::try_from("kubernetes").expect("name");
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("handshake");
    let mut answer = async |head: &str, body: &str| {
        stream.write_all(head.as_bytes()).await.expect("head");
        stream.flush().await.expect("head");
        let mut seen = Vec::new();
        // The body is sent only when the answer is here.
        while !seen.ends_with(b"}\n") && !seen.ends_with(b"}") && !seen.ends_with(b"ok") {
            let mut piece = [0; 4096];
            let n = stream.read(&mut piece).await.expect("answer");
            assert!(n > 0, "closed after {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..n]);
        }
        stream.write_all(body.as_bytes()).await.expect("body");
        String::from_utf8_lossy(&seen).into_owned()
    };
    let body = "{\"metadata\":{\"name\":\"a\"}}";
    let post = format!("POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    for _ in 0..3 {
        assert!(answer(&post, body).await.starts_with("HTTP/1.1 401"));
    }
    assert!(answer("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "").await.starts_with("HTTP/1.1 200"));
}

impl Open {
    /// Opens a WebSocket: the connection and what was agreed, or the code of a refusal.
    async fn socket(&self, uri: &str, protocols: &str) -> Result<(Socket, String), u16> {
        let roots = self.authority.roots().expect("roots");
        let shown = identity(&self.authority, &Request::client("admin", "system:masters"), self.server.clock.wall());
        let shown = (!protocols.contains("bearer")).then_some(shown as _);
        let config = tls::client(&self.server.clock, roots, shown).expect("TLS");
        let connection = tokio::net::TcpStream::connect(self.address).await.expect("connects");
        let name = rustls::pki_types::ServerName::try_from("kubernetes").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let connection = connector.connect(name, connection).await.expect("TLS");
        let mut request = format!("wss://kubernetes{uri}").into_client_request().expect("a request");
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().expect("a header"));
        match tokio_tungstenite::client_async(request, connection).await {
            Ok((socket, response)) => {
                let agreed = response.headers()["sec-websocket-protocol"].to_str().expect("text").to_owned();
                Ok((socket, agreed))
            }
            Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>;

#[tokio::test]
async fn a_watch_over_a_websocket_is_a_message_an_event() {
    let open = open().await;
    let root = open.as_user("admin", "system:masters", true);
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let uri = format!("{MAPS}?watch=1&allowWatchBookmarks=true");
    let (mut socket, agreed) = open.socket(&uri, "base64.binary.k8s.io").await.expect("a WebSocket");
    assert_eq!(agreed, "base64.binary.k8s.io");
    socket.send(Message::Ping("are you there".into())).await.expect("sent");
    root.post(MAPS, &config_map("b", "1")).await.ok();
    let (mut seen, mut pongs) = (Vec::new(), 0);
    while seen.len() < 3 {
        match socket.next().await.expect("more").expect("a message") {
            Message::Text(text) => {
                let event: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                seen.push(format!("{} {name}", event["type"].as_str().unwrap_or_default()));
            }
            Message::Pong(_) => pongs += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["ADDED a", "BOOKMARK ", "ADDED b"]);
    while pongs == 0 {
        pongs += usize::from(socket.next().await.expect("more").expect("a message").is_pong());
    }
    socket.close(None).await.expect("closes");
    // A watch whose time is over says goodbye.
    let (mut short, _) = open.socket(&format!("{MAPS}?watch=1&timeoutSeconds=1"), "x").await.expect("a WebSocket");
    let mut last = None;
    while let Some(Ok(message)) = short.next().await {
        last = Some(message);
    }
    assert!(matches!(last, Some(Message::Close(_))), "{last:?}");
    // What is refused is refused before there is a WebSocket.
    assert_eq!(open.socket(&format!("{MAPS}?watch=1&resourceVersion=x"), "x").await.err(), Some(400));
    assert_eq!(open.socket(&uri, "one, another").await.err(), Some(400));
    let stranger = "base64url.bearer.authorization.k8s.io.bm90IGEgdG9rZW4, x";
    assert_eq!(open.socket(&uri, stranger).await.err(), Some(401));
}

/// Who a request is for, as the server sees it; its code when it is nobody's.
async fn who(client: &Client, headers: &[(&str, &str)]) -> Result<String, u16> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let headers = [headers, common::JSON].concat();
    let answer = client.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &headers, review).await;
    if answer.code != 201 {
        return Err(answer.code);
    }
    let user = answer.json()["status"]["userInfo"].clone();
    let list = |value: &serde_json::Value| {
        let all = value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned));
        all.collect::<Vec<_>>().join(",")
    };
    let scopes = list(&user["extra"]["example.com/scopes"]);
    Ok(format!("{} {} [{}]", user["username"].as_str().unwrap_or_default(), list(&user["groups"]), scopes))
}

#[tokio::test]
async fn a_header_without_the_right_certificate_says_nothing() {
    let now = stdx::clock::RealClock::shared().wall();
    let front = Authority::generate("front-proxy-ca", now).expect("authority");
    let roots = front.roots().expect("roots");
    let open = open_with(|config| config.front_proxy_ca = Some(roots.into())).await;
    let speaks = [
        ("x-remote-user", "alice"),
        ("x-remote-group", "staff"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-example.com%2fscopes", "all"),
    ];
    let shown = |authority: &Authority, name: &str| {
        open.client(Some(identity(authority, &Request::client(name, "own-group"), now)), true)
    };
    let proxy = shown(&front, "front-proxy-client");
    let alice = Ok("alice staff,system:masters,system:authenticated [all]".to_owned());
    assert_eq!(who(&proxy, &speaks).await, alice);
    assert_eq!(proxy.send("GET", MAPS, &speaks, "").await.code, 200, "and may what alice may");
    let no_rights = [("x-remote-user", "bob")];
    assert_eq!(who(&proxy, &no_rights).await, Ok("bob system:authenticated []".to_owned()));
    assert_eq!(proxy.send("GET", MAPS, &no_rights, "").await.code, 403);
    // A proxy that names nobody is nobody, and so is one that nobody has allowed.
    assert_eq!(who(&proxy, &[("x-remote-group", "system:masters")]).await, Err(401));
    assert_eq!(who(&shown(&front, "somebody"), &speaks).await, Err(401));
    // Who signs clients signs no proxies: such a client is who its certificate says, whatever it is called.
    let own = Ok("front-proxy-client own-group,system:authenticated []".to_owned());
    assert_eq!(who(&shown(&open.authority, "front-proxy-client"), &speaks).await, own);
    let other = Authority::generate("front-proxy-ca", now).expect("authority");
    assert_eq!(who(&shown(&other, "front-proxy-client"), &speaks).await, Err(401));
    assert_eq!(who(&open.client(None, true), &speaks).await, Err(401));
    // Where nobody signs front proxies, nobody is one.
    let without = self::open().await;
    let none = without.client(Some(identity(&front, &Request::client("front-proxy-client", ""), now)), true);
    assert_eq!(who(&none, &speaks).await, Err(401));
}
