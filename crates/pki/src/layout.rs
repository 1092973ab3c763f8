//! Keys and certificates on disk: load what is there, create what is not, replace what is due.
//!
//! ```text
//!  DIR/ca.crt ca.key                        cluster authority
//!  DIR/front-proxy-ca.crt front-proxy-ca.key
//!  DIR/sa.key sa.pub                        ServiceAccount tokens
//!  DIR/NAME.crt NAME.key                    issued identities
//! ```
//!
//! A key is written before its certificate, each to a new file of mode 0600 or 0644 that is synced
//! and then linked into place: a crash leaves a key without a certificate (which is then made for
//! it) or nothing, and of two processes that start at once the second reads what the first made.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};

use crate::Error;
use crate::authority::Authority;
use crate::identity::{Identity, Request};
use crate::token_key::SigningKey;

/// What an authority vouches for; the file names are upstream's tools'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Servers and clients of the cluster.
    Cluster,
    /// Proxies that speak for users to aggregated servers.
    FrontProxy,
}

impl Purpose {
    fn file(self) -> &'static str {
        match self {
            Self::Cluster => "ca",
            Self::FrontProxy => "front-proxy-ca",
        }
    }

    fn common_name(self) -> &'static str {
        match self {
            Self::Cluster => "kubernetes",
            Self::FrontProxy => "front-proxy-ca",
        }
    }
}

/// A directory of keys and certificates.
#[derive(Clone, Debug)]
pub struct Layout {
    directory: PathBuf,
}

/// No file of ours is longer.
const LIMIT: u64 = 1 << 20;

impl Layout {
    /// Opens (and creates) the directory.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory).map_err(Error::io(&directory))?;
        Ok(Self { directory })
    }

    /// The path of a file, for those who name it to others.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// The authority for a purpose, made on first use.
    ///
    /// A certificate whose key is missing is an error: the authority is kept elsewhere, and a new
    /// one would lock every client out.
    pub fn authority(&self, purpose: Purpose, now: Timestamp) -> Result<Authority, Error> {
        let (crt, key) = self.pair(purpose.file());
        let name = purpose.common_name();
        let key_pem = match (self.read(&key)?, self.read(&crt)?) {
            (Some(key), Some(crt)) => return Authority::load(name, &crt, &key),
            (None, Some(_)) => {
                let why = format!("{crt} exists but {key} does not");
                return Err(Error::Authority { name: name.to_owned(), why });
            }
            (Some(key), None) => key,
            (None, None) => self.create(&key, 0o600, &Authority::generate(name, now)?.key())?,
        };
        let made = Authority::self_signed(name, &key_pem, now)?;
        let certificate = self.create(&crt, 0o644, made.certificate())?;
        Authority::load(name, &certificate, &key_pem)
    }

    /// The ServiceAccount token key, made on first use.
    pub fn token_key(&self) -> Result<SigningKey, Error> {
        let key = match self.read("sa.key")? {
            Some(pem) => SigningKey::from_pem(&pem)?,
            None => SigningKey::from_pem(&self.create("sa.key", 0o600, &SigningKey::generate()?)?)?,
        };
        let public = key.public().to_pem();
        if self.read("sa.pub")?.as_deref() != Some(public.as_str()) {
            self.replace("sa.pub", 0o644, &public)?;
        }
        Ok(key)
    }

    /// The identity `name` as `request` asks: read back when it still serves, issued (with a new
    /// key) when absent, due, damaged, of another authority, or saying something else.
    pub fn identity(
        &self,
        name: &str,
        authority: &Authority,
        request: &Request,
        now: Timestamp,
    ) -> Result<Identity, Error> {
        if let Some(found) = self.load(name)?
            && is_good(&found, authority, request, now)
        {
            return Ok(found);
        }
        let issued = authority.issue(request, now)?;
        self.save(name, &issued)?;
        Ok(issued)
    }

    /// The identity `name` as it is on disk.
    pub fn load(&self, name: &str) -> Result<Option<Identity>, Error> {
        let (crt, key) = self.pair(name);
        Ok(self.read(&crt)?.zip(self.read(&key)?).map(|(certificate, key)| Identity { certificate, key }))
    }

    /// Writes an identity over what was there.
    pub fn save(&self, name: &str, identity: &Identity) -> Result<(), Error> {
        let (crt, key) = self.pair(name);
        self.replace(&key, 0o600, &identity.key)?;
        self.replace(&crt, 0o644, &identity.certificate)
    }

    fn pair(&self, name: &str) -> (String, String) {
        (format!("{name}.crt"), format!("{name}.key"))
    }

    fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.path(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(&path)(e)),
        };
        let mut text = String::new();
        file.take(LIMIT).read_to_string(&mut text).map_err(Error::io(&path))?;
        Ok(Some(text))
    }

    /// Creates a file unless it exists; returns what it then holds.
    fn create(&self, name: &str, mode: u32, text: &str) -> Result<String, Error> {
        let path = self.path(name);
        let temporary = self.write_aside(name, mode, text)?;
        let linked = fs::hard_link(&temporary, &path);
        let removed = fs::remove_file(&temporary);
        match linked {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io(&path)(e)),
        }
        removed.map_err(Error::io(&temporary))?;
        self.sync()?;
        self.read(name)?.ok_or_else(|| Error::malformed(path.display().to_string(), "vanished while it was created"))
    }

    fn replace(&self, name: &str, mode: u32, text: &str) -> Result<(), Error> {
        let temporary = self.write_aside(name, mode, text)?;
        let path = self.path(name);
        fs::rename(&temporary, &path).map_err(Error::io(&path))?;
        self.sync()
    }

    fn write_aside(&self, name: &str, mode: u32, text: &str) -> Result<PathBuf, Error> {
        let mut unique = [0u8; 8];
        SystemRandom::new().fill(&mut unique).map_err(|_| Error::crypto("no randomness from the system"))?;
        let path = self.path(&format!(".{name}.{:016x}", u64::from_ne_bytes(unique)));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(Error::io(&path))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        if let Err(error) = written {
            drop(fs::remove_file(&path)); // half a file helps nobody; the write's error is what counts
            return Err(Error::io(&path)(error));
        }
        Ok(path)
    }

    fn sync(&self) -> Result<(), Error> {
        sync_directory(&self.directory)
    }
}

