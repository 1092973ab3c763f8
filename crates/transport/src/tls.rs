//! TLS configurations: on ring, by the injected wall clock, with certificates that can be replaced
//! while the process runs.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use stdx::SharedClock;

use crate::trust::Trust;

/// What is wrong with certificates or keys that were given.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// Not PEM, or PEM of something else.
    #[error("cannot read PEM: {0}")]
    Pem(rustls::pki_types::pem::Error),
    /// The file holds no certificate.
    #[error("no certificate found")]
    Empty,
    /// The parts do not fit together.
    #[error("{0}")]
    Tls(#[from] Error),
}

/// Ring's, with AES of 128 bits before that of 256, as Go has it: the client's order counts, and long lists
/// are mostly this.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|s| (s.tls13().is_none(), s.suite() == CipherSuite::TLS13_AES_256_GCM_SHA384));
    Arc::new(provider)
}

/// A certificate chain with its key that can be replaced while it is in use: connections made
/// afterwards use the new one.
#[derive(Debug)]
pub struct Identity {
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// From a PEM chain (leaf first) and a PEM key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Arc<Self>, MaterialError> {
        Ok(Arc::new(Self { current: RwLock::new(Arc::new(certified(chain, key)?)) }))
    }

    /// Replaces chain and key; on an error the old ones stay.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), MaterialError> {
        *self.current.write() = Arc::new(certified(chain, key)?);
        Ok(())
    }

    fn get(&self) -> Arc<CertifiedKey> {
        self.current.read().clone()
    }
}

pub(crate) fn certified(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, MaterialError> {
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(MaterialError::Pem)?;
    Ok(CertifiedKey::from_der(chain, key, &provider())?)
}

/// The certificates of a PEM bundle; at least one.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(MaterialError::Pem)?;
    if found.is_empty() { Err(MaterialError::Empty) } else { Ok(found) }
}

/// A PEM bundle as trust anchors, all of which must be readable.
pub fn all_roots(pem: &[u8]) -> Result<RootCertStore, MaterialError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// The trust anchors of a PEM bundle that can be read; at least one. Bundles are put together from many places:
/// one certificate of a form that nobody here understands must not take the belief from all others.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, MaterialError> {
    let (mut store, mut first) = (RootCertStore::empty(), None);
    for block in blocks(pem) {
        let certificate = CertificateDer::from_pem_slice(block).map_err(MaterialError::Pem);
        if let Err(error) = certificate.and_then(|certificate| Ok(store.add(certificate)?)) {
            first.get_or_insert(error);
        }
    }
    if store.is_empty() { Err(first.unwrap_or(MaterialError::Empty)) } else { Ok(store) }
}

/// The certificates of a bundle, each with its first and last line; one without a last line ends where the next
/// begins.
fn blocks(pem: &[u8]) -> Vec<&[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let starts: Vec<usize> =
        pem.windows(BEGIN.len()).enumerate().filter(|(_, w)| *w == BEGIN).map(|(i, _)| i).collect();
    let ends = starts.iter().skip(1).copied().chain([pem.len()]);
    starts.iter().zip(ends).filter_map(|(start, end)| pem.get(*start..end)).collect()
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Certificates are judged by the injected wall clock.
struct Wall(SharedClock);

impl std::fmt::Debug for Wall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wall")
    }
}

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        unix_time(&self.0)
    }
}

/// The wall clock in rustls' words.
pub fn unix_time(clock: &SharedClock) -> Option<UnixTime> {
    let seconds = u64::try_from(clock.wall().as_second()).ok()?;
    Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
}

/// A server's TLS: HTTP/2 and HTTP/1.1. Clients may show a certificate, and must then prove that
/// they hold its key; who signed it is judged per request, so that a certificate that is not trusted
/// (any more) gets a 401 and not a broken connection.
pub fn server(clock: &SharedClock, identity: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, Error> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(Wall(clock.clone())))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(PossessionVerifier { algorithms }))
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A client's TLS: believes servers that `trust` does, shows `identity` when there is one. Who dials with it names the
/// protocols ([`crate::dial`]).
pub fn client(
    clock: &SharedClock,
    trust: impl Into<Trust>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(Wall(clock.clone())))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust.into()));
    Ok(match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    })
}

/// A client's TLS that believes whatever certificate the server shows: for those who ask whether something
/// answers, not who. Shows `identity` when there is one.
pub fn trusting(identity: Option<Arc<dyn ResolvesClientCert>>) -> Result<ClientConfig, Error> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)));
    Ok(match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    })
}

#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks only that the client holds the key of the certificate it shows.
#[derive(Debug)]
struct PossessionVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
