//! What whole-cluster tests need: images made from the distribution's packages, a registry on
//! loopback, a cluster in a folder of its own, and real `kubectl`; and a cluster simulated in one
//! thread ([`simulation`]).
//!
//! # Invariants
//!
//! * The same seed gives the same run to the last byte. [tests/simulation.rs:
//!   the_same_seed_gives_the_same_trace]

pub use demo::images;

pub mod abandoned;
pub mod clients;
pub mod cluster;
pub mod collector;
pub mod cri_proxy;
pub mod leaks;
pub mod manifests;
pub mod nodes;
pub mod registry;
pub mod runtime;
pub mod simulation;
pub mod streams;
pub mod transcript;