fn sync_directory(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|d| d.sync_all()).map_err(Error::io(path))
}

/// True when an identity found on disk can go on being used.
fn is_good(found: &Identity, authority: &Authority, request: &Request, now: Timestamp) -> bool {
    found.certified_key().is_ok()
        && found.facts().is_ok_and(|facts| facts.serves(request, now))
        && found.chain().is_ok_and(|chain| chain.first().is_some_and(|leaf| authority.signed(leaf)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path().join("pki")).unwrap();
        (dir, layout)
    }

    #[test]
    fn keys_are_private_and_survive_a_restart() {
        let (_dir, layout) = layout();
        let now = at("2026-08-01T00:00:00Z");
        let first = layout.authority(Purpose::Cluster, now).unwrap();
        let again = layout.authority(Purpose::Cluster, now).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        assert_eq!(layout.token_key().unwrap().public().id(), layout.token_key().unwrap().public().id());
        for name in ["ca.key", "sa.key"] {
            assert_eq!(fs::metadata(layout.path(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        assert_ne!(layout.authority(Purpose::FrontProxy, now).unwrap().key(), first.key());
        let names: Vec<_> = fs::read_dir(layout.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.iter().all(|n| !n.to_string_lossy().starts_with('.')), "left behind: {names:?}");
    }

    #[test]
    fn a_key_without_certificate_gets_one_and_a_certificate_without_key_is_refused() {
        let (_dir, layout) = layout();
        let now = at("2026-08-01T00:00:00Z");
        let first = layout.authority(Purpose::Cluster, now).unwrap();
        fs::remove_file(layout.path("ca.crt")).unwrap();
        assert_eq!(layout.authority(Purpose::Cluster, now).unwrap().key(), first.key());
        fs::remove_file(layout.path("ca.key")).unwrap();
        let error = layout.authority(Purpose::Cluster, now).unwrap_err();
        assert_eq!(error.to_string(), "authority kubernetes: ca.crt exists but ca.key does not");
    }

    #[test]
    fn an_identity_is_issued_anew_when_it_no_longer_serves() {
        let (_dir, layout) = layout();
        let now = at("2026-08-01T00:00:00Z");
        let ca = layout.authority(Purpose::Cluster, now).unwrap();
        let request = Request::server("api", ["a.example", "10.0.0.1"]);
        let first = layout.identity("apiserver", &ca, &request, now).unwrap();
        assert_eq!(layout.identity("apiserver", &ca, &request, now).unwrap(), first, "kept");
        let moved = Request::server("api", ["a.example", "10.0.0.2"]);
        let second = layout.identity("apiserver", &ca, &moved, now).unwrap();
        assert_ne!(second, first, "an address changed");
        let later = at("2027-06-01T00:00:00Z");
        assert_ne!(layout.identity("apiserver", &ca, &moved, later).unwrap(), second, "due");
        fs::write(layout.path("apiserver.crt"), "garbage").unwrap();
        assert!(layout.identity("apiserver", &ca, &moved, later).unwrap().facts().is_ok(), "damaged");
        let other = layout.authority(Purpose::FrontProxy, now).unwrap();
        let third = layout.identity("apiserver", &ca, &moved, later).unwrap();
        assert_ne!(layout.identity("apiserver", &other, &moved, later).unwrap(), third, "another authority");
    }
}
