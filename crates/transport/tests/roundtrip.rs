//! A server and a client over real TLS on loopback: both protocols, client certificates, bounds,
//! replaced certificates, an orderly end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use rustls::server::ResolvesServerCert;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use transport::dial::{Https, Target};
use transport::files::FileIdentity;
use transport::serve::{Limits, Peer, serve};
use transport::tls::{self, Identity};
use transport::trust::Trust;
use transport::{Error, Handler, Request, Responding};

/// Answers with what it saw: version, path, how many certificates; streams the body back.
struct Echo;

impl Handler for Echo {
    fn call(&self, request: Request) -> Responding {
        Box::pin(async move {
            let peer = request.extensions().get::<Peer>().expect("peer").clone();
            let seen = format!("{:?} {} {}", request.version(), request.uri().path(), peer.certificates.len());
            let mut response = http::Response::new(request.into_body());
            response.headers_mut().insert("seen", seen.parse().expect("header"));
            let shown =
                peer.certificates.first().map_or(0, |c| c.iter().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(*b)));
            response.headers_mut().insert("shown", shown.to_string().parse().expect("header"));
            Ok(response)
        })
    }
}

struct Made {
    ca: String,
    chain: String,
    key: String,
}

fn made(name: &str) -> Made {
    let key = rcgen::KeyPair::generate().expect("key");
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
    let certificate = params.self_signed(&key).expect("certificate");
    Made { ca: certificate.pem(), chain: certificate.pem(), key: key.serialize_pem() }
}

fn identity(made: &Made) -> Arc<Identity> {
    Identity::from_pem(made.chain.as_bytes(), made.key.as_bytes()).expect("identity")
}

