//! One connection with many streams. What the peer says is heard in the order it came, on all streams
//! together: who hears and passes on slowly slows the peer down, and nothing is gathered meanwhile.
//!
//! ```text
//!  Writer::open ─► SYN_STREAM(1) ─────────►
//!                  ◄───────── SYN_REPLY(1)  ─► Event::Replied(1)      only now may data be sent
//!  Writer::data ─► DATA(1) …, DATA(1, FIN) ►                          FIN: this direction has ended
//!                  ◄─────── DATA(1) … FIN   ─► Event::Data, Event::Finished(1)
//! ```

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex as Lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;

use super::frame::{Decoder, Encoder, Frame, PIECE};
use super::{Headers, Wrong};
use crate::once::Io;

/// A stream's number.
pub type Id = u32;
/// Streams of one connection whose windows are known at once.
const STREAMS: usize = 16 * 1024;
/// What a stream and the connection take at first, by the protocol.
const WINDOW: i64 = 64 * 1024;
/// As wide as a window goes.
const WIDEST: u32 = 0x7fff_ffff;
/// What is added to a window to make it so.
const ROOM: u32 = WIDEST - 64 * 1024;
/// Room to read into while little is said, and while much is: thousands of sessions say nothing.
const LITTLE: usize = 2 * 1024;
const MUCH: usize = PIECE;
/// Data is sent in frames of at most this: with its head four records of TLS, and no fifth for a few bytes.
pub const SENT: usize = 64 * 1024 - super::frame::HEAD;
/// Data of less is written with its head in one piece.
const COPIED: usize = 4 * 1024;
/// What was taken of a window before it is opened again.
const AGAIN: u32 = 0x4000_0000;
/// Answers that wait for a peer that takes nothing; one that asks for more is not listened to any longer.
const OWED: usize = 1024;
/// The reason to reset a stream that nobody wants any more.
const CANCEL: u32 = 5;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer began a stream. A client is not told the headers: no peer of ours has anything to begin.
    Opened {
        id: Id,
        headers: Headers,
    },
    /// The peer has taken a stream of ours.
    Replied {
        id: Id,
    },
    Data {
        id: Id,
        bytes: Bytes,
    },
    /// The peer has nothing more to say on it.
    Finished {
        id: Id,
    },
    /// It is over both ways.
    Reset {
        id: Id,
        status: u32,
    },
    /// The peer will take no more streams.
    Going,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It asks and asks, and takes no answer.
    #[error("the peer takes no answers")]
    Deaf,
    /// There are no numbers for streams left.
    #[error("no more streams can be opened")]
    Full,
}

/// How much the peer takes; waited for only once it has shown that it keeps count.
struct Windows {
    kept: bool,
    initial: i64,
    connection: i64,
    streams: BTreeMap<Id, Stream>,
}

/// A stream that has not ended both ways.
struct Stream {
    /// What the peer takes of it.
    window: i64,
    /// The directions that have ended: the peer's, and ours.
    ended: [bool; 2],
    /// What was taken of the window that this end keeps.
    taken: u32,
}

impl Stream {
    fn new(window: i64) -> Self {
        Self { window, ended: [false; 2], taken: 0 }
    }
}

struct Out {
    io: WriteHalf<Box<dyn Io>>,
    encoder: Encoder,
    buffer: Vec<u8>,
    next: Id,
    owed: Arc<Lock<Owed>>,
}

impl Out {
    /// Writes what is owed, and then this: who was promised an answer hears it before what follows from it.
    async fn write(&mut self, frames: &[Frame]) -> Result<(), Error> {
        self.gather(frames)?;
        self.send(&[]).await
    }

    /// The same with bytes of a stream, which are not copied where they are many.
    async fn data(&mut self, id: Id, bytes: Bytes) -> Result<(), Error> {
        if bytes.len() < COPIED {
            return self.write(&[Frame::Data { id, bytes, fin: false }]).await;
        }
        self.gather(&[])?;
        Encoder::data_head(id, bytes.len(), false, &mut self.buffer)?;
        self.send(&bytes).await
    }

    fn gather(&mut self, frames: &[Frame]) -> Result<(), Error> {
        self.buffer.clear();
        let owed = std::mem::take(&mut self.owed.lock().frames);
        for frame in owed.iter().chain(frames) {
            self.encoder.write(frame, &mut self.buffer)?;
        }
        Ok(())
    }

