//! Why an object is as it is, for people: what its pod waits for, and what happened to it so far.
//!
//! ```text
//!  Waits ────┐
//!  pod ──────┤
//!  owners ───┼──► Seen ──► render(seen, now) ──► text
//!  events ───┘   gather: I/O   pure
//! ```
//!
//! Waits say what holds now and are withdrawn when it ends; events say what was. Where no layer
//! published a Wait, the pod's own status is asked, so the answer is useful in any cluster.
//!
//! # Invariants
//!
//! * Without Waits the status answers. [src/tests.rs: without_waits_the_status_is_asked]

mod gather;
mod render;
mod seen;

pub use gather::gather;
pub use render::render;
pub use seen::{Happened, Owner, Seen};

use jiff::Timestamp;

/// Why an answer could not be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such pod, and nothing is remembered of one; final.
    #[error("pod {namespace}/{name} does not exist and nothing is remembered of it")]
    Unknown { namespace: String, name: String },
    /// The server could not be asked.
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// Explains a pod.
pub async fn why(client: &client::Client, namespace: &str, name: &str, now: Timestamp) -> Result<String, Error> {
    let seen = gather(client, namespace, name).await?;
    if seen.pod.is_none() && seen.history.is_empty() {
        return Err(Error::Unknown { namespace: namespace.to_owned(), name: name.to_owned() });
    }
    Ok(render(&seen, now))
}

#[cfg(test)]
mod tests;
