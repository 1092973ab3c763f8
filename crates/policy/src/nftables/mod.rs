//! Policies as nftables: a table of our own in each family, of which the kernel is sent differences.
//!
//! ```text
//!  forward ─► egress:  replies, related, to oneself: accept
//!                      ip saddr vmap @egress-pods   { 10.244.0.7 : goto egress-pods-9f… , … : drop }
//!                        └─► egress-pods-9f…: jump egress/shop/dns; jump egress/shop/db; drop
//!                              └─► egress/shop/dns: ip daddr @pods-41… udp dport 53 accept
//!          ─► ingress: the same with ip daddr and @ingress-pods
//! ```
//!
//! * Two base chains, because a connection must be allowed at both its ends: `accept` ends one of them.
//! * Pods that the same policies select share a chain, and peers that are named alike share a set: where
//!   pods come and go elements change, and no rule.
//! * What the node itself sends or gets does not pass `forward`: it is always allowed.
//! * Addresses are what they are after a Service was translated, and the source is still its own.
//! * Each packet that goes the way its connection was begun is judged; what answers it passes. So a policy
//!   that comes later ends what it forbids.

pub mod apply;
mod draft;
mod render;
pub mod table;

/// The tables' name, in either family.
pub const TABLE: &str = "pintle-policy";
