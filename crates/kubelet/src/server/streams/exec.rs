//! The channels of a WebSocket as streams of SPDY: what a process reads and writes, the size of its
//! terminal, and how it ended.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::BytesMut;
use machinery::status::Status;
use serde_json::Value;
use stdx::{ClockExt, SharedClock};
use tokio::sync::watch;
use transport::channels::{self, Heard, Spoken};
use transport::once::Io;
use transport::spdy::session::{self, Event, Id, Reader, Side, Writer};
use transport::splice::Activity;
use transport::websocket::Takeover;
use transport::websocket::both_ways::{self, Deaf, Farewell, Hearer, Sayer};

/// How long the runtime may take to take all streams.
const TAKEN: Duration = Duration::from_secs(30);
/// How long a client may take to hear how its process ended, with what it was told before.
const LISTENED: Duration = Duration::from_secs(60);
/// The longest account of how a process ended.
const LONGEST: usize = 64 * 1024;

/// Which streams there are beside the one that tells the end.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Carries a process' streams until it or the client ends.
pub async fn carry(
    takeover: Takeover,
    io: Box<dyn Io>,
    wanted: Wanted,
    spoken: Spoken,
    idle: Duration,
    clock: SharedClock,
) {
    let Ok((sayer, mut hearer)) = both_ways::open(takeover, &clock).await else { return };
    let farewell = Carrying { sayer: &sayer, wanted, spoken, clock: &clock }.run(&mut hearer, io, idle).await;
    drop(sayer);
    hearer.close(farewell).await;
}

/// The streams' numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Ids {
    error: Id,
    stdin: Option<Id>,
    stdout: Option<Id>,
    stderr: Option<Id>,
    resize: Option<Id>,
}

impl Ids {
    async fn open(writer: &Writer, wanted: Wanted) -> Result<Self, session::Error> {
        let open = async |kind: &str, wanted: bool| match wanted {
            true => writer.open(vec![("streamtype".to_owned(), kind.to_owned())]).await.map(Some),
            false => Ok(None),
        };
        Ok(Self {
            error: open("error", true).await?.unwrap_or_default(),
            stdin: open("stdin", wanted.stdin).await?,
            stdout: open("stdout", wanted.stdout).await?,
            stderr: open("stderr", wanted.stderr).await?,
            resize: open("resize", wanted.tty).await?,
        })
    }

    fn all(self) -> BTreeSet<Id> {
        let optional = [self.stdin, self.stdout, self.stderr, self.resize];
        optional.into_iter().flatten().chain([self.error]).collect()
    }
}

/// How the runtime's end ended.
enum End {
    /// It said how.
    Told(Vec<u8>),
    Broke(String),
    ClientGone,
}

struct Carrying<'a> {
    sayer: &'a Sayer,
    wanted: Wanted,
    spoken: Spoken,
    clock: &'a SharedClock,
}

