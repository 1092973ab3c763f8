//! Reading ahead of TLS, which asks a socket for 4 KiB at a time: four system calls a record where much comes.
//!
//! ```text
//!  little comes:   TLS asks for 4 KiB   ─► 4 KiB are read                       no memory while nothing comes
//!  much comes:     TLS asks for 4 KiB   ◄─ of up to 64 KiB that were read at once
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Read at once while little comes, and while much does: thousands of connections say nothing.
const LITTLE: usize = 4 * 1024;
const MUCH: usize = 64 * 1024;

/// A stream that is read ahead of, the more the more comes; what is written goes as it is.
pub struct Ahead<S> {
    stream: S,
    /// What was read, of which the first `taken` bytes of `filled` were given on; without memory when it is empty
    /// and nothing more is there.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    /// As much is read next.
    room: usize,
}

impl<S> Ahead<S> {
    /// Nothing is read yet.
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), taken: 0, filled: 0, room: LITTLE }
    }

    /// Reads more or less next, as came this time.
    fn learn(&mut self, came: usize, asked: usize) {
        if came == asked {
            self.room = (self.room * 4).min(MUCH);
        } else if came <= self.room / 4 {
            self.room = (self.room / 4).max(LITTLE);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.taken == this.filled {
            // Who has as much room reads for itself.
            if out.remaining() >= this.room {
                let (before, asked) = (out.filled().len(), out.remaining());
                let read = Pin::new(&mut this.stream).poll_read(cx, out);
                match &read {
                    Poll::Ready(_) => this.learn(out.filled().len() - before, asked),
                    Poll::Pending => this.buffer = Vec::new(),
                }
                return read;
            }
            this.buffer.resize(this.room, 0);
            let mut read = ReadBuf::new(&mut this.buffer);
            let polled = Pin::new(&mut this.stream).poll_read(cx, &mut read);
            let came = read.filled().len();
            if polled.is_pending() {
                this.buffer = Vec::new();
            }
            ready!(polled)?;
            (this.taken, this.filled) = (0, came);
            this.learn(came, this.buffer.len());
        }
        let size = out.remaining().min(this.filled - this.taken);
        out.put_slice(&this.buffer[this.taken..this.taken + size]);
        this.taken += size;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::FutureExt;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    use super::*;

    /// What comes, piece by piece; an empty piece: nothing for now. Counts how often it is asked.
    struct Comes {
        pieces: VecDeque<Vec<u8>>,
        asked: usize,
    }

    impl AsyncRead for Comes {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.asked += 1;
            let Some(mut piece) = self.pieces.pop_front() else { return Poll::Ready(Ok(())) };
            if piece.is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let rest = piece.split_off(piece.len().min(out.remaining()));
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
            out.put_slice(&piece);
            Poll::Ready(Ok(()))
        }
    }

    fn of(pieces: Vec<Vec<u8>>) -> Ahead<Comes> {
        Ahead::new(Comes { pieces: pieces.into(), asked: 0 })
    }

    #[test]
    fn much_is_read_in_few_turns_and_nothing_is_held_for_what_is_silent() {
        let much = vec![7; 4 << 20];
        let mut stream = of(vec![much.clone(), Vec::new()]);
        let mut piece = [0; 4096];
        let mut all = 0;
        while all < much.len() {
            all += stream.read(&mut piece).now_or_never().expect("it is there").expect("read");
        }
        let asked = stream.stream.asked;
        assert!(asked <= (4 << 20) / MUCH + 4, "asked {asked} times");
        assert!(stream.read(&mut piece).now_or_never().is_none());
        assert_eq!(stream.buffer.capacity(), 0);
        // And it asks for less again.
        stream.stream.pieces = (0..8).map(|_| vec![1; 10]).collect();
        for _ in 0..8 {
            assert_eq!(stream.read(&mut piece).now_or_never().expect("it is there").expect("read"), 10);
        }
        assert_eq!(stream.room, LITTLE);
    }

    proptest! {
        #[test]
        fn what_comes_is_read_in_order_whatever_is_asked_for(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20_000), 0..12),
            asks in proptest::collection::vec(1usize..90_000, 1..8),
        ) {
            let want = pieces.concat();
            let mut stream = of(pieces);
            let (mut got, mut asks) = (Vec::new(), asks.into_iter().cycle());
            loop {
                let mut piece = vec![0; asks.next().unwrap_or(1)];
                match stream.read(&mut piece).now_or_never() {
                    Some(read) => match read.expect("read") {
                        0 => break,
                        size => got.extend_from_slice(&piece[..size]),
                    },
                    None => continue,
                }
            }
            prop_assert_eq!(got, want);
        }
    }
}
