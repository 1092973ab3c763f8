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
//!
//! # Invariants
//!
//! * Any bytes are answered, within bounds of depth and size. [src/decode/tests.rs:
//!   any_bytes_are_answered; src/decode/tests.rs: bombs_are_refused; src/proto/tests.rs:
//!   nesting_is_bounded]
//! * A patch applied twice is applied once, in time that its size bounds. [src/patch/tests.rs:
//!   a_patch_applied_twice_is_applied_once; src/patch/tests.rs:
//!   long_lists_are_merged_in_linear_time]
//! * Every field that is set has an owner. [src/managed/tests/mod.rs: every_set_field_has_an_owner]
//! * Whoever applies, forces, updates and removes, the state, the owners and the conflicts are those of
//!   the plain rules. [src/managed/model/mod.rs: any_writes_end_as_the_model_says]
//! * Any schema of a custom resource is answered; what is pruned and defaulted twice is so once.
//!   [src/structural/tests/any.rs: any_schema_is_answered; src/structural/tests/any.rs:
//!   pruning_and_defaulting_twice_is_once]
//! * Patterns are matched in linear time by programs of bounded size. [src/regexp/tests.rs:
//!   programs_are_of_bounded_size]

pub mod decode;
pub mod encode;
pub mod field;
pub mod fields;
pub mod go;
pub mod jsonpath;
pub mod labels;
pub mod managed;
pub mod meta;
pub mod names;
pub mod patch;
pub mod proto;
pub mod quantity;
pub mod regexp;
pub mod schema;
pub mod status;
pub mod structural;
pub mod time;
pub mod version;
pub mod yaml;
