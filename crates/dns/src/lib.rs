//! The cluster's DNS: names of Services and pods from the API, and everybody else's from other servers.
//!
//! ```text
//!   Services, slices, namespaces ─► Zone ──────────┐
//!                                                  ▼
//!   UDP, TCP ─► who may ask? ─► Query ─► Resolver ─► Reply ─► UDP, TCP
//!                                          │
//!                                          └─► cache ─► upstream servers (health, loops, one flight a question)
//!   Service kube-dns, a slice of its own ◄─ publish: the ordinary service proxy carries the traffic
//! ```
//!
//! # Invariants
//!
//! * What a name answers is a function of Services, slices and namespaces. [src/zone/tests.rs: what_names_answer]
//! * No message panics, and none is answered by more than it may be. [src/wire/read.rs: any_bytes_are_answered]
//! * Pods and nodes are answered, and nobody else. [src/server/allow.rs: strangers_are_not_answered;
//!   src/server/tests.rs: a_stranger_hears_nothing]
//! * Another server is believed as far as it answers what it was asked. [src/upstream/sift.rs:
//!   only_what_was_asked_for_is_believed; src/upstream/tests.rs: guesses_are_not_believed]
//! * A slice whose Node is not heard of attracts nobody while another's is, and the last one is never taken out.
//!   [src/publish/plan.rs: what_is_written]

mod http;
mod metrics;
mod names;
mod options;
mod publish;
mod resolver;
mod run;
mod server;
pub mod upstream;
pub mod wire;
pub mod zone;

pub use options::{FileConfig, METRICS_PORT, Options, PORT, TTL, cluster_ip, parse_config};
pub use run::{Sockets, listen, run};
