//! What the kinds of certificates share: PEM blocks, requests, certificates, names of signers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521};
use x509_parser::oid_registry::{OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::check;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
const DOMAIN_LENGTH: usize = 253;
/// A domain, a slash, a namespace, a dot, a name.
const SIGNER_LENGTH: usize = DOMAIN_LENGTH + 1 + 253 + 63 + 1;
/// Moduli that pods may ask certificates for, in bits.
const RSA_SIZES: [usize; 2] = [3072, 4096];

/// One block of PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub label: String,
    pub has_headers: bool,
    pub bytes: Vec<u8>,
}

/// The blocks of a PEM text, in order; what lies between them, and what is broken, is passed over.
pub fn blocks(text: &[u8]) -> impl Iterator<Item = Block> + '_ {
    let mut lines = text.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line.trim_ascii_end()));
    let mut next: Option<String> = None;
    std::iter::from_fn(move || {
        loop {
            let line = next.take().or_else(|| lines.next().map(Into::into))?;
            let Some(label) = line.strip_prefix(BEGIN).and_then(|line| line.strip_suffix(DASHES)) else { continue };
            let end = format!("{END}{label}{DASHES}");
            let (mut body, mut has_headers, mut ended) = (String::new(), false, false);
            for line in lines.by_ref() {
                if line.starts_with(DASHES) {
                    ended = line == end.as_str();
                    // The end of another block says that this one has none; the start of another begins it.
                    next = (!ended).then(|| line.into_owned());
                    break;
                }
                if line.contains(':') && body.is_empty() {
                    has_headers = true;
                } else {
                    body.extend(line.chars().filter(|letter| !letter.is_ascii_whitespace()));
                }
            }
            if let Some(bytes) = ended.then(|| STANDARD.decode(&body).ok()).flatten() {
                return Some(Block { label: label.to_owned(), has_headers, bytes });
            }
        }
    })
}

/// True for a bundle with at least one certificate that can be read.
pub fn is_bundle(pem: &[u8]) -> bool {
    blocks(pem).any(|block| block.label == "CERTIFICATE" && X509Certificate::from_der(&block.bytes).is_ok())
}

/// What a request for a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The organizations of its subject: groups, when it is for a client.
    pub organizations: Vec<String>,
    /// The common name of its subject: the user, when it is for a client.
    pub common_name: String,
    /// Why its signature proves nothing.
    pub unproven: Option<&'static str>,
    /// The key it is for, as it is encoded.
    pub key: Vec<u8>,
    /// Why pods may not have such a key: what of it, and what would be right. Nothing is named when the
    /// kind of key is not known at all.
    pub odd_key: Option<(Option<String>, &'static str)>,
}

impl Request {
    /// Reads one in PEM.
    ///
    /// # Errors
    /// Why it is none.
    pub fn from_pem(pem: &[u8]) -> Result<Self, &'static str> {
        let block = blocks(pem).next().filter(|block| block.label == "CERTIFICATE REQUEST");
        Self::from_der(&block.ok_or("PEM block type must be CERTIFICATE REQUEST")?.bytes)
    }

    /// Reads one in DER.
    ///
    /// # Errors
    /// Why it is none.
    pub fn from_der(der: &[u8]) -> Result<Self, &'static str> {
        let Ok((rest, request)) = X509CertificationRequest::from_der(der) else {
            return Err("x509: malformed certificate request");
        };
        if !rest.is_empty() {
            return Err("asn1: syntax error: trailing data");
        }
        let info = &request.certification_request_info;
        let organizations = info.subject.iter_organization().filter_map(|name| name.as_str().ok());
        // Of several the last counts, as for Go.
        let name = info.subject.iter_common_name().last().and_then(|name| name.as_str().ok());
        let unproven = request.verify_signature().err().map(|error| match error {
            X509Error::SignatureVerificationError => failure(&info.subject_pki),
            _ => "x509: cannot verify signature: algorithm unimplemented",
        });
        Ok(Self {
            organizations: organizations.map(str::to_owned).collect(),
            common_name: name.unwrap_or_default().to_owned(),
            unproven,
            key: info.subject_pki.raw.to_vec(),
            odd_key: odd_key(&info.subject_pki),
        })
    }
}

