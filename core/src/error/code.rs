//! The classes of failure.

/// The classes of failure, equal in Rust and Python; gRPC's well-known names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Code {
    /// The caller gave something without meaning.
    InvalidArgument,
    /// It is not there.
    NotFound,
    /// Another process already has it.
    AlreadyExists,
    /// The state forbids it.
    FailedPrecondition,
    /// The job, the peer or the device ended.
    Aborted,
    /// It was not done in time.
    DeadlineExceeded,
    /// It cannot be done now.
    Unavailable,
    /// A limit was reached.
    ResourceExhausted,
    /// The caller cancelled.
    Cancelled,
    /// A message of a membership that has passed.
    Fenced,
    /// The identity is not proven.
    Unauthenticated,
    /// Bytes changed on their way.
    DataLoss,
    /// A defect of Gradlane.
    Internal,
}

impl Code {
    /// Its name, such as `not_found`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unavailable => "unavailable",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Cancelled => "cancelled",
            Self::Fenced => "fenced",
            Self::Unauthenticated => "unauthenticated",
            Self::DataLoss => "data_loss",
            Self::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later without anything else being changed.
    pub fn retryable(self) -> bool {
        match self {
            Self::Unavailable | Self::ResourceExhausted => true,
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::FailedPrecondition
            | Self::Aborted
            | Self::DeadlineExceeded
            | Self::Cancelled
            | Self::Fenced
            | Self::Unauthenticated
            | Self::DataLoss
            | Self::Internal => false,
        }
    }
}
