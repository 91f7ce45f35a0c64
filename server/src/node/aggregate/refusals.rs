//! Errors with which the aggregator refuses pushes and fails rounds.

use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::{Epoch, WorkerId};

use crate::node::command::SlotId;

/// The answer for a round whose sum has been freed.
pub(super) fn over(id: SlotId) -> Error {
    Error::TensorState {
        tensor: id.part.key.into(),
        what: format!("{} is over and its sum is gone", id.round),
        hint: "every worker must submit a tensor equally often and in order".to_owned(),
    }
}

/// The error of a sum that was freed because `worker`, the last one to read it, took no sums for a step timeout.
pub(super) fn not_taken(id: SlotId, worker: WorkerId, waited: Duration) -> Error {
    Error::SumFreed { tensor: id.part.key.into(), round: id.round, reader: worker.to_string(), waited }
}

/// The error of a round in which nobody was counted, because the contributions of `workers` broke off and did not go on for `waited`.
pub(super) fn broke_off(id: SlotId, workers: Vec<WorkerId>, waited: Duration) -> Error {
    let detail = "its contribution broke off, and it did not come back".to_owned();
    stalled(id, workers, waited, detail)
}

/// The error of a round that restarted, because for `waited` none of the survivors, `workers`, sent its contribution again.
pub(super) fn not_sent_again(id: SlotId, workers: Vec<WorkerId>, waited: Duration) -> Error {
    let detail = "the round restarted without the workers that were lost, and nobody contributed again".to_owned();
    stalled(id, workers, waited, detail)
}

/// The error of a round that one worker left out, for the workers that wait for it.
pub(super) fn gave_up(id: SlotId, worker: WorkerId, waited: Duration) -> Error {
    let detail = format!("{worker} gave this round up and went on to a later one");
    stalled(id, vec![worker], waited, detail)
}

/// The error of a round that did not get the contributions of `missing`.
pub(super) fn stalled(id: SlotId, missing: Vec<WorkerId>, waited: Duration, detail: String) -> Error {
    let (tensor, notice, detail) = (id.part.key.into(), Box::default(), detail.into());
    Error::Stalled { tensor, round: id.round, missing, waited, notice, detail }
}

/// The answer to a repeat whose first bytes are overwritten with a sum that this server does not have.
pub(super) fn lost(worker: WorkerId) -> Error {
    Error::FailedPrecondition {
        what: format!(
            "the contribution of {worker} is lost: a sum began to land on it, and the rest of that sum is gone"
        ),
        hint: "restart from a checkpoint; with on_worker_loss=continue, contributions are kept until sums are whole"
            .to_owned(),
    }
}

/// The answer to an exchange of a round that restarts.
pub(super) fn restarted(epoch: Epoch) -> Error {
    let cause = format!("workers were lost, and the round restarts in {epoch}");
    Error::Unavailable { what: "the round".to_owned(), cause }
}

/// The answer for a sum that a worker brings, or has brought in vain: it is not here yet.
pub(super) fn restored_meanwhile(id: SlotId) -> Error {
    Error::Unavailable { what: format!("the sum of {}", id.round), cause: "a worker has to bring it".to_owned() }
}

/// The error of a round that comes from a worker that is not in the view, or goes to it.
pub(super) fn root_lost(id: SlotId, root: WorkerId) -> Error {
    Error::RootLost { tensor: id.part.key.into(), root: root.to_string() }
}

/// The answer to a use of a residual that the answer of this round, or of a later one, has changed.
pub(super) fn gone_on(id: SlotId) -> Error {
    Error::TensorState {
        tensor: id.part.key.into(),
        what: format!("the residual of its answers before {} is gone: other workers have gone on", id.round),
        hint: "save and load the state between the same two steps on all workers".to_owned(),
    }
}

/// The answer to a gift that another worker was to bring: to come again.
pub(super) fn not_brought() -> Error {
    let cause = "the worker that was to bring it broke off".to_owned();
    Error::Unavailable { what: "the residual of the answers".to_owned(), cause }
}

/// The error of a round to which `worker` contributed as if it had given the residual of the answers.
pub(super) fn not_given(id: SlotId, worker: WorkerId) -> Error {
    Error::TensorState {
        tensor: id.part.key.into(),
        what: format!("{}: {worker} has loaded a residual of the answers that the server does not have", id.round),
        hint: "load the same state on all workers, after the last one that was loaded on any".to_owned(),
    }
}