    /// Writes what is gathered, and then these bytes.
    async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        let mut before = self.buffer.as_slice();
        while !(before.is_empty() && bytes.is_empty()) {
            let written = self.io.write_vectored(&[IoSlice::new(before), IoSlice::new(bytes)]).await?;
            if written == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
            }
            let of_before = written.min(before.len());
            before = before.get(of_before..).unwrap_or_default();
            bytes = bytes.get(written - of_before..).unwrap_or_default();
        }
        self.io.flush().await?;
        Ok(())
    }
}

/// Says things. Clones share the connection.
#[derive(Clone)]
pub struct Writer {
    out: Arc<Mutex<Out>>,
    windows: Arc<Lock<Windows>>,
    opened: Arc<Notify>,
}

impl Writer {
    /// Begins a stream; data may follow once it was replied to.
    ///
    /// # Errors
    /// When the connection is broken, or has had all the streams it can.
    pub async fn open(&self, headers: Headers) -> Result<Id, Error> {
        let mut out = self.out.lock().await;
        let id = out.next;
        out.next = id.checked_add(2).filter(|next| *next <= WIDEST).ok_or(Error::Full)?;
        {
            let mut windows = self.windows.lock();
            if windows.streams.len() >= STREAMS {
                return Err(Error::Full);
            }
            let initial = windows.initial;
            windows.streams.insert(id, Stream::new(initial));
        }
        let open = Frame::Open { id, headers, fin: false, one_way: false };
        out.write(&[open, Frame::Window { id, more: ROOM }]).await?;
        Ok(id)
    }

    /// Takes a stream that the peer began.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn reply(&self, id: Id) -> Result<(), Error> {
        let reply = Frame::Reply { id, headers: Headers::new(), fin: false };
        self.out.lock().await.write(&[reply, Frame::Window { id, more: ROOM }]).await
    }

    /// Sends bytes of a stream; returns once they are on their way. The peer is to be listened to meanwhile:
    /// one that keeps windows says so when it takes more.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn data(&self, id: Id, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let size = self.room(id, bytes.len().min(SENT)).await;
            self.out.lock().await.data(id, bytes.split_to(size)).await?;
        }
        Ok(())
    }

    /// Nothing more will be said on this stream.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn finish(&self, id: Id) -> Result<(), Error> {
        self.ended(id, true);
        self.out.lock().await.write(&[Frame::Data { id, bytes: Bytes::new(), fin: true }]).await
    }

    /// A stream is over both ways.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn reset(&self, id: Id) -> Result<(), Error> {
        self.forget(id);
        self.out.lock().await.write(&[Frame::Reset { id, status: CANCEL }]).await
    }

    /// Asks whether the peer is there: what is written to nobody fails sooner or later.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn ask(&self) -> Result<(), Error> {
        let mut out = self.out.lock().await;
        // Of the parity of our streams, as the protocol wants it; who answers which is of no interest.
        let id = out.next;
        out.write(&[Frame::Ping { id }]).await
    }

    /// Says farewell: no more streams, no more data.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn close(&self) -> Result<(), Error> {
        let mut out = self.out.lock().await;
        out.write(&[Frame::GoAway { last: 0, status: 0 }]).await?;
        out.io.shutdown().await?;
        Ok(())
    }

    /// Waits until the peer takes something of this stream; gives how much, at most `wanted`.
    async fn room(&self, id: Id, wanted: usize) -> usize {
        let wanted = i64::try_from(wanted).unwrap_or(WINDOW);
        loop {
            let opened = self.opened.notified();
            {
                let mut windows = self.windows.lock();
                let stream = windows.streams.get(&id).map_or(i64::MAX, |stream| stream.window);
                let free = if windows.kept { stream.min(windows.connection).min(wanted) } else { wanted };
                if free > 0 {
                    windows.connection = windows.connection.saturating_sub(free);
                    if let Some(stream) = windows.streams.get_mut(&id) {
                        stream.window = stream.window.saturating_sub(free);
                    }
                    return usize::try_from(free).unwrap_or(1);
                }
            }
            opened.await;
        }
    }

    /// One direction of a stream has ended, ours or the peer's; when both have nothing is kept of it.
    fn ended(&self, id: Id, ours: bool) {
        let mut windows = self.windows.lock();
        let Some(stream) = windows.streams.get_mut(&id) else { return };
        stream.ended[usize::from(ours)] = true;
        if stream.ended == [true; 2] {
            windows.streams.remove(&id);
        }
    }

    fn forget(&self, id: Id) {
        self.windows.lock().streams.remove(&id);
        // Who waits for room on it need not wait any more.
        self.opened.notify_waiters();
    }

    /// The peer takes more.
    fn opened(&self, id: Id, more: u32) {
        let mut windows = self.windows.lock();
        windows.kept = true;
        let of = match id {
            0 => Some(&mut windows.connection),
            id => windows.streams.get_mut(&id).map(|stream| &mut stream.window),
        };
        if let Some(window) = of {
            *window = window.saturating_add(i64::from(more));
        }
        drop(windows);
        self.opened.notify_waiters();
    }

    /// What streams take at first.
    fn set_initial(&self, window: u32) {
        let mut windows = self.windows.lock();
        let more = i64::from(window) - windows.initial;
        windows.initial = i64::from(window);
        windows.kept = true;
        for stream in windows.streams.values_mut() {
            stream.window = stream.window.saturating_add(more);
        }
        drop(windows);
        self.opened.notify_waiters();
    }
}

