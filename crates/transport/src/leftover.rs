//! The rest of a request's body when nobody wants it: an early refusal must not cost the connection.
//!
//! A client that is told no may still be sending. HTTP/1 has no way to say "stop" but to close, and the
//! client then loses its next request, which may be a write. So a short rest is read and thrown away
//! behind the answer; only a long or slow one ends the connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use stdx::{ClockExt, SharedClock};

/// No more than this is read of what nobody wants.
const MOST: usize = 256 * 1024;
/// Nor for longer than this.
const LONGEST: Duration = Duration::from_secs(5);

/// A body whose rest is read when it is dropped early.
pub struct Leftover {
    body: Option<Incoming>,
    clock: SharedClock,
}

impl Leftover {
    pub fn new(body: Incoming, clock: SharedClock) -> Self {
        Self { body: Some(body), clock }
    }
}

impl Body for Leftover {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        if body.size_hint().lower() > MOST as u64 {
            return;
        }
        let (clock, runtime) = (self.clock.clone(), tokio::runtime::Handle::try_current());
        if let Ok(runtime) = runtime {
            runtime.spawn(async move { clock.timeout(LONGEST, discard(body)).await.unwrap_or_default() });
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MOST {
            return;
        }
    }
}
