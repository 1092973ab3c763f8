//! The API server: HTTP in, store out. The only crate that can name `storage`.
//!
//! ```text
//!  request ─► authn ─► audit ─► impersonation ─► fairness ─► authz ─► verb ─┐
//!                                                                            │ writes: registry/store.rs
//!     response ◄─ encode (JSON, Table, …) ◄─ cacher (bytes, once) ◄─ store ◄─┘
//! ```

pub mod admission;
pub mod authn;
pub mod authz;
pub mod request;
