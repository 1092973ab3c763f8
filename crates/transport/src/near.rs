//! A server of this process, reached without a network: requests go to the handler behind its listener, which is
//! told who asks as its listener would tell it, by the certificate that the caller shows there.
//!
//! ```text
//!  over the network:  caller ─► TLS (shows its certificate) ─► listener ─► handler, with Peer { certificates }
//!  in this process:   caller ─► its certificate, whose key it holds ─────► handler, with Peer { certificates }
//!                            └─ and the connection of its own client, which the handler takes over as it is
//! ```
//!
//! Whom to believe and what they may is judged by the handler, as for everybody. A `Peer` in a request's extensions
//! comes from a listener or from here, never out of what somebody has sent.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::sync::watch;

use crate::serve::Peer;
use crate::websocket::Takeover;
use crate::{Request, Responding, SharedHandler, tls};

/// The server's end: open while it serves.
pub struct Door(watch::Sender<Option<Serving>>);

/// Who serves, and what answers.
type Serving = (Arc<str>, SharedHandler);

/// Held while a server serves; without it nobody is let in any more.
pub struct Open<'d>(&'d Door);

/// The caller's end. Clones lead to the same server.
#[derive(Clone)]
pub struct Near(watch::Receiver<Option<Serving>>);

/// A door that is closed, and the way to it.
pub fn pair() -> (Door, Near) {
    let (door, near) = watch::channel(None);
    (Door(door), Near(near))
}

impl Door {
    /// Lets requests for the server of this name in, to this handler, for as long as what is returned is held.
    pub fn open(&self, name: &str, handler: SharedHandler) -> Open<'_> {
        self.0.send_replace(Some((name.into(), handler)));
        Open(self)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.0.send_replace(None);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl Near {
    /// Asks the server of this name, as the one whose certificate and key `caller` has; `client` is the connection
    /// that the answer may take over, as if the request had come on it.
    ///
    /// # Errors
    /// The request itself, while nobody of that name serves here, and for a caller that has no certificate to show:
    /// over the network it would be nobody.
    pub fn call(
        &self,
        name: &str,
        mut request: Request,
        caller: &ClientConfig,
        client: &Takeover,
    ) -> Result<Responding, Box<Request>> {
        let serving = self.0.borrow().clone().filter(|(own, _)| &**own == name);
        let (Some((_, handler)), Some(peer)) = (serving, peer(caller)) else { return Err(Box::new(request)) };
        request.extensions_mut().insert(peer);
        client.hand_on(request.extensions_mut());
        Ok(handler.call(request))
    }
}

/// Who the caller is to a listener: a certificate comes with its key or not at all.
fn peer(caller: &ClientConfig) -> Option<Peer> {
    let schemes = tls::provider().signature_verification_algorithms.supported_schemes();
    let shown = caller.client_auth_cert_resolver.resolve(&[], &schemes)?;
    shown.keys_match().ok()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Some(Peer { address, certificates: shown.cert.clone().into() })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rcgen::{CertificateParams, KeyPair};
    use stdx::SharedClock;
    use stdx::clock::RealClock;

    use super::*;
    use crate::Handler;

    /// Remembers which certificates it was shown.
    #[derive(Default)]
    struct Shown(Mutex<Vec<usize>>);

    impl Handler for Shown {
        fn call(&self, request: Request) -> Responding {
            let peer = request.extensions().get::<Peer>().expect("who asks");
            self.0.lock().push(peer.certificates.len());
            Box::pin(async { Ok(http::Response::new(crate::empty())) })
        }
    }

    #[tokio::test]
    async fn who_is_near_shows_its_certificate_while_the_door_is_open() {
        let clock: SharedClock = RealClock::shared();
        let key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(vec!["caller".to_owned()]).expect("names").self_signed(&key).expect("signed");
        let identity = tls::Identity::from_pem(own.pem().as_bytes(), key.serialize_pem().as_bytes()).expect("one");
        let roots = tls::roots(own.pem().as_bytes()).expect("roots");
        let known = tls::client(&clock, roots.clone(), Some(identity)).expect("TLS");
        let nobody = tls::client(&clock, roots, None).expect("TLS");
        let takeover = Takeover::of_nobody();
        let ask = || http::Request::new(crate::empty());

        let ((door, near), shown) = (pair(), Arc::new(Shown::default()));
        assert!(near.call("n", ask(), &known, &takeover).is_err(), "it does not serve yet");
        let open = door.open("n", shown.clone());
        let answering = near.call("n", ask(), &known, &takeover).unwrap_or_else(|_| panic!("it serves"));
        answering.await.expect("answered");
        assert!(near.call("m", ask(), &known, &takeover).is_err(), "it is another");
        assert!(near.call("n", ask(), &nobody, &takeover).is_err(), "who has nothing to show is nobody");
        assert_eq!(*shown.0.lock(), [1]);
        drop(open);
        assert!(near.call("n", ask(), &known, &takeover).is_err(), "it serves no more");
        let _open = door.open("n", shown.clone());
        assert!(near.call("n", ask(), &known, &takeover).is_ok());
    }
}
