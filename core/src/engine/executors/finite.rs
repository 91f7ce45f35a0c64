//! Looks for NaN and infinities in what this worker contributes, if the setting `nan_check` asks for it. It does so right before the first
//! step that reads the contribution: after that the step finds it in the processor's cache.

use std::sync::{Arc, Once};

use super::super::job::Work;
use super::super::metrics::Metrics;
use super::super::shared::Shared;
use crate::collective::Memory;
use crate::config::NanCheck;
use crate::mem::{Region, borrow};
use crate::pipeline::Stage;
use crate::sched::Task;
use crate::types::DType;
use crate::wire::Request;

/// The work of a step that may begin. `None` if the contribution is not finite and the step is given up, which was reported.
pub(super) fn checked(shared: &Arc<Shared>, task: Task, stage: Stage, mut work: Work) -> Option<Work> {
    if shared.nan_check == NanCheck::Off {
        return Some(work);
    }
    let Some(contributor) = shared.look(|state| state.worker.first_read(&task, stage)) else { return Some(work) };
    let Some((dtype, elements)) = elements(&work) else { return Some(work) };
    if is_finite(shared, dtype, elements) {
        return Some(work);
    }
    Metrics::add(&shared.metrics.not_finite, 1);
    let error = shared.look(|state| state.worker.not_finite(task.id, contributor));
    if shared.nan_check == NanCheck::Warn {
        tracing::warn!("{error}");
        return Some(work);
    }
    match &mut work {
        // The ranks of this machine wait for the step, and all of them get the error.
        Work::Meet { operation, .. } => {
            operation.failure.get_or_insert(error);
            Some(work)
        }
        _ => {
            shared.report(|state, now| state.worker.handle_unfit(now, task.id, error));
            None
        }
    }
}

/// The elements that a step reads in host memory.
fn elements(work: &Work) -> Option<(DType, &[Region])> {
    match work {
        Work::Push { header: Request::Contribute(header), body, .. } => Some((header.dtype, body)),
        Work::Encode { from, coding, .. } => Some((coding.dtype, from)),
        Work::Meet { operation, .. } => match &operation.memory {
            Memory::Host { source, .. } => Some((operation.claim.dtype, source)),
            Memory::Device(_) => {
                warn_of_devices();
                None
            }
        },
        Work::Push { .. }
        | Work::CopyToHost { .. }
        | Work::CopyToDevice { .. }
        | Work::Land { .. }
        | Work::Decode { .. } => None,
    }
}

fn warn_of_devices() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::warn!("nan_check does not look at what devices of one machine sum among themselves"));
}

fn is_finite(shared: &Arc<Shared>, dtype: DType, regions: &[Region]) -> bool {
    // Without memory to use there is no step either.
    let Some(_using) = shared.use_memory() else { return true };
    borrow::all(regions, |run| shared.wire.kernels.all_finite(dtype, run))
}
