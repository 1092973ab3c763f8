//! Keys of ServiceAccount tokens: signing with ES256, verifying with ES256 or RS256, and JWKs.
//!
//! Only signatures are judged here. What a token claims, and when it ends, its reader decides.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PublicKeyData};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::Error;

/// Parts of a public key as a JSON Web Key shows them, base64url.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwk {
    /// P-256 point.
    Ec { x: String, y: String },
    /// Modulus and exponent.
    Rsa { n: String, e: String },
}

/// A key that tokens can be checked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    id: String,
    der: Vec<u8>,
    /// What `ring` wants: the point, or the PKCS #1 sequence.
    raw: Vec<u8>,
    jwk: Jwk,
}

impl PublicKey {
    /// Reads a PEM public key (`PUBLIC KEY`).
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes());
        Self::from_der(&der.map_err(|e| Error::malformed("public key", e))?)
    }

    /// Reads a DER public key.
    pub fn from_der(der: &[u8]) -> Result<Self, Error> {
        let bad = |why: &dyn std::fmt::Display| Error::malformed("public key", why);
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|e| bad(&e))?;
        let raw = info.subject_public_key.data.to_vec();
        let jwk = match info.parsed().map_err(|e| bad(&e))? {
            Parsed::EC(point) => match point.data() {
                [4, rest @ ..] if rest.len() == 64 => {
                    let (x, y) = rest.split_at(32);
                    Jwk::Ec { x: URL_SAFE_NO_PAD.encode(x), y: URL_SAFE_NO_PAD.encode(y) }
                }
                _ => return Err(bad(&"only curve P-256 is supported")),
            },
            Parsed::RSA(rsa) => {
                let trim = |b: &[u8]| URL_SAFE_NO_PAD.encode(&b[b.iter().take_while(|x| **x == 0).count()..]);
                Jwk::Rsa { n: trim(rsa.modulus), e: trim(rsa.exponent) }
            }
            _ => return Err(bad(&"neither ECDSA nor RSA")),
        };
        let digest = ring::digest::digest(&ring::digest::SHA256, der);
        Ok(Self { id: URL_SAFE_NO_PAD.encode(digest), der: der.to_vec(), raw, jwk })
    }

    /// The key's id (`kid`): the SHA-256 of its DER, as upstream computes it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The only `alg` a token of this key may name.
    pub fn algorithm(&self) -> &'static str {
        match self.jwk {
            Jwk::Ec { .. } => "ES256",
            Jwk::Rsa { .. } => "RS256",
        }
    }

    /// Its parts for a JSON Web Key.
    pub fn jwk(&self) -> &Jwk {
        &self.jwk
    }

    /// PEM.
    pub fn to_pem(&self) -> String {
        let text = STANDARD.encode(&self.der);
        let mut pem = String::from("-----BEGIN PUBLIC KEY-----\n");
        for line in text.as_bytes().chunks(64) {
            pem.extend(line.iter().map(|b| char::from(*b)));
            pem.push('\n');
        }
        pem.push_str("-----END PUBLIC KEY-----\n");
        pem
    }

    /// True when `signature` is this key's for `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn signature::VerificationAlgorithm = match self.jwk {
            Jwk::Ec { .. } => &signature::ECDSA_P256_SHA256_FIXED,
            Jwk::Rsa { .. } => &signature::RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.raw).verify(message, signature).is_ok()
    }
}

enum Pair {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// A key that signs tokens.
pub struct SigningKey {
    pair: Pair,
    public: PublicKey,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.public.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// A new P-256 key, as PEM.
    pub fn generate() -> Result<String, Error> {
        Ok(KeyPair::generate()?.serialize_pem())
    }

    /// Reads a PKCS #8 key: P-256, or RSA where a user brings one.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let bad = |why: &dyn std::fmt::Display| Error::malformed("token key (PKCS #8 expected)", why);
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| bad(&e))?;
        let info = KeyPair::try_from(&der).map_err(|e| bad(&e))?.subject_public_key_info();
        let public = PublicKey::from_der(&info)?;
        let der = der.secret_pkcs8_der();
        let pair = match public.jwk {
            Jwk::Ec { .. } => {
                let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
                Pair::Ec(EcdsaKeyPair::from_pkcs8(algorithm, der, &SystemRandom::new()).map_err(|e| bad(&e))?)
            }
            Jwk::Rsa { .. } => Pair::Rsa(RsaKeyPair::from_pkcs8(der).map_err(|e| bad(&e))?),
        };
        Ok(Self { pair, public })
    }

    /// The key that checks what this one signs.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair) => Ok(pair.sign(&random, message).map_err(Error::crypto)?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out).map_err(Error::crypto)?;
                Ok(out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_key_and_one_message() {
        let key = SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap();
        let other = SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap();
        let signature = key.sign(b"message").unwrap();
        assert_eq!(key.public().algorithm(), "ES256");
        assert!(key.public().verify(b"message", &signature));
        assert!(!key.public().verify(b"massage", &signature));
        assert!(!other.public().verify(b"message", &signature));
        assert_eq!(PublicKey::from_pem(&key.public().to_pem()).unwrap(), *key.public());
        assert!(PublicKey::from_pem("garbage").is_err());
    }

    #[test]
    fn an_rsa_key_is_accepted_for_checking() {
        const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
            MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAuNBSrTnU8igQ/AKdO+Iw\n\
            29UD/EqkWh279K0qxhqdP/xSJXHCbCdUx4oMezbuj+ZIkMSrq7DPIeVMNCDnOiH7\n\
            BwBwrNGW81QiSO6Jo1FLjnIwWib0OwVLb4C74gMbR9ZPEVaoG2U0wRpPnAAsyxPN\n\
            /VHjE653SOWUsxdInSWzAl1UWjbYjCv9yUFvZdyZMIwK33XSpX3tJf4IPkjf4Z3w\n\
            n9kP58K6ndiczbGROb9IiqT+wOY/sFfLuQG4xnPqL/EH7Qnl6UlRcSuXIzeZNID8\n\
            cLV4xN4lghKbwFYlP4sAxamiOUyjMZ3KJ0kbiaI5xpg0ijhtwQstV8u/OT6gCJ4p\n\
            LQIDAQAB\n\
            -----END PUBLIC KEY-----\n";
        const SIGNATURE: &str = "dtYaOAt9WpxcVs5kCPHEXvrFd/C225BQV8HurexxvrcXRQxI+bzp6LotzxQPPUtmQXej6vkINwSUcF6m4xdyibvX\
            6oIhxaZG7ln41lEeDNX9wL+59RGqDFQs8DpPTT8TyGP7dYc9ULARfvGdzOFGlSCNAfpoJR3D15uB6Qq+3dBD4Lvk\
            kRNOhySAgEvu4vH8zn8npKwJA/jTvJPSewgJjN/Sx2LTzHr5pes4/HvGYWKf3DjTFN6R1SuSz5o/+FYNQ8Co6Y4/\
            f+DLEn4Ng6hUEuYuXxjiCn6vF6FmY9hvpTweQFdB1Wmx6V3DBFYvM3Qgg9S9wqFes/IEGV2QAFVcpw==";
        let key = PublicKey::from_pem(PUBLIC).unwrap();
        let signature = STANDARD.decode(SIGNATURE).unwrap();
        assert_eq!(key.algorithm(), "RS256");
        assert!(key.verify(b"message", &signature));
        assert!(!key.verify(b"massage", &signature));
        assert_eq!(key.to_pem(), PUBLIC);
        assert!(matches!(key.jwk(), Jwk::Rsa { e, .. } if e == "AQAB"));
    }
}
