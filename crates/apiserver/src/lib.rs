//! The API server: HTTP in, store out. The only crate that can name `storage`.
//!
//! ```text
//!  request ─► authn ─► audit ─► impersonation ─► fairness ─► authz ─► verb ─┐
//!                                                                            │ writes: registry/store.rs
//!     response ◄─ encode (JSON, Table, …) ◄─ cacher (bytes, once) ◄─ store ◄─┘
//! ```
//!
//! # Invariants
//!
//! * One write path, dry runs included. [../../xtask/src/laws.rs: one_write_path;
//!   tests/objects.rs: a_dry_run_answers_like_the_write_and_leaves_nothing]
//! * A watch shows each revision once, in order. [src/cacher/tests.rs:
//!   replayed_watches_equal_the_state]
//! * In process a component has its own identity, which the network cannot have.
//!   [tests/network.rs: an_identity_of_this_process_cannot_be_had_from_outside]
//! * Whatever is sent is answered with a Status. [tests/bad_input.rs: mangled_requests;
//!   src/chain.rs: a_panic_is_an_answer_and_is_counted]

pub mod admission;
pub mod aggregation;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod cacher;
pub mod chain;
pub mod components;
pub mod crd;
pub mod discovery;
pub mod dispatch;
pub mod encode;
pub mod fairness;
pub mod health;
pub mod index;
pub mod metrics;
pub mod objects;
pub mod openapi;
pub mod quota;
pub mod registry;
pub mod request;
pub mod resource_metrics;
pub mod security;
pub mod server;
pub mod subresources;
pub mod traces;
pub mod verbs;
pub mod version;

pub use server::{ApiServer, Config};
