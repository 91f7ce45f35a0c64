//! Looks for NaN and infinities in what this worker contributes, if the setting `nan_check` asks for it. Whoever copies or adds a contribution
//! in host memory anyway looks at it then, piece by piece: a transport that [`looks`](crate::transport::Capabilities::looks), and the ranks
//! of a machine. Looking costs little there. Otherwise this thread looks, right before the first step that reads the contribution.
//!
//! What the ranks of a machine reduce in memory of devices, each device looks at itself. No thread waits for it: the step begins when the
//! device has answered.

use std::sync::Arc;

use super::super::job::{Job, Work};
use super::super::metrics::Metrics;
use super::super::shared::Shared;
use super::copy;
use crate::collective::{DeviceMemory, Memory};
use crate::config::NanCheck;
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, Region, borrow};
use crate::pipeline::Stage;
use crate::sched::{Task, TaskId};
use crate::transport::Look;
use crate::types::{DType, DeviceKind, Done, Finding, LinkId};
use crate::wire::{Contribute, Request};

/// A job that may begin now. `None` if a device looks at its contribution, and then a thread of the device begins it with `later`; or if the
/// contribution is not finite and the step is given up, which was reported.
pub(super) fn checked(shared: &Arc<Shared>, job: Job, later: fn(&Arc<Shared>, Job)) -> Option<Job> {
    let looks_later = match &job.work {
        Work::Push { link, .. } => shared.transport.capabilities(*link).looks,
        Work::Meet { operation, .. } => operation.memory.kind() == DeviceKind::Host,
        Work::Encode { .. }
        | Work::CopyToHost { .. }
        | Work::CopyToDevice { .. }
        | Work::Land { .. }
        | Work::Decode { .. } => false,
    };
    let looks_now =
        || shared.nan_check != NanCheck::Off && shared.look(|state| state.worker.reads_first(&job.task, job.stage));
    if looks_later || !looks_now() {
        return Some(job);
    }
    match elements(&job.work) {
        Some((dtype, Elements::Here(regions))) => {
            let is_finite = is_finite(shared, dtype, regions);
            judged(shared, job, Ok(is_finite))
        }
        Some((dtype, Elements::There(memory))) if dtype.is_float() => {
            let (runs, after) = (memory.source.iter().map(DeviceRegion::again).collect(), memory.after.clone());
            let there = Arc::clone(shared);
            let done = Done::new(move |outcome| {
                // After a panic every handle has ended.
                let _ = there.guard(|| judged(&there, job, outcome).map(|job| later(&there, job)));
            });
            copy::device(shared).all_finite(runs, dtype, &after, done);
            None
        }
        Some((_, Elements::There(_))) | None => Some(job),
    }
}

/// What becomes of a job whose contribution is finite, or not, or could not be looked at because its device failed.
fn judged(shared: &Arc<Shared>, mut job: Job, is_finite: Result<bool>) -> Option<Job> {
    let id = job.task.id;
    let error = match is_finite {
        Ok(true) => return Some(job),
        Ok(false) => {
            let error = found(shared, id);
            if shared.nan_check == NanCheck::Warn {
                return Some(job);
            }
            error
        }
        Err(error) => shared.look(|state| state.worker.with_name(id, error)),
    };
    match &mut job.work {
        // The ranks of this machine wait for the step, and all of them get the error.
        Work::Meet { operation, .. } => {
            operation.failure.get_or_insert(error);
            Some(job)
        }
        _ => {
            shared.report(|state, now| state.worker.handle_unfit(now, id, error));
            None
        }
    }
}

/// How a transport is to look at the contribution of a task that it sends over `link`.
pub(super) fn beside(shared: &Shared, task: &Task, link: LinkId, header: &Request) -> Option<Look> {
    let Request::Contribute(Contribute { dtype, .. }) = header else { return None };
    let is_off = shared.nan_check == NanCheck::Off || !dtype.is_float();
    if is_off || !shared.transport.capabilities(link).looks {
        return None;
    }
    let refuses = shared.nan_check == NanCheck::Error;
    let refusal = shared.look(|state| {
        let reads = state.worker.reads_first(task, Stage::Push);
        reads.then(|| refuses.then(|| state.worker.not_finite(task.id)))
    })?;
    Some(Look { dtype: *dtype, finding: Finding::default(), refusal, kernels: shared.wire.kernels })
}

/// The contribution of a task is not finite: counts that, and logs it if that is all to do. The error.
pub(super) fn found(shared: &Shared, task: TaskId) -> Error {
    Metrics::add(&shared.metrics.not_finite, 1);
    let error = shared.look(|state| state.worker.not_finite(task));
    if shared.nan_check == NanCheck::Warn {
        tracing::warn!("{error}");
    }
    error
}

/// What a step reads.
enum Elements<'a> {
    /// In host memory.
    Here(&'a [Region]),
    /// In memory of a device.
    There(&'a DeviceMemory),
}

fn elements(work: &Work) -> Option<(DType, Elements<'_>)> {
    match work {
        Work::Push { header: Request::Contribute(header), body, .. } => Some((header.dtype, Elements::Here(body))),
        Work::Encode { from, coding, .. } => Some((coding.dtype, Elements::Here(from))),
        Work::Meet { operation, .. } => {
            let Memory::Device(memory) = &operation.memory else { return None };
            Some((operation.claim.dtype, Elements::There(memory)))
        }
        Work::Push { .. }
        | Work::CopyToHost { .. }
        | Work::CopyToDevice { .. }
        | Work::Land { .. }
        | Work::Decode { .. } => None,
    }
}

fn is_finite(shared: &Arc<Shared>, dtype: DType, regions: &[Region]) -> bool {
    // Without memory to use there is no step either.
    let Some(_using) = shared.use_memory() else { return true };
    borrow::all(regions, |run| shared.wire.kernels.all_finite(dtype, run))
}
