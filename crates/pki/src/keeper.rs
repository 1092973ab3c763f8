//! An identity that stays good while the process runs.
//!
//! Whether it is due is asked at the moment it is used, in the handshake: no timer can be late, a
//! clock that jumped is noticed by the next connection, and nothing wakes an idle process.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use stdx::SharedClock;

use crate::Error;
use crate::authority::Authority;
use crate::identity::{Facts, Identity, Request};
use crate::layout::Layout;

struct Current {
    request: Request,
    identity: Identity,
    facts: Facts,
    certified: Arc<CertifiedKey>,
}

/// Issues, renews and hands out one identity; a resolver for both ends of TLS.
pub struct Keeper {
    authority: Arc<Authority>,
    /// Where the identity is kept; `None` keeps it in memory only.
    files: Option<(Layout, String)>,
    clock: SharedClock,
    current: RwLock<Current>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("request", &self.current.read().request).finish_non_exhaustive()
    }
}

impl Keeper {
    /// Loads or issues the identity.
    pub fn start(
        authority: Arc<Authority>,
        request: Request,
        files: Option<(Layout, String)>,
        clock: SharedClock,
    ) -> Result<Arc<Self>, Error> {
        let current = obtain(&authority, request, files.as_ref(), &clock)?;
        Ok(Arc::new(Self { authority, files, clock, current: RwLock::new(current) }))
    }

    /// The identity, renewed first when that is due. When renewing fails the old one is given, for
    /// as long as it lasts.
    pub fn identity(&self) -> Identity {
        self.refresh();
        self.current.read().identity.clone()
    }

    /// Asks for other names or addresses from now on.
    pub fn set_request(&self, request: Request) -> Result<(), Error> {
        if self.current.read().request == request {
            return Ok(());
        }
        let next = obtain(&self.authority, request, self.files.as_ref(), &self.clock)?;
        *self.current.write() = next;
        Ok(())
    }

    fn refresh(&self) {
        let request = {
            let current = self.current.read();
            if current.facts.serves(&current.request, self.clock.wall()) {
                return;
            }
            current.request.clone()
        };
        match obtain(&self.authority, request, self.files.as_ref(), &self.clock) {
            Ok(next) => {
                tracing::info!(name = next.request.common_name, until = %next.facts.not_after, "certificate renewed");
                *self.current.write() = next;
            }
            Err(error) => tracing::error!(%error, "certificate not renewed"),
        }
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        self.refresh();
        self.current.read().certified.clone()
    }
}

fn obtain(
    authority: &Authority,
    request: Request,
    files: Option<&(Layout, String)>,
    clock: &SharedClock,
) -> Result<Current, Error> {
    let now = clock.wall();
    let identity = match files {
        Some((layout, name)) => match layout.identity(name, authority, &request, now) {
            Ok(identity) => identity,
            // A full or read-only disk must not end a cluster: serve from memory, try again when due.
            Err(Error::Io { path, source }) => {
                tracing::warn!(path, %source, "certificate kept in memory only");
                authority.issue(&request, now)?
            }
            Err(error) => return Err(error),
        },
        None => authority.issue(&request, now)?,
    };
    Ok(Current { request, facts: identity.facts()?, certified: identity.certified_key()?, identity })
}

impl ResolvesServerCert for Keeper {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

impl ResolvesClientCert for Keeper {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stdx::clock::ManualClock;

    use super::*;

    #[test]
    fn an_identity_renews_itself_when_the_clock_moves_or_the_names_change() {
        let clock = Arc::new(ManualClock::new("2026-08-01T00:00:00Z".parse().unwrap()));
        let ca = Arc::new(Authority::generate("kubernetes", stdx::Clock::wall(&*clock)).unwrap());
        let request = Request::server("api", ["a.example"]);
        let keeper = Keeper::start(ca.clone(), request.clone(), None, clock.clone()).unwrap();
        let first = keeper.identity();
        assert_eq!(keeper.identity(), first);
        clock.advance(Duration::from_secs(300 * 24 * 3600));
        let second = keeper.identity();
        assert_ne!(second, first);
        keeper.set_request(request.with_addresses(["10.0.0.9".parse().unwrap()])).unwrap();
        assert!(keeper.identity().facts().unwrap().addresses.contains(&"10.0.0.9".parse().unwrap()));
    }
}
