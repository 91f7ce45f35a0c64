//! LAND: from the memory in which a sum has landed beside its contribution to its destination. Ends when the calling thread has copied.

use std::sync::Arc;

use super::super::shared::Shared;
use crate::local::failpoint::{Failpoint, reach};
use crate::mem::Region;
use crate::mem::borrow::Staging;
use crate::sched::Task;

/// Memory for a sum beside its contribution, which the task holds until the sum is where it belongs. `None` after a panic of the machine.
pub(super) fn beside(shared: &Arc<Shared>, task: Task) -> Option<Vec<Region>> {
    let memory = Staging::new(shared.wire.lease(task.bytes, false));
    let region = shared.with(|state, _| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        payload.set_beside(memory)
    });
    Some(vec![region.ok()?])
}

/// Copies a sum to its destination.
pub(super) fn land(shared: &Arc<Shared>, task: Task, from: &Region, to: Vec<Region>) {
    let Some(using) = shared.use_memory() else { return };
    let mut rest = from.again();
    for mut run in to {
        let (sum, later) = rest.split_at(run.len());
        run.copy_from(&sum);
        rest = later;
    }
    drop(using);
    reach(Failpoint::SumLanded);
    shared.report(|state, now| {
        state.payloads.get_mut(task.id).expect("a task has a payload until it is released").drop_beside();
        state.worker.handle_copied(now, task.id, Ok(()));
    });
}
