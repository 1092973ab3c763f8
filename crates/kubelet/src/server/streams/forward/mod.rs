//! Port-forward by the kubelet itself, where it can make sockets in the pod's network: the runtime's own way,
//! through its streaming server, costs ten times as much.
//!
//! ```text
//!  session ─► streams "error" and "data" of one request, port 80 ─► connection.rs ─► socket in the pod's network
//!          ─► streams of another request …                       ─► connection.rs ─► …
//! ```
//!
//! A client opens two streams for each connection, which belong together by their request id.
//!
//! # Invariants
//!
//! * A connection that is given up, or that nobody takes, touches no other. [tests.rs:
//!   one_connection_that_ends_touches_no_other]
//! * A pod that takes nothing holds up no other connection, nor one that comes later, before a few megabytes wait
//!   for it. Then the session stands still: its clients hold nothing back for one stream alone. [tests.rs:
//!   a_pod_that_takes_nothing_holds_nobody_up_while_there_is_room]
//! * What a client has said before it goes arrives. [tests.rs: the_last_words_of_a_client_arrive]
//! * What a client asks for is bounded: no more than a few megabytes wait for all its pods together, streams without
//!   their other half are given up, and connections beyond a bound are refused. [tests.rs:
//!   what_waits_for_pods_is_bounded; tests.rs: half_a_request_is_given_up; tests.rs: no_more_than_a_bound_at_once]

mod connection;
mod dial;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stdx::clock::Instant;
use stdx::{ClockExt, SharedClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use transport::once::Io;
use transport::spdy::Headers;
use transport::spdy::session::{self, Error, Event, Id, Reader, Side, Writer};
use transport::splice::Activity;

pub use dial::reaches;

use crate::runtime::Network;
use connection::Connection;

/// The protocol of the streams.
pub const PROTOCOL: &str = "portforward.k8s.io";
/// Connections of one session at once, and requests that wait for their other half; more are refused.
const MOST: usize = 1000;
/// How long a request may wait for its other half.
const WAIT: Duration = Duration::from_secs(30);
/// Bytes that wait for all pods of a session to take them; at the bound the session waits.
const ROOM: u32 = 4 << 20;
/// A piece of less is copied: it would hold the whole buffer that it came in. In that room it counts as so much.
const SMALL: u32 = 4 * 1024;
/// Pieces that wait for one pod: as many as there can be in the room, so that nobody waits for this.
const PIECES: usize = (ROOM / SMALL) as usize;
/// How long pods may take for what was said to them before their client went.
const DRAIN: Duration = Duration::from_secs(2);
/// How often a client that is not listened to is asked whether it is there.
const ASK: Duration = Duration::from_secs(10);

/// What waits for a pod, and its share of what may wait.
pub struct Piece {
    bytes: Bytes,
    held: OwnedSemaphorePermit,
}

/// Whose ports are forwarded.
pub struct To {
    pub network: Network,
    pub pod: String,
    pub uid: String,
}

/// Serves a session until the client ends it, or nothing has moved in it for too long.
pub async fn serve(io: Box<dyn Io>, to: To, idle: Duration, clock: SharedClock) {
    let (mut reader, writer) = match session::begin(io, Side::Server).await {
        Ok(begun) => begun,
        Err(error) => return tracing::debug!(%error, "a port-forward does not begin"),
    };
    let activity = Arc::new(Activity::default());
    let mut session = Session {
        to: Arc::new(to),
        writer,
        clock: clock.clone(),
        activity: activity.clone(),
        requests: BTreeMap::new(),
        open: BTreeMap::new(),
        tasks: JoinSet::new(),
        room: Arc::new(Semaphore::new(ROOM as usize)),
    };
    tokio::select! {
        ended = session.run(&mut reader) => if let Err(error) = ended {
            tracing::debug!(%error, "a port-forward did not end in order");
        },
        () = activity.silent(idle, &clock) => tracing::debug!("a port-forward carried nothing for too long"),
    }
}

/// A request of which not both streams are there.
struct Half {
    port: u16,
    since: Instant,
    error: Option<Id>,
    data: Option<(Id, mpsc::Receiver<Piece>)>,
}

/// What is kept of a data stream while its connection is under way.
struct Open {
    /// `None`: the client has said all.
    input: Option<mpsc::Sender<Piece>>,
    gone: CancellationToken,
}

struct Session {
    to: Arc<To>,
    writer: Writer,
    clock: SharedClock,
    activity: Arc<Activity>,
    requests: BTreeMap<String, Half>,
    open: BTreeMap<Id, Open>,
    /// The connections; each gives its data stream's number back.
    tasks: JoinSet<Id>,
    /// What may wait for all pods together.
    room: Arc<Semaphore>,
}

/// Which of a request's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Error,
}

