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

mod act;
pub mod amounts;
pub mod choose;
pub mod core;
mod mailbox;
pub mod node;
pub mod plugins;
pub mod pod;
pub mod preempt;
pub mod queue;
mod report;
mod run;
pub mod snapshot;

pub use run::{Options, run};
