//! Errors with which a clock refuses ticks, wherever it is counted: by the coordinator, or by the only worker of a job.

use crate::error::{Claim, Error};
use crate::types::{Mode, Quorum, WorkerId};

/// The answer to a tick in another mode than the clock was begun with.
pub fn other_mode(name: &str, first: (WorkerId, Mode), second: (WorkerId, Mode)) -> Error {
    let claim = |(worker, mode): (WorkerId, Mode)| Claim { worker, value: mode.to_string() };
    Error::Mismatch {
        tensor: name.to_owned().into(),
        field: "mode of a clock".to_owned(),
        first: claim(first),
        second: claim(second),
    }
}

/// The answer to a tick of a round that does not follow the last one.
pub fn out_of_order(name: &str, worker: WorkerId, round: u64, finished: u64) -> Error {
    Error::FailedPrecondition {
        what: format!("clock {name:?}: {worker} ticks round {round}, and the last one that was finished is {finished}"),
        hint: "tick each round once, from 1 on, with one clock object a worker".to_owned(),
    }
}

/// The answer to a tick of a worker that has left the clock.
pub fn after_leaving(name: &str, worker: WorkerId) -> Error {
    Error::FailedPrecondition {
        what: format!("clock {name:?}: {worker} ticks it after it has left it"),
        hint: "leave a clock behind the last round, or use another name".to_owned(),
    }
}

/// The answer to all that wait for a round that `workers` are too few to close, if they are.
pub fn too_few(name: &str, quorum: Quorum, workers: usize) -> Option<Error> {
    let Quorum::First(k) = quorum else { return None };
    (k as usize > workers).then(|| Error::FailedPrecondition {
        what: format!("clock {name:?}: {k} workers close a round, and {workers} are there"),
        hint: "give fewer, or start more workers".to_owned(),
    })
}