/// What a stream is for, by its headers.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    kind: Kind,
    port: u16,
    request: String,
}

impl Asked {
    /// Reads the headers of the stream of that number; `None` for what makes no sense.
    fn read(id: Id, headers: &Headers) -> Option<Self> {
        let get = |name: &str| {
            let found = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let kind = match get("streamtype")? {
            "data" => Kind::Data,
            "error" => Kind::Error,
            _ => return None,
        };
        let port = get("port")?.parse().ok().filter(|port| *port != 0)?;
        // Clients of the first years name no requests: they open the streams of one right after each other, that of
        // errors first.
        let own = || if kind == Kind::Error { id } else { id.saturating_sub(2) }.to_string();
        Some(Self { kind, port, request: get("requestid").map_or_else(own, str::to_owned) })
    }
}

impl Session {
    async fn run(&mut self, reader: &mut Reader) -> Result<(), Error> {
        loop {
            let (oldest, clock) = (self.requests.values().map(|half| half.since).min(), self.clock.clone());
            let late = async {
                match oldest {
                    Some(since) => clock.sleep_until(since + WAIT).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = reader.next() => match event? {
                    Some(event) => self.hear(reader, event).await?,
                    None => return self.drain().await,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(data) => drop(self.open.remove(&data)),
                    Err(error) => tracing::error!(%error, "a forwarded connection has panicked"),
                },
                () = late => self.give_up(reader)?,
            }
        }
    }

    async fn hear(&mut self, reader: &mut Reader, event: Event) -> Result<(), Error> {
        match event {
            Event::Opened { id, headers } => match Asked::read(id, &headers) {
                Some(asked) => self.begin(reader, id, asked)?,
                None => reader.refuse(id)?,
            },
            Event::Data { id, bytes } => {
                let Some(input) = self.open.get(&id).and_then(|open| open.input.clone()) else { return Ok(()) };
                self.pass(&input, bytes).await?;
            }
            Event::Finished { id } => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.input = None;
                }
            }
            Event::Reset { id, .. } => {
                if let Some(open) = self.open.remove(&id) {
                    open.gone.cancel();
                }
                let of =
                    |half: &Half| half.error == Some(id) || half.data.as_ref().is_some_and(|(data, _)| *data == id);
                let halves: Vec<Half> =
                    self.requests.extract_if(.., |_, half| of(half)).map(|(_, half)| half).collect();
                for half in halves {
                    self.refuse(reader, half, Some(id))?;
                }
            }
            Event::Replied { .. } | Event::Going => {}
        }
        Ok(())
    }

