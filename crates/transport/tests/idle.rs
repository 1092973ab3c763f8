//! Connections that ask nothing: they end and free their slots, at every stage of the conversation.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use rustls::pki_types::ServerName;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transport::dial::{Https, Target};
use transport::serve::{Limits, serve, serve_plain};
use transport::tls::{self, Identity};
use transport::websocket::{self, Protocols, Takeover};
use transport::{Handler, Request, Responding};

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers `/stream` with a frame now and one when told to, `/endless` without end, anything else with nothing.
struct Streams(Arc<tokio::sync::Notify>);

impl Handler for Streams {
    fn call(&self, request: Request) -> Responding {
        let told = self.0.clone();
        Box::pin(async move {
            if request.uri().path() == "/endless" {
                let held = std::iter::repeat_with(move || {
                    let _held = &told;
                    Ok(vec![b'x'; 64 * 1024].into())
                });
                return Ok(http::Response::new(transport::stream(futures::stream::iter(held))));
            }
            if request.uri().path() != "/stream" {
                return Ok(http::Response::new(transport::empty()));
            }
            let later = async move {
                told.notified().await;
                Ok("late".into())
            };
            let frames = futures::stream::iter([Ok("early".into())]);
            Ok(http::Response::new(transport::stream(futures::StreamExt::chain(frames, futures::stream::once(later)))))
        })
    }
}

struct Server {
    address: String,
    ca: String,
    clock: SharedClock,
    tell: Arc<tokio::sync::Notify>,
    stage: Stage,
}