/// What the peer is owed: answers to pings, windows. Who hears writes nothing itself: the peer may take nothing
/// before it has been heard, and whoever writes to it waits for that.
#[derive(Default)]
struct Owed {
    frames: Vec<Frame>,
    /// There is a task that pays.
    paid: bool,
}

/// Writes what is owed until there is nothing.
async fn pay(owed: Arc<Lock<Owed>>, out: Arc<Mutex<Out>>) {
    let mut out = out.lock().await;
    loop {
        {
            let mut owed = owed.lock();
            owed.paid = !owed.frames.is_empty();
            // Whoever wrote meanwhile has paid.
            if !owed.paid {
                return;
            }
        }
        if let Err(error) = out.write(&[]).await {
            // Whoever hears or writes next is told.
            return tracing::debug!(%error, "a peer takes no answers any more");
        }
    }
}

/// Hears what the peer says.
pub struct Reader {
    io: ReadHalf<Box<dyn Io>>,
    input: BytesMut,
    /// As much as is read next.
    room: usize,
    decoder: Decoder,
    writer: Writer,
    /// The parity of the pings that are ours.
    ours: u32,
    /// What was heard and not told yet: a frame can be two events.
    later: Option<Event>,
    /// What was taken of the window that this end keeps of all streams together.
    taken: u32,
    owed: Arc<Lock<Owed>>,
    paying: Option<JoinHandle<()>>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(paying) = self.paying.take() {
            paying.abort();
        }
    }
}

