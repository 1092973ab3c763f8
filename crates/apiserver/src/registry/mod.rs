//! From resource names to kinds, caches and the one write path.

pub mod catalogue;
pub mod claims;
pub mod deletion;
pub mod metadata;
pub mod store;