async fn start(limits: Limits) -> Server {
    let key = rcgen::KeyPair::generate().expect("key");
    let params = rcgen::CertificateParams::new(vec!["idle".to_owned()]).expect("params");
    let ca = params.self_signed(&key).expect("certificate").pem();
    let identity = Identity::from_pem(ca.as_bytes(), key.serialize_pem().as_bytes()).expect("identity");
    let (clock, stage, tell) = (RealClock::shared(), Stage::new(), Arc::new(tokio::sync::Notify::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let config = tls::server(&clock, identity).expect("config");
    let (handler, time, until) = (Arc::new(Streams(tell.clone())), clock.clone(), stage.clone());
    tokio::spawn(async move { serve(listener, config, handler, limits, time, &until).await });
    Server { address, ca, clock, tell, stage }
}

impl Server {
    fn client_config(&self) -> rustls::ClientConfig {
        tls::client(&self.clock, tls::roots(self.ca.as_bytes()).expect("roots"), None).expect("client")
    }

    /// A handshake that settles on a protocol, and then these bytes.
    async fn say(&self, protocol: &[u8], bytes: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut config = self.client_config();
        config.alpn_protocols = vec![protocol.to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(&self.address).await.expect("connects");
        let name = ServerName::try_from("idle").expect("name");
        let mut stream = connector.connect(name, stream).await.expect("handshake");
        stream.write_all(bytes).await.expect("said");
        stream
    }

    fn client(&self) -> Https {
        let target = Target { address: self.address.clone(), server_name: "idle".into() };
        Https::new(&target, &self.client_config(), &self.clock).expect("dial")
    }
}

fn get(path: &str) -> Request {
    http::Request::get(path).body(transport::empty()).expect("request")
}

#[tokio::test]
async fn clients_that_ask_nothing_are_closed_and_free_their_slots() {
    let short = Duration::from_millis(50);
    let limits = Limits { connections: 1, head: short, idle: short, drain: short, ..Limits::default() };
    let server = start(limits).await;
    // An empty SETTINGS frame is all that an HTTP/2 client has to say after its preface.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [preface.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let asked = b"GET / HTTP/1.1\r\nhost: idle\r\n\r\n";
    let cases: [(&[u8], &[u8]); 7] = [
        (b"http/1.1", b""),
        (b"http/1.1", b"GET / HT"),
        (b"http/1.1", asked),
        (b"h2", b""),
        (b"h2", &preface[..16]),
        (b"h2", preface),
        (b"h2", &settings),
    ];
    for (protocol, bytes) in cases {
        let mut silent = server.say(protocol, bytes).await;
        let said = String::from_utf8_lossy(bytes).into_owned();
        let end = server.clock.timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "still open after {said:?}");
        let served = server.clock.timeout(PATIENCE, server.client().call(get("/"))).await;
        served.unwrap_or_else(|_| panic!("no slot after {said:?}")).expect("served");
    }
    server.stage.stop();
}

#[tokio::test]
async fn a_stream_that_is_open_keeps_its_connection() {
    let short = Duration::from_millis(20);
    let limits = Limits { head: short, idle: short, drain: short, ..Limits::default() };
    let server = start(limits).await;
    let client = server.client();
    let mut body = client.call(get("/stream")).await.expect("answered").into_body();
    body.frame().await.expect("a frame").expect("early");
    // Others come and are closed while this one is silent.
    for _ in 0..3 {
        let mut silent = server.say(b"h2", b"").await;
        server.clock.timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.expect("closed").ok();
    }
    server.tell.notify_one();
    let late = server.clock.timeout(PATIENCE, body.frame()).await.expect("in time").expect("a frame").expect("late");
    assert_eq!(late.into_data().expect("data"), "late");
    server.stage.stop();
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_dropped_and_its_slot_freed() {
    let short = Duration::from_millis(50);
    let limits =
        Limits { connections: 1, head: Duration::from_secs(1), idle: short, drain: short, ..Limits::default() };
    let server = start(limits).await;
    let before = Arc::strong_count(&server.tell);
    let mut unread = server.say(b"http/1.1", b"GET /endless HTTP/1.1\r\nhost: idle\r\n\r\n").await;
    unread.read_exact(&mut [0; 64]).await.expect("it began");
    let served = server.clock.timeout(PATIENCE, server.client().call(get("/"))).await;
    served.expect("the slot is freed").expect("served");
    assert_eq!(Arc::strong_count(&server.tell), before, "what the answer held is freed");
    server.stage.stop();
}

/// Makes a WebSocket of every request that asks for one, with nothing to say.
struct Sockets(SharedClock, Stage);

impl Handler for Sockets {
    fn call(&self, request: Request) -> Responding {
        let (clock, stage) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let Some(takeover) = Takeover::of(request.extensions()) else {
                return Ok(http::Response::new(transport::empty()));
            };
            if !websocket::is_asked(request.headers()) {
                return Ok(http::Response::new(transport::empty()));
            }
            let (response, _) = websocket::accept(&takeover, request.headers(), Protocols::Named).expect("a handshake");
            stage.spawn(websocket::send(takeover, futures::stream::pending(), clock, PATIENCE));
            Ok(response)
        })
    }
}

#[tokio::test]
async fn a_websocket_is_a_connection_until_it_ends() {
    let (clock, stage) = (RealClock::shared(), Stage::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let handler = Arc::new(Sockets(clock.clone(), stage.clone()));
    let limits = Limits { connections: 1, ..Limits::default() };
    let (time, until) = (clock.clone(), stage.clone());
    tokio::spawn(async move { serve_plain(listener, handler, limits, time, &until).await });

    let mut first = TcpStream::connect(address).await.expect("connects");
    let handshake = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    first.write_all(handshake.as_bytes()).await.expect("sent");
    let mut head = [0; 12];
    first.read_exact(&mut head).await.expect("answered");
    assert_eq!(&head, b"HTTP/1.1 101");
    // Read to the end of the head, and a ping that is answered: the WebSocket is being spoken.
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n\r\n") {
        rest.push(first.read_u8().await.expect("more"));
    }
    let mut pong = [0; 2];
    for _ in 0..3 {
        first.write_all(&[0x89, 0x80, 0, 0, 0, 0]).await.expect("sent");
        first.read_exact(&mut pong).await.expect("a pong");
        assert_eq!(pong[0], 0x8a);
    }
    let mut second = TcpStream::connect(address).await.expect("the kernel has room");
    second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    {
        let mut reading = std::pin::pin!(second.read_to_end(&mut answer));
        assert!(futures::poll!(reading.as_mut()).is_pending(), "there was a place");
        drop(first);
        clock.timeout(PATIENCE, reading).await.expect("the place is free again").expect("read");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    stage.stop();
}
