//! WebSocket on the server's side: a request of HTTP/1.1 becomes a connection of messages, sent one way.
//!
//! ```text
//!  GET, Connection: Upgrade, Upgrade: websocket  ──►  101, then messages until they or the client end
//! ```

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use stdx::{ClockExt, SharedClock};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::Response;

/// What a client may say; nothing of it is needed.
const HEARD: usize = 64 * 1024;

/// True when a request asks to become a WebSocket.
pub fn is_asked(headers: &HeaderMap) -> bool {
    tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        && tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("websocket"))
}

/// The comma-separated words of a header.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// The subprotocols a client offers, in its order.
pub fn protocols(headers: &HeaderMap) -> Vec<&str> {
    tokens(headers, &SEC_WEBSOCKET_PROTOCOL).collect()
}

/// The connection below a request, to be taken over once the request is answered.
#[derive(Clone)]
pub struct Takeover(OnUpgrade);

impl Takeover {
    /// Of a request's extensions; `None` where there is none to take: HTTP/2, or in process.
    pub fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get::<OnUpgrade>().cloned().map(Self)
    }
}

/// Answers the handshake; of the subprotocols the first is spoken.
///
/// # Errors
/// What is wrong with the request, for a 400.
pub fn accept(headers: &HeaderMap) -> Result<Response, &'static str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text("sec-websocket-version") != "13" {
        return Err("the WebSocket version must be 13");
    }
    let key = text(SEC_WEBSOCKET_KEY.as_str());
    if key.is_empty() {
        return Err("the header Sec-WebSocket-Key is missing");
    }
    let mut response = http::Response::new(crate::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let accepted = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    answer.extend(accepted.ok().map(|value| (SEC_WEBSOCKET_ACCEPT, value)));
    let spoken = protocols(headers).first().and_then(|protocol| HeaderValue::from_str(protocol).ok());
    answer.extend(spoken.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)));
    Ok(response)
}

/// A message as text, or as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(Bytes),
    Binary(Bytes),
}

impl From<Said> for Message {
    fn from(said: Said) -> Self {
        match said {
            // What is no text goes as the bytes it is.
            Said::Text(bytes) => Utf8Bytes::try_from(bytes.clone()).map_or(Self::Binary(bytes), Self::Text),
            Said::Binary(bytes) => Self::Binary(bytes),
        }
    }
}

/// Sends messages until they end, the client goes, or has not taken one for `patience`. What the client
/// says is not heard, but its pings are answered.
pub async fn send(takeover: Takeover, messages: impl Stream<Item = Said>, clock: SharedClock, patience: Duration) {
    let connection = match takeover.0.await {
        Ok(connection) => TokioIo::new(connection),
        Err(error) => return tracing::debug!(%error, "a connection was not handed over"),
    };
    let config = WebSocketConfig::default().max_message_size(Some(HEARD)).max_frame_size(Some(HEARD));
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
    let mut messages = pin!(messages);
    loop {
        tokio::select! {
            biased;
            heard = socket.next() => match heard {
                Some(Ok(message)) if !message.is_close() => {}
                _ => break,
            },
            said = messages.next() => match said {
                Some(said) => match clock.timeout(patience, socket.send(said.into())).await {
                    Ok(Ok(())) => {}
                    _ => return,
                },
                None => break,
            },
        }
    }
    match clock.timeout(patience, socket.close(None)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a WebSocket did not end in order"),
        Err(_) => tracing::debug!("a WebSocket's client did not read its end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_handshake_is_known_and_answered() {
        let asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "base64.binary.k8s.io, other"),
        ]);
        assert!(is_asked(&asked));
        let answer = accept(&asked).expect("a handshake");
        assert_eq!(answer.status(), 101);
        assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.headers()["sec-websocket-protocol"], "base64.binary.k8s.io");
        for wrong in [&[("connection", "Upgrade")][..], &[("upgrade", "websocket")], &[]] {
            assert!(!is_asked(&headers(wrong)), "{wrong:?}");
            assert!(accept(&headers(wrong)).is_err(), "{wrong:?}");
        }
    }
}
