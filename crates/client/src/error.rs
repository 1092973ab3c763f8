//! Why a request failed, by what the caller can do about it.

use machinery::status::Status;

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a failure.
    #[error("{0}")]
    Api(Box<Status>),
    /// No answer; see [`Error::is_outcome_unknown`].
    #[error("{0}")]
    Transport(#[from] transport::Error),
    /// The answer ended early or took too long. A write may have been carried out.
    #[error("{0}")]
    Interrupted(String),
    /// The answer is not what it should be. A write was carried out.
    #[error("{0}")]
    Decode(String),
    /// The request cannot be made from what was given; final.
    #[error("{0}")]
    Invalid(String),
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Box<Status>> for Error {
    fn from(status: Box<Status>) -> Self {
        Self::Api(status)
    }
}

impl Error {
    /// The Status the server sent, if it sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            _ => None,
        }
    }

    /// True when the server gave this reason.
    pub fn is(&self, reason: &str) -> bool {
        self.status().is_some_and(|s| s.is(reason))
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is("NotFound")
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.is("AlreadyExists")
    }

    /// The object changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.is("Conflict")
    }

    /// Not allowed: by authorization, or by an admission rule such as a quota.
    pub fn is_forbidden(&self) -> bool {
        self.is("Forbidden")
    }

    /// The revision asked for is no longer held: list again.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|s| s.code == 410)
    }

    /// The request asks for what the server cannot accept; trying again changes nothing.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Invalid(_)) || self.status().is_some_and(|s| matches!(s.code, 400 | 415 | 422))
    }

    /// The namespace of the object is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        let causes = self.status().and_then(|s| s.details.as_ref()).map(|d| d.causes.as_slice());
        causes.unwrap_or_default().iter().any(|c| c.reason == "NamespaceTerminating")
    }

    /// A write may have been carried out although no answer was seen.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Transport(transport::Error::Broken(_)) | Self::Interrupted(_) | Self::Decode(_) => true,
            Self::Api(status) => matches!(status.code, 500 | 502 | 504),
            Self::Transport(_) | Self::Invalid(_) => false,
        }
    }

    /// How long the server asks to wait before the next try.
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| std::time::Duration::from_secs(seconds.into()))
    }

    pub(crate) fn decode(error: impl std::fmt::Display) -> Self {
        Self::Decode(error.to_string())
    }
}
