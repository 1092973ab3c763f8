//! How components talk to the API server, and the machinery every controller shares.
//!
//! ```text
//!   transport::Handler (HTTPS, or the API server in process)
//!        ▲
//!     Client ── Api<K>              one request: typed or raw, causes attached to writes
//!        ▲
//!     Informer<V>                   list and watch; bytes and the view V, indexed; barriers
//!        │ Change<V>
//!        ▼
//!     Queue<K> ── controller::run   the only watch–queue–retry loop
//!        │
//!     reconcile(key, pass)          observe → plan → apply; pass.hold(informer.reached(revision))
//! ```
//!
//! Beside them: the event [`events::Recorder`], the [`waits::Publisher`], [`lease`] renewal and
//! leader election, [`kubeconfig`] files, [`discovery`], and [`delegated`] authentication and
//! authorization for components that serve.
//!
//! Nothing here knows a storage or the server's insides: in process and over HTTPS a component is
//! the same kind of client under its own identity.
//!
//! # Invariants
//!
//! * A relist is a difference: what vanished in a gap is told as deleted. [src/informer/tests.rs:
//!   an_expired_revision_lists_anew_and_tells_what_vanished]
//! * A key is worked on by one pass at a time, and not before the caches show its own writes.
//!   [src/queue.rs: a_key_is_not_given_out_twice_at_a_time; src/controller/tests.rs:
//!   a_key_is_held_back_until_its_writes_are_seen]
//! * Queues are bounded; what they refused is remembered. [src/queue.rs:
//!   at_the_bound_keys_are_refused_and_remembered]

pub mod api;
pub mod causes;
pub mod client;
pub mod component;
pub mod controller;
pub mod delegated;
pub mod discovery;
mod error;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod informer;
pub mod kubeconfig;
pub mod lease;
pub mod object;
pub mod params;
pub mod queue;
pub mod resource;
pub mod service_account;
pub mod waits;
pub mod watch;

pub use api::{Api, List};
pub use causes::Cause;
pub use client::{Bounds, Client, TokenSource};
pub use error::{Error, Result};
pub use informer::{Cached, Change, Informer};
pub use object::{Key, Meta, OwnerRef};
pub use params::{DeleteParams, ListParams, Patch, Propagation, WatchParams};
pub use queue::Queue;
pub use resource::Resource;
/// What a client sends its requests through.
pub use transport::SharedHandler;