    /// A stream of a request; with the second of them the connection begins.
    fn begin(&mut self, reader: &mut Reader, id: Id, asked: Asked) -> Result<(), Error> {
        let known = self.requests.contains_key(&asked.request);
        if !known && self.requests.len() + self.tasks.len() >= MOST {
            tracing::warn!(pod = self.to.pod, "a port-forward has too many connections");
            return reader.refuse(id);
        }
        let half = self.requests.entry(asked.request.clone()).or_insert_with(|| Half {
            port: asked.port,
            since: self.clock.now(),
            error: None,
            data: None,
        });
        let taken = match asked.kind {
            Kind::Data => half.data.is_some(),
            Kind::Error => half.error.is_some(),
        };
        if taken {
            return reader.refuse(id);
        }
        reader.accept(id)?;
        match asked.kind {
            Kind::Data => {
                let (input, queue) = mpsc::channel(PIECES);
                self.open.insert(id, Open { input: Some(input), gone: CancellationToken::new() });
                // Upstream goes by what the stream of data says.
                (half.port, half.data) = (asked.port, Some((id, queue)));
            }
            Kind::Error => half.error = Some(id),
        }
        if half.data.is_none() || half.error.is_none() {
            return Ok(());
        }
        let Some(Half { port, error: Some(error), data: Some((data, input)), .. }) =
            self.requests.remove(&asked.request)
        else {
            return Ok(());
        };
        let connection = Connection {
            to: self.to.clone(),
            port,
            data,
            error,
            writer: self.writer.clone(),
            input,
            gone: self.open.get(&data).map(|open| open.gone.clone()).unwrap_or_default(),
            activity: self.activity.clone(),
            clock: self.clock.clone(),
        };
        self.tasks.spawn(async move {
            connection.run().await;
            data
        });
        Ok(())
    }

    /// Hands on what a pod is to hear; where too much waits already it waits for pods. A client that vanishes meanwhile
    /// is noticed: it is asked now and then, and what it cannot be asked any more ends the session.
    async fn pass(&self, input: &mpsc::Sender<Piece>, bytes: Bytes) -> Result<(), Error> {
        let weight = u32::try_from(bytes.len()).unwrap_or(ROOM).clamp(SMALL, ROOM);
        let bytes = if weight == SMALL { Bytes::copy_from_slice(&bytes) } else { bytes };
        let room = self.room.clone();
        let sent = async {
            // It is never closed. A connection that has ended takes nothing: what is said to it is thrown away.
            if let Ok(held) = room.acquire_many_owned(weight).await {
                drop(input.send(Piece { bytes, held }).await);
            }
        };
        let mut sent = std::pin::pin!(sent);
        if futures::poll!(&mut sent).is_ready() {
            return Ok(());
        }
        loop {
            tokio::select! {
                () = &mut sent => return Ok(()),
                () = input.closed() => return Ok(()),
                () = self.clock.sleep(ASK) => {}
            }
            // Not broken off: half a frame would be written.
            self.writer.ask().await?;
        }
    }

    /// The client has gone, in order: what it has said before goes on its way.
    async fn drain(&mut self) -> Result<(), Error> {
        self.open.values_mut().for_each(|open| open.input = None);
        if self.clock.timeout(DRAIN, self.room.acquire_many(ROOM)).await.is_err() {
            tracing::debug!(pod = self.to.pod, "a pod has not taken all that was said to it");
        }
        Ok(())
    }

    /// Gives up requests whose other half has not come.
    fn give_up(&mut self, reader: &mut Reader) -> Result<(), Error> {
        let now = self.clock.now();
        let late = self.requests.extract_if(.., |_, half| half.since + WAIT <= now);
        let halves: Vec<Half> = late.map(|(_, half)| half).collect();
        for half in halves {
            tracing::debug!(port = half.port, "timed out waiting for streams");
            self.refuse(reader, half, None)?;
        }
        Ok(())
    }

    /// Gives up what there is of a request; the client itself has given up the stream `reset`.
    fn refuse(&mut self, reader: &mut Reader, half: Half, reset: Option<Id>) -> Result<(), Error> {
        let data = half.data.map(|(id, _)| id);
        for id in [half.error, data].into_iter().flatten().filter(|id| Some(*id) != reset) {
            self.open.remove(&id);
            reader.refuse(id)?;
        }
        Ok(())
    }
}
