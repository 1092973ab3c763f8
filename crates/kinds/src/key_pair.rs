//! Whether a certificate and a private key, both in PEM, belong together: in the words of Go's TLS, which
//! is what clients of a `kubernetes.io/tls` Secret are told.
//!
//! An RSA key is compared by its modulus; the public half of the others is worked out, whatever they say of it
//! themselves. Of curves that are not known here (P-521) only what the key says is compared.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
};
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
        (Ok(PublicKey::EC(theirs)), Key::Ec(own)) => own.is_of(theirs.data()),
        (_, Key::Ed25519(seed)) if is_ed25519 => {
            Ed25519KeyPair::from_seed_and_public_key(seed, &public.subject_public_key.data).is_ok()
        }
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

/// A private key, as far as it tells whose it is.
enum Key<'k> {
    /// The modulus.
    Rsa(&'k [u8]),
    Ec(Ec<'k>),
    /// The seed.
    Ed25519(&'k [u8]),
}

/// A number, and its point if that is told too.
struct Ec<'k> {
    number: &'k [u8],
    point: Option<&'k [u8]>,
}

impl Ec<'_> {
    /// True when the point is the number's, or when that cannot be told.
    fn is_of(&self, point: &[u8]) -> bool {
        let known: &[(usize, &'static EcdsaSigningAlgorithm)] =
            &[(32, &ECDSA_P256_SHA256_ASN1_SIGNING), (48, &ECDSA_P384_SHA384_ASN1_SIGNING)];
        let Some((length, algorithm)) = known.iter().find(|(length, _)| point.len() == 1 + 2 * length) else {
            return self.point.is_none_or(|own| own == point);
        };
        let number = trimmed(self.number);
        let Some(missing) = length.checked_sub(number.len()) else { return false };
        let whole = [&vec![0; missing][..], number].concat();
        EcdsaKeyPair::from_private_key_and_public_key(algorithm, &whole, point, &SystemRandom::new()).is_ok()
    }
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
            ED25519 => Fields::of(key, OCTETS).map(|seed| Self::Ed25519(seed.0)),
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
        let number = fields.take(OCTETS)?;
        let mut point = None;
        while let Some((tag, content)) = fields.next() {
            if tag == TAGGED_1 {
                // The first byte counts unused bits.
                point = Fields(content).take(BITS)?.get(1..);
            }
        }
        Some(Self::Ec(Ec { number, point }))
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
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, Issuer, KeyPair, PublicKeyData, SignatureAlgorithm};
    use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256};

    use super::*;

    fn pem(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    /// A field of DER.
    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = content.len();
        let head = if length < 0x80 {
            vec![tag, u8::try_from(length).expect("short")]
        } else {
            [&[tag, 0x82][..], &u16::try_from(length).expect("short").to_be_bytes()].concat()
        };
        [head, content].concat()
    }

    /// A certificate of the key, and the key.
    fn pair(algorithm: &'static SignatureAlgorithm) -> (String, KeyPair) {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let certificate = CertificateParams::new(["a".to_owned()]).expect("names").self_signed(&key).expect("signed");
        (certificate.pem(), key)
    }

    /// What is inside of PKCS #8: for EC, the key in SEC 1.
    fn inner(key: &KeyPair) -> Vec<u8> {
        let mut fields = Fields::of(key.serialized_der(), SEQUENCE).expect("a sequence");
        fields.take(INTEGER).and_then(|_| fields.take(SEQUENCE)).expect("an algorithm");
        fields.take(OCTETS).expect("a key").to_vec()
    }

    /// The same without the point.
    fn without_point(key: &KeyPair) -> Vec<u8> {
        let inner = inner(key);
        let mut fields = Fields::of(&inner, SEQUENCE).expect("a sequence");
        let version = der(INTEGER, &[fields.take(INTEGER).expect("a version")]);
        der(SEQUENCE, &[&version, &der(OCTETS, &[fields.take(OCTETS).expect("a number")])])
    }

    /// A key of RSA as far as it is read: of the modulus alone, which is no product of primes.
    struct Rsa(Vec<u8>);

    impl Rsa {
        fn of(byte: u8) -> Self {
            Self(der(SEQUENCE, &[&der(INTEGER, &[&[0], &[byte; 256]]), &der(INTEGER, &[&[1, 0, 1]])]))
        }

        fn certificate(&self) -> String {
            let key = KeyPair::generate().expect("a key");
            let issuer = Issuer::new(CertificateParams::default(), &key);
            let params = CertificateParams::new(["a".to_owned()]).expect("names");
            params.signed_by(self, &issuer).expect("signed").pem()
        }

        /// In PKCS #1.
        fn key(byte: u8) -> Vec<u8> {
            let number = der(INTEGER, &[&[0], &[byte; 256]]);
            der(SEQUENCE, &[&der(INTEGER, &[&[0]]), &number, &der(INTEGER, &[&[1, 0, 1]]), &number])
        }

        /// In PKCS #8.
        fn wrapped(byte: u8) -> Vec<u8> {
            let algorithm = der(SEQUENCE, &[&der(OBJECT_ID, &[RSA]), &[5, 0]]);
            der(SEQUENCE, &[&der(INTEGER, &[&[0]]), &algorithm, &der(OCTETS, &[&Self::key(byte)])])
        }
    }

    impl PublicKeyData for Rsa {
        fn der_bytes(&self) -> &[u8] {
            &self.0
        }

        fn algorithm(&self) -> &'static SignatureAlgorithm {
            &PKCS_RSA_SHA256
        }
    }

    const OTHER: Option<&str> = Some("tls: private key does not match public key");
    const OTHER_TYPE: Option<&str> = Some("tls: private key type does not match public key type");

    fn check(certificate: &str, key: &str, want: Option<&str>) {
        assert_eq!(wrong(certificate.as_bytes(), key.as_bytes()).as_deref(), want, "{certificate}{key}");
    }

    #[test]
    fn keys_are_known_by_their_public_half() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384] {
            let ((certificate, key), (other, other_key)) = (pair(algorithm), pair(algorithm));
            check(&certificate, &key.serialize_pem(), None);
            check(&certificate, &pem("EC PRIVATE KEY", &inner(&key)), None);
            check(&certificate, &other_key.serialize_pem(), OTHER);
            // Also where the key does not say it.
            let bare = pem("EC PRIVATE KEY", &without_point(&key));
            check(&certificate, &bare, None);
            check(&other, &bare, OTHER);
        }
        let ((certificate, key), (other, _)) = (pair(&PKCS_ED25519), pair(&PKCS_ED25519));
        check(&certificate, &key.serialize_pem(), None);
        check(&other, &key.serialize_pem(), OTHER);
        let rsa = Rsa::of(0xc5).certificate();
        for (byte, want) in [(0xc5, None), (0xc7, OTHER)] {
            check(&rsa, &pem("RSA PRIVATE KEY", &Rsa::key(byte)), want);
            check(&rsa, &pem("PRIVATE KEY", &Rsa::wrapped(byte)), want);
        }
        let (ec, ec_key) = pair(&PKCS_ECDSA_P256_SHA256);
        check(&rsa, &ec_key.serialize_pem(), OTHER_TYPE);
        check(&ec, &pem("PRIVATE KEY", &Rsa::wrapped(0xc5)), OTHER_TYPE);
        check(&certificate, &ec_key.serialize_pem(), OTHER_TYPE);
        check(&ec, &key.serialize_pem(), OTHER_TYPE);
        // Another curve's.
        let (_, longer) = pair(&PKCS_ECDSA_P384_SHA384);
        check(&ec, &longer.serialize_pem(), OTHER);
    }

    #[test]
    fn what_is_no_pair_at_all_is_said() {
        let (certificate, key) = pair(&PKCS_ECDSA_P256_SHA256);
        let key = key.serialize_pem();
        let broken = pem("CERTIFICATE", &[0; 3]);
        let no_key = pem("PRIVATE KEY", &[0; 3]);
        let both = format!("{certificate}{certificate}");
        check("", &key, Some("tls: failed to find any PEM data in certificate input"));
        check(&certificate, "x", Some("tls: failed to find any PEM data in key input"));
        let switched = "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs \
                        may have been switched";
        check(&key, &certificate, Some(switched));
        let found = "tls: found a certificate rather than a key in the PEM for the private key";
        check(&certificate, &certificate, Some(found));
        let skipped = "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
                       of the following types: [CERTIFICATE CERTIFICATE]";
        check(&certificate, &both, Some(skipped));
        check(&broken, &key, Some("x509: malformed certificate"));
        check(&certificate, &no_key, Some("tls: failed to parse private key"));
    }

    #[test]
    fn no_bytes_lead_out_of_a_field() {
        let (_, ec) = pair(&PKCS_ECDSA_P256_SHA256);
        let (certificate, ed) = pair(&PKCS_ED25519);
        for whole in [Rsa::wrapped(0xc5), ec.serialize_der(), without_point(&ec), ed.serialize_der()] {
            for cut in 0..whole.len() {
                let _ = wrong(certificate.as_bytes(), pem("PRIVATE KEY", &whole[..cut]).as_bytes());
            }
        }
        for huge in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x85], &[0x30, 0x80, 0, 0]] {
            assert!(Key::read(huge).is_none());
        }
    }
}