impl Carrying<'_> {
    async fn run(&self, hearer: &mut Hearer, io: Box<dyn Io>, idle: Duration) -> Farewell {
        let begun = async {
            let (reader, writer) = session::begin(io, Side::Client).await?;
            let ids = Ids::open(&writer, self.wanted).await?;
            Ok::<_, session::Error>((reader, writer, ids))
        };
        let (mut reader, writer, ids) = match begun.await {
            Ok(begun) => begun,
            Err(error) => return self.tell(End::Broke(error.to_string())).await,
        };
        // A client that waits for something to happen sees that it is connected.
        let first = match self.wanted {
            Wanted { stdout: true, .. } => channels::STDOUT,
            Wanted { stderr: true, .. } => channels::STDERR,
            _ => channels::ERROR,
        };
        if self.sayer.say(self.spoken.write(first, &[])).await.is_err() {
            return Farewell::Done;
        }
        let (taken, all_taken) = watch::channel(false);
        let activity = Activity::default();
        let end = tokio::select! {
            farewell = self.up(hearer, &writer, ids, all_taken.clone(), &activity) => return farewell,
            end = self.down(&mut reader, &writer, ids, taken, &activity) => end,
            () = self.not_taken(all_taken) => End::Broke("timed out waiting for the runtime to take the streams".into()),
            () = activity.silent(idle, self.clock) => End::Broke("nothing was said for too long".into()),
        };
        self.tell(end).await
    }

    /// Ends when the streams were not taken in time.
    async fn not_taken(&self, mut all_taken: watch::Receiver<bool>) {
        let taken = self.clock.timeout(TAKEN, all_taken.wait_for(|taken| *taken)).await.is_ok();
        if taken {
            std::future::pending::<()>().await;
        }
    }

    /// From the client to the process.
    async fn up(
        &self,
        hearer: &mut Hearer,
        writer: &Writer,
        ids: Ids,
        mut all_taken: watch::Receiver<bool>,
        activity: &Activity,
    ) -> Farewell {
        let mut stdin = ids.stdin;
        loop {
            let said = match hearer.hear().await {
                Ok(Some(said)) => said,
                Ok(None) | Err(Deaf::Gone) => return Farewell::Done,
                Err(why @ Deaf::TooLong) => {
                    self.tell(End::Broke(why.to_string())).await;
                    return Farewell::TooLong;
                }
            };
            let Ok(heard) = self.spoken.read(said) else { return Farewell::Wrong };
            let passed = async {
                // The sender goes with the other direction, which ends this one.
                if all_taken.wait_for(|taken| *taken).await.is_err() {
                    std::future::pending::<()>().await;
                }
                match heard {
                    Some(Heard::Data(channels::STDIN, bytes)) => match stdin {
                        Some(id) => {
                            activity.count(bytes.len());
                            writer.data(id, bytes).await
                        }
                        None => Ok(()),
                    },
                    Some(Heard::Data(channels::RESIZE, bytes)) => match ids.resize {
                        Some(id) => writer.data(id, bytes).await,
                        None => Ok(()),
                    },
                    Some(Heard::Close(channels::STDIN)) => match stdin.take() {
                        Some(id) => writer.finish(id).await,
                        None => Ok(()),
                    },
                    // What nobody listens to.
                    Some(Heard::Data(..) | Heard::Close(_)) | None => Ok(()),
                }
            };
            match self.sayer.while_it_waits(passed, self.clock).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    // The other direction tells it, with what the process said before.
                    tracing::debug!(%error, "the runtime takes no more of a stream");
                    stdin = None;
                }
                Err(both_ways::Gone) => return Farewell::Done,
            }
        }
    }

    /// From the process to the client.
    async fn down(
        &self,
        reader: &mut Reader,
        writer: &Writer,
        ids: Ids,
        taken: watch::Sender<bool>,
        activity: &Activity,
    ) -> End {
        let mut waiting = ids.all();
        let mut open: BTreeSet<Id> = [Some(ids.error), ids.stdout, ids.stderr].into_iter().flatten().collect();
        let mut account = BytesMut::new();
        while !open.is_empty() {
            let event = match reader.next().await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) if account.is_empty() => return End::Broke(error.to_string()),
                Err(_) => break,
            };
            match event {
                Event::Replied { id } => {
                    waiting.remove(&id);
                    if waiting.is_empty() {
                        taken.send_replace(true);
                    }
                }
                Event::Data { id, bytes } if id == ids.error => {
                    if account.len() + bytes.len() > LONGEST {
                        return End::Broke("the runtime says too much of how the process ended".into());
                    }
                    account.extend_from_slice(&bytes);
                }
                Event::Data { id, bytes } => {
                    let channel = if Some(id) == ids.stderr { channels::STDERR } else { channels::STDOUT };
                    activity.count(bytes.len());
                    let known = Some(id) == ids.stdout || Some(id) == ids.stderr;
                    if known && self.sayer.say(self.spoken.write(channel, &bytes)).await.is_err() {
                        return End::ClientGone;
                    }
                }
                Event::Finished { id } | Event::Reset { id, .. } => {
                    open.remove(&id);
                }
                Event::Opened { id, .. } => {
                    if let Err(error) = writer.reset(id).await {
                        return End::Broke(error.to_string());
                    }
                }
                Event::Going => {}
            }
        }
        if account.is_empty() {
            End::Broke("the runtime has closed the stream".into())
        } else {
            End::Told(account.to_vec())
        }
    }

    /// Tells the client how it ended, if it listens.
    async fn tell(&self, end: End) -> Farewell {
        self.clock.timeout(LISTENED, self.tell_in_time(end)).await.unwrap_or_else(|_| {
            tracing::debug!("a client does not listen to how its process ended");
            Farewell::Failed
        })
    }

    async fn tell_in_time(&self, end: End) -> Farewell {
        let (account, farewell) = match end {
            End::ClientGone => return Farewell::Done,
            End::Told(account) => (account, Farewell::Done),
            End::Broke(why) => (Status::internal(why).to_value().to_string().into_bytes(), Farewell::Done),
        };
        let account = if self.spoken.status { Some(account) } else { in_words(&account) };
        if let Some(account) = account {
            if self.sayer.say(self.spoken.write(channels::ERROR, &account)).await.is_err() {
                tracing::debug!("a client did not hear how its process ended");
            }
        }
        farewell
    }
}

/// What clients before version 4 hear: nothing when all went well, else a text.
fn in_words(account: &[u8]) -> Option<Vec<u8>> {
    let Ok(status) = serde_json::from_slice::<Value>(account) else { return Some(account.to_vec()) };
    if status["status"] == "Success" {
        return None;
    }
    Some(status["message"].as_str().unwrap_or_default().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_clients_hear_words() {
        for (account, want) in [
            (r#"{"status":"Success"}"#, None),
            (r#"{"status":"Failure","message":"it is gone"}"#, Some("it is gone")),
            ("what is no Status", Some("what is no Status")),
        ] {
            assert_eq!(in_words(account.as_bytes()).as_deref(), want.map(str::as_bytes), "{account}");
        }
    }
}