struct Server {
    address: String,
    clock: SharedClock,
    stage: Stage,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn start(identity: Arc<dyn ResolvesServerCert>, limits: Limits) -> Server {
    let clock = RealClock::shared();
    let stage = Stage::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let config = tls::server(&clock, identity).expect("config");
    let (served, until) = (clock.clone(), stage.clone());
    let ended = tokio::spawn(async move { serve(listener, config, Arc::new(Echo), limits, served, &until).await });
    Server { address, clock, stage, ended }
}

impl Server {
    fn target(&self, name: &str) -> Target {
        Target { address: self.address.clone(), server_name: name.to_owned() }
    }
}

fn post(path: &str, body: &'static str) -> Request {
    http::Request::post(path).body(transport::full(body)).expect("request")
}

#[tokio::test]
async fn both_protocols_with_and_without_a_client_certificate() {
    let (server_made, client_made) = (made("node-1"), made("someone"));
    let server = start(identity(&server_made), Limits::default()).await;
    let roots = tls::roots(server_made.ca.as_bytes()).expect("roots");
    let plain = tls::client(&server.clock, roots.clone(), None).expect("client");
    let with = tls::client(&server.clock, roots, Some(identity(&client_made))).expect("client");
    let h2 = Https::new(&server.target("node-1"), &plain, &server.clock).expect("dial");
    let h1 = Https::http1(&server.target("node-1"), &with, &server.clock).expect("dial");
    for (client, want) in [(&h2, "HTTP/2.0 /a 0"), (&h1, "HTTP/1.1 /a 1"), (&h2, "HTTP/2.0 /a 0")] {
        let response = client.call(post("/a?x=1", "hello")).await.expect("response");
        assert_eq!(response.headers()["seen"], want);
        assert_eq!(response.into_body().collect().await.expect("body").to_bytes(), "hello");
    }
    server.stage.stop();
    server.ended.await.expect("joins").expect("ends");
    let refused = h1.call(post("/a", "")).await.expect_err("the server is gone");
    assert!(matches!(refused, Error::Connect(_) | Error::Broken(_)), "{refused}");
}

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_not_spoken_to() {
    let (server_made, other) = (made("node-1"), made("node-1"));
    let server = start(identity(&server_made), Limits::default()).await;
    for (ca, name) in [(&other.ca, "node-1"), (&server_made.ca, "node-2")] {
        let config = tls::client(&server.clock, tls::roots(ca.as_bytes()).expect("roots"), None).expect("client");
        let client = Https::new(&server.target(name), &config, &server.clock).expect("dial");
        let error = client.call(post("/", "")).await.expect_err("refused");
        assert!(matches!(error, Error::Connect(_)), "{error}");
    }
    server.stage.stop();
}

/// What cannot be read takes the belief from nothing else, and is not believed.
#[test]
fn a_bundle_is_believed_as_far_as_it_can_be_read() {
    let (one, two) = (made("one").ca, made("two").ca);
    let (begin, end) = ("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n");
    let no_certificate = format!("{begin}AAEC\n{end}");
    let no_text = format!("{begin}?*!\n{end}");
    let cut = &two[..two.len() / 2];
    let other = "-----BEGIN PRIVATE KEY-----\nAAEC\n-----END PRIVATE KEY-----\n";
    for (bundle, want) in [
        (one.clone(), 1),
        (format!("{one}{two}"), 2),
        (format!("words\n{one}{no_certificate}{two}"), 2),
        (format!("{no_text}{one}{other}{two}"), 2),
        (format!("{cut}\n{one}"), 1),
        (format!("{one}{cut}"), 1),
    ] {
        assert_eq!(tls::roots(bundle.as_bytes()).map(|roots| roots.len()).ok(), Some(want), "{bundle}");
    }
    for nothing in ["", "words", other, &no_certificate, &no_text, cut] {
        tls::roots(nothing.as_bytes()).expect_err(nothing);
    }
    // Where it says who may ask, a bundle is whole or not believed.
    for bundle in [format!("{one}{no_certificate}"), format!("{one}{no_text}"), format!("{one}{cut}")] {
        tls::all_roots(bundle.as_bytes()).expect_err(&bundle);
    }
}

#[tokio::test]
async fn a_replaced_certificate_serves_new_connections() {
    let (old, new) = (made("one"), made("two"));
    let served = identity(&old);
    let server = start(served.clone(), Limits::default()).await;
    served.replace(b"not a certificate", b"").expect_err("nonsense is refused");
    served.replace(new.chain.as_bytes(), new.key.as_bytes()).expect("replaced");
    let config = tls::client(&server.clock, tls::roots(new.ca.as_bytes()).expect("roots"), None).expect("client");
    let client = Https::new(&server.target("two"), &config, &server.clock).expect("dial");
    client.call(post("/", "")).await.expect("the new certificate is shown");
    server.stage.stop();
}

/// Writes a pair as a tool that renews certificates does: each file replaced, the key last.
fn write(folder: &Path, made: &Made) {
    for (name, text) in [("tls.crt", &made.chain), ("tls.key", &made.key)] {
        std::fs::write(folder.join("aside"), text).expect("written");
        std::fs::rename(folder.join("aside"), folder.join(name)).expect("replaced");
    }
}

fn in_files(folder: &Path) -> Arc<FileIdentity> {
    FileIdentity::pair(&folder.join("tls.crt"), &folder.join("tls.key")).expect("identity")
}

#[tokio::test]
async fn certificates_in_files_are_read_again_when_they_change() {
    let (old, new) = (made("one"), made("two"));
    let (serving, showing) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    write(serving.path(), &old);
    write(showing.path(), &made("client"));
    let server = start(in_files(serving.path()), Limits::default()).await;
    let believed = showing.path().join("ca.crt");
    std::fs::write(&believed, &old.ca).expect("written");
    let (identity, trust) = (in_files(showing.path()), Trust::file(&believed).expect("authorities"));
    let config = tls::client(&server.clock, trust.clone(), Some(identity.clone())).expect("client");
    let dial = |name: &str| Https::new(&server.target(name), &config, &server.clock).expect("dial");
    let client = dial("one").redialling(Some(identity.clone()), trust.clone());
    let shown = async |client: &Https| {
        let response = client.call(post("/", "")).await.expect("served");
        response.headers()["shown"].to_str().expect("text").to_owned()
    };
    let first = shown(&client).await;
    assert_eq!(shown(&client).await, first);

    // Half of a change is none.
    std::fs::write(showing.path().join("tls.crt"), &new.chain).expect("written");
    assert_eq!(shown(&client).await, first);
    write(showing.path(), &made("client"));
    let second = shown(&client).await;
    assert_ne!(second, first, "the connection still speaks for the old certificate");

    // New connections to the server are shown its new certificate, of an authority that is believed
    // once its file says so, and nonsense in that file changes nothing.
    write(serving.path(), &new);
    let other = dial("two").redialling(Some(identity.clone()), trust.clone());
    assert!(other.call(post("/", "")).await.is_err(), "an authority is believed that nobody named");
    std::fs::write(&believed, [old.ca.as_bytes(), new.ca.as_bytes()].concat()).expect("written");
    assert_eq!(shown(&other).await, second);
    std::fs::write(&believed, "nonsense").expect("written");
    assert_eq!(shown(&dial("two").redialling(Some(identity.clone()), trust.clone())).await, second);
    // One that is taken out is believed no more, also by who is connected.
    std::fs::write(&believed, &old.ca).expect("written");
    assert!(other.call(post("/", "")).await.is_err(), "an authority is believed that was taken out");
    server.stage.stop();
}

#[tokio::test]
async fn a_client_that_says_nothing_is_closed_and_frees_its_slot() {
    let made = made("slow");
    let limits = Limits { connections: 1, handshake: Duration::from_millis(50), ..Limits::default() };
    let server = start(identity(&made), limits).await;
    let mut silent = TcpStream::connect(&server.address).await.expect("connects");
    let config = tls::client(&server.clock, tls::roots(made.ca.as_bytes()).expect("roots"), None).expect("client");
    let client = Https::new(&server.target("slow"), &config, &server.clock).expect("dial");
    client.call(post("/", "")).await.expect("served after the silent one was closed");
    let mut buffer = [0u8; 64];
    let read = server.clock.timeout(Duration::from_secs(5), silent.read(&mut buffer)).await.expect("closed in time");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    server.stage.stop();
}
