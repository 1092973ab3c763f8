//! Questions over TCP, each after its length; answered as soon as the answer is there, in whatever order (RFC 7766).
//! Connections are counted, also by who has them, and end when they are slow.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::{Front, Taken};
use crate::metrics::Way;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once; one more is closed.
    pub connections: usize,
    /// Those of one address.
    pub of_one: usize,
    /// For a question to come, and for an answer to be taken.
    pub patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: 1024, of_one: 128, patience: Duration::from_secs(8) }
    }
}

/// A question is no longer than that.
const LONGEST: usize = 4096;
/// Questions of one connection that others are asked about at once.
const WAITING: usize = 16;
/// Once nothing more can be accepted, the next try comes after this.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Who has how many connections.
#[derive(Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place among the connections, until it is dropped.
struct Place(Arc<Mutex<Open>>, IpAddr);

impl Place {
    fn take(open: &Arc<Mutex<Open>>, address: IpAddr, bounds: &Bounds) -> Option<Self> {
        let mut held = open.lock();
        let own = held.by_address.get(&address).copied().unwrap_or_default();
        if held.all >= bounds.connections || own >= bounds.of_one {
            return None;
        }
        held.all += 1;
        held.by_address.insert(address, own + 1);
        drop(held);
        Some(Self(open.clone(), address))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        held.all -= 1;
        if let Some(own) = held.by_address.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                held.by_address.remove(&self.1);
            }
        }
    }
}

/// Serves until the stage stops.
pub async fn serve(listener: Arc<TcpListener>, front: Arc<Front>, bounds: Bounds, clock: SharedClock, stage: &Stage) {
    let open = Arc::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stage.stopped() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection for questions");
                clock.sleep(EXHAUSTED).await;
                continue;
            }
        };
        if !front.is_allowed(from.ip()) {
            continue;
        }
        let Some(place) = Place::take(&open, from.ip(), &bounds) else { continue };
        let client = Client {
            front: front.clone(),
            clock: clock.clone(),
            stage: stage.clone(),
            from: (from.ip(), Way { tcp: true, v6: from.is_ipv6() }),
            patience: bounds.patience,
        };
        stage.run(async move {
            let _place = place;
            client.answer(stream).await;
        });
    }
}

/// Who asks over one connection.
struct Client {
    front: Arc<Front>,
    clock: SharedClock,
    stage: Stage,
    from: (IpAddr, Way),
    patience: Duration,
}

impl Client {
    /// Answers until the client has no more questions, or is too slow; what was asked before is still answered.
    async fn answer(self, stream: TcpStream) {
        // An answer is written at once; there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let (questions, answers) = stream.into_split();
        let (told, heard) = mpsc::channel(1);
        let reading = async {
            // Whoever takes no more answers is asked nothing more.
            tokio::select! {
                () = self.read(questions, told.clone()) => {}
                () = told.closed() => {}
            }
            drop(told);
        };
        futures::join!(reading, self.write(answers, heard));
    }

    async fn read(&self, mut questions: OwnedReadHalf, told: mpsc::Sender<Vec<u8>>) {
        let waiting = Arc::new(Semaphore::new(WAITING));
        let mut message = Vec::new();
        loop {
            // Others are asked for so many at once; the rest waits in the connection.
            let Ok(slot) = waiting.clone().acquire_owned().await else { return };
            let read = self.clock.timeout(self.patience, next(&mut questions, &mut message)).await;
            if !matches!(read, Ok(Ok(()))) {
                return;
            }
            let mut out = Vec::new();
            match self.front.hear(self.from, &message, Some(usize::from(u16::MAX)), &mut out) {
                Taken::Dropped => return,
                Taken::Answered => {
                    if told.send(out).await.is_err() {
                        return;
                    }
                }
                Taken::Later(later) => {
                    let (front, told) = (self.front.clone(), told.clone());
                    self.stage.run(async move {
                        let _slot = slot;
                        front.finish(later, &mut out).await;
                        let _ = told.send(out).await;
                    });
                }
            }
        }
    }

    async fn write(&self, mut answers: OwnedWriteHalf, mut heard: mpsc::Receiver<Vec<u8>>) {
        while let Some(out) = heard.recv().await {
            let Ok(length) = u16::try_from(out.len()) else { return };
            let framed = [&length.to_be_bytes()[..], &out].concat();
            if !matches!(self.clock.timeout(self.patience, answers.write_all(&framed)).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// Reads the next question.
async fn next(stream: &mut OwnedReadHalf, message: &mut Vec<u8>) -> std::io::Result<()> {
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    message.resize(length, 0);
    stream.read_exact(message).await?;
    Ok(())
}
