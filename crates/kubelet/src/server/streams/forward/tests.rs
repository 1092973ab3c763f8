//! Sessions of port-forward, as clients speak them, to servers of this host.

use std::sync::Arc;

use stdx::clock::{ManualClock, RealClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Takes connections, and gives them away.
async fn listen() -> (u16, mpsc::Receiver<TcpStream>) {
    given(TcpListener::bind("127.0.0.1:0").await.expect("bound"))
}

/// The same of a pod for which the kernel holds little.
fn listen_without_room() -> (u16, mpsc::Receiver<TcpStream>) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(128 << 10).expect("set");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    given(socket.listen(16).expect("listens"))
}

fn given(listener: TcpListener) -> (u16, mpsc::Receiver<TcpStream>) {
    let port = listener.local_addr().expect("an address").port();
    let (give, taken) = mpsc::channel(MOST);
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            if give.send(io).await.is_err() {
                break;
            }
        }
    });
    (port, taken)
}

/// A port that nobody listens on.
async fn closed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    listener.local_addr().expect("an address").port()
}

fn begin_session(idle: Duration, clock: SharedClock) -> DuplexStream {
    let (near, far) = tokio::io::duplex(1 << 16);
    let to = To { network: Network::Node, pod: "web_ns".into(), uid: "u-1".into() };
    tokio::spawn(serve(Box::new(far), to, idle, clock));
    near
}

struct Client {
    reader: Reader,
    writer: Writer,
}

/// What a connection's client has heard.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    data: Vec<u8>,
    error: String,
    /// The server has broken the stream of data.
    reset: bool,
}

impl Client {
    async fn new() -> Self {
        Self::over(begin_session(Duration::from_secs(3600), RealClock::shared())).await
    }

    async fn over(io: DuplexStream) -> Self {
        let (reader, writer) = session::begin(Box::new(io), Side::Client).await.expect("begun");
        Self { reader, writer }
    }

    async fn stream(&mut self, headers: &[(&str, &str)]) -> (Id, bool) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let id = self.writer.open(headers).await.expect("opened");
        match self.reader.next().await.expect("whole").expect("more") {
            Event::Replied { id: of } if of == id => (id, true),
            Event::Reset { id: of, .. } if of == id => (id, false),
            other => panic!("{other:?}"),
        }
    }

    /// Both streams of a connection: that of data, and that of errors.
    async fn connect(&mut self, port: u16, request: &str) -> (Id, Id) {
        let port = port.to_string();
        let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestID", request)];
        let (error, taken) = self.stream(&headers("error")).await;
        assert!(taken);
        self.writer.finish(error).await.expect("sent");
        let (data, taken) = self.stream(&headers("data")).await;
        assert!(taken);
        (data, error)
    }

    /// What is said on a connection until it has ended.
    async fn until_the_end(&mut self, (data, error): (Id, Id)) -> Heard {
        let (mut heard, mut open) = (Heard::default(), 2);
        while open > 0 {
            match self.reader.next().await.expect("whole").expect("more") {
                Event::Data { id, bytes } if id == data => heard.data.extend_from_slice(&bytes),
                Event::Data { id, bytes } if id == error => heard.error.push_str(&String::from_utf8_lossy(&bytes)),
                Event::Finished { id } if id == data || id == error => open -= 1,
                Event::Reset { id, .. } if id == data => {
                    heard.reset = true;
                    open -= 1;
                }
                other => panic!("{other:?}"),
            }
        }
        heard
    }
}

#[tokio::test]
async fn both_directions_carry_much_and_end_by_themselves() {
    const MUCH: usize = 8 << 20;
    let (port, mut taken) = listen().await;
    let mut client = Client::new().await;
    let ids = client.connect(port, "0").await;
    let mut pod = taken.recv().await.expect("a connection");
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = pod.split();
        let copied = tokio::io::copy(&mut read, &mut write).await.expect("copied");
        // Only now: the client's direction has ended, and this one has not.
        write.write_all(b"the end").await.expect("written");
        copied
    });
    let (writer, sent) = (client.writer.clone(), Bytes::from_iter((0..MUCH).map(|n| (n % 251) as u8)));
    let said = sent.clone();
    let saying = tokio::spawn(async move {
        writer.data(ids.0, said).await.expect("sent");
        writer.finish(ids.0).await.expect("sent");
    });
    let heard = client.until_the_end(ids).await;
    saying.await.expect("ran");
    assert_eq!(echo.await.expect("ran"), MUCH as u64);
    assert!(heard.data == [&sent[..], b"the end"].concat() && heard.error.is_empty() && !heard.reset);
}

