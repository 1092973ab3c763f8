//! Asking others, over loopback, of servers that do well and of such as mean harm.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use stdx::clock::{ManualClock, RealClock};
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::wire::{Query, Record, encode, kind};
use crate::zone::tests_text as text;

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// What a server saw: `udp a.org. 1`, and `edns` where it came with it.
type Asked = Arc<Mutex<Vec<String>>>;

/// A server on loopback. `says` gets a question, whether it came over TCP, and which one it is; it gives messages.
pub struct Fake {
    pub address: SocketAddr,
    pub asked: Asked,
}

impl Fake {
    pub async fn start(
        stage: &Stage,
        says: impl Fn(&Query<'_>, bool, usize) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        // A port that is free for both.
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("an address")).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().expect("an address");
        let (asked, says): (Asked, _) = (Arc::default(), Arc::new(says));
        let note = |asked: &Asked, query: &Query<'_>, way: &str| {
            let edns = if query.edns.is_some() { " edns" } else { "" };
            let mut asked = asked.lock();
            asked.push(format!("{way} {} {}{edns}", query.name.name(), query.kind));
            asked.len()
        };
        let (seen, answers) = (asked.clone(), says.clone());
        stage.run(async move {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                let query = Query::read(&buffer[..length]).expect("a question");
                let count = note(&seen, &query, "udp");
                for message in answers(&query, false, count) {
                    udp.send_to(&message, from).await.expect("sent");
                }
            }
        });
        let seen = asked.clone();
        stage.run(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let length = stream.read_u16().await.expect("a length");
                let mut message = vec![0; length.into()];
                stream.read_exact(&mut message).await.expect("a question");
                let query = Query::read(&message).expect("a question");
                let count = note(&seen, &query, "tcp");
                for message in says(&query, true, count) {
                    stream.write_u16(u16::try_from(message.len()).expect("short")).await.expect("written");
                    stream.write_all(&message).await.expect("written");
                }
            }
        });
        Self { address, asked }
    }

    /// One that answers every question with this address, and may be kept for 60 seconds.
    pub async fn of(stage: &Stage, ip: [u8; 4]) -> Self {
        Self::start(stage, move |query, _, _| vec![answer(query, ip)]).await
    }

    /// What it was asked, without looking for loops.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().iter().filter(|line| !line.ends_with(" 13")).cloned().collect()
    }
}

pub fn answer(query: &Query<'_>, ip: [u8; 4]) -> Vec<u8> {
    let mut out = Vec::new();
    let answers = vec![Record::address(query.name.name(), 60, ip.into())];
    encode(query, &Reply { answers, ..Reply::default() }, 1232, &mut out);
    out
}

/// A port where nobody is.
async fn closed() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    socket.local_addr().expect("an address")
}

pub fn forwarder(stage: &Stage, servers: &[SocketAddr], stubs: &[(&str, SocketAddr)]) -> Forwarder {
    counting(stage, servers, stubs, Arc::new(Metrics::new(&Registry::default(), "cluster.local.")))
}

pub fn counting(
    stage: &Stage,
    servers: &[SocketAddr],
    stubs: &[(&str, SocketAddr)],
    metrics: Arc<Metrics>,
) -> Forwarder {
    let stubs: BTreeMap<_, _> = stubs.iter().map(|(domain, to)| ((*domain).to_owned(), vec![*to])).collect();
    let source = Source::new(servers.to_vec(), stubs, "/dev/null".into(), Vec::new);
    Forwarder::start(source, Bounds::default(), metrics, RealClock::shared(), Rng::seeded(1), stage)
}

fn question(text: &str) -> Question {
    Question { name: name(text), kind: kind::A, signatures: false, unchecked: false }
}

async fn told(forwarder: &Forwarder, text_of: &str) -> String {
    let reply = forwarder.resolve(&question(text_of)).await;
    let records: Vec<String> = reply.answers.iter().map(text).collect();
    if records.is_empty() { rcode::text(reply.code).to_owned() } else { records.join(", ") }
}

#[tokio::test]
async fn answers_are_kept() {
    let stage = Stage::new();
    let fake = Fake::of(&stage, [1, 1, 1, 1]).await;
    let forwarder = forwarder(&stage, &[fake.address], &[]);
    assert!(forwarder.known(&question("a.org")).is_none());
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    let known = forwarder.known(&question("a.org")).expect("kept");
    assert!((1..=30).contains(&known.answers[0].ttl) && !known.authoritative, "{known:?}");
    assert_eq!(fake.asked(), ["udp a.org. 1 edns"]);
    assert!(forwarder.known(&Question { signatures: true, ..question("a.org") }).is_none(), "another question");
}

