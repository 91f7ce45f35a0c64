//! ALL_REDUCE, REDUCE and BROADCAST: what the ranks of this machine do together. Ends when this rank has what shall come of it.

use std::sync::Arc;

use super::super::Metrics;
use super::super::payload::Hold;
use super::super::shared::{Shared, State};
use crate::collective::{Goal, Operation};
use crate::error::Result;
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
    let operation = shared.with(|state, _| {
        let goal = goal(state, state.owner(task.id));
        let slot = goal.slot(task.part, task.round);
        let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        payload.hold = Hold::Collective(slot);
        let claim = Claim {
            op: payload.part.op,
            dtype: payload.part.layout.dtype,
            bytes: task.bytes,
            device: payload.cargo.kind(),
            failed: goal.has_failed(),
            weight: payload.part.weight,
            priority: payload.priority,
        };
        // What is brought to the others lies where it was received.
        if let Goal::Broadcast { .. } = goal {
            payload.cargo.contribute_result();
            payload.cargo.unstage();
        }
        Operation { part: task.part, round: task.round, goal, claim, memory: payload.cargo.memory() }
    });
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
        state.payloads.get_mut(&task.id).expect("it has one until it is released").hold = Hold::Nobody;
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
