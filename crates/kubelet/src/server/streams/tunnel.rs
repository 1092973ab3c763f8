//! SPDY in the messages of a WebSocket, whose bytes are passed on as they are: to port-forward of this kubelet, or to
//! the runtime.

use std::time::Duration;

use bytes::BytesMut;
use stdx::SharedClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transport::once::Io;
use transport::splice::Activity;
use transport::websocket::both_ways::{self, Deaf, Farewell};
use transport::websocket::{Said, Takeover};

/// Room while little is said: thousands of sessions say nothing.
const LITTLE: usize = 4 * 1024;
/// Read at once while much is said, and the longest message: with its head four records of TLS, and no fifth for a few bytes.
pub const PIECE: usize = 64 * 1024 - 4;

/// Carries the stream until it ends.
pub async fn carry(takeover: Takeover, io: Box<dyn Io>, idle: Duration, clock: SharedClock) {
    let Ok((sayer, mut hearer)) = both_ways::open(takeover, &clock).await else { return };
    let (mut read, mut write) = tokio::io::split(io);
    let activity = Activity::default();
    let farewell = {
        let up = async {
            let mut taken = true;
            loop {
                match hearer.hear().await {
                    // Who takes no more may still have something to say: the other direction ends it.
                    Ok(Some(Said::Binary(_))) if !taken => {}
                    Ok(Some(Said::Binary(bytes))) => {
                        activity.count(bytes.len());
                        match sayer.while_it_waits(write.write_all(&bytes), &clock).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => {
                                tracing::debug!(%error, "the runtime takes no more of a stream");
                                taken = false;
                            }
                            Err(both_ways::Gone) => return Farewell::Done,
                        }
                    }
                    Ok(Some(Said::Text(_))) => return Farewell::Wrong,
                    Ok(None) | Err(Deaf::Gone) => return Farewell::Done,
                    Err(Deaf::TooLong) => return Farewell::TooLong,
                }
            }
        };
        let down = async {
            let (mut room, mut piece) = (LITTLE, BytesMut::new());
            loop {
                piece.reserve(room);
                match read.read_buf(&mut piece).await {
                    Ok(size @ 1..) => {
                        activity.count(size);
                        if sayer.say(Said::Binary(piece.split().freeze())).await.is_err() {
                            return Farewell::Done;
                        }
                        if size >= room {
                            room = (room * 4).min(PIECE);
                        } else if size <= room / 4 {
                            (room, piece) = (LITTLE, BytesMut::new());
                        }
                    }
                    Ok(0) => return Farewell::Done,
                    Err(error) => {
                        tracing::debug!(%error, "the runtime's end of a stream broke");
                        return Farewell::Failed;
                    }
                }
            }
        };
        tokio::select! {
            farewell = up => farewell,
            farewell = down => farewell,
            () = activity.silent(idle, &clock) => Farewell::Done,
        }
    };
    drop(sayer);
    hearer.close(farewell).await;
}