#[tokio::test]
async fn guesses_are_not_believed() {
    let stage = Stage::new();
    let fake = Fake::start(&stage, |query, _, _| {
        let (mut id, mut other, right) =
            (answer(query, [6, 6, 6, 6]), answer(query, [6, 6, 6, 6]), answer(query, [1, 1, 1, 1]));
        id[0] ^= 1;
        other[13] ^= 1;
        let asked = [right[..12].to_vec(), vec![]].concat();
        vec![id, other, asked, vec![0; 3], right]
    })
    .await;
    let forwarder = forwarder(&stage, &[fake.address], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    // Somebody who guesses all the time gets nowhere, and nothing is kept of it.
    let fake = Fake::start(&stage, |query, _, _| {
        let wrong = |n: u8| {
            let mut message = answer(query, [6, 6, 6, 6]);
            message[1] ^= n;
            message
        };
        (1..=40).map(wrong).collect()
    })
    .await;
    let forwarder = super::tests::forwarder(&stage, &[fake.address], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "SERVFAIL");
    assert!(forwarder.known(&question("a.org")).is_none());
}

#[tokio::test]
async fn what_is_too_long_is_asked_for_over_tcp() {
    let stage = Stage::new();
    let fake = Fake::start(&stage, |query, tcp, _| {
        let mut message = answer(query, [1, 1, 1, 1]);
        if !tcp {
            message[2] |= 2;
        }
        vec![message]
    })
    .await;
    let forwarder = forwarder(&stage, &[fake.address], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    assert_eq!(fake.asked(), ["udp a.org. 1 edns", "tcp a.org. 1 edns"]);
}

#[tokio::test]
async fn who_knows_no_extensions_is_asked_without() {
    let stage = Stage::new();
    let fake = Fake::start(&stage, |query, _, _| {
        let mut out = Vec::new();
        encode(query, &Reply::code(rcode::FORMERR), 1232, &mut out);
        vec![if query.edns.is_some() { out } else { answer(query, [1, 1, 1, 1]) }]
    })
    .await;
    let forwarder = forwarder(&stage, &[fake.address], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    // One that does not even repeat the question.
    let fake = Fake::start(&stage, |query, _, _| {
        let mut out = Vec::new();
        encode(query, &Reply::code(rcode::FORMERR), 1232, &mut out);
        out.truncate(12);
        out[4..].fill(0);
        vec![if query.edns.is_some() { out } else { answer(query, [1, 1, 1, 1]) }]
    })
    .await;
    let forwarder = super::tests::forwarder(&stage, &[fake.address], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
}

#[tokio::test]
async fn a_question_flies_once() {
    let stage = Stage::new();
    let (open, gate) = tokio::sync::watch::channel(false);
    let fake = Fake::of(&stage, [1, 1, 1, 1]).await;
    // What is held up in between is a server that passes on.
    let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let (address, to, mut opened) = (udp.local_addr().expect("an address"), fake.address, gate.clone());
    stage.run(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
            opened.wait_for(|open| *open).await.expect("a gate");
            let other = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            other.send_to(&buffer[..length], to).await.expect("sent");
            let length = other.recv(&mut buffer).await.expect("an answer");
            udp.send_to(&buffer[..length], from).await.expect("sent");
        }
    });
    let forwarder = forwarder(&stage, &[address], &[]);
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let forwarder = forwarder.clone();
            tokio::spawn(async move { told(&forwarder, "a.org").await })
        })
        .collect();
    // All of them wait before the first is answered: each has taken its turn, and none has ended.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert!(asking.iter().all(|one| !one.is_finished()));
    open.send_replace(true);
    for one in asking {
        assert_eq!(one.await.expect("asked"), "a.org. A 1.1.1.1");
    }
    assert_eq!(fake.asked(), ["udp a.org. 1 edns"]);
    assert!(forwarder.shared.flights.lock().is_empty());
}

