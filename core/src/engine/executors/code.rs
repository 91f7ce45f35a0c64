//! COMPRESS and DECOMPRESS: between elements and their wire form, in memory of the engine, from which PUSH sends and in which the sum
//! lands. Each ends when the calling thread has encoded or decoded.

use std::sync::Arc;

use super::super::shared::Shared;
use crate::codec::Coding;
use crate::mem::Region;
use crate::mem::borrow::{self, Staging};
use crate::sched::Task;
use crate::types::LinkId;

/// Encodes a contribution into memory that the task holds until its sum is decoded.
pub(super) fn encode(
    shared: &Arc<Shared>,
    task: Task,
    from: &[Region],
    coding: Coding,
    link: Option<LinkId>,
    here_bytes_max: u64,
) {
    let Some(using) = shared.use_memory() else { return };
    // A server of this machine reads this memory in place. For other transports it is ordinary memory.
    let shown = link.is_some_and(|link| shared.transport.capabilities(link).zero_copy);
    let mut body = shared.wire.lease(task.bytes, shown);
    let (codec, kernels) = (coding.codec(), shared.wire.kernels);
    borrow::read(from, &shared.metrics.copies(), |elements| {
        let used = codec.encode(kernels, coding.divisor, elements, &mut body);
        assert_eq!(used, body.len(), "a body of {} has as many bytes as its header says", coding.codec);
    });
    drop(using);
    // After a panic there is no machine to report to.
    let _ = shared.with_pushing(here_bytes_max, |state, now| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        payload.set_wire(Some(Staging::new(body)));
        state.worker.handle_coded(now, task.id, Ok(()));
    });
}

/// Decodes a sum into its destination.
pub(super) fn decode(shared: &Arc<Shared>, task: Task, from: &Region, to: Vec<Region>, coding: Coding) {
    let Some(using) = shared.use_memory() else { return };
    let (codec, kernels, copies) = (coding.codec(), shared.wire.kernels, shared.metrics.copies());
    let outcome = borrow::read(std::slice::from_ref(from), &copies, |body| {
        borrow::fill(to, &copies, |elements| codec.decode(kernels, body, elements))
    });
    drop(using);
    shared.report(|state, now| {
        state.payloads.get_mut(task.id).expect("a task has a payload until it is released").set_wire(None);
        state.worker.handle_coded(now, task.id, outcome);
    });
}