#[tokio::test]
async fn one_connection_that_ends_touches_no_other() {
    let (port, mut taken) = listen().await;
    let mut client = Client::new().await;
    let kept = client.connect(port, "kept").await;
    let mut pod = taken.recv().await.expect("a connection");
    // Nobody listens.
    let nobody = closed().await;
    let ids = client.connect(nobody, "nobody").await;
    let heard = client.until_the_end(ids).await;
    let told =
        format!("error forwarding port {nobody} to pod web_ns, uid u-1: failed to connect to localhost:{nobody}");
    assert!(heard.error.starts_with(&told) && heard.error.contains("connection refused"), "{heard:?}");
    // The pod breaks it.
    let ids = client.connect(port, "broken").await;
    let broken = taken.recv().await.expect("a connection");
    broken.set_zero_linger().expect("set");
    drop(broken);
    assert_eq!(client.until_the_end(ids).await, Heard { reset: true, ..Heard::default() });
    // The client gives it up: the pod's end is closed, and that is all.
    let ids = client.connect(port, "given up").await;
    let mut given_up = taken.recv().await.expect("a connection");
    client.writer.reset(ids.0).await.expect("sent");
    assert_eq!(given_up.read(&mut [0; 8]).await.expect("read"), 0);
    match client.reader.next().await.expect("whole").expect("more") {
        Event::Finished { id } if id == ids.1 => {}
        other => panic!("{other:?}"),
    }
    // The first one is as it was.
    client.writer.data(kept.0, Bytes::from_static(b"still")).await.expect("sent");
    let mut heard = [0; 5];
    pod.read_exact(&mut heard).await.expect("read");
    pod.write_all(&heard).await.expect("written");
    drop(pod);
    assert_eq!(client.until_the_end(kept).await, Heard { data: b"still".to_vec(), ..Heard::default() });
}

#[tokio::test]
async fn when_the_client_is_gone_so_are_its_connections() {
    let (port, mut taken) = listen().await;
    let mut client = Client::new().await;
    client.connect(port, "0").await;
    let mut pod = taken.recv().await.expect("a connection");
    drop(client);
    assert_eq!(pod.read(&mut [0; 8]).await.expect("read"), 0);
}

#[tokio::test]
async fn a_client_that_is_gone_while_a_pod_takes_nothing_is_noticed() {
    let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
    let io = begin_session(Duration::from_secs(3600), Arc::new(clock.clone()));
    let (port, mut taken) = listen().await;
    let mut client = Client::over(io).await;
    let (data, _) = client.connect(port, "0").await;
    let mut pod = taken.recv().await.expect("a connection");
    // More than the kernel and the session hold.
    let Client { mut reader, writer } = client;
    let listening = tokio::spawn(async move { while let Ok(Some(_)) = reader.next().await {} });
    let saying = tokio::spawn(async move { while writer.data(data, vec![7; 1 << 20].into()).await.is_ok() {} });
    // Until it does nothing but wait for the time to ask.
    let mut turns = 0;
    while turns < 1000 {
        tokio::task::yield_now().await;
        let waits = clock.next_timer() == Some(Instant::default() + ASK);
        turns = if waits { turns + 1 } else { 0 };
    }
    for task in [saying, listening] {
        task.abort();
        drop(task.await);
    }
    clock.advance(ASK);
    let mut all = Vec::new();
    // In order or not: it ends.
    drop(pod.read_to_end(&mut all).await);
    assert!(!all.is_empty());
}

#[tokio::test]
async fn a_pod_that_takes_nothing_holds_nobody_up_while_there_is_room() {
    let (port, mut taken) = listen_without_room();
    let mut client = Client::new().await;
    let deaf = client.connect(port, "deaf").await;
    let mut deaf_pod = taken.recv().await.expect("a connection");
    // More than one pod's share was, and less than may wait, small pieces counted; then a word at a time.
    let much = (ROOM / 8 * 7) as usize;
    let writer = client.writer.clone();
    let saying = async move {
        writer.data(deaf.0, vec![7; much].into()).await.expect("sent");
        for word in 0..32_u8 {
            writer.data(deaf.0, Bytes::from(vec![word])).await.expect("sent");
        }
        writer.finish(deaf.0).await.expect("sent");
    };
    // Who says much listens meanwhile.
    tokio::select! {
        () = saying => {}
        heard = client.reader.next() => panic!("{heard:?}"),
    }
    // Only now does another come.
    let other = client.connect(port, "other").await;
    let mut other_pod = taken.recv().await.expect("a connection");
    client.writer.data(other.0, Bytes::from_static(b"hello")).await.expect("sent");
    let mut heard = [0; 5];
    other_pod.read_exact(&mut heard).await.expect("read");
    other_pod.write_all(&heard).await.expect("written");
    drop(other_pod);
    assert_eq!(client.until_the_end(other).await, Heard { data: b"hello".to_vec(), ..Heard::default() });
    // And nothing is lost of what waited.
    let mut all = Vec::new();
    deaf_pod.read_to_end(&mut all).await.expect("in order");
    let words: Vec<u8> = (0..32).collect();
    assert!(all.len() == much + 32 && all.ends_with(&words) && all.starts_with(&[7; 1000]), "{}", all.len());
    drop(deaf_pod);
    assert_eq!(client.until_the_end(deaf).await, Heard::default());
}

