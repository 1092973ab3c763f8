//! A WebSocket on which both ends speak at once.
//!
//! Who hears slowly slows the other end down: nothing is read ahead. As long as nothing is read, no ping is
//! answered either, so [`Sayer::alive`] can tell the other end that it is not forgotten.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use stdx::{ClockExt, SharedClock};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{Kept, Said, Takeover};
use crate::once::Io;

/// The longest message that is heard, however many frames it comes in: upstream's, for clients that say a whole
/// file in one.
pub const LONGEST: usize = 32 << 20;
/// Read at once.
const AT_ONCE: usize = 4 * 1024;
/// How often a client that says nothing is asked whether it is still there; one that has not answered by the
/// next time is gone.
const ASK: Duration = Duration::from_secs(30);
/// How often a client that is not listened to is told that this end is there.
const ALIVE: Duration = Duration::from_secs(10);
/// A farewell may take so long to be answered.
const FAREWELL: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<Box<dyn Io>>;

/// The connection is over.
#[derive(Debug, thiserror::Error)]
#[error("the WebSocket is closed")]
pub struct Gone;

/// Why nothing more is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deaf {
    #[error("the WebSocket is closed")]
    Gone,
    #[error("a message is longer than {LONGEST} bytes")]
    TooLong,
}

impl From<Gone> for Deaf {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

/// Why this end closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    Done,
    /// What the client said makes no sense.
    Wrong,
    /// It said too much at once.
    TooLong,
    /// What it spoke to is broken.
    Failed,
}

/// Says things. Clones share the connection.
#[derive(Clone)]
pub struct Sayer(Arc<Mutex<SplitSink<Socket, Message>>>);

impl Sayer {
    /// Sends a message; returns once it is on its way.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn say(&self, said: Said) -> Result<(), Gone> {
        self.0.lock().await.send(said.into()).await.map_err(gone)
    }

    /// Tells the other end that this one is there, without having been asked.
    async fn alive(&self) -> Result<(), Gone> {
        self.0.lock().await.send(Message::Pong(Bytes::new())).await.map_err(gone)
    }

    /// Does something during which nothing is heard; meanwhile the other end, whose pings nobody answers,
    /// learns now and then that this one is there.
    ///
    /// # Errors
    /// When there is no other end any more: the work is given up.
    pub async fn while_it_waits<T>(
        &self,
        work: impl Future<Output = T> + Send,
        clock: &SharedClock,
    ) -> Result<T, Gone> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = clock.sleep(ALIVE) => {}
            }
            tokio::select! {
                done = &mut work => return Ok(done),
                told = self.alive() => told?,
            }
        }
    }

    async fn ask(&self) -> Result<(), Gone> {
        self.0.lock().await.send(Message::Ping(Bytes::new())).await.map_err(gone)
    }
}

fn gone(error: Error) -> Gone {
    tracing::debug!(%error, "a WebSocket ended");
    Gone
}

/// Hears things.
pub struct Hearer {
    stream: SplitStream<Socket>,
    sayer: Sayer,
    clock: SharedClock,
    kept: Kept,
}

impl Hearer {
    /// The next message; `None` when the client has said farewell. A client that is silent is asked now and
    /// then whether it is there.
    ///
    /// # Errors
    /// When the connection is broken, the client is gone, does not keep to the protocol or says too much at once.
    pub async fn hear(&mut self) -> Result<Option<Said>, Deaf> {
        let mut asked = false;
        loop {
            let Ok(heard) = self.clock.timeout(ASK, self.stream.next()).await else {
                if asked {
                    tracing::debug!("a WebSocket's client is gone");
                    return Err(Deaf::Gone);
                }
                asked = true;
                self.sayer.ask().await?;
                continue;
            };
            asked = false;
            match heard {
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(Said::Binary(bytes))),
                Some(Ok(Message::Text(text))) => return Ok(Some(Said::Text(text.into()))),
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(Error::Capacity(CapacityError::MessageTooLong { .. }))) => return Err(Deaf::TooLong),
                Some(Err(error)) => return Err(gone(error).into()),
            }
        }
    }

    /// Says farewell, unless the client was first, and waits a little for the answer. The connection ends
    /// once the last of its sayers is dropped, too.
    pub async fn close(mut self, farewell: Farewell) {
        let code = match farewell {
            Farewell::Done => CloseCode::Normal,
            Farewell::Wrong => CloseCode::Protocol,
            Farewell::TooLong => CloseCode::Size,
            Farewell::Failed => CloseCode::Error,
        };
        let frame = CloseFrame { code, reason: "".into() };
        let clock = self.clock.clone();
        let end = async {
            let mut sink = self.sayer.0.lock().await;
            // Refused where the client was first; reading on answers it then.
            if let Err(error) = sink.send(Message::Close(Some(frame))).await {
                tracing::debug!(%error, "no farewell was said");
            }
            while let Some(Ok(_)) = self.stream.next().await {}
        };
        if clock.timeout(FAREWELL, end).await.is_err() {
            tracing::debug!("a WebSocket's client did not read its end");
        }
    }
}