impl Reader {
    /// What happens next; `None` when the peer has closed the connection.
    ///
    /// # Errors
    /// When it is broken, or the peer does not speak SPDY.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.later.take() {
            return Ok(Some(self.told(event)));
        }
        loop {
            match self.decoder.next(&mut self.input)? {
                Some(frame) => {
                    if let Some(event) = self.hear(frame)? {
                        return Ok(Some(self.told(event)));
                    }
                }
                None => {
                    if self.input.is_empty() && self.room == LITTLE {
                        self.input = BytesMut::new();
                    }
                    self.input.reserve(self.room);
                    let read = self.io.read_buf(&mut self.input).await?;
                    if read == 0 {
                        return Ok(None);
                    }
                    if read >= self.room {
                        self.room = (read * 4).min(MUCH);
                    } else if read <= LITTLE / 2 {
                        self.room = LITTLE;
                    }
                }
            }
        }
    }

    /// Takes a stream that the peer began, without waiting for a peer that takes nothing: the reply goes before
    /// whatever else is said after this.
    ///
    /// # Errors
    /// When the peer is owed too much.
    pub fn accept(&mut self, id: Id) -> Result<(), Error> {
        self.owe(Frame::Reply { id, headers: Headers::new(), fin: false })?;
        self.owe(Frame::Window { id, more: ROOM })
    }

    /// Does not take a stream that the peer began, or gives one up, in the same way.
    ///
    /// # Errors
    /// When the peer is owed too much.
    pub fn refuse(&mut self, id: Id) -> Result<(), Error> {
        self.writer.forget(id);
        self.owe(Frame::Reset { id, status: CANCEL })
    }

    fn told(&self, event: Event) -> Event {
        if let Event::Finished { id } = event {
            self.writer.ended(id, false);
        }
        event
    }

    fn hear(&mut self, frame: Frame) -> Result<Option<Event>, Error> {
        Ok(match frame {
            Frame::Open { id, headers, fin, .. } => {
                {
                    let mut windows = self.writer.windows.lock();
                    if windows.streams.len() >= STREAMS {
                        return Err(Error::Full);
                    }
                    let initial = windows.initial;
                    windows.streams.insert(id, Stream::new(initial));
                }
                self.later = fin.then_some(Event::Finished { id });
                Some(Event::Opened { id, headers })
            }
            Frame::Reply { id, fin, .. } => {
                self.later = fin.then_some(Event::Finished { id });
                Some(Event::Replied { id })
            }
            Frame::Headers { id, fin, .. } => fin.then_some(Event::Finished { id }),
            Frame::Data { id, bytes, fin } => {
                self.take(id, bytes.len(), fin)?;
                match (bytes.is_empty(), fin) {
                    (true, false) => None,
                    (true, true) => Some(Event::Finished { id }),
                    (false, _) => {
                        self.later = fin.then_some(Event::Finished { id });
                        Some(Event::Data { id, bytes })
                    }
                }
            }
            Frame::Reset { id, status } => {
                self.writer.forget(id);
                Some(Event::Reset { id, status })
            }
            Frame::Settings { window } => {
                if let Some(window) = window {
                    self.writer.set_initial(window);
                }
                None
            }
            Frame::Ping { id } => {
                if id & 1 != self.ours {
                    self.owe(Frame::Ping { id })?;
                }
                None
            }
            Frame::GoAway { .. } => Some(Event::Going),
            Frame::Window { id, more } => {
                self.writer.opened(id, more);
                None
            }
        })
    }

    /// Opens the windows again before they are used up, for peers that keep count.
    fn take(&mut self, id: Id, size: usize, fin: bool) -> Result<(), Error> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_add(size);
        if self.taken >= AGAIN {
            let more = std::mem::take(&mut self.taken);
            self.owe(Frame::Window { id: 0, more })?;
        }
        let more = {
            let mut windows = self.writer.windows.lock();
            // What was given up, by whichever end, is not kept count of.
            windows.streams.get_mut(&id).filter(|_| !fin).and_then(|stream| {
                stream.taken = stream.taken.saturating_add(size);
                (stream.taken >= AGAIN).then(|| std::mem::take(&mut stream.taken))
            })
        };
        match more {
            Some(more) => self.owe(Frame::Window { id, more }),
            None => Ok(()),
        }
    }

    /// Sees to it that this is said, sooner or later.
    fn owe(&mut self, frame: Frame) -> Result<(), Error> {
        let mut owed = self.owed.lock();
        if owed.frames.len() >= OWED {
            return Err(Error::Deaf);
        }
        owed.frames.push(frame);
        if !std::mem::replace(&mut owed.paid, true) {
            self.paying = Some(tokio::spawn(pay(self.owed.clone(), self.writer.out.clone())));
        }
        Ok(())
    }
}

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It asked for SPDY; its streams are odd.
    Client,
    Server,
}

