//! Errors with which parameters refuse uses.

use gradlane_core::error::Error;
use gradlane_core::types::{PartId, Version, WorkerId};

/// The answer to a use of a part that has no value.
pub(super) fn not_initialised(part: PartId) -> Error {
    Error::TensorState {
        tensor: part.key.into(),
        what: format!("part {} of the parameter has no value, because no worker has initialised it", part.index),
        hint: "initialise the parameter on one worker first, and wait for it before others use it".to_owned(),
    }
}

/// The answer to the repeat of a change that is lost on its worker and was never done here.
pub(super) fn lost(worker: WorkerId) -> Error {
    Error::FailedPrecondition {
        what: format!(
            "the change of {worker} is lost: an answer has overwritten it, and the server that sent the answer is gone"
        ),
        hint: "initialise the parameter again, from a checkpoint or from a worker".to_owned(),
    }
}

/// The answer to a gradient that is to be compensated, and whose base is kept no more.
pub(super) fn base_gone(part: PartId, worker: WorkerId, basis: Version) -> Error {
    Error::FailedPrecondition {
        what: format!(
            "part {} of parameter {}: {worker} has computed a gradient from version {}, which is not the one that it was given last",
            part.index, part.key, basis.0
        ),
        hint: "pull the parameter again, and compute the gradient from that: the mode compensates for what has changed since".to_owned(),
    }
}

/// The answer to a second gradient of a worker for one round.
pub(super) fn brought_twice(part: PartId, worker: WorkerId, round: u64) -> Error {
    Error::FailedPrecondition {
        what: format!(
            "part {} of parameter {}: {worker} has brought a gradient for round {round} already",
            part.index, part.key
        ),
        hint: "tick the clock after each round, or add gradients up before pushing them".to_owned(),
    }
}

/// The answer to a use of a part whose memory a defect of the server has lost.
pub(super) fn value_lost(part: PartId) -> Error {
    Error::Internal { what: format!("the value of part {} of parameter {} was lost", part.index, part.key) }
}