#[tokio::test]
async fn the_last_words_of_a_client_arrive() {
    let (port, mut taken) = listen().await;
    let mut client = Client::new().await;
    let (data, _) = client.connect(port, "0").await;
    let mut pod = taken.recv().await.expect("a connection");
    let Client { mut reader, writer } = client;
    let listening = tokio::spawn(async move { while let Ok(Some(_)) = reader.next().await {} });
    writer.data(data, vec![7; 900 << 10].into()).await.expect("sent");
    writer.finish(data).await.expect("sent");
    listening.abort();
    drop((listening.await, writer));
    let mut all = Vec::new();
    pod.read_to_end(&mut all).await.expect("in order");
    assert_eq!(all.len(), 900 << 10);
}

#[tokio::test]
async fn what_waits_for_pods_is_bounded() {
    let (near, _far) = tokio::io::duplex(1000);
    let (_reader, writer) = session::begin(Box::new(near), Side::Server).await.expect("begun");
    let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
    let session = Session {
        to: Arc::new(To { network: Network::Node, pod: String::new(), uid: String::new() }),
        writer,
        clock: Arc::new(clock),
        activity: Arc::default(),
        requests: BTreeMap::new(),
        open: BTreeMap::new(),
        tasks: JoinSet::new(),
        room: Arc::new(Semaphore::new(ROOM as usize)),
    };
    // One pod that takes nothing may have all of it, and so may many.
    for count in [1, 1000] {
        let pods: Vec<_> = (0..count).map(|_| mpsc::channel(PIECES)).collect();
        let mut passed = 0;
        for (input, _) in pods.iter().cycle().take(1000) {
            let piece = Bytes::from(vec![1; 32 << 10]);
            if futures::FutureExt::now_or_never(session.pass(input, piece)).is_none() {
                break;
            }
            passed += 32 << 10;
            // A task may do so much in a turn, and this test does more.
            tokio::task::yield_now().await;
        }
        assert_eq!(passed, ROOM as usize, "{count}");
        // What a pod takes, or leaves for ever, makes room.
        drop(pods);
        assert_eq!(session.room.available_permits(), ROOM as usize);
    }
}

#[tokio::test]
async fn half_a_request_is_given_up() {
    let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
    let mut client = Client::over(begin_session(Duration::from_secs(3600), Arc::new(clock.clone()))).await;
    let (id, taken) = client.stream(&[("streamtype", "error"), ("port", "80"), ("requestid", "7")]).await;
    assert!(taken);
    clock.advance(WAIT);
    assert!(matches!(client.reader.next().await, Ok(Some(Event::Reset { id: of, .. })) if of == id));
    // Its other half comes too late, and waits for its own.
    let (data, taken) = client.stream(&[("streamtype", "data"), ("port", "80"), ("requestid", "7")]).await;
    assert!(taken);
    client.writer.reset(data).await.expect("sent");
}

#[tokio::test]
async fn no_more_than_a_bound_at_once() {
    let mut client = Client::new().await;
    let mut first = None;
    for n in 0..MOST {
        let request = n.to_string();
        let (id, taken) = client.stream(&[("streamtype", "error"), ("port", "80"), ("requestid", &request)]).await;
        assert!(taken, "{n}");
        first.get_or_insert(id);
    }
    let more = [("streamtype", "error"), ("port", "80"), ("requestid", "more")];
    assert!(!client.stream(&more).await.1);
    client.writer.reset(first.expect("one")).await.expect("sent");
    assert!(client.stream(&more).await.1);
}

#[tokio::test]
async fn streams_that_make_no_sense_are_refused() {
    let mut client = Client::new().await;
    for headers in [
        &[][..],
        &[("streamtype", "data")],
        &[("streamtype", "data"), ("port", "0")],
        &[("streamtype", "data"), ("port", "65536")],
        &[("streamtype", "data"), ("port", "http")],
        &[("streamtype", "input"), ("port", "80")],
        &[("port", "80")],
    ] {
        assert!(!client.stream(headers).await.1, "{headers:?}");
    }
    let twice = [("streamtype", "error"), ("port", "80"), ("requestid", "1")];
    assert!(client.stream(&twice).await.1);
    assert!(!client.stream(&twice).await.1);
}

#[test]
fn which_request_a_stream_is_of() {
    let headers = |pairs: &[(&str, &str)]| -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    for (id, pairs, want) in [
        (5, &[("StreamType", "data"), ("Port", "80"), ("RequestID", "a")][..], Some((Kind::Data, 80, "a"))),
        (5, &[("streamtype", "error"), ("port", "443")], Some((Kind::Error, 443, "5"))),
        (7, &[("streamtype", "data"), ("port", "443"), ("requestid", "")], Some((Kind::Data, 443, "5"))),
        (1, &[("streamtype", "data"), ("port", "-1")], None),
    ] {
        let want = want.map(|(kind, port, request)| Asked { kind, port, request: request.to_owned() });
        assert_eq!(Asked::read(id, &headers(pairs)), want, "{pairs:?}");
    }
}
