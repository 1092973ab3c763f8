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
//! * A slice whose Node or process is not heard of attracts nobody while another's is, and the last one is never
//!   taken out. [src/publish/plan.rs: what_is_written; src/run.rs:
//!   a_process_that_was_killed_beside_a_healthy_kubelet_is_taken_out]
//! * Nobody is led to a process of which a part does not work. [src/ready.rs:
//!   a_part_that_panics_is_begun_again_and_nobody_is_led_here_meanwhile; src/run.rs:
//!   who_cannot_listen_is_not_ready_tries_again_and_follows_the_node]

mod http;
mod metrics;
mod names;
mod nodes;
mod options;
mod publish;
mod ready;
mod resolver;
mod run;
mod server;
pub mod upstream;
pub mod wire;
pub mod zone;

pub use options::{FileConfig, METRICS_PORT, Options, PORT, TTL, cluster_ip, parse_config};
pub use run::run;
