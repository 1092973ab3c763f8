//! Bytes both ways between two connections, until both are done, one breaks, or nothing has come for too
//! long.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;

/// Room for one direction while little is said, and while much is: thousands of sessions say nothing.
const LITTLE: usize = 2 * 1024;
const MUCH: usize = 64 * 1024;

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Both ways; `None`: for as long as both ends are there, which the kernel asks after.
    pub idle: Option<Duration>,
    /// The one direction, once the other has ended: nobody half-closes a connection for long who still
    /// listens.
    pub half_closed: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { idle: Some(Duration::from_secs(4 * 3600)), half_closed: Duration::from_secs(30) }
    }
}

/// What has moved on a connection, either way.
#[derive(Default)]
pub struct Activity(AtomicU64);

impl Activity {
    /// So many bytes have.
    pub fn count(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Ends when nothing has moved for that long, at most twice that.
    pub async fn silent(&self, long: Duration, clock: &SharedClock) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            clock.sleep(long).await;
            if self.0.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// Carries bytes both ways. The end of one direction is passed on, and so is what is still said in the other;
/// who takes no more may still have something to say, and is listened to.
///
/// # Errors
/// When one end breaks, takes no more, or nothing was said for too long.
pub async fn run<A, B>(a: A, b: B, patience: Patience, clock: &SharedClock) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin + Send,
    B: AsyncRead + AsyncWrite + Unpin + Send,
{
    let ((a_read, a_write), (b_read, b_write)) = (tokio::io::split(a), tokio::io::split(b));
    let (moved, over) = (Activity::default(), Notify::new());
    let both = futures::future::try_join(carry(a_read, b_write, &moved, &over), carry(b_read, a_write, &moved, &over));
    let idle = async {
        match patience.idle {
            Some(long) => moved.silent(long, clock).await,
            None => std::future::pending().await,
        }
    };
    let silent = async {
        tokio::select! {
            () = idle => {}
            () = over.notified() => moved.silent(patience.half_closed, clock).await,
        }
    };
    tokio::select! {
        ended = both => ended.and_then(|(there, back)| there.and(back)),
        () = silent => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// One direction, to its end, which is passed on. What the far end does not take is read all the same, to
/// the end: a connection that is closed with something unread in it takes back what was said on it last.
///
/// # Errors
/// Outside when nothing can be read any more: then nobody is left to listen to the other direction either.
/// Inside when the far end took no more.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &Activity,
    over: &Notify,
) -> io::Result<io::Result<()>> {
    let mut buffer = vec![0; LITTLE];
    let (mut taken, mut broken) = (Ok(()), None);
    loop {
        let read = match fill(&mut from, &mut buffer, &mut broken).await {
            Ok(read @ 1..) => read,
            ended => {
                over.notify_one();
                if taken.is_ok() {
                    taken = to.shutdown().await;
                }
                return ended.map(|_| taken);
            }
        };
        if taken.is_err() {
            continue;
        }
        taken = async {
            to.write_all(&buffer[..read]).await?;
            to.flush().await
        }
        .await;
        if taken.is_err() {
            over.notify_one();
            continue;
        }
        moved.count(read);
        if read == buffer.len() && read < MUCH {
            buffer = vec![0; (read * 4).min(MUCH)];
        } else if read <= LITTLE / 2 && buffer.len() > LITTLE {
            buffer = vec![0; LITTLE];
        }
    }
}

/// Reads what is there, at least something: TLS gives no more than a record at a time, and each write costs. What
/// breaks after something was read is kept in `broken`, and told next time.
async fn fill(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    broken: &mut Option<io::Error>,
) -> io::Result<usize> {
    if let Some(error) = broken.take() {
        return Err(error);
    }
    let mut read = ReadBuf::new(buffer);
    std::future::poll_fn(|cx| {
        loop {
            let before = read.filled().len();
            if read.remaining() == 0 {
                return Poll::Ready(Ok(before));
            }
            match Pin::new(&mut *from).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if read.filled().len() > before => {}
                Poll::Ready(Err(error)) if before == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(ended) => {
                    *broken = ended.err();
                    return Poll::Ready(Ok(before));
                }
                Poll::Pending if before == 0 => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(before)),
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stdx::clock::ManualClock;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    fn spliced() -> (DuplexStream, DuplexStream, ManualClock, tokio::task::JoinHandle<io::Result<()>>) {
        spliced_with(Patience::default())
    }

    fn spliced_with(
        patience: Patience,
    ) -> (DuplexStream, DuplexStream, ManualClock, tokio::task::JoinHandle<io::Result<()>>) {
        let ((near, a), (b, far)) = (duplex(1000), duplex(1000));
        let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
        let shared: SharedClock = Arc::new(clock.clone());
        let task = tokio::spawn(async move { run(a, b, patience, &shared).await });
        (near, far, clock, task)
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_ends_are_passed_on() {
        let (near, far, _, task) = spliced();
        let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
            (tokio::io::split(near), tokio::io::split(far));
        let much = vec![3; 500_000];
        let said = async {
            near_write.write_all(&much).await.expect("written");
            near_write.shutdown().await.expect("ended");
        };
        let mut got = Vec::new();
        let (_, heard) = tokio::join!(said, far_read.read_to_end(&mut got));
        assert_eq!((heard.expect("read"), got), (500_000, much));
        far_write.write_all(b"back").await.expect("written");
        far_write.shutdown().await.expect("ended");
        let mut got = Vec::new();
        near_read.read_to_end(&mut got).await.expect("read");
        assert_eq!(got, b"back");
        task.await.expect("ran").expect("in order");
    }

    #[tokio::test]
    async fn who_takes_no_more_is_heard_to_the_end() {
        let (near, mut far, clock, task) = spliced();
        let (mut near_read, mut near_write) = tokio::io::split(near);
        // More than the room up to who listens, so that some of it is still on its way.
        let last = vec![7; 3000];
        far.write_all(&last).await.expect("written");
        drop(far);
        // Nobody takes this, and who says it is not cut off.
        near_write.write_all(&[1; 20_000]).await.expect("written");
        let mut got = Vec::new();
        near_read.read_to_end(&mut got).await.expect("read");
        assert_eq!(got, last);
        // Nor listened to for ever.
        let broke = async {
            while !task.is_finished() {
                near_write.write_all(&[1; 100]).await.ok();
                if clock.next_timer().is_some() {
                    clock.advance(Duration::from_secs(31));
                }
                tokio::task::yield_now().await;
            }
        };
        broke.await;
        assert_eq!(task.await.expect("ran").expect_err("too long").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn what_is_silent_is_ended() {
        // Both ways, and one way after the other has ended.
        for half in [false, true] {
            let (mut near, far, clock, task) = spliced();
            if half {
                near.shutdown().await.expect("ended");
                let (mut rest, mut far) = (Vec::new(), far);
                far.read_to_end(&mut rest).await.expect("read");
                pass(&clock, Duration::from_secs(31), &task).await;
            } else {
                let _far = far;
                pass(&clock, Duration::from_secs(4 * 3600 + 1), &task).await;
            }
            let ended = task.await.expect("ran").expect_err("too long");
            assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn what_is_silent_for_less_goes_on() {
        let (mut near, mut far, clock, task) = spliced();
        for _ in 0..3 {
            // All but a second of what is allowed, on every timer that there is.
            while clock.next_timer().is_none() {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(4 * 3600 - 1));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!task.is_finished());
            near.write_all(b"x").await.expect("written");
            assert_eq!(far.read_u8().await.expect("it goes on"), b'x');
        }
    }

    #[tokio::test]
    async fn without_a_bound_silence_ends_only_what_is_half_closed() {
        let (mut near, mut far, clock, task) = spliced_with(Patience { idle: None, ..Patience::default() });
        near.write_all(b"x").await.expect("written");
        assert_eq!(far.read_u8().await.expect("it goes on"), b'x');
        assert!(clock.next_timer().is_none(), "nobody waits for it to be silent");
        near.shutdown().await.expect("ended");
        assert_eq!(far.read(&mut [0]).await.expect("read"), 0);
        pass(&clock, Duration::from_secs(31), &task).await;
        assert_eq!(task.await.expect("ran").expect_err("too long").kind(), io::ErrorKind::TimedOut);
    }

    async fn pass(clock: &ManualClock, by: Duration, task: &tokio::task::JoinHandle<io::Result<()>>) {
        while !task.is_finished() {
            if clock.next_timer().is_some() {
                clock.advance(by);
            }
            tokio::task::yield_now().await;
        }
    }
}
