//! Errors with which a clock refuses ticks and parameters, wherever it is counted: by the coordinator, or by the only worker of a job.

use crate::error::{Claim, Error};
use crate::types::{ClockKey, Mode, Quorum, TensorSpec, WorkerId};

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

/// The refusal of a parameter whose gradients are to be clipped to another norm than those of a parameter of the same clock; `None` if both
/// name the same one, or one of them none, or another clock.
pub fn other_clip(first: (WorkerId, &TensorSpec), second: (WorkerId, &TensorSpec)) -> Option<Error> {
    let norm = |(_, tensor): (WorkerId, &TensorSpec)| clip_of(tensor);
    let ((clock, one), (of, other)) = (norm(first)?, norm(second)?);
    let claim = |(worker, tensor): (WorkerId, &TensorSpec), norm: f64| Claim {
        worker,
        value: format!("{norm} (parameter {})", tensor.name),
    };
    (clock == of && one != other).then(|| Error::Mismatch {
        tensor: second.1.name.clone().into(),
        field: "clip_norm of a clock".to_owned(),
        first: claim(first, one),
        second: claim(second, other),
    })
}

/// The clock with whose rounds the gradients of a parameter are clipped, and to which norm.
pub fn clip_of(tensor: &TensorSpec) -> Option<(ClockKey, f64)> {
    let ((clock, _, _), rule) = (tensor.kind.mode().rounds()?, tensor.kind.rule()?);
    Some((clock, rule.clip_norm()?))
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

/// The answer to a tick of a clock beyond `limit` of them.
pub fn too_many(name: &str, limit: usize) -> Error {
    Error::Exhausted {
        what: format!("clocks of the job, with clock {name:?}"),
        limit: limit.to_string(),
        hint: "use one clock for all parameters that are pushed together".to_owned(),
    }
}
