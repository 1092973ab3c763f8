//! Whether a connection is in use: what tells one that was forgotten from one that is slow, and a client
//! that reads slowly from one that does not read.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use stdx::{ClockExt, SharedClock};

use crate::{Body, BodyError};

/// The requests of one connection.
#[derive(Default)]
pub struct Usage {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The answers under way; those that have ended leave when the list has doubled.
    answers: Mutex<Vec<Weak<Shared>>>,
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
    /// long: requests do not wake the one who waits here). An answer of which nothing was taken for `idle`
    /// while there was more of it is dropped with all that it holds, and its request has ended.
    pub async fn forgotten(&self, clock: &SharedClock, first: Duration, idle: Duration) {
        let (mut seen, mut wait) = (0, first);
        loop {
            clock.sleep(wait).await;
            if seen > 0 {
                self.drop_stalled();
            }
            let now = self.count();
            if now == seen && !self.busy() {
                return;
            }
            (seen, wait) = (now, idle);
        }
    }

    /// Drops the answers that stand where they stood at the last look.
    fn drop_stalled(&self) {
        let mut answers = self.answers.lock();
        answers.retain(|answer| answer.upgrade().is_some_and(|answer| !answer.state.lock().is_stalled()));
    }

    fn keep(&self, answer: &Arc<Shared>) {
        let mut answers = self.answers.lock();
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }
}

/// One request under way.
pub struct Turn(Arc<Usage>);

impl Turn {
    /// The body of the answer, which is part of the request.
    pub fn answered(self, body: Body) -> Body {
        use http_body_util::BodyExt;
        let usage = self.0.clone();
        let state = State { body: Some((body, self)), ours: false, looked: false };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        usage.keep(&shared);
        Answer(shared).boxed_unsync()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    /// `None` once it was given up.
    body: Option<(Body, Turn)>,
    /// The next frame is waited for: not the client is slow, there is nothing to read.
    ours: bool,
    /// Nothing was taken since the last look.
    looked: bool,
}

impl State {
    /// True, and the body gone, when the client has taken nothing since this was asked last.
    fn is_stalled(&mut self) -> bool {
        if self.ours || !std::mem::replace(&mut self.looked, true) {
            return false;
        }
        self.body = None;
        true
    }
}

/// A body whose reader is watched.
struct Answer(Arc<Shared>);

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.0.state.lock();
        let Some((body, _)) = &mut state.body else {
            return Poll::Ready(Some(Err("the client has not read for too long".into())));
        };
        let polled = Pin::new(body).poll_frame(cx);
        state.ours = polled.is_pending();
        state.looked = false;
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.state.lock().body.as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.state.lock().body.as_ref().map(|(body, _)| body.size_hint()).unwrap_or_default()
    }
}
