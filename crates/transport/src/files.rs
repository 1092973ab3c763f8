//! An identity that is read from files which somebody else renews.
//!
//! Whether they have changed is asked where the identity is used: in a handshake, and by a client
//! before a request, so that it dials anew and shows the new certificate. No timer can be late, and
//! nothing wakes an idle process.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::certified;

/// Why the files give no identity, in words for a log.
pub type Reason = String;
/// A PEM chain, leaf first, and a PEM key.
pub type Pem = (Vec<u8>, Vec<u8>);

/// What tells one content of a file from another without reading it; `None` when it is not there.
pub(crate) type Stamp = Option<(u64, i64, i64, u64)>;

pub(crate) fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let m = std::fs::metadata(path).ok()?;
        Some((m.ino(), m.mtime(), m.mtime_nsec(), m.size()))
    };
    files.iter().map(stamp).collect()
}

struct Current {
    /// The files as they were when they were last looked at, whether or not that gave an identity.
    seen: Vec<Stamp>,
    certified: Arc<CertifiedKey>,
    /// Counts the identities there were.
    generation: u64,
}

/// A resolver for both ends of TLS. When the files are changed and hold nonsense, or a certificate
/// whose key is still to come, the identity before goes on being shown.
pub struct FileIdentity {
    files: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<Pem, Reason> + Send + Sync>,
    current: RwLock<Current>,
}

impl fmt::Debug for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileIdentity").field("files", &self.files).finish_non_exhaustive()
    }
}

impl FileIdentity {
    /// What `read` gives, again whenever one of `files` has changed. Blocks.
    pub fn open(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<Pem, Reason> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Reason> {
        let seen = stamps(&files);
        let certified = load(&read)?;
        let current = RwLock::new(Current { seen, certified, generation: 0 });
        Ok(Arc::new(Self { files, read: Box::new(read), current }))
    }

    /// From a file with the chain and one with its key.
    pub fn pair(chain: &Path, key: &Path) -> Result<Arc<Self>, Reason> {
        let (chain, key) = (chain.to_owned(), key.to_owned());
        let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        Self::open(vec![chain.clone(), key.clone()], move || Ok((read(&chain)?, read(&key)?)))
    }

    /// How many identities there were before the present one: another number is another identity.
    pub fn generation(&self) -> u64 {
        self.refresh();
        self.current.read().generation
    }

    /// The certificate itself.
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.get().cert.first().cloned()
    }

    fn refresh(&self) {
        let now = stamps(&self.files);
        if self.current.read().seen == now {
            return;
        }
        let mut current = self.current.write();
        match load(&self.read) {
            Ok(certified) => {
                tracing::info!(files = ?self.files, "a changed certificate is used from now on");
                (current.certified, current.generation) = (certified, current.generation + 1);
            }
            Err(reason) => tracing::warn!(files = ?self.files, reason, "a changed certificate cannot be used"),
        }
        current.seen = now;
    }

    fn get(&self) -> Arc<CertifiedKey> {
        self.refresh();
        self.current.read().certified.clone()
    }
}

fn load(read: &dyn Fn() -> Result<Pem, Reason>) -> Result<Arc<CertifiedKey>, Reason> {
    let (chain, key) = read()?;
    certified(&chain, &key).map(Arc::new).map_err(|e| e.to_string())
}

impl ResolvesServerCert for FileIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

impl ResolvesClientCert for FileIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
