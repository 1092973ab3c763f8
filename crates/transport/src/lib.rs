//! HTTP plumbing that knows no kinds: serving and dialling over TLS, and one handler type that is
//! the same in process and over the network.
//!
//! ```text
//!  client ──► SharedHandler ─┬─ dial::Https ──TLS, HTTP/1.1 or 2──► serve ──► SharedHandler ──► server
//!                            └─ the server's own door, in process ───────────────────────────► server
//! ```
//!
//! # Invariants
//!
//! * A client speaks only to who it should be; a certificate can be replaced while it is in use.
//!   [tests/roundtrip.rs: a_server_that_is_not_who_it_should_be_is_not_spoken_to;
//!   tests/roundtrip.rs: a_replaced_certificate_serves_new_connections; tests/roundtrip.rs:
//!   certificates_in_files_are_read_again_when_they_change]
//! * A client that says nothing loses its place, whether it is silent before the handshake, before its
//!   first request or after its last; one that has a stream open does not. [tests/roundtrip.rs:
//!   a_client_that_says_nothing_is_closed_and_frees_its_slot; tests/idle.rs:
//!   clients_that_ask_nothing_are_closed_and_free_their_slots; tests/idle.rs:
//!   a_stream_that_is_open_keeps_its_connection]
//! * What a connection says in one turn leaves in one write, in order. [src/gather.rs:
//!   a_turn_leaves_in_one_write; src/gather.rs: what_the_other_end_has_no_room_for_waits_and_comes_in_order]
//! * What comes is read in few turns where much comes, and nothing is held for what is silent. [src/ahead.rs:
//!   much_is_read_in_few_turns_and_nothing_is_held_for_what_is_silent]
//! * A stream that nobody says anything on, or of which one end is gone, ends. [src/splice.rs:
//!   what_is_silent_is_ended; src/websocket/both_ways.rs: a_client_that_is_gone_is_found_out]
//! * Who reaches a server in this process is to it who it would be over the network. [src/near.rs:
//!   who_is_near_shows_its_certificate_while_the_door_is_open]
//! * An answer that nobody reads is dropped with all that it holds. [tests/idle.rs:
//!   an_answer_that_nobody_reads_is_dropped_and_its_slot_freed]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;

mod ahead;
pub mod channels;
pub mod debug;
pub mod dial;
pub mod files;
mod gather;
mod leftover;
pub mod near;
pub mod once;
pub mod serve;
pub mod spdy;
pub mod splice;
pub mod time;
pub mod tls;
pub mod trust;
mod usage;
pub mod websocket;

/// A request or response body: frames of bytes, boxed.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;
/// Why a body ended early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A request as handlers take it.
pub type Request = http::Request<Body>;
/// A response as handlers give it.
pub type Response = http::Response<Body>;
/// What a handler's call returns.
pub type Responding = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

/// No response could be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server could not be reached; try again.
    #[error("{0}")]
    Connect(String),
    /// The connection broke before a response came; the request may have been carried out.
    #[error("{0}")]
    Broken(String),
    /// The request itself could not be sent; final.
    #[error("{0}")]
    Invalid(String),
}

/// Something that answers requests: the API server itself, or a connection to one.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn call(&self, request: Request) -> Responding;
}

/// A handler shared by its callers.
pub type SharedHandler = Arc<dyn Handler>;

/// A body of one frame.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body without frames.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// A body made of the frames a stream gives.
pub fn stream<S>(frames: S) -> Body
where
    S: futures::Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
{
    use futures::StreamExt;
    http_body_util::StreamBody::new(frames.map(|r| r.map(http_body::Frame::data))).boxed_unsync()
}

/// The same body, holding `thing` until it has ended or its reader is gone.
pub fn holding<T: Send + 'static>(body: Body, thing: T) -> Body {
    body.map_frame(move |frame| {
        let _held = &thing;
        frame
    })
    .boxed_unsync()
}

/// How long a body is, where that is known before it has come.
pub fn length(body: &Body) -> Option<u64> {
    body.size_hint().exact()
}

/// The same body; `seen` hears of how many bytes there are in each of its frames.
pub fn counting(body: Body, mut seen: impl FnMut(usize) + Send + 'static) -> Body {
    body.map_frame(move |frame| {
        seen(frame.data_ref().map_or(0, Bytes::len));
        frame
    })
    .boxed_unsync()
}

/// The same answer, holding `thing` until its body has ended or its reader is gone; where it makes a
/// WebSocket of the connection, until that ends.
pub fn hold<T: Send + 'static>(response: Response, thing: T) -> Response {
    if let Some(kept) = response.extensions().get::<websocket::Kept>() {
        kept.keep(Box::new(thing));
        return response;
    }
    response.map(|body| holding(body, thing))
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is longer than allowed.
    #[error("the body is longer than {0} bytes")]
    TooLong(usize),
    /// It ended early.
    #[error("{0}")]
    Broken(BodyError),
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// When it is longer, or ends early.
pub async fn read(mut body: Body, limit: usize) -> Result<Bytes, ReadError> {
    // What is promised gets its room at once; who promises much and sends little costs no memory that is used.
    let promised = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
    let mut whole = bytes::BytesMut::with_capacity(promised.min(limit));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(ReadError::TooLong(limit));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
