//! SPDY/3.1, as far as Kubernetes' streams use it: what clients of exec, attach and port-forward spoke
//! before WebSocket, and what container runtimes still do.
//!
//! ```text
//!  bytes ──► frame::Decoder ──► Frame ──► session::Reader ──► Event      (in the order they came)
//!  bytes ◄── frame::Encoder ◄── Frame ◄── session::Writer ◄── open, data, reset
//! ```
//!
//! The other implementation that matters, Go's `spdystream`, keeps no flow-control windows: it neither
//! sends `WINDOW_UPDATE` nor waits for one, and TCP alone slows a sender down. So a window is waited for
//! only where the peer shows that it keeps them, and ours is opened as wide as it goes.
//!
//! # Invariants
//!
//! * No bytes make the decoder panic, nor hold more than a bound: a frame's headers, compressed and not,
//!   are limited, and data is handed on in pieces as it comes. [frame.rs: any_bytes_are_answered;
//!   headers.rs: a_block_that_grows_is_refused]
//! * What is written is read again as the same, whatever the cuts between packets.
//!   [frame.rs: what_is_written_is_read_again_whatever_the_cuts]
//! * Who hears writes nothing: a peer that takes nothing is heard all the same, and is owed no more than a
//!   bound. [session.rs: who_is_not_taken_from_hears_all_the_same]
//! * Of a stream that has ended both ways nothing is kept, so that a connection may have any number of them one
//!   after the other. [session.rs: of_a_stream_that_has_ended_both_ways_nothing_is_kept]

mod dictionary;
pub mod frame;
mod headers;
pub mod session;

/// Names and values of a stream.
pub type Headers = Vec<(String, String)>;

/// What is wrong with what the peer sent; the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is not SPDY, or not this version.
    #[error("the frame is not of SPDY/3.1")]
    Version,
    /// A frame's fields do not fit its length.
    #[error("a {0} frame is malformed")]
    Frame(&'static str),
    /// It is longer than allowed.
    #[error("a {0} is too large")]
    TooLarge(&'static str),
    /// Headers that cannot be read.
    #[error("a header block is malformed")]
    Headers,
}
