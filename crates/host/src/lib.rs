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
//! # Invariants
//!
//! * A change to the host that outlives the process is in the [`journal`] before it is made, so
//!   that `pintle reset` finds it after any crash. [../e2e/tests/restart.rs:
//!   reset_leaves_the_host_as_it_was; src/reset.rs:
//!   mounts_go_before_folders_and_settings_return_last_changed_first]
//! * `reset` removes what is ours and nothing else. [src/reset.rs: what_others_put_into_our_folders_stays;
//!   src/reset.rs: cgroups_that_were_there_before_are_swept_only]
//! * A runtime that ends is started again, at once when it had been well. [src/supervisor.rs:
//!   the_first_death_is_answered_at_once_and_those_in_a_row_ever_later]
//! * Preflight changes nothing, and names every lack with its mend. [src/preflight.rs:
//!   a_fit_host_has_no_problems_and_each_lack_is_named_with_its_mend]

pub mod cni;
pub mod containerd;
pub mod forwarding;
pub mod image;
pub mod journal;
pub mod layout;
pub mod pause;
pub mod preflight;
pub mod process;
pub mod reset;
pub mod routes;
pub mod supervisor;
pub mod sysctl;
