//! What an authority issued, met in TLS handshakes between two ends in memory.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use pki::{Authority, Facts, Keeper, Request};
use rustls::client::ResolvesClientCert;
use rustls::{ClientConfig, ServerConfig};
use stdx::SharedClock;
use stdx::clock::ManualClock;
use transport::tls;

/// Runs a handshake between two ends in memory and one message each way.
fn meet(server: ServerConfig, client: ClientConfig, name: &str) -> Result<Option<String>, String> {
    let mut server = rustls::ServerConnection::new(Arc::new(server)).map_err(|e| e.to_string())?;
    let name = name.to_owned().try_into().map_err(|_| "bad name".to_owned())?;
    let mut client = rustls::ClientConnection::new(Arc::new(client), name).map_err(|e| e.to_string())?;
    client.writer().write_all(b"ping").map_err(|e| e.to_string())?;
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).map_err(|e| e.to_string())?;
        }
        server.read_tls(&mut wire.as_slice()).map_err(|e| e.to_string())?;
        server.process_new_packets().map_err(|e| format!("server: {e}"))?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).map_err(|e| e.to_string())?;
        }
        client.read_tls(&mut wire.as_slice()).map_err(|e| e.to_string())?;
        client.process_new_packets().map_err(|e| format!("client: {e}"))?;
    }
    let mut seen = [0; 4];
    server.reader().read_exact(&mut seen).map_err(|e| e.to_string())?;
    let peer = server.peer_certificates().and_then(|c| c.first()).map(|c| Facts::of(c));
    Ok(peer.transpose().map_err(|e| e.to_string())?.map(|f| f.common_name))
}

#[test]
fn clients_believe_their_own_authority_only_and_both_ends_go_by_our_clock() {
    let manual = Arc::new(ManualClock::new("2026-08-01T00:00:00Z".parse().unwrap()));
    let clock: SharedClock = manual.clone();
    let ca = Arc::new(Authority::generate("kubernetes", clock.wall()).unwrap());
    let other = Arc::new(Authority::generate("other", clock.wall()).unwrap());
    let serve = Keeper::start(ca.clone(), Request::server("api", ["localhost"]), None, clock.clone()).unwrap();
    let user = Keeper::start(ca.clone(), Request::client("jane", "system:masters"), None, clock.clone()).unwrap();
    let run = |trusted: &Arc<Authority>, user: Option<Arc<Keeper>>, name: &str| {
        let user = user.map(|u| u as Arc<dyn ResolvesClientCert>);
        let client = tls::client(&clock, trusted.roots().unwrap(), user).unwrap();
        meet(tls::server(&clock, serve.clone()).unwrap(), client, name)
    };
    assert_eq!(run(&ca, Some(user.clone()), "localhost"), Ok(Some("jane".to_owned())));
    assert_eq!(run(&ca, None, "localhost"), Ok(None));
    assert!(run(&other, None, "localhost").is_err(), "a client of another authority");
    assert!(run(&ca, None, "elsewhere").is_err(), "another name");
    manual.advance(Duration::from_secs(300 * 24 * 3600));
    assert_eq!(run(&ca, Some(user.clone()), "localhost"), Ok(Some("jane".to_owned())), "renewed when it was due");
    manual.advance(Duration::from_secs(5 * 365 * 24 * 3600));
    assert_eq!(run(&ca, Some(user), "localhost"), Ok(Some("jane".to_owned())), "years later");
}
