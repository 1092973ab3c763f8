//! Whom to believe: authorities that somebody else may replace while the process runs.
//!
//! Whether their file has changed is asked where a certificate is judged. A file that is changed and
//! holds nonsense, or is gone, leaves the authorities before in force: a half-written bundle must
//! not lock everybody out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::files::{Reason, Stamp, stamps};
use crate::tls;

type Read = dyn Fn() -> Result<RootCertStore, Reason> + Send + Sync;

struct Current {
    /// The files as they were when they were last looked at, whether or not that gave authorities.
    seen: Vec<Stamp>,
    /// Without any authority nobody is believed.
    servers: Option<Arc<WebPkiServerVerifier>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Counts the bundles there were.
    generation: u64,
}

impl Current {
    fn of(roots: impl Into<Arc<RootCertStore>>, seen: Vec<Stamp>, generation: u64) -> Self {
        let roots = roots.into();
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), tls::provider()).build().ok();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, tls::provider()).build().ok();
        Self { seen, servers, clients, generation }
    }
}

struct Inner {
    files: Vec<PathBuf>,
    read: Option<Box<Read>>,
    current: RwLock<Current>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The authorities that are believed. Clones share them.
#[derive(Clone)]
pub struct Trust(Arc<Inner>);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("files", &self.0.files).finish_non_exhaustive()
    }
}

impl From<Arc<RootCertStore>> for Trust {
    fn from(roots: Arc<RootCertStore>) -> Self {
        Self::new(Vec::new(), None, Current::of(roots, Vec::new(), 0))
    }
}

impl From<RootCertStore> for Trust {
    fn from(roots: RootCertStore) -> Self {
        Arc::new(roots).into()
    }
}

impl Trust {
    fn new(files: Vec<PathBuf>, read: Option<Box<Read>>, current: Current) -> Self {
        let algorithms = tls::provider().signature_verification_algorithms;
        Self(Arc::new(Inner { files, read, current: RwLock::new(current), algorithms }))
    }

    /// What `read` gives, again whenever one of `files` has changed. Blocks.
    pub fn open(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<RootCertStore, Reason> + Send + Sync + 'static,
    ) -> Result<Self, Reason> {
        let seen = stamps(&files);
        let current = Current::of(read()?, seen, 0);
        Ok(Self::new(files, Some(Box::new(read)), current))
    }

    /// A PEM bundle in a file, of which everything must be readable: who is believed is not decided by half a file.
    pub fn file(path: &Path) -> Result<Self, Reason> {
        let path = path.to_owned();
        Self::open(vec![path.clone()], move || {
            let say = |e: &dyn fmt::Display| format!("{}: {e}", path.display());
            tls::all_roots(&std::fs::read(&path).map_err(|e| say(&e))?).map_err(|e| say(&e))
        })
    }

    /// How many bundles there were before the present one: what was verified under another number
    /// is to be verified again.
    pub fn generation(&self) -> u64 {
        self.refresh();
        self.0.current.read().generation
    }

    /// Judges the certificate of a client that has proved to hold its key.
    pub fn judge_client(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.refresh();
        let verifier = self.0.current.read().clients.clone();
        verifier.ok_or_else(nobody)?.verify_client_cert(certificate, others, now).map(drop)
    }

    fn refresh(&self) {
        let Some(read) = &self.0.read else { return };
        let now = stamps(&self.0.files);
        if self.0.current.read().seen == now {
            return;
        }
        let mut current = self.0.current.write();
        match read() {
            Ok(roots) => {
                tracing::info!(files = ?self.0.files, "changed authorities are believed from now on");
                *current = Current::of(roots, now, current.generation + 1);
            }
            Err(reason) => {
                tracing::warn!(files = ?self.0.files, reason, "changed authorities cannot be used");
                current.seen = now;
            }
        }
    }
}

fn nobody() -> Error {
    Error::InvalidCertificate(CertificateError::UnknownIssuer)
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.refresh();
        let verifier = self.0.current.read().servers.clone();
        verifier.ok_or_else(nobody)?.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}
