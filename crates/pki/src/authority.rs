//! A certificate authority: a key, its self-signed certificate, and what it issues.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::{Facts, Identity, Request, certificates, roots};
use crate::{Error, renewal};

/// An authority that can issue.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    facts: Facts,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("name", &self.facts.common_name).finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority with a new key.
    pub fn generate(name: &str, now: Timestamp) -> Result<Self, Error> {
        let key = KeyPair::generate()?.serialize_pem();
        Self::self_signed(name, &key, now)
    }

    /// An authority for an existing key.
    pub fn self_signed(name: &str, key: &str, now: Timestamp) -> Result<Self, Error> {
        let pair = key_pair(key)?;
        let mut params = params(name, "", now, renewal::AUTHORITY_LIFETIME)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Go's verifier wants the authority's own name among its alternative names to be present or
        // absent, never wrong; upstream's tools write the common name there.
        params.subject_alt_names = vec![SanType::DnsName(ia5(name)?)];
        let certificate = params.self_signed(&pair)?.pem();
        Self::load(name, &certificate, key)
    }

    /// An authority read back.
    pub fn load(name: &str, certificate: &str, key: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Authority { name: name.to_owned(), why: why.to_owned() };
        let pair = key_pair(key)?;
        let chain = certificates(certificate)?;
        let der = chain.first().ok_or_else(|| wrong("no certificate in PEM"))?;
        let facts = Facts::of(der)?;
        if !facts.authority {
            return Err(wrong("the certificate is not an authority's"));
        }
        if facts.public_key != pair.subject_public_key_info() {
            return Err(wrong("the key is not the certificate's"));
        }
        let issuer = Issuer::from_ca_cert_der(der, pair)?;
        Ok(Self { issuer, certificate: certificate.to_owned(), facts })
    }

    /// Issues a certificate with a new key.
    pub fn issue(&self, request: &Request, now: Timestamp) -> Result<Identity, Error> {
        let key = KeyPair::generate()?;
        let certificate = self.sign(request, &key, now)?;
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// Issues a certificate for an existing key (PEM).
    pub fn issue_for(&self, request: &Request, key: &str, now: Timestamp) -> Result<Identity, Error> {
        let certificate = self.sign(request, &key_pair(key)?, now)?;
        Ok(Identity { certificate, key: key.to_owned() })
    }

    fn sign(&self, request: &Request, key: &impl PublicKeyData, now: Timestamp) -> Result<String, Error> {
        let mut params = params(&request.common_name, &request.organization, now, request.lifetime)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if request.usage.is_server() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if request.usage.is_client() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        for name in &request.names {
            params.subject_alt_names.push(SanType::DnsName(ia5(name)?));
        }
        params.subject_alt_names.extend(request.addresses.iter().map(|a: &IpAddr| SanType::IpAddress(*a)));
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// True when `leaf` (DER) carries this authority's signature.
    pub fn signed(&self, leaf: &[u8]) -> bool {
        let Ok(chain) = certificates(&self.certificate) else { return false };
        let Some((_, own)) = chain.first().and_then(|der| X509Certificate::from_der(der).ok()) else { return false };
        X509Certificate::from_der(leaf).is_ok_and(|(_, leaf)| leaf.verify_signature(Some(own.public_key())).is_ok())
    }

    /// The certificate, PEM: what clients trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The key, PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// What the certificate says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The authority as the only one trusted.
    pub fn roots(&self) -> Result<Arc<rustls::RootCertStore>, Error> {
        roots(&self.certificate).map(Arc::new)
    }
}

fn key_pair(pem: &str) -> Result<KeyPair, Error> {
    KeyPair::from_pem(pem).map_err(|e| Error::malformed("private key (PKCS #8 expected)", e))
}

fn ia5(name: &str) -> Result<rcgen::string::Ia5String, Error> {
    name.to_owned().try_into().map_err(|e| Error::malformed(format!("name {name:?}"), e))
}

fn params(name: &str, group: &str, now: Timestamp, lifetime: Duration) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if !group.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    let (from, to) = renewal::validity(now, lifetime);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let after = |t: Timestamp| Duration::from_secs(u64::try_from(t.as_second()).unwrap_or(0));
    params.not_before = epoch + after(from);
    params.not_after = epoch + after(to);
    let mut serial = [0u8; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| Error::crypto("no randomness from the system"))?;
    serial[0] &= 0x7f; // positive
    serial[0] |= 0x40; // and always of the same length
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}
