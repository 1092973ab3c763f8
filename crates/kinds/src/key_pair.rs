//! Whether a certificate and a private key, both in PEM, belong together: in the words of Go's TLS, which
//! is what clients of a `kubernetes.io/tls` Secret are told.
//!
//! A key is compared by its public half. Where it does not hold one (Ed25519, and EC keys written without)
//! nothing is told: that needs arithmetic which is not worth a warning.

use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::certificates::{self, Block};

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// Why a certificate and a key are no pair; `None` when they are, or cannot be told apart from one.
pub fn wrong(certificate: &[u8], key: &[u8]) -> Option<String> {
    compare(certificate, key).err()
}

fn compare(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let certificate = first(certificate, |label| label == "CERTIFICATE").map_err(|skipped| match &skipped[..] {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have \
             been switched"
                .to_owned()
        }
        many => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following \
             types: [{}]",
            many.join(" ")
        ),
    })?;
    let is_key = |label: &str| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let key = first(key, is_key).map_err(|skipped| match &skipped[..] {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        many => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the \
             following types: [{}]",
            many.join(" ")
        ),
    })?;
    let leaf = X509Certificate::from_der(&certificate.bytes);
    let (_, leaf) = leaf.map_err(|_| "x509: malformed certificate".to_owned())?;
    let key = Key::read(&key.bytes).ok_or("tls: failed to parse private key")?;
    let public = leaf.public_key();
    let is_ed25519 = public.algorithm.algorithm.as_bytes() == ED25519;
    let same = match (public.parsed(), key) {
        (Ok(PublicKey::RSA(theirs)), Key::Rsa(own)) => trimmed(theirs.modulus) == trimmed(own),
        (Ok(PublicKey::EC(theirs)), Key::Ec(own)) => own.is_none_or(|own| own == theirs.data()),
        (_, Key::Ed25519) if is_ed25519 => true,
        (Ok(PublicKey::RSA(_) | PublicKey::EC(_)), _) => {
            return Err("tls: private key type does not match public key type".into());
        }
        _ if is_ed25519 => return Err("tls: private key type does not match public key type".into()),
        _ => return Err("tls: unknown public key algorithm".into()),
    };
    if same { Ok(()) } else { Err("tls: private key does not match public key".into()) }
}

