//! COPYD2H and COPYH2D: between the memory of a device and what the network reads and writes. Each ends when the device has copied, wanted
//! or not: until then it uses the memory.

use std::sync::Arc;

use super::super::Metrics;
use super::super::payload::Runs;
use super::super::shared::Shared;
use crate::device::{Device, Transfer};
use crate::error::Result;
use crate::mem::borrow::Staging;
use crate::sched::{Outcome, Task};
use crate::transport::Road;
use crate::types::Done;

/// Stages a contribution, in memory that it has until its sum is back on the device.
pub(super) fn to_host(shared: &Arc<Shared>, task: Task) {
    let device = device(shared);
    let bytes = usize::try_from(task.bytes).expect("at most PART_BYTES_MAX");
    let (from, link) = shared.with(|state, _| (state.payloads[&task.id].cargo.device(), state.links.up(task.server)));
    // A server of this machine reads it where it lies. Should another road be taken in the end, this is memory as any.
    let shown = link.is_some_and(|link| shared.transport.road(link) == Road::SharedMemory);
    let staging = match device.lease(from, bytes, shown) {
        Ok(lease) => Staging::new(lease),
        Err(error) => return shared.with(|state, now| state.finish(now, task.id, Outcome::Failed(error))),
    };
    let transfer = shared.with(|state, now| {
        let contributes = state.contributes(task.id);
        let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        let there = payload.cargo.on_device();
        let to = staging.region();
        there.staging = Some(staging);
        if !contributes {
            // The sum needs its place all the same.
            state.finish(now, task.id, Outcome::Done);
            return None;
        }
        let Runs { regions: from, after } = there.source.again();
        Some((Transfer::Out { from, to }, after))
    });
    let Some((transfer, after)) = transfer else { return };
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.d2h_bytes, task.bytes);
        }
        reporter
            .with(|state, now| state.finish(now, task.id, outcome.map_or_else(Outcome::Failed, |()| Outcome::Done)));
    });
    device.copy(transfer, &after, done);
}

/// Brings a sum to where it goes.
pub(super) fn to_device(shared: &Arc<Shared>, task: Task) {
    let (transfer, after) = shared.with(|state, _| {
        let payload = state.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        let there = payload.cargo.on_device();
        let Runs { regions: to, after } = there.destination.again();
        (Transfer::In { from: there.staged(), to }, after)
    });
    let reporter = Arc::clone(shared);
    let done = Done::new(move |outcome: Result<()>| {
        if outcome.is_ok() {
            Metrics::add(&reporter.metrics.h2d_bytes, task.bytes);
        }
        reporter.with(|state, now| {
            state.payloads.get_mut(&task.id).expect("it has one until it is released").cargo.unstage();
            state.finish(now, task.id, outcome.map_or_else(Outcome::Failed, |()| Outcome::Done));
        });
    });
    device(shared).copy(transfer, &after, done);
}

fn device(shared: &Shared) -> &dyn Device {
    &**shared.device.as_ref().expect("memory of a device is refused where there is none")
}
