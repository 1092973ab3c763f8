//! Client certificates: the common name is the user, the organizations are the groups.
//!
//! TLS has proved that the client holds the key of its certificate; whether one of our authorities
//! signed it, and whether it is still valid, is decided here, per request and by the injected clock.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use kinds::User;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use stdx::SharedClock;
use stdx::metrics::hot::Hot;
use stdx::metrics::{Registry, Type};
use transport::serve::Peer;
use transport::trust::Trust;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Authenticator, Verdict};

/// How many verified certificates are remembered; at the bound all are forgotten.
const REMEMBERED: usize = 1024;

/// Trusts certificates of the given authorities.
pub struct X509 {
    trust: Trust,
    clock: SharedClock,
    /// Signatures that were verified, by the digest of the chain and of whom was believed: only the
    /// dates are looked at again.
    known: Mutex<HashMap<[u8; 32], Known>>,
    /// How long the certificates that came still had, in seconds.
    lives: Arc<Hot>,
}

/// As upstream cuts that, in seconds.
const LIVES: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

#[derive(Clone)]
struct Known {
    user: User,
    not_before: i64,
    not_after: i64,
}

impl X509 {
    /// Believes whom `trust` believes at the time of each request.
    pub fn new(trust: Trust, clock: SharedClock) -> Self {
        Self { trust, clock, known: Mutex::new(HashMap::new()), lives: Arc::new(Hot::new(&LIVES)) }
    }

    /// Shows how long the certificates of clients still have.
    pub fn show(&self, registry: &Registry) {
        let lives = self.lives.clone();
        registry.collect(move |page| {
            let name = "apiserver_client_certificate_expiration_seconds";
            let help = "Distribution of the remaining lifetime on the certificate used to authenticate a request.";
            page.family(name, Type::Histogram, help);
            lives.render(page, name, &[]);
        });
    }

    fn judge(&self, peer: &Peer) -> Verdict {
        let Some((leaf, rest)) = peer.certificates.split_first() else { return Verdict::Unknown };
        let now = self.clock.wall().as_second();
        let mut hash = Sha256::new();
        hash.update(self.trust.generation().to_be_bytes());
        for certificate in peer.certificates.iter() {
            hash.update(certificate.len().to_be_bytes());
            hash.update(certificate);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let known = self.known.lock().get(&digest).cloned();
        if let Some(known) = known.filter(|k| (k.not_before..=k.not_after).contains(&now)) {
            self.lives.observe((known.not_after - now) as f64);
            return Verdict::User(known.user);
        }
        let Some(time) = transport::tls::unix_time(&self.clock) else { return Verdict::Invalid };
        if let Err(error) = self.trust.judge_client(leaf, rest, time) {
            tracing::debug!(address = %peer.address, %error, "client certificate refused");
            return Verdict::Invalid;
        }
        let Some(found) = read(leaf) else { return Verdict::Invalid };
        self.lives.observe((found.not_after - now) as f64);
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(digest, found.clone());
        Verdict::User(found.user)
    }
}

#[async_trait]
impl Authenticator for X509 {
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict {
        request.extensions.get::<Peer>().map_or(Verdict::Unknown, |peer| self.judge(peer))
    }
}

/// Who a certificate names; `None` when it has no common name.
fn read(der: &[u8]) -> Option<Known> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    let digest: String = Sha256::digest(der).iter().map(|b| format!("{b:02x}")).collect();
    let id = ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("X509SHA256={digest}")]);
    let validity = certificate.validity();
    let user = User { name, uid: String::new(), groups, extra: [id].into() };
    let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    (!user.name.is_empty()).then_some(Known { user, not_before, not_after })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use std::time::Duration;
    use stdx::clock::ManualClock;

    struct Ca {
        issuer: Issuer<'static, KeyPair>,
        der: rustls::pki_types::CertificateDer<'static>,
    }

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().expect("time")
    }

    fn ca() -> Ca {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).expect("signed").der().clone();
        Ca { issuer: Issuer::new(params, key), der }
    }

    fn leaf(ca: &Ca, usage: ExtendedKeyUsagePurpose, name: &str) -> rustls::pki_types::CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2030, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 3);
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.signed_by(&KeyPair::generate().expect("key"), &ca.issuer).expect("signed").der().clone()
    }

    fn peer(certificate: rustls::pki_types::CertificateDer<'static>) -> Peer {
        Peer { address: "127.0.0.1:1".parse().expect("address"), certificates: vec![certificate].into() }
    }

    #[test]
    fn certificates_are_judged_by_signature_purpose_and_the_injected_clock() {
        let (ours, theirs) = (ca(), ca());
        let clock = ManualClock::new(at("2030-01-02T00:00:00Z"));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ours.der.clone()).expect("root");
        let x509 = X509::new(roots.into(), Arc::new(clock.clone()));
        let good = peer(leaf(&ours, ExtendedKeyUsagePurpose::ClientAuth, "system:node:n1"));
        for _ in 0..2 {
            let Verdict::User(user) = x509.judge(&good) else { panic!("refused") };
            assert_eq!(
                (user.name.as_str(), user.groups.as_slice()),
                ("system:node:n1", &["system:nodes".to_owned()][..])
            );
        }
        for bad in [
            peer(leaf(&theirs, ExtendedKeyUsagePurpose::ClientAuth, "system:node:n1")),
            peer(leaf(&ours, ExtendedKeyUsagePurpose::ServerAuth, "system:node:n1")),
            peer(leaf(&ours, ExtendedKeyUsagePurpose::ClientAuth, "")),
            peer(rustls::pki_types::CertificateDer::from(vec![1, 2, 3])),
        ] {
            assert_eq!(x509.judge(&bad), Verdict::Invalid);
        }
        // It was good, and remembered; then it expires.
        clock.advance(Duration::from_secs(1));
        clock.jump_wall(at("2030-01-04T00:00:00Z"));
        assert_eq!(x509.judge(&good), Verdict::Invalid);
    }
}
