//! nftables transactions: a ruleset as data, the difference between two of them, and the one
//! place that hands text to the kernel.
//!
//! ```text
//!  Ruleset (wanted) ──┐
//!                     ├─ transaction() ─► text ─► Nft::apply ─► kernel (all of it or nothing)
//!  Ruleset (applied) ─┘
//! ```
//!
//! Every owner (service proxy, egress) has one table of its own and touches no other.

pub mod egress;
pub mod nft;
pub mod ruleset;