/// Begins to speak SPDY on a connection that both ends agreed to use so.
///
/// # Errors
/// When it is broken already.
pub async fn begin(io: Box<dyn Io>, side: Side) -> Result<(Reader, Writer), Error> {
    let (read, write) = tokio::io::split(io);
    let next = if side == Side::Client { 1 } else { 2 };
    let owed = Arc::<Lock<Owed>>::default();
    let out = Out { io: write, encoder: Encoder::default(), buffer: Vec::new(), next, owed: owed.clone() };
    let windows = Windows { kept: false, initial: WINDOW, connection: WINDOW, streams: BTreeMap::new() };
    let writer =
        Writer { out: Arc::new(Mutex::new(out)), windows: Arc::new(Lock::new(windows)), opened: Arc::default() };
    // Not a word about windows is waited for; a peer that keeps count may send as much as it has.
    writer.out.lock().await.write(&[Frame::Window { id: 0, more: ROOM }]).await?;
    let reader = Reader {
        io: read,
        input: BytesMut::new(),
        room: LITTLE,
        decoder: if side == Side::Client { Decoder::without_headers() } else { Decoder::default() },
        writer: writer.clone(),
        ours: next & 1,
        later: None,
        taken: 0,
        owed,
        paying: None,
    };
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn pair() -> ((Reader, Writer), (Reader, Writer)) {
        let (a, b) = tokio::io::duplex(1024);
        let (client, server) = tokio::join!(begin(Box::new(a), Side::Client), begin(Box::new(b), Side::Server));
        (client.expect("begun"), server.expect("begun"))
    }

    fn stdin() -> Headers {
        vec![("streamtype".to_owned(), "stdin".to_owned())]
    }

    #[tokio::test]
    async fn a_stream_carries_bytes_and_ends_one_way_at_a_time() {
        let ((mut hears, says), (mut heard, said)) = pair().await;
        let client = async {
            let id = says.open(stdin()).await.expect("opened");
            assert_eq!(hears.next().await.expect("whole"), Some(Event::Replied { id }));
            let sent = async {
                says.data(id, vec![7; 100_000].into()).await.expect("sent");
                says.finish(id).await.expect("sent");
            };
            let heard = async {
                let mut back = 0;
                loop {
                    match hears.next().await.expect("whole") {
                        Some(Event::Data { bytes, .. }) => back += bytes.len(),
                        Some(Event::Finished { id: 1 }) => break back,
                        other => panic!("{other:?}"),
                    }
                }
            };
            tokio::join!(sent, heard).1
        };
        let server = async {
            let mut count = 0;
            loop {
                match heard.next().await.expect("whole") {
                    Some(Event::Opened { id, headers }) => {
                        assert_eq!((id, headers), (1, stdin()));
                        said.reply(id).await.expect("sent");
                    }
                    Some(Event::Data { bytes, .. }) => count += bytes.len(),
                    Some(Event::Finished { id }) => {
                        said.data(id, vec![8; count / 2].into()).await.expect("sent");
                        said.finish(id).await.expect("sent");
                        break count;
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        let (back, count) = tokio::join!(client, server);
        assert_eq!((count, back), (100_000, 50_000));
        // A farewell is heard, and the end.
        said.close().await.expect("closed");
        assert_eq!(hears.next().await.expect("whole"), Some(Event::Going));
        assert_eq!(hears.next().await.expect("whole"), None);
    }

    #[tokio::test]
    async fn of_a_stream_that_has_ended_both_ways_nothing_is_kept() {
        let ((mut hears, says), (mut heard, said)) = pair().await;
        // Far more than there may be at once.
        let client = async {
            for _ in 0..2 * STREAMS {
                let id = says.open(stdin()).await.expect("opened");
                assert_eq!(hears.next().await.expect("whole"), Some(Event::Replied { id }));
                says.finish(id).await.expect("sent");
                match hears.next().await.expect("whole") {
                    Some(Event::Finished { id: ended } | Event::Reset { id: ended, .. }) => assert_eq!(ended, id),
                    other => panic!("{other:?}"),
                }
            }
            says.close().await.expect("closed");
        };
        let server = async {
            while let Some(event) = heard.next().await.expect("whole") {
                match event {
                    Event::Opened { id, .. } => heard.accept(id).expect("owed"),
                    Event::Finished { id } if id % 8 == 1 => said.finish(id).await.expect("sent"),
                    Event::Finished { id } if id % 8 == 3 => said.reset(id).await.expect("sent"),
                    Event::Finished { id } => heard.refuse(id).expect("owed"),
                    _ => {}
                }
            }
        };
        tokio::join!(client, server);
        assert!(says.windows.lock().streams.is_empty() && said.windows.lock().streams.is_empty());
    }

    #[tokio::test]
    async fn a_reply_goes_before_what_follows_it() {
        let ((mut hears, says), (mut heard, said)) = pair().await;
        let id = says.open(stdin()).await.expect("opened");
        assert!(matches!(heard.next().await, Ok(Some(Event::Opened { .. }))));
        heard.accept(id).expect("owed");
        // Nobody was given the time to pay.
        said.data(id, Bytes::from_static(b"x")).await.expect("sent");
        assert_eq!(hears.next().await.expect("whole"), Some(Event::Replied { id }));
        assert_eq!(hears.next().await.expect("whole"), Some(Event::Data { id, bytes: Bytes::from_static(b"x") }));
    }

    #[tokio::test]
    async fn pings_are_answered_and_ours_are_not() {
        let ((mut hears, _says), (_, said)) = pair().await;
        said.out.lock().await.write(&[Frame::Ping { id: 2 }, Frame::Ping { id: 1 }]).await.expect("sent");
        said.close().await.expect("closed");
        assert_eq!(hears.next().await.expect("whole"), Some(Event::Going));
    }

    #[tokio::test]
    async fn who_is_not_taken_from_hears_all_the_same() {
        let (near, far) = tokio::io::duplex(1024);
        let (mut hears, says) = begin(Box::new(near), Side::Client).await.expect("begun");
        let (mut far_read, mut far_write) = tokio::io::split(far);
        let (speaker, much) = (says.clone(), Bytes::from(vec![1; 10_000]));
        let speaking = tokio::spawn(async move { speaker.data(1, much).await });
        // Until it waits for a peer that takes nothing.
        while says.out.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        let data = Frame::Data { id: 1, bytes: Bytes::from_static(b"x"), fin: false };
        for frame in [Frame::Ping { id: 2 }, data] {
            encoder.write(&frame, &mut bytes).expect("written");
        }
        far_write.write_all(&bytes).await.expect("written");
        let heard = hears.next().await.expect("whole");
        assert_eq!(heard, Some(Event::Data { id: 1, bytes: Bytes::from_static(b"x") }));
        // The answer comes when it is taken.
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
        loop {
            match decoder.next(&mut input).expect("a frame") {
                Some(Frame::Ping { id: 2 }) => break,
                Some(_) => {}
                None => drop(far_read.read_buf(&mut input).await.expect("read")),
            }
        }
        speaking.await.expect("ran").expect("sent");
        // Not even from one who asks for ever.
        let mut bytes = Vec::new();
        for _ in 0..20 * OWED {
            encoder.write(&Frame::Ping { id: 2 }, &mut bytes).expect("written");
        }
        let asking = tokio::spawn(async move { far_write.write_all(&bytes).await });
        assert!(matches!(hears.next().await, Err(Error::Deaf)));
        drop((hears, says));
        assert!(asking.await.expect("ran").is_err());
    }

    #[tokio::test]
    async fn a_window_is_waited_for_where_one_is_kept() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (mut hears, says) = begin(Box::new(near), Side::Client).await.expect("begun");
        let (mut far_read, mut far_write) = tokio::io::split(far);
        let mut encoder = Encoder::default();
        let mut bytes = Vec::new();
        for frame in [
            Frame::Reply { id: 1, headers: Headers::new(), fin: false },
            Frame::Settings { window: Some(10) },
            Frame::Ping { id: 2 },
        ] {
            encoder.write(&frame, &mut bytes).expect("written");
        }
        let id = says.open(stdin()).await.expect("opened");
        far_write.write_all(&bytes).await.expect("written");
        assert_eq!(hears.next().await.expect("whole"), Some(Event::Replied { id }));
        // The settings and the ping are heard on the way to what comes next.
        let listening = tokio::spawn(async move {
            drop(hears.next().await);
        });
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
        loop {
            match decoder.next(&mut input).expect("frames") {
                Some(Frame::Ping { id: 2 }) => break,
                Some(Frame::Open { .. } | Frame::Window { .. }) => {}
                Some(other) => panic!("{other:?}"),
                None => drop(far_read.read_buf(&mut input).await.expect("read")),
            }
        }
        let sending = tokio::spawn({
            let says = says.clone();
            async move { says.data(id, vec![1; 25].into()).await }
        });
        let (mut data, mut opened) = (0, 0);
        while data < 25 {
            match decoder.next(&mut input).expect("frames") {
                Some(Frame::Data { bytes, .. }) => {
                    data += bytes.len();
                    assert!(data <= 10 + opened, "more than there was room for");
                    let mut more = Vec::new();
                    encoder.write(&Frame::Window { id, more: 5 }, &mut more).expect("written");
                    opened += 5;
                    far_write.write_all(&more).await.expect("written");
                }
                Some(other) => panic!("{other:?}"),
                None => drop(far_read.read_buf(&mut input).await.expect("read")),
            }
        }
        sending.await.expect("ran").expect("sent");
        listening.abort();
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_an_error_or_an_end() {
        let ((mut hears, says), (heard, said)) = pair().await;
        drop((heard, said));
        assert!(matches!(hears.next().await, Ok(None)));
        let id = says.open(stdin()).await;
        assert!(id.is_err(), "{id:?}");
    }
}
