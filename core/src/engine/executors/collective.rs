//! What the ranks of this machine do together: ALL_REDUCE, REDUCE and BROADCAST, and between PCIe groups PCIE_REDUCE and PCIE_BROADCAST.
//! Each ends when this rank has what shall come of it.

use std::sync::Arc;

use super::super::Metrics;
use super::super::payload::Hold;
use super::super::shared::{Shared, State};
use crate::collective::order::Claim;
use crate::collective::{Goal, Operation};
use crate::error::Result;
use crate::pipeline::Stage;
use crate::sched::{Outcome, Task};
use crate::types::{Done, Op};

pub(super) fn all_reduce(shared: &Arc<Shared>, task: Task) {
    run(shared, task, Stage::AllReduce);
}

pub(super) fn reduce(shared: &Arc<Shared>, task: Task) {
    run(shared, task, Stage::Reduce);
}

pub(super) fn pcie_reduce(shared: &Arc<Shared>, task: Task) {
    run(shared, task, Stage::PcieReduce);
}

pub(super) fn pcie_broadcast(shared: &Arc<Shared>, task: Task) {
    run(shared, task, Stage::PcieBroadcast);
}

pub(super) fn broadcast(shared: &Arc<Shared>, task: Task) {
    run(shared, task, Stage::Broadcast);
}

fn run(shared: &Arc<Shared>, task: Task, stage: Stage) {
    let collective = shared.collective.get().expect("a pipeline with a collective stage begins with a collective");
    let operation = shared.with(|state, _| operation(state, task, stage));
    let (slot, goal) = (operation.slot(), operation.goal.clone());
    let reporter = Arc::clone(shared);
    collective.run(operation, Done::new(move |outcome| report(&reporter, task, &goal, outcome)));
    // It may have been given up before the collective knew of it.
    let is_given_up = |state: &State| {
        state.payloads.get(&task.id).is_some_and(|payload| payload.abandoned && payload.hold == Hold::Collective(slot))
    };
    if shared.with(|state, _| is_given_up(state)) {
        collective.abandon(slot);
    }
}

fn operation(state: &mut State, task: Task, stage: Stage) -> Operation {
    let (goal, failure) = (goal(state, task, stage), state.failure_for_all(task.id));
    let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
    let slot = goal.slot(task.part, task.round);
    // Between the groups it is the engine's own memory, which the others need whoever wants the result.
    payload.hold = if stage.is_staging() { Hold::Nobody } else { Hold::Collective(slot) };
    // What is brought to the others lies where it was received.
    if stage == Stage::Broadcast {
        payload.cargo.contribute_result();
        payload.cargo.unstage();
    }
    let memory = if stage.is_staging() { payload.cargo.staged_memory() } else { payload.cargo.memory() };
    let claim = Claim {
        op: payload.part.op,
        dtype: payload.part.layout.dtype,
        bytes: task.bytes,
        device: memory.kind(),
        lane: 0,
        failed: failure.is_some(),
        weight: payload.part.weight,
        priority: payload.priority,
    };
    Operation { part: task.part, round: task.round, goal, failure, claim, memory }
}

fn goal(state: &State, task: Task, stage: Stage) -> Goal {
    let part = &state.payloads[&task.id].part;
    match stage {
        Stage::AllReduce => Goal::AllReduce,
        Stage::Reduce => Goal::Reduce { owner: state.holder(task.id) },
        Stage::PcieReduce => Goal::Join {
            holders: state.holders(task.id),
            taker: state.scheduler.pipeline().pushes().then(|| state.owner(task.id)),
            origin: match part.op {
                Op::Broadcast { root } => state.holder_of(task.id, root),
                Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => None,
            },
        },
        Stage::PcieBroadcast => Goal::Share { owner: state.owner(task.id) },
        Stage::Broadcast => Goal::Broadcast { owner: state.holder(task.id) },
        other => unreachable!("{other} is nothing that ranks do together"),
    }
}

fn report(shared: &Arc<Shared>, task: Task, goal: &Goal, outcome: Result<f64>) {
    if outcome.is_ok() && matches!(goal, Goal::AllReduce | Goal::Reduce { .. }) {
        Metrics::add(&shared.metrics.local_sums, 1);
        Metrics::add(&shared.metrics.local_bytes, task.bytes);
    }
    shared.with(|state, now| {
        state.payloads.get_mut(&task.id).expect("it has one until it is released").hold = Hold::Nobody;
        let outcome = match outcome {
            Ok(weight) => {
                if goal.taker() == Some(state.rank) {
                    stand_for_others(state, task, weight);
                }
                Outcome::Done
            }
            Err(error) => Outcome::Failed(state.with_name(task.id, error)),
        };
        state.finish(now, task.id, outcome);
    });
}

/// From now on the contribution is that of all ranks that were reduced, and lies where their sum was put.
fn stand_for_others(state: &mut State, task: Task, weight: f64) {
    let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
    payload.cargo.contribute_result();
    if payload.part.op == Op::WeightedMean {
        payload.part.weight = weight;
    }
}
