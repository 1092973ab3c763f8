//! The nftables dataplane: a pure renderer and the state that remembers what the kernel has.

pub mod apply;
pub mod render;
