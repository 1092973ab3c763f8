//! Why an object is as it is, for people: what its pod waits for, and what happened to it so far; of
//! anything else, what it and the pods below it wait for.
//!
//! ```text
//!  Waits ────┐
//!  pod ──────┤
//!  owners ───┼──► Seen ──► render(seen, now) ──► text
//!  events ───┘   gather: I/O   pure
//!
//!  a Deployment, Service, Node … ──► Whole: the object, and a Seen of each pod below it
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
mod whole;

pub use gather::gather;
pub use render::render;
pub use seen::{Happened, Owner, Seen};
pub use whole::Whole;

use jiff::Timestamp;

/// Why an answer could not be given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such pod, and nothing is remembered of one; final.
    #[error("pod {namespace}/{name} does not exist and nothing is remembered of it")]
    Unknown { namespace: String, name: String },
    /// The server knows no kind of that name; final.
    #[error("the server has no kind called {0:?}")]
    NoKind(String),
    /// There is no such object; final.
    #[error("{kind} {name:?} does not exist")]
    Absent { kind: String, name: String },
    /// The server could not be asked.
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// Explains an object by any name kubectl knows its kind by: `pod`, `deploy`, `services`,
/// `deployment.apps`.
pub async fn why(
    client: &client::Client,
    namespace: &str,
    kind: &str,
    name: &str,
    now: Timestamp,
) -> Result<String, Error> {
    if !matches!(kind, "pod" | "pods" | "po") {
        let whole = whole::gather(client, namespace, kind, name).await?;
        return Ok(whole::render(&whole, now));
    }
    let seen = gather(client, namespace, name).await?;
    if seen.pod.is_none() && seen.history.is_empty() {
        return Err(Error::Unknown { namespace: namespace.to_owned(), name: name.to_owned() });
    }
    Ok(render(&seen, now))
}

#[cfg(test)]
mod tests;
