//! The API server: HTTP in, store out. The only crate that can name `storage`.
//!
//! ```text
//!  request ─► authn ─► audit ─► impersonation ─► fairness ─► authz ─► verb ─┐
//!                                                                            │ writes: registry/store.rs
//!     response ◄─ encode (JSON, Table, …) ◄─ cacher (bytes, once) ◄─ store ◄─┘
//! ```

pub mod admission;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod cacher;
pub mod chain;
pub mod discovery;
pub mod dispatch;
pub mod encode;
pub mod fairness;
pub mod health;
pub mod objects;
pub mod openapi;
pub mod registry;
pub mod request;
pub mod security;
pub mod server;
pub mod subresources;
pub mod verbs;
pub mod version;

pub use server::{ApiServer, Config};
