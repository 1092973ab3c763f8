//! One connection that is forwarded: two streams of the client's session, and a socket in the pod's network.
//!
//! ```text
//!  client ── data ──► input (bounded) ──► socket ──► pod
//!         ◄─ data ──────────────────────── socket ◄── pod
//!         ◄─ error ── why nobody was reached; ends when the connection has
//! ```
//!
//! What is written to the client is never broken off: half a frame would break every other stream with it. So a
//! connection that is given up is told so, and ends by itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use stdx::SharedClock;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use transport::spdy::session::{Error, Id, SENT, Writer};
use transport::splice::Activity;

use super::{Piece, To, dial};

/// Read at once while little comes, and while much does: thousands of connections say nothing.
const LITTLE: usize = 4 * 1024;
const MUCH: usize = 4 * SENT;
/// How long a client may say nothing to a pod that has said all it has to say: most clients wait for the end of the
/// whole connection then, and only few pods go on listening.
const HALF_CLOSED: Duration = Duration::from_secs(1);

/// A connection to be made.
pub struct Connection {
    pub to: Arc<To>,
    pub port: u16,
    pub data: Id,
    pub error: Id,
    pub writer: Writer,
    /// What the client says; closed when that has ended.
    pub input: mpsc::Receiver<Piece>,
    /// It is over both ways: the client has given it up, or the pod has broken it.
    pub gone: CancellationToken,
    /// What moves in the whole session.
    pub activity: Arc<Activity>,
    pub clock: SharedClock,
}

impl Connection {
    /// Makes it, and carries it to its end.
    pub async fn run(self) {
        let (writer, errors, port) = (self.writer.clone(), self.error, self.port);
        let carried = self.carry().await;
        // Where the client takes no more, the session notices by itself.
        if let Err(error) = carried.and(writer.finish(errors).await) {
            tracing::debug!(%error, port, "a client does not hear of a connection's end");
        }
    }

    async fn carry(self) -> Result<(), Error> {
        let Self { to, port, data, error, writer, input, gone, activity, clock } = self;
        let dialled = tokio::select! {
            dialled = dial::dial(&to.network, port, &clock) => dialled,
            () = gone.cancelled() => return Ok(()),
        };
        let socket = match dialled {
            Ok(socket) => socket,
            Err(why) => {
                let told = format!("error forwarding port {port} to pod {}, uid {}: {why}", to.pod, to.uid);
                writer.data(error, told.into()).await?;
                return writer.finish(data).await;
            }
        };
        let (read, write) = TcpStream::into_split(socket);
        let (own, said_all) = (Activity::default(), CancellationToken::new());
        let moved = |bytes: usize| {
            activity.count(bytes);
            own.count(bytes);
        };
        let there = async {
            let silent = async {
                said_all.cancelled().await;
                own.silent(HALF_CLOSED, &clock).await;
            };
            tokio::select! {
                () = up(write, input, &gone, &moved) => {}
                () = silent => {}
            }
        };
        let back = async {
            let told = down(read, &writer, data, &gone, &moved).await;
            said_all.cancel();
            told
        };
        tokio::join!(there, back).1
    }
}

/// From the client to the pod. What a pod does not take is thrown away, and the pod listened to all the same.
async fn up(
    mut pod: OwnedWriteHalf,
    mut input: mpsc::Receiver<Piece>,
    gone: &CancellationToken,
    moved: &impl Fn(usize),
) {
    let carried = async {
        while let Some(Piece { bytes, held }) = input.recv().await {
            if let Err(error) = pod.write_all(&bytes).await {
                return tracing::debug!(%error, "a pod takes no more of a connection");
            }
            moved(bytes.len());
            drop(held);
        }
        // The client has said all, and may still listen.
        if let Err(error) = pod.shutdown().await {
            tracing::debug!(%error, "a pod is gone before it was told that a client has said all");
        }
    };
    tokio::select! {
        () = carried => {}
        () = gone.cancelled() => {}
    }
}

/// From the pod to the client.
async fn down(
    pod: OwnedReadHalf,
    writer: &Writer,
    data: Id,
    gone: &CancellationToken,
    moved: &impl Fn(usize),
) -> Result<(), Error> {
    let (mut room, mut buffer) = (LITTLE, BytesMut::new());
    loop {
        let ready = tokio::select! {
            ready = pod.readable() => ready,
            () = gone.cancelled() => return Ok(()),
        };
        buffer.reserve(room);
        match ready.and_then(|()| pod.try_read_buf(&mut buffer)) {
            Ok(0) => return writer.finish(data).await,
            Ok(size) => {
                moved(size);
                writer.data(data, buffer.split().freeze()).await?;
                if size >= room {
                    room = (room * 4).min(MUCH);
                } else if size <= room / 4 {
                    room = (room / 4).max(LITTLE);
                }
            }
            // Nothing is held for what is silent.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => buffer = BytesMut::new(),
            Err(error) => {
                tracing::debug!(%error, "a pod has broken a connection");
                gone.cancel();
                return writer.reset(data).await;
            }
        }
    }
}
