//! WebSocket on the server's side: a request of HTTP/1.1 becomes a connection of messages, sent one way
//! here and both ways in `both_ways`.
//!
//! ```text
//!  GET, Connection: Upgrade, Upgrade: websocket  ──►  101, then messages until they or the client end
//! ```

pub mod both_ways;

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use stdx::{ClockExt, SharedClock};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::dial::chain;
use crate::once::Io;
use crate::serve::Place;
use crate::{Error, Response};

/// What a client may say; nothing of it is needed.
const HEARD: usize = 64 * 1024;
/// How often a client is asked whether it is still there. One that has not said anything by the next
/// time is gone.
const ASK: Duration = Duration::from_secs(30);

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

/// What is kept for as long as a connection lasts that was taken over.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Kept {
    pub(crate) fn keep(&self, thing: Box<dyn Any + Send>) {
        self.0.lock().push(thing);
    }

    pub(crate) fn let_go(&self) {
        self.0.lock().clear();
    }
}

/// The connection below a request, to be taken over once the request is answered. It goes on counting
/// among the server's connections.
#[derive(Clone)]
pub struct Takeover {
    connection: OnUpgrade,
    kept: Kept,
}

impl Takeover {
    /// Of a request's extensions; `None` where there is none to take: HTTP/2, or in process.
    pub fn of(extensions: &Extensions) -> Option<Self> {
        let connection = extensions.get::<OnUpgrade>()?.clone();
        if let Some(kept) = extensions.get::<Kept>().cloned() {
            return Some(Self { connection, kept });
        }
        let kept = Kept::default();
        if let Some(place) = extensions.get::<Place>() {
            kept.keep(Box::new(place.clone()));
        }
        Some(Self { connection, kept })
    }

    /// Gives the connection on, with a request that another handler of this process answers.
    pub(crate) fn hand_on(&self, extensions: &mut Extensions) {
        extensions.insert(self.connection.clone());
        extensions.insert(self.kept.clone());
    }

    /// Holds this until whoever takes the connection over is done with it.
    pub fn keep<T: Send + 'static>(&self, thing: T) {
        self.kept.keep(Box::new(thing));
    }

    /// What is held with this answer ([`crate::hold`]) is held until whoever takes the connection over is done with it.
    pub fn last(&self, response: &mut Response) {
        response.extensions_mut().insert(self.kept.clone());
    }

    /// A connection that never comes.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        Self { connection: hyper::upgrade::on(http::Request::new(())), kept: Kept::default() }
    }

    /// The connection itself, for what is no WebSocket, once the request is answered with 101. It counts among the
    /// server's as long as this is held.
    ///
    /// # Errors
    /// When it broke before.
    pub async fn io(&self) -> Result<Box<dyn Io>, Error> {
        let connection = self.connection.clone().await.map_err(|error| Error::Broken(chain(&error)))?;
        Ok(Box::new(TokioIo::new(connection)))
    }

    /// The connection, once the request is answered with 101.
    pub(crate) fn connection(&self) -> OnUpgrade {
        self.connection.clone()
    }
}

/// Which subprotocols are spoken.
#[derive(Clone, Copy, Debug)]
pub enum Protocols {
    /// Any one that the client names, or none: it says nothing about the messages.
    Named,
    /// The client's first of these; the empty one is for clients that name none.
    Of(&'static [&'static str]),
}

/// Why a request does not become a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// 400.
    Wrong(&'static str),
    /// 403: nothing that the client speaks is spoken here.
    Protocol(String),
}

/// The subprotocol to speak; empty for none.
fn choose(headers: &HeaderMap, spoken: Protocols) -> Result<&str, Refused> {
    let offered = protocols(headers);
    match (spoken, offered.as_slice()) {
        (Protocols::Named, []) => Ok(""),
        (Protocols::Named, [one]) => Ok(one),
        (Protocols::Named, _) => Err(Refused::Wrong("of the WebSocket subprotocols one must be chosen")),
        (Protocols::Of(spoken), []) if spoken.contains(&"") => Ok(""),
        (Protocols::Of(spoken), offered) => offered.iter().copied().find(|p| spoken.contains(p)).ok_or_else(|| {
            let list = |names: &[&str]| format!("[{}]", names.join(" "));
            Refused::Protocol(format!(
                "requested protocol(s) are not supported: {}; supports {}",
                list(offered),
                list(spoken)
            ))
        }),
    }
}

/// Answers the handshake. What [`crate::hold`] is given with the answer is held until the connection
/// ends.
///
/// # Errors
/// What is wrong with the request.
pub fn accept(takeover: &Takeover, headers: &HeaderMap, spoken: Protocols) -> Result<(Response, String), Refused> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text("sec-websocket-version") != "13" {
        return Err(Refused::Wrong("the WebSocket version must be 13"));
    }
    let key = text(SEC_WEBSOCKET_KEY.as_str());
    if key.is_empty() {
        return Err(Refused::Wrong("the header Sec-WebSocket-Key is missing"));
    }
    let chosen = choose(headers, spoken)?;
    let mut response = http::Response::new(crate::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let accepted = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    answer.extend(accepted.ok().map(|value| (SEC_WEBSOCKET_ACCEPT, value)));
    let named = (!chosen.is_empty()).then(|| HeaderValue::from_str(chosen).ok()).flatten();
    answer.extend(named.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)));
    response.extensions_mut().insert(takeover.kept.clone());
    Ok((response, chosen.to_owned()))
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
/// says is not heard, but its pings are answered, and its farewell. It is asked now and then whether it
/// is still there.
pub async fn send(takeover: Takeover, messages: impl Stream<Item = Said>, clock: SharedClock, patience: Duration) {
    let Takeover { connection, kept } = takeover;
    match connection.await {
        Ok(connection) => speak(TokioIo::new(connection), messages, &clock, patience).await,
        Err(error) => tracing::debug!(%error, "a connection was not handed over"),
    }
    kept.let_go();
}

