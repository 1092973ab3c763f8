//! Streams through a kubelet on the network to a runtime that is played here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use stdx::ClockExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use transport::serve::{Limits, serve_plain};
use transport::spdy::session::{Event, Side, Writer, begin};

use crate::server::tests::Bench;

/// Reads a head; the rest stays.
async fn head(io: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match io.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The status of a process that ended with 7, as containerd tells it.
const SEVEN: &str = r#"{"metadata":{},"status":"Failure","message":"it ended with 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;

/// Plays a runtime's streaming server: what it reads it writes, in capitals, and says so when that ends.
/// Tells which streams were opened, and when the connection is over.
async fn play(mut io: TcpStream, told: mpsc::Sender<String>) {
    let asked = head(&mut io).await;
    let path = asked.split(' ').nth(1).unwrap_or_default();
    told.send(format!("{} {path}", asked.split(' ').next().unwrap_or_default())).await.ok();
    match path {
        "/refuses" => {
            let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno token\n";
            io.write_all(answer.as_bytes()).await.ok();
        }
        "/moves" => {
            let answer = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
            io.write_all(answer.as_bytes()).await.ok();
        }
        _ => {
            assert!(asked.contains("SPDY/3.1"), "{asked}");
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            io.write_all(answer.as_bytes()).await.ok();
            match path {
                "/floods" => flood(io).await.ok(),
                path => shell(io, &told, path == "/dies").await.ok(),
            };
            told.send("over".to_owned()).await.ok();
        }
    }
}

async fn shell(io: TcpStream, told: &mpsc::Sender<String>, dies: bool) -> Result<(), transport::spdy::session::Error> {
    let (mut reader, writer) = begin(Box::new(io), Side::Server).await?;
    let mut streams = std::collections::BTreeMap::new();
    let of = |streams: &std::collections::BTreeMap<u32, String>, kind: &str| {
        streams.iter().find(|(_, k)| *k == kind).map(|(id, _)| *id)
    };
    while let Some(event) = reader.next().await? {
        match event {
            Event::Opened { id, headers } => {
                let kind = headers.first().map(|(_, value)| value.clone()).unwrap_or_default();
                told.send(kind.clone()).await.ok();
                streams.insert(id, kind);
                writer.reply(id).await?;
            }
            Event::Data { id, bytes } => match streams.get(&id).map(String::as_str) {
                Some("stdin") if dies => return Ok(()),
                Some("stdin") => {
                    let out = of(&streams, "stdout").unwrap_or_default();
                    writer.data(out, bytes.to_ascii_uppercase().into()).await?;
                }
                Some(kind) => drop(told.send(format!("{kind}: {}", String::from_utf8_lossy(&bytes))).await),
                None => {}
            },
            Event::Finished { id } if streams.get(&id).is_some_and(|kind| kind == "stdin") => {
                end(&writer, &streams.keys().copied().collect::<Vec<_>>(), of(&streams, "error")).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// What [`flood`] has got rid of.
static FLOODED: AtomicUsize = AtomicUsize::new(0);

/// A process that says more than anybody reads.
async fn flood(io: TcpStream) -> Result<(), transport::spdy::session::Error> {
    let (mut reader, writer) = begin(Box::new(io), Side::Server).await?;
    let mut out = 0;
    while out == 0 {
        if let Some(Event::Opened { id, headers }) = reader.next().await? {
            writer.reply(id).await?;
            out = if headers.iter().any(|(_, kind)| kind == "stdout") { id } else { 0 };
        }
    }
    let writing = async {
        loop {
            writer.data(out, Bytes::from_static(&[b'x'; 32 << 10])).await?;
            FLOODED.fetch_add(32 << 10, Ordering::Relaxed);
        }
    };
    let reading = async {
        while reader.next().await?.is_some() {}
        Ok(())
    };
    tokio::select! {
        ended = writing => ended,
        ended = reading => ended,
    }
}

/// As `spdystream` does it: how it ended, and then every stream is reset.
async fn end(writer: &Writer, all: &[u32], error: Option<u32>) -> Result<(), transport::spdy::session::Error> {
    writer.data(error.unwrap_or_default(), Bytes::from_static(SEVEN.as_bytes())).await?;
    for id in all {
        writer.reset(*id).await?;
    }
    writer.close().await
}

struct World {
    bench: Bench,
    address: String,
    told: mpsc::Receiver<String>,
}

async fn world(path: &str) -> World {
    world_of(&["alice get proxy", "alice create proxy"], path, Duration::from_secs(3600)).await
}

async fn world_of(allowed: &'static [&'static str], path: &str, idle: Duration) -> World {
    let mut bench = Bench::new(allowed);
    bench.server.stream_idle = idle;
    let (tell, told) = mpsc::channel(64);
    let runtime = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    bench.runtime.serve_streams(&format!("http://{}{path}", runtime.local_addr().expect("an address")));
    tokio::spawn(async move {
        while let Ok((io, _)) = runtime.accept().await {
            tokio::spawn(play(io, tell.clone()));
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address").to_string();
    let (server, clock, stage) = (bench.server.clone(), bench.server.clock.clone(), bench.server.stage.clone());
    tokio::spawn(async move { serve_plain(listener, Arc::new(server), Limits::default(), clock, &stage).await });
    World { bench, address, told }
}

type Socket = tokio_tungstenite::WebSocketStream<TcpStream>;

impl World {
    async fn raw(&self, method: &str, path: &str, headers: &str) -> (String, TcpStream) {
        let mut io = TcpStream::connect(&self.address).await.expect("connected");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer good\r\n{headers}\r\n");
        io.write_all(request.as_bytes()).await.expect("sent");
        (head(&mut io).await, io)
    }

    async fn socket(&self, path: &str, protocol: &str) -> Socket {
        let mut request = format!("ws://{}{path}", self.address).into_client_request().expect("a request");
        let headers = request.headers_mut();
        headers.insert("authorization", "Bearer good".parse().expect("a value"));
        headers.insert("sec-websocket-protocol", protocol.parse().expect("a value"));
        let io = TcpStream::connect(&self.address).await.expect("connected");
        let (socket, answer) = tokio_tungstenite::client_async(request, io).await.expect("a handshake");
        assert_eq!(answer.headers()["sec-websocket-protocol"], protocol);
        socket
    }

    async fn told(&mut self) -> String {
        self.told.recv().await.expect("told")
    }

    /// Waits until the runtime's connection is over.
    async fn over(&mut self) {
        while self.told().await != "over" {}
    }
}

/// All messages to the end, those of one channel joined.
async fn rest(socket: &mut Socket) -> Vec<(u8, String)> {
    let mut out: Vec<(u8, String)> = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        let (channel, text) = match message {
            Message::Binary(bytes) => (bytes[0], String::from_utf8_lossy(&bytes[1..]).into_owned()),
            Message::Text(text) => (text.as_bytes()[0], text[1..].to_owned()),
            _ => continue,
        };
        match out.last_mut().filter(|(last, _)| *last == channel) {
            Some((_, gathered)) => gathered.push_str(&text),
            None => out.push((channel, text)),
        }
    }
    out
}

const EXEC: &str = "/exec/ns/p/c?command=cat&command=-v&input=1&output=1";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

#[tokio::test]
async fn a_websocket_is_carried_as_streams_and_its_input_ends() {
    let mut world = world("/exec/token").await;
    let mut socket = world.socket(EXEC, "v5.channel.k8s.io").await;
    for want in ["POST /exec/token", "error", "stdin", "stdout"] {
        assert_eq!(world.told().await, want);
    }
    assert_eq!(world.bench.runtime.take_log(), ["exec_stream cid cat -v"]);
    socket.send(Message::Binary(Bytes::from_static(b"\0hello"))).await.expect("sent");
    // What nobody listens to does no harm.
    socket.send(Message::Binary(Bytes::from_static(b"\x07x"))).await.expect("sent");
    socket.send(Message::Binary(Bytes::from_static(b"\xff\0"))).await.expect("sent");
    assert_eq!(rest(&mut socket).await, [(1, "HELLO".to_owned()), (3, SEVEN.to_owned())]);
    world.over().await;
}

#[tokio::test]
async fn a_terminal_is_told_its_size() {
    let mut world = world("/exec/token").await;
    let path = "/exec/ns/p/c?command=sh&input=1&output=1&error=1&tty=1";
    let mut socket = world.socket(path, "v4.channel.k8s.io").await;
    for want in ["POST /exec/token", "error", "stdin", "stdout", "resize"] {
        assert_eq!(world.told().await, want);
    }
    socket.send(Message::Binary(Bytes::from_static(b"\x04{\"Width\":80}"))).await.expect("sent");
    assert_eq!(world.told().await, "resize: {\"Width\":80}");
    socket.close(None).await.expect("closed");
    world.over().await;
}

#[tokio::test]
async fn old_and_textual_clients_are_understood() {
    for (protocol, said, want) in [
        ("v4.base64.channel.k8s.io", Message::text("0aGVsbG8="), (b'1', "SEVMTE8=")),
        ("base64.channel.k8s.io", Message::text("0aGVsbG8="), (b'1', "SEVMTE8=")),
        ("channel.k8s.io", Message::binary(&b"\0hello"[..]), (1, "HELLO")),
    ] {
        let mut world = world("/exec/token").await;
        let mut socket = world.socket(EXEC, protocol).await;
        socket.send(said).await.expect("sent");
        let heard = loop {
            let message = socket.next().await.expect("more").expect("a message").into_data();
            // The first message is empty: it says that the connection is there.
            if message.len() > 1 {
                break (message[0], String::from_utf8_lossy(&message[1..]).into_owned());
            }
        };
        assert_eq!((heard.0, heard.1.as_str()), want, "{protocol}");
        drop(socket);
        world.over().await;
    }
}

#[tokio::test]
async fn spdy_is_passed_on_as_it_is() {
    let mut world = world("/attach/token").await;
    let (answer, io) = world.raw("POST", "/attach/ns/p/c?input=1&output=1", SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.to_lowercase().contains("upgrade: spdy/3.1"), "{answer}");
    assert_eq!(world.told().await, "POST /attach/token");
    assert_eq!(world.bench.runtime.take_log(), ["attach_stream cid tty=false"]);
    let (mut reader, writer) = begin(Box::new(io), Side::Client).await.expect("begun");
    let id = writer.open(vec![("streamtype".to_owned(), "error".to_owned())]).await.expect("opened");
    assert_eq!(reader.next().await.expect("whole"), Some(Event::Replied { id }));
    drop((reader, writer));
    world.over().await;
}

#[tokio::test]
async fn spdy_in_a_websocket_is_unwrapped() {
    let mut world = world("/portforward/token").await;
    let mut socket = world.socket("/portForward/ns/p", "SPDY/3.1+portforward.k8s.io").await;
    assert_eq!(world.told().await, "POST /portforward/token");
    assert_eq!(world.bench.runtime.take_log(), ["port_forward sid []"]);
    let mut encoder = transport::spdy::frame::Encoder::default();
    let mut bytes = Vec::new();
    let headers = vec![("streamtype".to_owned(), "data".to_owned())];
    let open = transport::spdy::frame::Frame::Open { id: 1, headers, fin: false, one_way: false };
    encoder.write(&open, &mut bytes).expect("written");
    // A message may hold any part of a frame.
    for piece in bytes.chunks(7) {
        socket.send(Message::binary(piece.to_vec())).await.expect("sent");
    }
    assert_eq!(world.told().await, "data");
    socket.send(Message::text("no bytes")).await.expect("sent");
    let mut last = None;
    while let Some(Ok(message)) = socket.next().await {
        last = Some(message);
    }
    assert!(matches!(&last, Some(Message::Close(Some(frame))) if u16::from(frame.code) == 1002), "{last:?}");
    world.over().await;
}

/// Asks a server of this host for what it says, in a session of port-forward.
async fn forwarded(io: Box<dyn transport::once::Io>, port: u16) -> String {
    let (mut reader, writer) = begin(io, Side::Client).await.expect("begun");
    let headers = |kind: &str| {
        let pairs = [("streamtype", kind.to_owned()), ("port", port.to_string()), ("requestid", "0".to_owned())];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    };
    writer.open(headers("error")).await.expect("opened");
    let data = writer.open(headers("data")).await.expect("opened");
    let mut said = String::new();
    loop {
        match reader.next().await.expect("whole").expect("more") {
            Event::Data { id, bytes } if id == data => said.push_str(&String::from_utf8_lossy(&bytes)),
            Event::Finished { id } if id == data => break said,
            _ => {}
        }
    }
}

const FORWARD: &str = "/portForward/ns/p";
const FORWARD_SPDY: &str =
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: x, portforward.k8s.io\r\n";

#[tokio::test]
async fn a_port_is_reached_in_the_pods_own_network_without_the_runtime() {
    let world = world("/portforward/token").await;
    world.bench.runtime.show_network(crate::runtime::Network::Node);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            io.write_all(b"hello").await.ok();
        }
    });
    let (answer, io) = world.raw("POST", FORWARD, FORWARD_SPDY).await;
    let answer = answer.to_lowercase();
    assert!(answer.starts_with("http/1.1 101 ") && answer.contains("x-stream-protocol-version: portforward.k8s.io"));
    assert_eq!(forwarded(Box::new(io), port).await, "hello");
    // The same in a WebSocket.
    let mut socket = world.socket(FORWARD, "SPDY/3.1+portforward.k8s.io").await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let carrying = tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(far);
        let mut piece = [0; 1000];
        loop {
            tokio::select! {
                size = read.read(&mut piece) => match size {
                    Ok(size @ 1..) => socket.send(Message::binary(piece[..size].to_vec())).await.expect("sent"),
                    _ => break,
                },
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => write.write_all(&bytes).await.expect("written"),
                    Some(Ok(_)) => {}
                    _ => break,
                },
            }
        }
    });
    assert_eq!(forwarded(Box::new(near), port).await, "hello");
    carrying.await.expect("ran");
    assert_eq!(world.bench.runtime.take_log(), [""; 0]);
    for (protocol, code) in [("", 400), ("X-Stream-Protocol-Version: v4.channel.k8s.io\r\n", 403)] {
        let headers = format!("Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n{protocol}");
        let (answer, _) = world.raw("POST", FORWARD, &headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
    }
    // A namespace that cannot be entered from here is left to the runtime.
    world.bench.runtime.show_network(crate::runtime::Network::Namespace("/nowhere".into()));
    let (answer, _) = world.raw("POST", FORWARD, FORWARD_SPDY).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert_eq!(world.bench.runtime.take_log(), ["port_forward sid []"]);
}

#[tokio::test]
async fn what_is_no_stream_opens_nothing() {
    let mut world = world("/exec/token").await;
    let websocket = |protocol: &str| {
        format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
        )
    };
    let (v5, v6) = (websocket("v5.channel.k8s.io"), websocket("v6.channel.k8s.io"));
    let v4 = websocket("v4.channel.k8s.io");
    for (method, path, headers, code) in [
        ("POST", EXEC, "", 400),
        ("GET", EXEC, "Connection: Upgrade\r\nUpgrade: h2c\r\n", 400),
        ("GET", EXEC, "Connection: Upgrade\r\nUpgrade: websocket\r\n", 400),
        ("POST", "/exec/ns/p/c?command=x", SPDY, 400),
        ("GET", EXEC, v6.as_str(), 403),
        ("POST", "/exec/ns/q/c?output=1", SPDY, 404),
        ("POST", "/exec/ns/p/other/c?output=1", SPDY, 404),
        ("POST", "/exec/ns/p/w?output=1", SPDY, 500),
        ("GET", "/portForward/ns/p", v4.as_str(), 400),
        ("GET", "/portForward/ns/p?port=0", v4.as_str(), 400),
        ("PUT", EXEC, SPDY, 403),
        ("GET", "/run/ns/p/c?cmd=x", "", 405),
        ("GET", "/exec/ns/p/x?output=1", v5.as_str(), 500),
    ] {
        let (answer, _) = world.raw(method, path, headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{method} {path} {headers}: {answer}");
    }
    assert_eq!(world.bench.runtime.take_log(), [""; 0]);
    assert!(world.told.try_recv().is_err());
}

#[tokio::test]
async fn who_may_only_look_opens_nothing() {
    let world = world_of(&["alice get proxy"], "/exec/token", Duration::from_secs(3600)).await;
    for (method, headers) in [("GET", SPDY), ("POST", SPDY), ("GET", "")] {
        let (answer, _) = world.raw(method, EXEC, headers).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{method}: {answer}");
    }
    assert_eq!(world.bench.runtime.take_log(), [""; 0]);
}

#[tokio::test]
async fn what_the_runtime_refuses_is_told_and_no_redirection_is_followed() {
    for (path, code) in [("/refuses", 404), ("/moves", 500)] {
        let mut world = world(path).await;
        for headers in [SPDY.to_owned(), SPDY.replace("SPDY/3.1", "spdy/3.1")] {
            let (answer, _) = world.raw("POST", EXEC, &headers).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
            assert_eq!(world.told().await, format!("POST {path}"));
        }
        assert!(world.told.try_recv().is_err(), "asked once only");
    }
    // A place that is none.
    let world = world("/x").await;
    for url in ["", "https://127.0.0.1/", "unix:///x", "http://"] {
        world.bench.runtime.serve_streams(url);
        let (answer, _) = world.raw("POST", EXEC, SPDY).await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{url}: {answer}");
    }
}

#[tokio::test]
async fn when_one_end_is_gone_so_is_the_other() {
    // The client.
    let mut world = world("/exec/token").await;
    let socket = world.socket(EXEC, "v5.channel.k8s.io").await;
    drop(socket);
    world.over().await;
    // The runtime.
    let world = self::world("/dies").await;
    let mut socket = world.socket(EXEC, "v5.channel.k8s.io").await;
    socket.send(Message::Binary(Bytes::from_static(b"\0x"))).await.expect("sent");
    let said = rest(&mut socket).await;
    let (channel, account) = said.last().expect("an account");
    assert!(*channel == 3 && account.contains("\"reason\":\"InternalError\""), "{said:?}");
    // The kubelet.
    let mut world = self::world("/exec/token").await;
    let mut socket = world.socket(EXEC, "v5.channel.k8s.io").await;
    world.bench.server.stage.stop();
    while let Some(Ok(_)) = socket.next().await {}
    world.over().await;
}

/// What the kernel holds between two ends, several times over.
const HELD: usize = 64 << 20;

#[tokio::test]
async fn who_reads_slowly_slows_down_its_own_process_alone() {
    let world = world("/floods").await;
    let mut slow = world.socket(EXEC, "v5.channel.k8s.io").await;
    let clock = world.bench.server.clock.clone();
    let mut before = 0;
    let stands_still = async {
        loop {
            let now = FLOODED.load(Ordering::Relaxed);
            assert!(now < HELD, "{now} bytes are held for one who reads nothing");
            if now > 0 && now == before {
                break;
            }
            before = now;
            clock.sleep(Duration::from_millis(100)).await;
        }
    };
    clock.timeout(Duration::from_secs(60), stands_still).await.expect("it stands still");
    // Another client has what it asks for, and the slow one the rest when it reads again.
    let mut quick = world.socket(EXEC, "v5.channel.k8s.io").await;
    for socket in [&mut quick, &mut slow] {
        let mut got = 0;
        while got < 2 * before {
            got += socket.next().await.expect("more").expect("a message").into_data().len();
        }
    }
}

#[tokio::test]
async fn heads_that_are_too_large_open_nothing() {
    let mut world = world("/exec/token").await;
    let huge = format!("{SPDY}X-Large: {}\r\n", "x".repeat(128 << 10));
    let (answer, _) = world.raw("POST", EXEC, &huge).await;
    assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");
    assert_eq!(world.bench.runtime.take_log(), [""; 0]);
    assert!(world.told.try_recv().is_err());
}

#[tokio::test]
async fn a_stream_that_carries_nothing_ends() {
    let allowed = &["alice get proxy", "alice create proxy"];
    let mut world = world_of(allowed, "/exec/token", Duration::from_millis(20)).await;
    let mut socket = world.socket(EXEC, "v5.channel.k8s.io").await;
    let said = rest(&mut socket).await;
    assert!(said.last().is_some_and(|(channel, text)| *channel == 3 && text.contains("too long")), "{said:?}");
    let (_, mut io) = world.raw("POST", EXEC, SPDY).await;
    io.read_to_end(&mut Vec::new()).await.expect("it ends");
    world.over().await;
}

#[tokio::test]
async fn a_command_runs_and_its_output_is_the_answer() {
    let world = world("/x").await;
    let (answer, _) = world.raw("POST", "/run/ns/p/c?cmd=ls+-l%20%2F", "").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(world.bench.runtime.take_log(), ["exec cid ls -l /"]);
}
