//! Rules true of every Kubernetes object, and of no kind in particular.
//!
//! ```text
//!  bytes ──yaml/json──► decode (strict, by schema) ──► JSON tree ──► patches, managed fields
//!                                                        │
//!                                                        └─ encode (upstream's order, omission) ──► bytes
//! ```
//!
//! One JSON tree ([`serde_json::Value`]) is what the write path works on. The [`schema`] says what
//! fields a type has, and drives decoding, encoding, merging and OpenAPI alike. User mistakes
//! accumulate as [`field::FieldErrors`]; what a client sees of a failure is a [`status::Status`].

pub mod decode;
pub mod encode;
pub mod field;
pub mod fields;
pub mod labels;
pub mod managed;
pub mod meta;
pub mod names;
pub mod patch;
pub mod proto;
pub mod quantity;
pub mod schema;
pub mod status;
pub mod time;