#[tokio::test]
async fn another_one_is_asked_when_one_is_gone() {
    let stage = Stage::new();
    let (gone, fake) = (closed().await, Fake::of(&stage, [1, 1, 1, 1]).await);
    let forwarder = forwarder(&stage, &[gone, fake.address], &[]);
    for n in 0..4 {
        assert_eq!(told(&forwarder, &format!("n{n}.org")).await, format!("n{n}.org. A 1.1.1.1"));
    }
    let routes = forwarder.routes();
    while routes.all().next().is_some_and(|server| server.is_up()) {
        forwarder.shared.clock.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(routes.all().map(|server| server.is_up()).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn with_nobody_to_ask_the_answer_comes_at_once() {
    let stage = Stage::new();
    let none = forwarder(&stage, &[], &[]);
    assert_eq!(told(&none, "a.org").await, "SERVFAIL");
    let gone = closed().await;
    let forwarder = forwarder(&stage, &[gone], &[]);
    assert_eq!(told(&forwarder, "a.org").await, "SERVFAIL");
    assert!(forwarder.known(&question("a.org")).is_none(), "that somebody is gone is not kept");
    // It is asked again, by itself, until it is back.
    let udp = UdpSocket::bind(gone).await.expect("the same port");
    let mut buffer = [0; 512];
    let (length, from) = udp.recv_from(&mut buffer).await.expect("asked");
    udp.send_to(&answer(&Query::read(&buffer[..length]).expect("a question"), [1, 1, 1, 1]), from).await.expect("sent");
    let server = forwarder.routes().all().next().cloned().expect("a server");
    while !server.is_up() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stub_domain_has_servers_of_its_own() {
    let stage = Stage::new();
    let (usual, own) = (Fake::of(&stage, [1, 1, 1, 1]).await, Fake::of(&stage, [2, 2, 2, 2]).await);
    let forwarder = forwarder(&stage, &[usual.address], &[("acme.local", own.address)]);
    assert_eq!(told(&forwarder, "web.acme.local").await, "web.acme.local. A 2.2.2.2");
    assert_eq!(told(&forwarder, "web.acme.org").await, "web.acme.org. A 1.1.1.1");
    assert_eq!((own.asked().len(), usual.asked().len()), (1, 1));
}

#[tokio::test]
async fn a_server_that_asks_us_is_found_out() {
    let stage = Stage::new();
    let (fake, other) = (Fake::of(&stage, [1, 1, 1, 1]).await, Fake::of(&stage, [2, 2, 2, 2]).await);
    let forwarder = forwarder(&stage, &[fake.address, other.address], &[]);
    // It is asked for a name that nobody has.
    let probe = loop {
        if let Some(line) = fake.asked.lock().iter().find(|line| line.ends_with(" 13")) {
            break name(line.split(' ').nth(1).expect("a name"));
        }
        tokio::task::yield_now().await;
    };
    assert!(!forwarder.is_own_probe(&name("a.org")));
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    assert!(forwarder.is_own_probe(&probe), "and here the name comes again");
    assert_eq!(told(&forwarder, "b.org").await, "b.org. A 2.2.2.2");
    // It is tried again, and as nothing comes here then it is asked as before.
    forwarder.look_again();
    let server = forwarder.routes().all().next().cloned().expect("a server");
    while !server.is_up() {
        tokio::task::yield_now().await;
    }
    assert_eq!(told(&forwarder, "c.org").await, "c.org. A 1.1.1.1");
}

/// How often a server was asked whether it asks us.
fn proofs(fake: &Fake) -> usize {
    fake.asked.lock().iter().filter(|line| line.ends_with(" 13")).count()
}

#[tokio::test]
async fn loops_are_looked_for_again_now_and_then_and_when_a_server_is_back() {
    let (stage, clock) = (Stage::new(), ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
    let fake = Fake::of(&stage, [1, 1, 1, 1]).await;
    let (source, metrics) = (
        Source::new(vec![fake.address], BTreeMap::new(), "/dev/null".into(), Vec::new),
        Arc::new(Metrics::new(&Registry::default(), "cluster.local.")),
    );
    let forwarder =
        Forwarder::start(source, Bounds::default(), metrics, Arc::new(clock.clone()), Rng::seeded(1), &stage);
    let seen = async |count| {
        while proofs(&fake) < count {
            tokio::task::yield_now().await;
        }
    };
    seen(1).await;
    let server = forwarder.routes().all().next().cloned().expect("a server");
    // Who looks after servers is well after a second.
    clock.advance(Duration::from_secs(1));
    // Its answer has been heard of, and everybody waits, for nothing but the time.
    while clock.next_timer() != Some(stdx::clock::Instant(Duration::from_secs(60))) {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(60));
    seen(2).await;
    // Both of its answers came; two failures later it is down, and with its next answer back.
    assert!(!server.failed() && server.failed() && server.is_down());
    assert_eq!(told(&forwarder, "a.org").await, "a.org. A 1.1.1.1");
    assert!(server.is_up());
    seen(3).await;
}

#[tokio::test]
async fn too_much_at_once_is_refused() {
    let stage = Stage::new();
    // A server that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let forwarder = forwarder(&stage, &[silent.local_addr().expect("an address")], &[]);
    let (_told, flight) = tokio::sync::watch::channel(None);
    for n in 0..FLIGHTS {
        forwarder.shared.flights.lock().insert(question(&format!("n{n}.org")), flight.clone());
    }
    assert_eq!(told(&forwarder, "one.more").await, "REFUSED");
}
