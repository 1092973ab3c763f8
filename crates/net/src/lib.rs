//! nftables transactions: a ruleset as data, the difference between two of them, and the one
//! place that hands text to the kernel.
//!
//! ```text
//!  Ruleset (wanted) ──┐
//!                     ├─ transaction() ─► text ─► Nft::apply ─► kernel (all of it or nothing)
//!  Ruleset (applied) ─┘  difference() ─► Transaction ─► Nft::change ─┘ by netlink where it can be said so
//! ```
//!
//! Every owner (service proxy, egress) has one table of its own and touches no other.
//!
//! Links, addresses, routes and neighbours are made by [`rtnl`], also in other network namespaces
//! ([`namespace`]).
//!
//! Of what the kernel says by itself two things are heard: who changes our tables ([`monitor`]), and
//! which connections it translates ([`conntrack`]).
//!
//! # Invariants
//!
//! * Only the difference is sent, and nothing is named before it exists. [src/ruleset.rs:
//!   only_the_difference_is_sent_and_nothing_is_named_before_it_exists]

pub mod conntrack;
pub mod egress;
pub mod iptables;
pub mod monitor;
pub mod namespace;
pub mod netlink;
pub mod nf_tables;
pub mod nft;
pub mod rtnl;
pub mod ruleset;
