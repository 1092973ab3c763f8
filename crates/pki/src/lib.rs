//! Who vouches for whom: authorities, the certificates they issue, token keys, and their renewal.
//!
//! ```text
//!  cluster CA ──────► serving certificates (API server, kubelet) and client certificates (CN, O)
//!  front-proxy CA ──► client certificates of aggregation proxies, nothing else
//!  token key (ES256) ► ServiceAccount tokens
//! ```
//!
//! One authority per purpose: what one signs, no other vouches for. Keys are ECDSA P-256 (an RSA
//! key in PKCS #8 is accepted where a user brings one), kept in files of mode 0600 that appear whole
//! or not at all. A certificate that is due, or whose names no longer fit, is replaced in the
//! running process ([`keeper::Keeper`]); nothing here asks the system for the time.
//!
//! # Invariants
//!
//! * Keys are private files that survive a restart. [src/layout.rs:
//!   keys_are_private_and_survive_a_restart]
//! * A certificate renews itself before it ends. [src/keeper.rs:
//!   an_identity_renews_itself_when_the_clock_moves_or_the_names_change; src/renewal.rs:
//!   renewal_is_due_in_the_last_third]

pub mod authority;
pub mod identity;
pub mod keeper;
pub mod layout;
pub mod renewal;
pub mod token_key;

pub use authority::Authority;
pub use identity::{Facts, Identity, Request, Usage};
pub use keeper::Keeper;
pub use layout::Layout;
pub use token_key::{PublicKey, SigningKey};

/// Why a key or certificate could not be made, read or kept. None of these is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    /// A file or text is not what it should be.
    #[error("{what}: {why}")]
    Malformed { what: String, why: String },
    /// An authority's certificate is there but its key is not, or belongs to another.
    #[error("authority {name}: {why}")]
    Authority { name: String, why: String },
    /// The cryptographic library refused.
    #[error("{0}")]
    Crypto(String),
}

impl Error {
    fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.display().to_string(), source }
    }

    fn malformed(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Malformed { what: what.into(), why: why.to_string() }
    }

    fn crypto(error: impl std::fmt::Display) -> Self {
        Self::Crypto(error.to_string())
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::crypto(error)
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::crypto(error)
    }
}
