//! Facts about the built-in kinds: the schema table, the typed views, and small questions about them.
//!
//! The typed views are `k8s-openapi`'s structs, re-exported as [`k8s`]: used where a human writes
//! rules. Bytes that leave the server are never serialized from them.
//!
//! ```text
//!  builtin.table, own.table ──► schema::of(group, version, kind) ──► decode, encode, patch, OpenAPI
//!  k8s-openapi structs ───────► pod, taint, affinity, resources, … ──► questions of several components
//! ```
//!
//! # Invariants
//!
//! * The schema table and the typed views say the same of every kind. [src/schema/golden.rs:
//!   golden_objects_round_trip]
//! * Every type the table names is in it. [src/schema/tests.rs: every_type_is_consistent]

pub mod affinity;
pub mod leaving;
pub mod owner;
pub mod pod;
pub mod resource_metrics;
pub mod resources;
pub mod schema;
mod selector;
pub mod taint;
pub mod wait;

pub use selector::{selector, selector_or_nothing};

pub use k8s_openapi as k8s;
pub use k8s_openapi::api as types;
pub use k8s_openapi::apimachinery::pkg as meta;

/// A typed view that the write path, the client and the controllers can handle: any `k8s-openapi`
/// struct with metadata, and our own kinds.
pub trait Object:
    k8s_openapi::Metadata<Ty = meta::apis::meta::v1::ObjectMeta>
    + serde::Serialize
    + serde::de::DeserializeOwned
    + Clone
    + Default
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<T> Object for T where
    T: k8s_openapi::Metadata<Ty = meta::apis::meta::v1::ObjectMeta>
        + serde::Serialize
        + serde::de::DeserializeOwned
        + Clone
        + Default
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}