async fn speak<I>(connection: I, messages: impl Stream<Item = Said>, clock: &SharedClock, patience: Duration)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    let config = WebSocketConfig::default().max_message_size(Some(HEARD)).max_frame_size(Some(HEARD));
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
    let mut messages = pin!(messages);
    let mut heard_of = true;
    let mut ask = clock.sleep(ASK);
    let left_by_client = loop {
        tokio::select! {
            biased;
            heard = socket.next() => match heard {
                Some(Ok(message)) if message.is_close() => break true,
                Some(Ok(_)) => heard_of = true,
                Some(Err(_)) | None => return,
            },
            () = &mut ask => {
                if !std::mem::take(&mut heard_of) {
                    return tracing::debug!("a WebSocket's client is gone");
                }
                match clock.timeout(patience, socket.send(Message::Ping(Bytes::new()))).await {
                    Ok(Ok(())) => ask = clock.sleep(ASK),
                    _ => return,
                }
            }
            said = messages.next() => match said {
                Some(said) => match clock.timeout(patience, socket.send(said.into())).await {
                    Ok(Ok(())) => {}
                    _ => return,
                },
                None => break false,
            },
        }
    };
    // A farewell, unless the client has said its own; reading on answers that, and hears the answer to ours.
    let end = async {
        if !left_by_client {
            if let Err(error) = socket.close(None).await {
                return tracing::debug!(%error, "a WebSocket did not end in order");
            }
        }
        while let Some(Ok(_)) = socket.next().await {}
    };
    if clock.timeout(patience, end).await.is_err() {
        tracing::debug!("a WebSocket's client did not read its end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::ManualClock;
    use tokio::io::DuplexStream;

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
        let takeover = Takeover::of_nobody();
        let (answer, spoken) = accept(&takeover, &asked, LOGS).expect("a handshake");
        assert_eq!((answer.status().as_u16(), spoken.as_str()), (101, "base64.binary.k8s.io"));
        assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.headers()["sec-websocket-protocol"], "base64.binary.k8s.io");
        for wrong in [&[("connection", "Upgrade")][..], &[("upgrade", "websocket")], &[]] {
            assert!(!is_asked(&headers(wrong)), "{wrong:?}");
            assert!(accept(&takeover, &headers(wrong), LOGS).is_err(), "{wrong:?}");
        }
    }

    const LOGS: Protocols = Protocols::Of(&["", "binary.k8s.io", "base64.binary.k8s.io"]);

    #[test]
    fn a_subprotocol_is_spoken_that_both_know() {
        let none = "requested protocol(s) are not supported: [v4.channel.k8s.io x]; supports [ binary.k8s.io \
                    base64.binary.k8s.io]";
        for (offered, spoken, want) in [
            ("", Protocols::Named, Ok("")),
            ("anything", Protocols::Named, Ok("anything")),
            ("a, b", Protocols::Named, Err(Refused::Wrong("of the WebSocket subprotocols one must be chosen"))),
            ("", LOGS, Ok("")),
            ("x, binary.k8s.io, base64.binary.k8s.io", LOGS, Ok("binary.k8s.io")),
            ("v4.channel.k8s.io, x", LOGS, Err(Refused::Protocol(none.to_owned()))),
        ] {
            let mut offer = HeaderMap::new();
            offer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered));
            assert_eq!(choose(&offer, spoken), want, "{offered}");
        }
    }

    fn manual() -> ManualClock {
        ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"))
    }

    async fn talk(clock: &ManualClock) -> (WebSocketStream<DuplexStream>, tokio::task::JoinHandle<()>) {
        let (server, client) = tokio::io::duplex(4096);
        let shared: SharedClock = Arc::new(clock.clone());
        let messages = futures::stream::pending();
        let task = tokio::spawn(async move { speak(server, messages, &shared, Duration::from_secs(5)).await });
        (WebSocketStream::from_raw_socket(client, Role::Client, None).await, task)
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_is_gone_and_one_that_answers_stays() {
        let clock = manual();
        let (mut client, task) = talk(&clock).await;
        for _ in 0..3 {
            settle(|| clock.next_timer().is_some()).await;
            clock.advance(ASK);
            let asked = client.next().await.expect("more").expect("a message");
            assert!(asked.is_ping(), "{asked:?}");
            // Reading has answered it.
            client.flush().await.expect("sent");
        }
        // From now on it says nothing.
        settle(|| clock.next_timer().is_some()).await;
        let pinged = clock.clone();
        settle(move || {
            pinged.advance(ASK);
            false
        })
        .await;
        task.await.expect("it has ended");
    }

    #[tokio::test]
    async fn a_farewell_is_answered() {
        let clock = manual();
        let (mut client, task) = talk(&clock).await;
        client.send(Message::Close(None)).await.expect("sent");
        let mut last = None;
        while let Some(Ok(message)) = client.next().await {
            last = Some(message);
        }
        assert!(matches!(last, Some(Message::Close(_))), "{last:?}");
        drop(client);
        task.await.expect("it has ended");
    }

    /// Lets tasks run until something holds, or for a while.
    async fn settle(done: impl Fn() -> bool) {
        for _ in 0..100 {
            if done() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