impl Drop for Hearer {
    fn drop(&mut self) {
        self.kept.let_go();
    }
}

/// The connection below a request that was answered with [`super::accept`]'s answer.
///
/// # Errors
/// When it broke before.
pub async fn open(takeover: Takeover, clock: &SharedClock) -> Result<(Sayer, Hearer), Gone> {
    let Takeover { connection, kept } = takeover;
    match connection.await {
        Ok(connection) => Ok(over(Box::new(TokioIo::new(connection)), kept, clock).await),
        Err(error) => {
            kept.let_go();
            tracing::debug!(%error, "a connection was not handed over");
            Err(Gone)
        }
    }
}

async fn over(io: Box<dyn Io>, kept: Kept, clock: &SharedClock) -> (Sayer, Hearer) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(LONGEST))
        .max_frame_size(Some(LONGEST))
        .read_buffer_size(AT_ONCE)
        // What is said goes at once.
        .write_buffer_size(0);
    let (sink, stream) = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split();
    let sayer = Sayer(Arc::new(Mutex::new(sink)));
    let hearer = Hearer { stream, sayer: sayer.clone(), clock: clock.clone(), kept };
    (sayer, hearer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::ManualClock;
    use tokio::io::DuplexStream;

    async fn talk() -> (WebSocketStream<DuplexStream>, Sayer, Hearer, ManualClock) {
        let (server, client) = tokio::io::duplex(4096);
        let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
        let shared: SharedClock = Arc::new(clock.clone());
        let (sayer, hearer) = over(Box::new(server), Kept::default(), &shared).await;
        (WebSocketStream::from_raw_socket(client, Role::Client, None).await, sayer, hearer, clock)
    }

    #[tokio::test]
    async fn both_ends_speak_at_once() {
        let (client, sayer, mut hearer, _) = talk().await;
        let (mut sink, mut stream) = client.split();
        let much = || Bytes::from_static(&[5; 100_000]);
        let server = async move {
            let (said, heard) = tokio::join!(sayer.say(Said::Binary(much())), hearer.hear());
            said.expect("said");
            assert_eq!(heard.expect("heard"), Some(Said::Binary(much())));
            drop(sayer);
            hearer.close(Farewell::Done).await;
        };
        let client = async {
            let (said, heard) = tokio::join!(sink.send(Message::Binary(much())), stream.next());
            said.expect("said");
            assert_eq!(heard.expect("more").expect("heard"), Message::Binary(much()));
            let close = stream.next().await.expect("more").expect("heard");
            assert!(matches!(&close, Message::Close(Some(frame)) if frame.code == CloseCode::Normal), "{close:?}");
            // Reading on answers it.
            while let Some(Ok(_)) = stream.next().await {}
        };
        tokio::join!(server, client);
    }

    #[tokio::test]
    async fn a_client_that_is_gone_is_found_out() {
        let (client, _sayer, mut hearer, clock) = talk().await;
        let hearing = tokio::spawn(async move { hearer.hear().await });
        while !hearing.is_finished() {
            if clock.next_timer().is_some() {
                clock.advance(ASK);
            }
            tokio::task::yield_now().await;
        }
        assert!(hearing.await.expect("ran").is_err());
        drop(client);
    }

    #[tokio::test]
    async fn what_is_too_long_is_not_heard_and_told() {
        let (client, sayer, mut hearer, clock) = talk().await;
        let (mut sink, mut stream) = client.split();
        let sending = tokio::spawn(async move { sink.send(Message::Binary(vec![0; LONGEST + 1].into())).await });
        assert_eq!(hearer.hear().await, Err(Deaf::TooLong));
        drop(sayer);
        let closing = tokio::spawn(hearer.close(Farewell::TooLong));
        let close = stream.next().await.expect("more").expect("heard");
        assert!(matches!(&close, Message::Close(Some(frame)) if frame.code == CloseCode::Size), "{close:?}");
        // What is left of the message is not waited for.
        while !closing.is_finished() {
            if clock.next_timer().is_some() {
                clock.advance(FAREWELL);
            }
            tokio::task::yield_now().await;
        }
        drop(stream);
        sending.abort();
    }

    #[tokio::test]
    async fn nothing_is_waited_for_in_the_name_of_who_is_gone() {
        let (client, sayer, _hearer, clock) = talk().await;
        drop(client);
        let shared: SharedClock = Arc::new(clock.clone());
        let waiting = tokio::spawn(async move { sayer.while_it_waits(std::future::pending::<()>(), &shared).await });
        while !waiting.is_finished() {
            if clock.next_timer().is_some() {
                clock.advance(ALIVE);
            }
            tokio::task::yield_now().await;
        }
        assert!(waiting.await.expect("ran").is_err());
    }
}
