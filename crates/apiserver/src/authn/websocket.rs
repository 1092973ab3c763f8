//! Tokens of browsers: who opens a WebSocket there can set no header, only name subprotocols.
//!
//! ```text
//!  Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dG9r, v4.channel.k8s.io
//!    ──►  Authorization: Bearer tok    Sec-WebSocket-Protocol: v4.channel.k8s.io
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};
use machinery::status::{self, Status};
use transport::websocket;

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Moves such a token to where tokens are looked for.
///
/// # Errors
/// 401 for a token that cannot be read, for two, and where no protocol remains to be spoken.
pub fn take_token(headers: &mut HeaderMap) -> status::Result<()> {
    if !websocket::is_asked(headers) {
        return Ok(());
    }
    let offered = websocket::protocols(headers);
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered.into_iter().partition(|p| p.starts_with(PREFIX));
    let token = match tokens.as_slice() {
        [] => return Ok(()),
        [token] if !others.is_empty() => token.strip_prefix(PREFIX).unwrap_or_default(),
        _ => return Err(Status::unauthorized()),
    };
    let token = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let token = token.filter(|token| !token.is_empty()).ok_or_else(Status::unauthorized)?;
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Status::unauthorized());
    let (bearer, others) = (value(&format!("Bearer {token}"))?, value(&others.join(", "))?);
    headers.entry(AUTHORIZATION).or_insert(bearer);
    headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(protocols: &'static str) -> String {
        let pairs = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", protocols)];
        let mut headers: HeaderMap =
            pairs.iter().map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_static(v))).collect();
        match take_token(&mut headers) {
            Err(status) => status.code.to_string(),
            Ok(()) => {
                let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
                format!("{} | {}", text("authorization"), text("sec-websocket-protocol"))
            }
        }
    }

    #[test]
    fn a_token_among_the_protocols_is_a_bearer_token() {
        for (protocols, want) in [
            ("base64url.bearer.authorization.k8s.io.dG9r, a, b", "Bearer tok | a, b"),
            ("a", "- | a"),
            ("base64url.bearer.authorization.k8s.io.dG9r", "401"),
            ("base64url.bearer.authorization.k8s.io.dG9r, base64url.bearer.authorization.k8s.io.dG9r, a", "401"),
            ("base64url.bearer.authorization.k8s.io.!, a", "401"),
            ("base64url.bearer.authorization.k8s.io., a", "401"),
            ("base64url.bearer.authorization.k8s.io.Cg, a", "401"),
        ] {
            assert_eq!(check(protocols), want, "{protocols}");
        }
    }
}
