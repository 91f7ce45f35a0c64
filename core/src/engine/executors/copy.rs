//! COPYD2H and COPYH2D: between the memory of a device and what the network reads and writes. Each ends when the device has copied, even if
//! the task was abandoned, because the device uses the memory until then.

use std::slice;
use std::sync::Arc;

use super::super::job::Staged;
use super::super::metrics::Metrics;
use super::super::shared::Shared;
use super::super::submit::HERE_BYTES_MAX;
use crate::codec::Seed;
use crate::cuda::{Mark, OnIssue};
use crate::device::{Device, Transfer, Varying};
use crate::error::Result;
use crate::mem::borrow::{self, Staging};
use crate::mem::{Ordinal, Region};
use crate::sched::Task;
use crate::types::{CodecSpec, Done};
use crate::wire::Body;

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
    // The bound of a body that varies in length is the length of its elements.
    let varying = coding.and_then(|coding| {
        Varying::of(&coding, task.round, bytes / coding.dtype.bytes()).map(|varying| (varying, coding.codec))
    });
    let room = varying.map_or(bytes, |(varying, _)| varying.room());
    let len = |bytes| usize::try_from(bytes).expect("hardly more than PART_BYTES_MAX");
    // A server of this machine reads this memory in place. For other transports it is ordinary memory.
    let shown = link.is_some_and(|link| shared.transport.capabilities(link).zero_copy);
    let lease = |bytes, shown| match here {
        true => device.lease_again(from, len(bytes), shown).map(Ok),
        false => Some(device.lease(from, len(bytes), shown)),
    };
    let leases = || {
        let staging = lease(room.max(bytes), shown)?;
        let beside = if lands_beside { Some(lease(bytes, false)?) } else { None };
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
        let transfer = payload.on_device().stage(staging, bytes, room, coding);
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
    let told = match (&transfer, varying) {
        (Transfer::Encode { to, .. }, Some((varying, codec))) => Some((to.again(), varying, codec)),
        _ => None,
    };
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.d2h_bytes, room);
        }
        match (outcome, told) {
            (Ok(()), Some((told, varying, codec))) => encoded(&reporter, task, (&told, varying), codec),
            (outcome, _) => copied(&reporter, task, outcome),
        }
    });
    match here {
        true => device.copy_here(transfer, &after, OnIssue::nobody(), done),
        false => device.copy(transfer, &after, OnIssue::nobody(), done),
    }
    true
}

/// The device has encoded a contribution into a body whose length it tells, or it says that the codec refused the contribution. This is
/// copied then: it is rare, so it costs a second copy, and not every contribution as many bytes as it has elements.
fn encoded(shared: &Arc<Shared>, task: Task, (room, varying): (&Region, Varying), codec: CodecSpec) {
    let length = borrow::read(slice::from_ref(room), &shared.metrics.copies(), |room| varying.told(room));
    if let Some(bytes) = length {
        return sent(shared, task, Body { bytes, codec, refused: false });
    }
    tracing::trace!(part = %task.part, round = task.round.0, %codec, "sent plain");
    let transfer = shared.with(|state, _| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        payload.on_device().plain()
    });
    let Ok(transfer) = transfer else { return };
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| match outcome {
        Ok(()) => {
            Metrics::add(&reporter.metrics.d2h_bytes, task.bytes);
            sent(&reporter, task, Body { bytes: task.bytes, codec, refused: true });
        }
        Err(_) => copied(&reporter, task, outcome),
    });
    // All marks before it were reached before the first copy.
    device(shared).copy(transfer, &[], OnIssue::nobody(), done);
}

/// Reports the end of a copy. A short contribution is pushed by the thread that learns of it.
fn copied(shared: &Arc<Shared>, task: Task, outcome: Result<()>) {
    // After a panic there is no machine to report to.
    let _ = shared.with_pushing(HERE_BYTES_MAX, |state, now| state.worker.handle_copied(now, task.id, outcome));
}

/// As [`copied`], of a contribution that lies in host memory as this body.
fn sent(shared: &Arc<Shared>, task: Task, body: Body) {
    let _ = shared.with_pushing(HERE_BYTES_MAX, |state, now| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        payload.on_device().set_sent(body.bytes);
        state.worker.handle_encoded(now, task.id, body);
    });
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

pub(super) fn device(shared: &Shared) -> &dyn Device {
    &**shared.device.as_ref().expect("memory of a device is refused where there is none")
}