/// The first block with a label that is wanted, or the labels of all blocks.
fn first(pem: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Block, Vec<String>> {
    let mut skipped = Vec::new();
    for block in certificates::blocks(pem) {
        if wanted(&block.label) {
            return Ok(block);
        }
        skipped.push(block.label);
    }
    Err(skipped)
}

fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// The public half of a private key, as far as the key says it.
enum Key<'k> {
    Rsa(&'k [u8]),
    Ec(Option<&'k [u8]>),
    Ed25519,
}

impl<'k> Key<'k> {
    /// Reads PKCS #1, PKCS #8 or SEC 1.
    fn read(der: &'k [u8]) -> Option<Self> {
        Self::wrapped(der).or_else(|| Self::rsa(der)).or_else(|| Self::ec(der))
    }

    /// `SEQUENCE { version, SEQUENCE { algorithm, … }, OCTET STRING key, … }`
    fn wrapped(der: &'k [u8]) -> Option<Self> {
        let mut fields = Fields::of(der, SEQUENCE)?;
        fields.take(INTEGER)?;
        let algorithm = Fields(fields.take(SEQUENCE)?).take(OBJECT_ID)?;
        let key = fields.take(OCTETS)?;
        match algorithm {
            RSA => Self::rsa(key),
            EC => Self::ec(key),
            ED25519 => Some(Self::Ed25519),
            _ => None,
        }
    }

    /// `SEQUENCE { version, modulus, … }`
    fn rsa(der: &'k [u8]) -> Option<Self> {
        let mut fields = Fields::of(der, SEQUENCE)?;
        fields.take(INTEGER)?;
        let modulus = fields.take(INTEGER)?;
        // More numbers follow, else it is some other sequence.
        fields.take(INTEGER)?;
        Some(Self::Rsa(modulus))
    }

    /// `SEQUENCE { 1, OCTET STRING key, [0] curve, [1] BIT STRING point }`
    fn ec(der: &'k [u8]) -> Option<Self> {
        let mut fields = Fields::of(der, SEQUENCE)?;
        fields.take(INTEGER)?;
        fields.take(OCTETS)?;
        let mut point = None;
        while let Some((tag, content)) = fields.next() {
            if tag == TAGGED_1 {
                // The first byte counts unused bits.
                point = Fields(content).take(BITS)?.get(1..);
            }
        }
        Some(Self::Ec(point))
    }
}

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const TAGGED_1: u8 = 0xa1;

/// Fields of DER, one after another.
struct Fields<'d>(&'d [u8]);

impl<'d> Fields<'d> {
    /// The fields in one that is the whole.
    fn of(der: &'d [u8], tag: u8) -> Option<Self> {
        Self(der).take(tag).map(Self)
    }

    /// The content of the next field, if it has this tag.
    fn take(&mut self, tag: u8) -> Option<&'d [u8]> {
        let (found, content) = self.next()?;
        (found == tag).then_some(content)
    }

    fn next(&mut self) -> Option<(u8, &'d [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            short @ 0..=0x7f => (usize::from(*short), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pairs, of EC and RSA keys, made for this test alone.
    const EC_CERTIFICATE: &str = include_str!("../tests/bundle_pairs/ec.crt");
    const EC_KEY: &str = include_str!("../tests/bundle_pairs/ec.key");
    const EC_OLD_KEY: &str = include_str!("../tests/bundle_pairs/ec_sec1.key");
    const RSA_CERTIFICATE: &str = include_str!("../tests/bundle_pairs/rsa.crt");
    const RSA_KEY: &str = include_str!("../tests/bundle_pairs/rsa.key");
    const RSA_OLD_KEY: &str = include_str!("../tests/bundle_pairs/rsa_pkcs1.key");
    const OTHER_KEY: &str = include_str!("../tests/bundle_pairs/other_ec.key");
    const OTHER_RSA_KEY: &str = include_str!("../tests/bundle_pairs/other_rsa.key");

    #[test]
    fn pairs_are_told_from_what_is_none() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let both = format!("{EC_CERTIFICATE}{RSA_CERTIFICATE}");
        for (certificate, key, want) in [
            (EC_CERTIFICATE, EC_KEY, None),
            (EC_CERTIFICATE, EC_OLD_KEY, None),
            (RSA_CERTIFICATE, RSA_KEY, None),
            (RSA_CERTIFICATE, RSA_OLD_KEY, None),
            (EC_CERTIFICATE, OTHER_KEY, Some("tls: private key does not match public key")),
            (RSA_CERTIFICATE, OTHER_RSA_KEY, Some("tls: private key does not match public key")),
            (RSA_CERTIFICATE, EC_KEY, Some("tls: private key type does not match public key type")),
            (EC_CERTIFICATE, RSA_KEY, Some("tls: private key type does not match public key type")),
            ("", EC_KEY, Some("tls: failed to find any PEM data in certificate input")),
            (EC_CERTIFICATE, "x", Some("tls: failed to find any PEM data in key input")),
            (
                EC_KEY,
                EC_CERTIFICATE,
                Some(
                    "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs \
                     may have been switched",
                ),
            ),
            (
                EC_CERTIFICATE,
                EC_CERTIFICATE,
                Some("tls: found a certificate rather than a key in the PEM for the private key"),
            ),
            (
                EC_CERTIFICATE,
                &both,
                Some(
                    "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
                     of the following types: [CERTIFICATE CERTIFICATE]",
                ),
            ),
            (broken, EC_KEY, Some("x509: malformed certificate")),
            (EC_CERTIFICATE, no_key, Some("tls: failed to parse private key")),
        ] {
            assert_eq!(wrong(certificate.as_bytes(), key.as_bytes()).as_deref(), want);
        }
    }

    #[test]
    fn no_bytes_lead_out_of_a_field() {
        let whole = certificates::blocks(RSA_KEY.as_bytes()).next().expect("a block").bytes;
        for cut in 0..whole.len() {
            let _ = Key::read(&whole[..cut]);
        }
        for huge in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x85], &[0x30, 0x80, 0, 0]] {
            assert!(Key::read(huge).is_none());
        }
    }
}
