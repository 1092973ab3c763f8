//! Why a call fails, with the specification's numbers.

use serde_json::{Value, json};

/// A failure as the runtime is told of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", if details.is_empty() { String::new() } else { format!(": {details}") })]
pub struct Error {
    pub code: u32,
    pub message: String,
    pub details: String,
}

/// The configuration's version is none of ours. Final.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// There is no such container: nothing of it is left to be cleaned up.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// A variable of the environment is missing or wrong. Final.
pub const ENVIRONMENT: u32 = 4;
/// The kernel or the disk refused. Worth another attempt.
pub const INPUT_OUTPUT: u32 = 5;
/// What came in is no JSON. Final.
pub const DECODING: u32 = 6;
/// The configuration is wrong. Final.
pub const CONFIGURATION: u32 = 7;
/// Worth another attempt later.
pub const TRY_AGAIN: u32 = 11;
/// STATUS: no ADD would succeed.
pub const NOT_AVAILABLE: u32 = 50;
/// Every address is given out.
pub const EXHAUSTED: u32 = 100;
/// What CHECK found is not what ADD made.
pub const NOT_AS_MADE: u32 = 101;
/// The pod's policies are not in the kernel.
pub const GATE: u32 = 102;

impl Error {
    /// One of a code, with what went wrong.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    /// What the kernel or the disk refused.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self { code: INPUT_OUTPUT, message: doing.into(), details: error.to_string() }
    }

    /// As the specification writes it.
    pub fn to_json(&self, version: &str) -> Value {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message, "details": self.details })
    }
}
