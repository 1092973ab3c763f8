//! TLS configurations that take identities from a resolver and the time from our clock.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use stdx::SharedClock;

use crate::Error;

/// Protocols offered to HTTP peers, best first.
pub const HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];

/// The wall clock of ours as TLS asks for it.
pub struct WallTime(pub SharedClock);

impl std::fmt::Debug for WallTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WallTime")
    }
}

impl TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.wall().as_second()).unwrap_or(0);
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

/// The cryptography used everywhere.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A server's configuration. With `clients`, a client may show a certificate of these authorities
/// (one that shows another's is refused); without, none is asked for.
pub fn server(
    identity: Arc<dyn ResolvesServerCert>,
    clients: Option<Arc<RootCertStore>>,
    clock: &SharedClock,
) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_details(provider(), Arc::new(WallTime(clock.clone())))
        .with_safe_default_protocol_versions()?;
    let builder = match clients {
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).allow_unauthenticated();
            builder.with_client_cert_verifier(verifier.build().map_err(Error::crypto)?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identity);
    config.alpn_protocols = HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

/// A client's configuration that trusts `roots` and shows `identity` when asked.
pub fn client(
    roots: Arc<RootCertStore>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
    clock: &SharedClock,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(WallTime(clock.clone())))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use stdx::clock::ManualClock;

    use super::*;
    use crate::{Authority, Keeper, Request};

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
        let peer = server.peer_certificates().and_then(|c| c.first()).map(|c| crate::Facts::of(c));
        Ok(peer.transpose().map_err(|e| e.to_string())?.map(|f| f.common_name))
    }

    #[test]
    fn both_ends_believe_their_own_authority_only_and_by_our_clock() {
        let manual = Arc::new(ManualClock::new("2026-08-01T00:00:00Z".parse().unwrap()));
        let clock: SharedClock = manual.clone();
        let ca = Arc::new(Authority::generate("kubernetes", clock.wall()).unwrap());
        let other = Arc::new(Authority::generate("other", clock.wall()).unwrap());
        let serve = Keeper::start(ca.clone(), Request::server("api", ["localhost"]), None, clock.clone()).unwrap();
        let user = |ca: &Arc<Authority>| {
            Keeper::start(ca.clone(), Request::client("jane", "system:masters"), None, clock.clone()).unwrap()
        };
        let run = |trusted: &Arc<Authority>, user: Option<Arc<Keeper>>, name: &str| {
            let roots = Some(ca.roots().unwrap());
            let server = server(serve.clone(), roots, &clock).unwrap();
            let user = user.map(|u| u as Arc<dyn ResolvesClientCert>);
            meet(server, client(trusted.roots().unwrap(), user, &clock).unwrap(), name)
        };
        assert_eq!(run(&ca, Some(user(&ca)), "localhost"), Ok(Some("jane".to_owned())));
        assert_eq!(run(&ca, None, "localhost"), Ok(None));
        assert!(run(&other, None, "localhost").is_err(), "a client of another authority");
        assert!(run(&ca, None, "elsewhere").is_err(), "another name");
        assert!(run(&ca, Some(user(&other)), "localhost").is_err(), "a user of another authority");
        manual.advance(std::time::Duration::from_secs(5 * 365 * 24 * 3600));
        assert_eq!(run(&ca, Some(user(&ca)), "localhost"), Ok(Some("jane".to_owned())), "years later");
    }
}
