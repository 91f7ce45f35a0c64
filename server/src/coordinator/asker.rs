//! Who asks for a checkpoint.

use std::fmt;

use gradlane_core::types::WorkerId;

/// Who has asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A worker, which hears of the end by an answer to its request.
    Worker(WorkerId),
    /// An operator, whose request has the number of its order.
    Operator,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(worker) => worker.fmt(f),
            Self::Operator => f.write_str("an operator"),
        }
    }
}
