//! What a certificate says, what is asked of one, and a certificate with its key.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Error, renewal};

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Client,
    Server,
    Both,
}

impl Usage {
    /// True when it may identify a client.
    pub fn is_client(self) -> bool {
        self != Self::Server
    }

    /// True when it may identify a server.
    pub fn is_server(self) -> bool {
        self != Self::Client
    }
}

/// What a certificate should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user, or the server's name.
    pub common_name: String,
    /// The user's group; empty for none. (One is what the certificate library can write.)
    pub organization: String,
    /// DNS names of a server.
    pub names: BTreeSet<String>,
    /// Addresses of a server.
    pub addresses: BTreeSet<IpAddr>,
    pub usage: Usage,
    pub lifetime: Duration,
}

impl Request {
    /// A user's certificate.
    pub fn client(user: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            common_name: user.into(),
            organization: group.into(),
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            usage: Usage::Client,
            lifetime: renewal::LEAF_LIFETIME,
        }
    }

    /// A server's certificate. Names that are addresses count as addresses.
    pub fn server<'a>(common_name: impl Into<String>, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut request = Self { usage: Usage::Server, ..Self::client(common_name, "") };
        for name in names {
            match name.parse::<IpAddr>() {
                Ok(address) => drop(request.addresses.insert(address)),
                Err(_) => drop(request.names.insert(name.to_ascii_lowercase())),
            }
        }
        request
    }

    /// The same with more addresses.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses.extend(addresses);
        self
    }

    /// The API server's serving certificate: the names pods and people reach it by, and `extra`.
    pub fn api_server(
        cluster_domain: &str,
        service_address: Option<IpAddr>,
        extra: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let long = format!("kubernetes.default.svc.{cluster_domain}");
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", &long, "localhost", "127.0.0.1"];
        Self::server("kube-apiserver", names).with_addresses(service_address).with_addresses(extra)
    }
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: BTreeSet<String>,
    pub addresses: BTreeSet<IpAddr>,
    pub client: bool,
    pub server: bool,
    pub authority: bool,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// DER of the public key.
    pub public_key: Vec<u8>,
}

impl Facts {
    /// Reads a certificate.
    pub fn of(der: &[u8]) -> Result<Self, Error> {
        let bad = |why: &dyn std::fmt::Display| Error::malformed("certificate", why);
        let (_, cert) = X509Certificate::from_der(der).map_err(|e| bad(&e))?;
        let text = |v: &x509_parser::x509::AttributeTypeAndValue| v.as_str().unwrap_or_default().to_owned();
        let mut facts = Self {
            common_name: cert.subject().iter_common_name().last().map(text).unwrap_or_default(),
            organizations: cert.subject().iter_organization().map(text).collect(),
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            client: false,
            server: false,
            authority: cert.is_ca(),
            not_before: second(cert.validity().not_before.timestamp()),
            not_after: second(cert.validity().not_after.timestamp()),
            public_key: cert.public_key().raw.to_vec(),
        };
        if let Some(usage) = cert.extended_key_usage().map_err(|e| bad(&e))? {
            facts.client = usage.value.any || usage.value.client_auth;
            facts.server = usage.value.any || usage.value.server_auth;
        }
        if let Some(names) = cert.subject_alternative_name().map_err(|e| bad(&e))? {
            for name in &names.value.general_names {
                match name {
                    GeneralName::DNSName(name) => drop(facts.names.insert(name.to_ascii_lowercase())),
                    GeneralName::IPAddress(bytes) => facts.addresses.extend(address(bytes)),
                    _ => {}
                }
            }
        }
        Ok(facts)
    }

    /// True when the certificate says what `request` asks and is not due for renewal. Names beyond
    /// those asked for are a reason to issue anew: an address that left must not be vouched for.
    pub fn serves(&self, request: &Request, now: Timestamp) -> bool {
        self.common_name == request.common_name
            && self.organizations.join(",") == request.organization
            && self.names == request.names
            && self.addresses == request.addresses
            && self.client == request.usage.is_client()
            && self.server == request.usage.is_server()
            && !renewal::is_due(self.not_after, request.lifetime, now)
    }
}

fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A certificate with its key, as PEM: what kubeconfigs and files carry.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, then any intermediates.
    pub certificate: String,
    /// PKCS #8.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Identity {
    /// The certificates in DER.
    pub fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        certificates(&self.certificate)
    }

    /// What the certificate says.
    pub fn facts(&self) -> Result<Facts, Error> {
        let chain = self.chain()?;
        Facts::of(chain.first().ok_or_else(|| Error::malformed("certificate", "no certificate in PEM"))?)
    }

    /// The form TLS wants. Fails when the key is not the certificate's.
    pub fn certified_key(&self) -> Result<Arc<rustls::sign::CertifiedKey>, Error> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| Error::malformed("private key", e))?;
        let provider = rustls::crypto::ring::default_provider();
        Ok(Arc::new(rustls::sign::CertifiedKey::from_der(self.chain()?, key, &provider)?))
    }
}

/// Every certificate of a PEM text.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Error::malformed("certificate", e))
}

/// The certificates of a PEM text as trusted authorities.
pub fn roots(pem: &str) -> Result<rustls::RootCertStore, Error> {
    let mut store = rustls::RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate)?;
    }
    if store.is_empty() {
        return Err(Error::malformed("certificate authorities", "no certificate in PEM"));
    }
    Ok(store)
}
