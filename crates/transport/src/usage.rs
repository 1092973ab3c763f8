//! Whether a connection is in use: what tells one that was forgotten from one that is slow.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use stdx::{ClockExt, SharedClock};

use crate::{Body, BodyError};

/// The requests of one connection.
#[derive(Default)]
pub struct Usage {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Usage {
    /// A request begins; it ends when what is returned is dropped.
    pub fn begin(self: &Arc<Self>) -> Turn {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Turn(self.clone())
    }

    /// True while a request is under way.
    pub fn busy(&self) -> bool {
        self.ended.load(Ordering::Acquire) < self.begun.load(Ordering::Acquire)
    }

    fn count(&self) -> u64 {
        self.begun.load(Ordering::Relaxed) + self.ended.load(Ordering::Relaxed)
    }

    /// Ends when no request came for `first`, or later none was under way for `idle` (at most twice that
    /// long: requests do not wake the one who waits here).
    pub async fn forgotten(&self, clock: &SharedClock, first: Duration, idle: Duration) {
        let (mut seen, mut wait) = (0, first);
        loop {
            clock.sleep(wait).await;
            let now = self.count();
            if now == seen && !self.busy() {
                return;
            }
            (seen, wait) = (now, idle);
        }
    }
}

/// One request under way.
pub struct Turn(Arc<Usage>);

impl Turn {
    /// The body of the answer, which is part of the request.
    pub fn answered(self, body: Body) -> Body {
        use http_body_util::BodyExt;
        Answer { body, _turn: self }.boxed_unsync()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

struct Answer {
    body: Body,
    _turn: Turn,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
