//! What Pintle does to the machine it runs on: preflight, runtime supervision, a journal of every
//! host mutation, and reset.
//!
//! ```text
//!  preflight ──(nothing changed yet)──► journal ◄── every change is written here first
//!                                          │            layout, sysctls, mounts, cgroups,
//!                                          ▼            containerd, CNI configuration
//!                                        reset ──► the machine as it was
//! ```
//!
//! Invariant: a change to the host that outlives the process is in the [`journal`] before it is
//! made, so that `pintle reset` finds it after any crash.

pub mod cni;
pub mod containerd;
pub mod image;
pub mod journal;
pub mod layout;
pub mod pause;
pub mod preflight;
pub mod process;
pub mod reset;
pub mod sysctl;
