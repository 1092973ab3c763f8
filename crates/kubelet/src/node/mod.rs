//! The Node: what it is made of, how it does, and who it is.

pub mod facts;
pub mod identity;
pub mod keeper;
pub mod status;
