//! The CNI plugin: what gives a pod its link, its addresses, its ports of the host and its bandwidth, and
//! takes them away again. It is this very program under another name: the runtime executes a link named
//! `pintle-cni` for each ADD, DEL, CHECK, GC and STATUS, and one named `loopback`.
//!
//! ```text
//!  runtime ──exec: CNI_* and JSON──► Call ──► record and addresses (files) ──► gate (policy) ──► link (netlink)
//!                                                                                    └─► host ports (nft)
//!  pod eth0 10.244.0.5/32 ── veth… on the host: route 10.244.0.5/32, both ends know each other's address
//! ```
//!
//! The pod's default route leads to an address that nobody has (`169.254.1.1`, `fe80::1`) with the Ethernet
//! address of the host's end: no bridge, no ARP, no setting of the kernel.
//!
//! A process per call and nothing else: what is remembered is in files, and every step may be the last one
//! (the runtime kills). So an attachment's record is there before anything else of it and goes last, addresses
//! are links of the file system that only one can make, names of links follow from the container's, and the
//! rules of host ports are written anew from all records each time.
//!
//! # Invariants
//!
//! * An address belongs to one attachment, and none is lost, however calls overlap or are killed.
//!   [tests/kernel.rs: a_thousand_calls_with_kills_leave_nothing; src/records.rs:
//!   an_address_is_given_once_and_given_back]
//! * Calls can be repeated: ADD answers what it answered, DEL of what is not there succeeds.
//!   [tests/kernel.rs: calls_by_the_specification]
//! * A pod whose policies are not in the kernel gets no network. [tests/kernel.rs:
//!   a_gate_that_refuses_or_is_silent_fails_the_add]
//! * No input panics. [src/config.rs: any_text_is_answered]

pub mod allocate;
pub mod attach;
pub mod call;
pub mod collect;
pub mod config;
pub mod error;
pub mod gate;
pub mod loopback;
pub mod output;
pub mod ports;
pub mod records;

pub use call::{Environment, NAMES, run};
pub use error::Error;

/// The plugin's name in configurations, and of the link that runtimes execute.
pub const PLUGIN: &str = "pintle-cni";
/// The name of the other one.
pub const LOOPBACK: &str = "loopback";
