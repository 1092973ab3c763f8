//! Signed tokens in the compact form of JWS: three base64url parts with dots between.
//!
//! Only the signature is judged here, against the one algorithm a key has: `alg: none` and a key
//! used with another algorithm's name cannot pass. Claims are their reader's business.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pki::{PublicKey, SigningKey};
use serde::Deserialize;
use serde_json::json;

/// No token of ours comes near this.
const LIMIT: usize = 16 * 1024;

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Extensions that must be understood: none is.
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

/// Signs a payload.
pub fn sign(key: &SigningKey, payload: &[u8]) -> Result<String, pki::Error> {
    let header = json!({"alg": key.public().algorithm(), "kid": key.public().id()}).to_string();
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let signature = key.sign(message.as_bytes())?;
    Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// The payload of a token that one of `keys` has signed.
pub fn open(token: &str, keys: &[PublicKey]) -> Option<Vec<u8>> {
    if token.len() > LIMIT {
        return None;
    }
    let (message, signature) = token.rsplit_once('.')?;
    let (header, payload) = message.split_once('.')?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
    if header.crit.is_some() {
        return None;
    }
    let (payload, signature) = (decode(payload)?, decode(signature)?);
    let fits = |key: &&PublicKey| key.algorithm() == header.alg && (header.kid.is_empty() || header.kid == key.id());
    keys.iter().filter(fits).any(|key| key.verify(message.as_bytes(), &signature)).then_some(payload)
}

/// What a token claims, unchecked: only to be shown, or to choose whom to ask.
pub fn peek(token: &str) -> Option<serde_json::Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap()
    }

    #[test]
    fn only_what_a_known_key_signed_opens() {
        let (key, other) = (key(), key());
        let keys = [other.public().clone(), key.public().clone()];
        let token = sign(&key, b"{}").unwrap();
        assert_eq!(open(&token, &keys).as_deref(), Some(&b"{}"[..]));
        assert_eq!(open(&token, &keys[..1]), None, "an unknown key");

        let parts: Vec<&str> = token.split('.').collect();
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let crit = format!("{}.{}", encode(r#"{"alg":"ES256","crit":["x"]}"#), parts[1]);
        let signed = |message: String| {
            let signature = URL_SAFE_NO_PAD.encode(key.sign(message.as_bytes()).unwrap());
            format!("{message}.{signature}")
        };
        for (why, token) in [
            ("alg none", format!("{}.{}.", encode(r#"{"alg":"none"}"#), parts[1])),
            ("another algorithm's name", signed(format!("{}.{}", encode(r#"{"alg":"RS256"}"#), parts[1]))),
            ("a symmetric algorithm", signed(format!("{}.{}", encode(r#"{"alg":"HS256"}"#), parts[1]))),
            ("another key's id", signed(format!("{}.{}", encode(r#"{"alg":"ES256","kid":"x"}"#), parts[1]))),
            ("an extension we must understand", signed(crit)),
            ("a changed payload", format!("{}.{}.{}", parts[0], encode(r#"{"a":1}"#), parts[2])),
            ("no signature", format!("{}.{}.", parts[0], parts[1])),
            ("too few parts", format!("{}.{}", parts[0], parts[1])),
            ("too many parts", format!("{token}.x")),
            ("padding", format!("{token}=")),
            ("nothing", String::new()),
            ("dots", "..".to_owned()),
            ("too long", format!("{token}{}", "a".repeat(LIMIT))),
        ] {
            assert_eq!(open(&token, &keys), None, "{why}");
        }
        let plain = signed(format!("{}.{}", encode(r#"{"alg":"ES256"}"#), parts[1]));
        assert!(open(&plain, &keys).is_some(), "without a key id every key is tried");
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics_and_none_opens(token in "\\PC{0,40}(\\.[A-Za-z0-9_-]{0,40}){0,3}") {
            proptest::prop_assert_eq!(open(&token, &[key().public().clone()]), None);
        }
    }
}
