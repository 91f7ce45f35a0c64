//! The collective stages: ALL_REDUCE, REDUCE and BROADCAST, and between PCIe groups PCIE_REDUCE and PCIE_BROADCAST. Each ends when this
//! rank has its result.

use std::sync::Arc;

use super::super::metrics::Metrics;
use super::super::shared::Shared;
use super::finite;
use crate::collective::{Goal, Operation};
use crate::mem::borrow::Staging;
use crate::sched::Task;
use crate::types::{Done, Unmet, meeting_again};

pub(super) fn execute(
    shared: &Arc<Shared>,
    task: Task,
    mut operation: Operation,
    (takes, aside): (bool, bool),
    team: u32,
) {
    if aside {
        let memory = shared.wire.lease(operation.claim.bytes, false);
        let there = shared.with(|state, _| {
            let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
            payload.set_aside(Staging::new(memory));
            payload.memory()
        });
        let Ok(there) = there else { return };
        operation.memory = there;
    }
    let slot = operation.slot();
    let is_sum = matches!(operation.goal, Goal::AllReduce | Goal::Deliver { .. } | Goal::Reduce { .. });
    let (reporter, finding) = (Arc::clone(shared), operation.finding.clone());
    let done = Done::new(move |outcome: Result<f64, Unmet>| {
        if outcome.is_ok() && is_sum {
            Metrics::add(&reporter.metrics.local_sums, 1);
            Metrics::add(&reporter.metrics.local_bytes, task.bytes);
        }
        if finding.is_raised() {
            finite::found(&reporter, task.id);
        }
        reporter.report(|state, now| {
            if outcome.is_ok() && takes {
                let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
                payload.contribute_result();
            }
            state.worker.handle_met(now, task.id, takes, outcome);
        });
    });
    let Some(collective) = shared.company.of(team) else {
        return done.report(Err(Unmet::NotBegun(meeting_again("their number has changed"))));
    };
    collective.run(operation, done);
    // The task may have been abandoned before the collective got the operation.
    if shared.look(|state| state.worker.is_abandoned(task.id, slot)) {
        collective.abandon(slot);
    }
}
