//! The iptables dataplane: a pure renderer, the text of differences, and what is said to the kernel.

pub mod apply;
mod base;
pub mod names;
mod port;
mod rules;
