//! Writes gathered: what one turn of a connection says leaves in one write.
//!
//! HTTP/2 flushes after every frame of some size, and a flush is a TLS record and a system call. A
//! connection with many streams says much at once: the event that each of its watches is shown, the
//! answers to requests that waited for the same sync.
//!
//! ```text
//!  one poll of the connection:   write, flush, write, flush, write, flush
//!  what the socket sees:                                                  one write, one flush
//! ```
//!
//! Outside a turn, as after an upgrade, writes and flushes are what they say.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// As much is gathered before it is sent, four frames of HTTP/2 as most clients take them; what would not
/// fit is not copied.
const ROOM: usize = 4 * (16 * 1024 + 9);

/// The connection's end of a stream.
pub struct Gather<S>(Arc<Mutex<State<S>>>);

/// The end of who polls the connection.
pub struct Turns<S>(Arc<Mutex<State<S>>>);

struct State<S> {
    stream: S,
    /// Written and not yet sent; without memory when empty.
    waiting: BytesMut,
    turn: bool,
    /// A flush was asked for, or is not over.
    flush: bool,
    /// Why nothing more can be sent: told at the next chance.
    failed: Option<io::Error>,
}

/// The two ends of a stream.
pub fn gather<S>(stream: S) -> (Gather<S>, Turns<S>) {
    let state = State { stream, waiting: BytesMut::new(), turn: false, flush: false, failed: None };
    let state = Arc::new(Mutex::new(state));
    (Gather(state.clone()), Turns(state))
}

impl<S> Turns<S> {
    /// Runs the connection, and sends after each of its turns what it said.
    pub fn run<'t, F: Future>(&'t self, connection: Pin<&'t mut F>) -> Run<'t, S, F> {
        Run { turns: self, connection }
    }
}

/// A connection that runs.
pub struct Run<'t, S, F> {
    turns: &'t Turns<S>,
    connection: Pin<&'t mut F>,
}

impl<S: AsyncWrite + Unpin, F: Future> Future for Run<'_, S, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.turns.0.lock().turn = true;
        let polled = self.connection.as_mut().poll(cx);
        self.turns.0.lock().end_turn(cx);
        polled
    }
}

impl<S: AsyncWrite + Unpin> State<S> {
    fn end_turn(&mut self, cx: &mut Context<'_>) {
        self.turn = false;
        // What does not go now goes in a later turn, which the stream wakes.
        if let Poll::Ready(Err(error)) = self.flush(cx) {
            self.failed = Some(error);
            cx.waker().wake_by_ref();
        }
    }

    /// Hands on what waits.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        while !self.waiting.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.waiting))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(sent);
        }
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(cx))?;
        if self.flush {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.flush = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gather<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if let Some(error) = state.failed.take() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut state.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if state.turn && state.waiting.len() + length <= ROOM {
            slices.iter().for_each(|slice| state.waiting.extend_from_slice(slice));
            return Poll::Ready(Ok(length));
        }
        ready!(state.send(cx))?;
        if state.turn && length <= ROOM {
            slices.iter().for_each(|slice| state.waiting.extend_from_slice(slice));
            return Poll::Ready(Ok(length));
        }
        Pin::new(&mut state.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.flush = true;
        if state.turn { Poll::Ready(Ok(())) } else { state.flush(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        ready!(state.send(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A stream that counts what is done to it.
    #[derive(Default)]
    struct Counted {
        writes: Vec<usize>,
        flushes: usize,
    }

    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes.push(bytes.len());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncRead for Counted {
        fn poll_read(self: Pin<&mut Self>, _cx: &mut Context<'_>, _buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_turn_leaves_in_one_write() {
        let (mut stream, turns) = gather(Counted::default());
        let says = async {
            for _ in 0..10 {
                stream.write_all(&[7; 100]).await.expect("written");
                stream.flush().await.expect("flushed");
            }
            // What does not fit is not copied, and keeps its place.
            stream.write_all(&vec![8; ROOM + 1]).await.expect("written");
            stream.write_all(&[9; 5]).await.expect("written");
        };
        turns.run(std::pin::pin!(says)).await;
        {
            let state = turns.0.lock();
            assert_eq!((&state.stream.writes[..], state.stream.flushes), (&[1000, ROOM + 1, 5][..], 1));
        }
        // Outside a turn a write is a write.
        stream.write_all(b"abc").await.expect("written");
        stream.flush().await.expect("flushed");
        let state = turns.0.lock();
        assert_eq!((state.stream.writes.last(), state.stream.flushes), (Some(&3), 2));
    }

    #[tokio::test]
    async fn what_the_other_end_has_no_room_for_waits_and_comes_in_order() {
        let (near, mut far) = tokio::io::duplex(10);
        let (mut stream, turns) = gather(near);
        let says = async {
            for byte in 0..200u8 {
                stream.write_all(&[byte; 3]).await.expect("written");
                stream.flush().await.expect("flushed");
                tokio::task::yield_now().await;
            }
            stream.shutdown().await.expect("shut down");
        };
        let (mut heard, says) = (Vec::new(), std::pin::pin!(says));
        tokio::join!(turns.run(says), async { far.read_to_end(&mut heard).await.expect("read") });
        assert_eq!(heard, (0..200u8).flat_map(|byte| [byte; 3]).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_stream_that_breaks_is_told_once_the_connection_asks() {
        let (near, far) = tokio::io::duplex(10);
        let (mut stream, turns) = gather(near);
        drop(far);
        let says = async {
            stream.write_all(b"abc").await.expect("gathered");
            tokio::task::yield_now().await;
            stream.read_u8().await.map_err(|error| error.kind())
        };
        assert_eq!(turns.run(std::pin::pin!(says)).await, Err(io::ErrorKind::BrokenPipe));
    }
}
