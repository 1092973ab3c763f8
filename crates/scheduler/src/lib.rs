//! The scheduler: gives each pod without a node the node that suits it best.
//!
//! ```text
//!  nodes, pods ──► core (one loop) ──► snapshot ─┐
//!   (watched)        │   ▲               queue ──┤
//!                    │   │                       ▼
//!                    │   │              choose(pod, snapshot) ──► a node │ why none
//!                    │   │                       │                  │         │
//!                    │   └── outcomes ◄── Binding (async) ◄─────────┘         ▼
//!                    └─────────────────────────────── condition, event, Wait, preemption
//! ```
//!
//! Deciding is pure ([`choose`](choose::choose), [`preempt::plan`], [`core::Core`]); what has been
//! decided is carried out beside the loop, which never waits for it. Killed at any point, the
//! scheduler knows all it needs from the API server when it starts again.
//!
//! # Invariants
//!
//! * Nothing is decided before everything is known. [src/core.rs:
//!   nothing_is_decided_before_everything_is_known]
//! * A pod that was given a node takes its room at once, and gives it back when its Binding
//!   fails. [src/core.rs: an_assumed_pod_takes_room_at_once; src/core.rs:
//!   a_failed_binding_gives_the_room_back_and_is_tried_again]
//! * The first attempt is never delayed. [src/queue.rs:
//!   the_first_attempt_is_never_delayed_and_priority_leads]

mod act;
pub mod amounts;
pub mod choose;
pub mod core;
pub mod laps;
mod mailbox;
mod metrics;
pub mod node;
pub mod plugins;
pub mod pod;
pub mod preempt;
pub mod queue;
mod report;
pub mod resource_page;
mod run;
pub mod snapshot;

pub use run::{Options, run};
