//! ALL_REDUCE: the ranks of this machine reduce a part among themselves. Ends when the whole sum is there.

use std::sync::Arc;

use super::super::Metrics;
use super::super::shared::Shared;
use crate::collective::Operation;
use crate::mem::Region;
use crate::sched::order::Claim;
use crate::sched::{Outcome, Task};
use crate::types::Done;

pub(super) fn execute(shared: &Arc<Shared>, task: Task) {
    let collective = shared.collective.get().expect("a pipeline that reduces together begins with a collective");
    let slot = (task.part, task.round);
    let operation = shared.with(|state, _| {
        let payload = &state.payloads[&task.id];
        let claim = Claim {
            op: payload.part.op,
            dtype: payload.part.layout.dtype,
            bytes: task.bytes,
            weight: payload.part.weight,
            priority: payload.priority,
        };
        let again = |regions: &[Region]| regions.iter().map(Region::again).collect();
        Operation { slot, claim, source: again(&payload.source), destination: again(&payload.destination) }
    });
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.local_sums, 1);
            Metrics::add(&reporter.metrics.local_bytes, task.bytes);
        }
        reporter.with(|state, now| {
            let outcome = match outcome {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(state.with_name(task.id, error)),
            };
            state.finish(now, task.id, outcome);
        });
    });
    collective.all_reduce(operation, done);
    // It may have been given up before the collective knew of it.
    if shared.with(|state, _| state.payloads.get(&task.id).is_some_and(|payload| payload.abandoned)) {
        collective.abandon(slot);
    }
}
