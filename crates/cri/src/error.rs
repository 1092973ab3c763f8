//! Why a call to the runtime failed, by variant and never by text.

use tonic::Code;

/// What a call gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call. Its text is the one that upstream's events carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The thing asked for is gone; for a removal this is success.
    #[error("rpc error: code = NotFound desc = {0}")]
    NotFound(String),
    /// It is there already; look for it instead of trying again.
    #[error("rpc error: code = AlreadyExists desc = {0}")]
    AlreadyExists(String),
    /// This runtime never will; use another way.
    #[error("rpc error: code = Unimplemented desc = {0}")]
    Unimplemented(String),
    /// The runtime is not there (any more); try again.
    #[error("rpc error: code = Unavailable desc = {0}")]
    Unavailable(String),
    /// Too slow; whether it happened is unknown.
    #[error("rpc error: code = DeadlineExceeded desc = {0}")]
    DeadlineExceeded(String),
    /// The runtime refused what was asked; trying the same again helps rarely.
    #[error("rpc error: code = InvalidArgument desc = {0}")]
    Invalid(String),
    /// The runtime tried and failed; try again with a back-off.
    #[error("rpc error: code = {code} desc = {message}")]
    Failed {
        /// gRPC's name of the code, mostly `Unknown`.
        code: &'static str,
        /// What the runtime says.
        message: String,
    },
    /// The endpoint is not one we can dial; final.
    #[error("{0:?} is not an endpoint: want unix:///path or /path")]
    Endpoint(String),
}

impl Error {
    /// The runtime's own words, without the code.
    pub fn description(&self) -> &str {
        match self {
            Self::NotFound(text)
            | Self::AlreadyExists(text)
            | Self::Unimplemented(text)
            | Self::Unavailable(text)
            | Self::DeadlineExceeded(text)
            | Self::Invalid(text)
            | Self::Endpoint(text) => text,
            Self::Failed { message, .. } => message,
        }
    }

    /// True when the thing asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// True when this runtime does not know the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Unimplemented(_))
    }

    /// True when nobody answered: the same call may succeed once the runtime is back.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Self::NotFound(message),
            Code::AlreadyExists => Self::AlreadyExists(message),
            Code::Unimplemented => Self::Unimplemented(message),
            Code::Unavailable => Self::Unavailable(message),
            Code::DeadlineExceeded => Self::DeadlineExceeded(message),
            Code::InvalidArgument | Code::OutOfRange => Self::Invalid(message),
            code => Self::Failed { code: name(code), message },
        }
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::Internal => "Internal",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_variants_and_texts_read_as_upstream_prints_them() {
        let rows = [
            (Code::NotFound, "rpc error: code = NotFound desc = gone", true),
            (Code::Unknown, "rpc error: code = Unknown desc = gone", false),
            (Code::Unimplemented, "rpc error: code = Unimplemented desc = gone", false),
            (Code::ResourceExhausted, "rpc error: code = ResourceExhausted desc = gone", false),
        ];
        for (code, text, not_found) in rows {
            let error = Error::from(tonic::Status::new(code, "gone"));
            assert_eq!((error.to_string().as_str(), error.is_not_found()), (text, not_found));
            assert_eq!(error.description(), "gone");
        }
    }
}
