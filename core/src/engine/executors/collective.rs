//! ALL_REDUCE, REDUCE and BROADCAST: what the ranks of this machine do together. Ends when this rank has what shall come of it.

use std::sync::Arc;

use super::super::Metrics;
use super::super::payload::{Cargo, Hold, again};
use super::super::shared::{Shared, State};
use crate::collective::{Goal, Operation};
use crate::error::{Error, Result};
use crate::sched::order::Claim;
use crate::sched::{Outcome, Task};
use crate::types::{Done, Op, WorkerId};

pub(super) fn all_reduce(shared: &Arc<Shared>, task: Task) {
    run(shared, task, |_, _| Goal::AllReduce);
}

pub(super) fn reduce(shared: &Arc<Shared>, task: Task) {
    run(shared, task, |_, owner| Goal::Reduce { owner });
}

pub(super) fn broadcast(shared: &Arc<Shared>, task: Task) {
    run(shared, task, |state, owner| Goal::Broadcast { owner, failure: state.failure_for_all(task.id) });
}

fn run(shared: &Arc<Shared>, task: Task, goal: impl FnOnce(&State, WorkerId) -> Goal) {
    let collective = shared.collective.get().expect("a pipeline with a collective stage begins with a collective");
    let operation = shared.with(|state, now| {
        let goal = goal(state, state.owner(task.id));
        let slot = goal.slot(task.part, task.round);
        let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        payload.hold = Hold::Collective(slot);
        let claim = Claim {
            op: payload.part.op,
            dtype: payload.part.layout.dtype,
            bytes: task.bytes,
            weight: payload.part.weight,
            priority: payload.priority,
        };
        let Cargo::Host { source, destination } = &payload.cargo else {
            payload.hold = Hold::Nobody;
            state.finish(now, task.id, Outcome::Failed(no_road()));
            return None;
        };
        // What is brought to the others lies where it was received.
        let from = match goal {
            Goal::AllReduce | Goal::Reduce { .. } => source,
            Goal::Broadcast { .. } => destination,
        };
        let (source, destination) = (again(from), again(destination));
        Some(Operation { part: task.part, round: task.round, goal, claim, source, destination })
    });
    let Some(operation) = operation else { return };
    let (slot, goal) = (operation.slot(), operation.goal.clone());
    let reporter = Arc::clone(shared);
    collective.run(operation, Done::new(move |outcome| report(&reporter, task, &goal, outcome)));
    // It may have been given up before the collective knew of it.
    if shared.with(|state, _| state.payloads.get(&task.id).is_some_and(|payload| payload.abandoned)) {
        collective.abandon(slot);
    }
}

fn report(shared: &Arc<Shared>, task: Task, goal: &Goal, outcome: Result<f64>) {
    if outcome.is_ok() && !matches!(goal, Goal::Broadcast { .. }) {
        Metrics::add(&shared.metrics.local_sums, 1);
        Metrics::add(&shared.metrics.local_bytes, task.bytes);
    }
    shared.with(|state, now| {
        let outcome = match outcome {
            Ok(weight) => {
                if let Goal::Reduce { owner } = goal
                    && *owner == state.rank
                {
                    stand_for_all(state, task, weight);
                }
                Outcome::Done
            }
            Err(error) => Outcome::Failed(state.with_name(task.id, error)),
        };
        state.finish(now, task.id, outcome);
    });
}

/// From now on the contribution is that of all ranks of this machine, and lies where their sum was put.
fn stand_for_all(state: &mut State, task: Task, weight: f64) {
    let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
    payload.cargo.contribute_result();
    if payload.part.op == Op::WeightedMean {
        payload.part.weight = weight;
    }
}

/// Why memory of a device is not reduced among the ranks of this machine.
fn no_road() -> Error {
    Error::FailedPrecondition {
        what: "tensors in memory of devices cannot be reduced among the workers of this machine without NCCL"
            .to_owned(),
        hint: "set local_reduce=off on all workers, and each sends its own contribution to the servers".to_owned(),
    }
}