fn failure(key: &SubjectPublicKeyInfo) -> &'static str {
    let algorithm = &key.algorithm.algorithm;
    if *algorithm == OID_SIG_ED25519 {
        "x509: Ed25519 verification failure"
    } else if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        "x509: ECDSA verification failure"
    } else {
        "crypto/rsa: verification error"
    }
}

fn odd_key(key: &SubjectPublicKeyInfo) -> Option<(Option<String>, &'static str)> {
    let algorithm = &key.algorithm.algorithm;
    if *algorithm == OID_SIG_ED25519 {
        return None;
    }
    if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let known = [OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521];
        return match curve {
            Some(curve) if known.contains(&curve) => None,
            _ => Some((Some("curve P-224".into()), "elliptic public keys must use curve P256, P384, or P521")),
        };
    }
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) if *algorithm == OID_PKCS1_RSAENCRYPTION => {
            // The modulus may be written with a zero in front.
            let modulus: Vec<u8> = rsa.modulus.iter().copied().skip_while(|byte| *byte == 0).collect();
            let bits = modulus.len() * 8;
            let wrong = "RSA keys must have modulus size 3072 or 4096";
            (!RSA_SIZES.contains(&bits)).then(|| (Some(format!("{bits}-bit modulus")), wrong))
        }
        _ => Some((None, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")),
    }
}

/// True for what can be read as a certificate.
pub fn is_certificate(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty())
}

/// What is wrong with a list of certificates in PEM; an empty text is not looked at.
pub fn wrong_certificates(pem: &[u8]) -> Option<String> {
    if pem.is_empty() {
        return None;
    }
    let mut any = false;
    for block in blocks(pem) {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if block.has_headers {
            return Some("no PEM block headers are permitted".into());
        }
        if !is_certificate(&block.bytes) {
            return Some("x509: malformed certificate".into());
        }
        any = true;
    }
    (!any).then(|| "must contain at least one CERTIFICATE PEM block".into())
}

/// The name of who signs: a domain and a name.
pub fn signer_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let Some((domain, signer)) = name.split_once('/').filter(|(_, signer)| !signer.contains('/')) else {
        let wrong = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(path, name, wrong);
        return;
    };
    if domain.len() > DOMAIN_LENGTH {
        errors.too_long(path, DOMAIN_LENGTH);
    }
    labels(domain, names::dns1123_label, path, errors);
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    labels(signer, names::dns1123_subdomain, path, errors);
    if name.len() > SIGNER_LENGTH {
        errors.too_long(path, SIGNER_LENGTH);
    }
}

/// The first label that is none.
fn labels(text: &str, rule: fn(&str) -> Vec<String>, path: &Path, errors: &mut FieldErrors) {
    let wrong = text.split('.').map(|label| (label, rule(label))).find(|(_, messages)| !messages.is_empty());
    if let Some((label, messages)) = wrong {
        let messages = messages.into_iter().map(|message| format!("validating label {label:?}: {message}"));
        check::all(messages.collect(), path, text, errors);
    }
}

/// True for the signers of Kubernetes itself.
pub fn is_kubernetes_signer(name: &str) -> bool {
    let domain = name.split('/').next().unwrap_or_default();
    domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(text: &str) -> Vec<String> {
        blocks(text.as_bytes()).map(|block| block.label).collect()
    }

    #[test]
    fn blocks_are_found_among_other_text() {
        let a = "-----BEGIN A-----\nAAAA\n-----END A-----\n";
        let b = "-----BEGIN B-----\r\nKey: value\r\n\r\nAA==\r\n-----END B-----";
        assert_eq!(labels_of(&format!("words\n{a}more\n{b}")), ["A", "B"]);
        assert!(blocks(b.as_bytes()).next().unwrap().has_headers);
        assert_eq!(blocks(a.as_bytes()).next().unwrap().bytes, [0, 0, 0]);
        for broken in
            ["", "-----BEGIN A-----", "-----BEGIN A-----\n?\n-----END A-----", "-----BEGIN A-----\n-----END B-----"]
        {
            assert!(labels_of(broken).is_empty(), "{broken}");
            assert_eq!(labels_of(&format!("{broken}\n{a}")), ["A"], "{broken}");
        }
    }

    #[test]
    fn what_is_no_request_is_told() {
        assert_eq!(Request::from_pem(b""), Err("PEM block type must be CERTIFICATE REQUEST"));
        assert_eq!(Request::from_der(&[1, 2, 3]), Err("x509: malformed certificate request"));
    }
}
