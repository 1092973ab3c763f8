//! What could have been in std: clocks, seeded randomness, back-off, delay queue, shutdown order, metrics,
//! trace contexts.
//!
//! Nothing here knows Kubernetes, and nothing is named after it: names of metrics come from who counts. Every component takes its time and its randomness from
//! this crate, as arguments, so that a simulation can run the same code under a virtual clock and a
//! seed. `clippy.toml` bans the global sources elsewhere.
//!
//! # Invariants
//!
//! * A wall clock that jumps fires no timer. [src/clock.rs: a_wall_clock_jump_fires_no_timer]
//! * The same seed gives the same stream. [src/rng.rs: the_same_seed_gives_the_same_stream]
//! * What is counted is bounded. [src/metrics/mod.rs: label_sets_are_bounded]

pub mod backoff;
pub mod clock;
pub mod delay;
pub mod metrics;
pub mod rng;
pub mod shutdown;
pub mod trace;

pub use clock::{Clock, ClockExt, SharedClock};
pub use rng::Rng;
