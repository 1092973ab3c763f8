//! What could have been in std: clocks, seeded randomness, back-off, delay queue, shutdown order.
//!
//! Nothing here is named after Kubernetes. Every component takes its time and its randomness from
//! this crate, as arguments, so that a simulation can run the same code under a virtual clock and a
//! seed. `clippy.toml` bans the global sources elsewhere.

pub mod backoff;
pub mod clock;
pub mod delay;
pub mod rng;
pub mod shutdown;

pub use clock::{Clock, ClockExt, SharedClock};
pub use rng::Rng;
