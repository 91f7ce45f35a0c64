//! COPYD2H and COPYH2D: between the memory of a device and what the network reads and writes. Each ends when the device has copied, even if
//! the task was abandoned, because the device uses the memory until then.

use std::sync::Arc;

use super::super::job::Staged;
use super::super::metrics::Metrics;
use super::super::shared::Shared;
use super::super::submit::HERE_BYTES_MAX;
use crate::codec::Seed;
use crate::cuda::{Mark, OnIssue};
use crate::device::{Device, Transfer};
use crate::error::Result;
use crate::mem::Ordinal;
use crate::mem::borrow::Staging;
use crate::sched::Task;
use crate::types::Done;

/// Stages a contribution in memory that the task holds until its sum is back on the device. With `here`, it does nothing and returns
/// `false` if that would pin memory, because that may wait for all work of the device.
pub(super) fn to_host(
    shared: &Arc<Shared>,
    task: Task,
    from: Ordinal,
    Staged { bytes, coding, link, contributes, lands_beside }: Staged,
    here: bool,
) -> bool {
    let device = device(shared);
    let len = usize::try_from(bytes).expect("at most PART_BYTES_MAX");
    // A server of this machine reads this memory in place. For other transports it is ordinary memory.
    let shown = link.is_some_and(|link| shared.transport.capabilities(link).zero_copy);
    let lease = |shown| match here {
        true => device.lease_again(from, len, shown).map(Ok),
        false => Some(device.lease(from, len, shown)),
    };
    let leases = || {
        let (staging, beside) = (lease(shown)?, if lands_beside { Some(lease(false)?) } else { None });
        Some(staging.and_then(|staging| Ok((staging, beside.transpose()?))))
    };
    let (staging, beside) = match leases() {
        None => return false,
        Some(Ok((staging, beside))) => (Staging::new(staging), beside.map(Staging::new)),
        Some(Err(error)) => {
            shared.report(|state, now| state.worker.handle_copied(now, task.id, Err(error)));
            return true;
        }
    };
    let transfer = shared.with(|state, now| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        let coding = coding.map(|coding| (coding, Seed::of(task.part, task.round)));
        let transfer = payload.on_device().stage(staging, coding);
        if let Some(beside) = beside {
            payload.set_beside(beside);
        }
        if contributes {
            return Some(transfer);
        }
        // The sum needs the memory anyway.
        state.worker.handle_copied(now, task.id, Ok(()));
        None
    });
    let Ok(Some((transfer, after))) = transfer else { return true };
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.d2h_bytes, bytes);
        }
        // A short contribution is pushed by the thread that learns of the copy. After a panic there is no machine to report to.
        let _ = reporter.with_pushing(HERE_BYTES_MAX, |state, now| state.worker.handle_copied(now, task.id, outcome));
    });
    match here {
        true => device.copy_here(transfer, &after, OnIssue::nobody(), done),
        false => device.copy(transfer, &after, OnIssue::nobody(), done),
    }
    true
}

/// Copies a sum to its destination.
pub(super) fn to_device(shared: &Arc<Shared>, task: Task, transfer: Transfer, after: &[Mark], issued: OnIssue) {
    let reporter = Arc::clone(shared);
    let bytes = match &transfer {
        Transfer::In { from, .. } | Transfer::Decode { from, .. } => from.len() as u64,
        Transfer::Out { .. } | Transfer::Encode { .. } | Transfer::Within { .. } => {
            unreachable!("COPYH2D copies to a device")
        }
    };
    let done = Done::new(move |outcome: Result<()>| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.h2d_bytes, bytes);
        }
        reporter.report(|state, now| {
            state.payloads.get_mut(task.id).expect("a task has a payload until it is released").unstage();
            state.worker.handle_copied(now, task.id, outcome);
        });
    });
    device(shared).copy(transfer, after, issued, done);
}

fn device(shared: &Shared) -> &dyn Device {
    &**shared.device.as_ref().expect("memory of a device is refused where there is none")
}
