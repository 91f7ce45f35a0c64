//! COMPRESS and DECOMPRESS: between elements and their wire form, in memory of the engine, from which PUSH sends and in which the sum
//! lands. Each ends when the calling thread has encoded or decoded.

use std::sync::Arc;

use super::super::residuals::SharedResidual;
use super::super::shared::Shared;
use super::copy;
use crate::codec::feedback::Start;
use crate::codec::{Coding, Seed, Tools};
use crate::error::Result;
use crate::mem::borrow::{self, Staging};
use crate::mem::{Lease, Region};
use crate::sched::Task;
use crate::types::LinkId;
use crate::wire::Body;

/// Encodes a contribution into memory that the task holds until its sum is decoded.
pub(super) fn encode(
    shared: &Arc<Shared>,
    task: Task,
    from: &[Region],
    coding: Coding,
    residual: Option<(SharedResidual, Start)>,
    link: Option<LinkId>,
    here_bytes_max: u64,
) {
    let Some(using) = shared.use_memory() else { return };
    // A server of this machine reads this memory in place. For other transports it is ordinary memory.
    let shown = link.is_some_and(|link| shared.transport.capabilities(link).zero_copy);
    let mut body = shared.wire.lease(task.bytes, shown);
    let (kernels, seed, copies) = (shared.wire.kernels, Seed::of(task.part, task.round), shared.metrics.copies());
    let sent = borrow::read(from, &copies, |elements| {
        let codec = coding.codec();
        let encoded = shared.wire.with_workspace(|workspace| {
            let tools = Tools { kernels, seed, workspace };
            match &residual {
                None => codec.encode(tools, coding.divisor, elements, &mut body),
                Some((residual, start)) => {
                    let how = (*start, coding.codec.momentum());
                    residual.encode(how, &*codec, tools, coding.divisor, elements, &mut body)
                }
            }
        });
        let used = encoded.unwrap_or_else(|refusal| {
            tracing::trace!(part = %task.part, round = task.round.0, codec = %coding.codec, %refusal, "sent plain");
            if residual.is_none() {
                copies.copy(elements, &mut body[..elements.len()]);
            }
            elements.len()
        });
        Body { bytes: used as u64, codec: coding.codec, refused: encoded.is_err() }
    });
    drop(using);
    // After a panic there is no machine to report to.
    let _ = shared.with_pushing(here_bytes_max, |state, now| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        payload.set_wire(Staging::new(body), sent.bytes);
        state.worker.handle_encoded(now, task.id, sent);
    });
}

/// Decodes a sum that a device did not decode, into memory from which it is copied to the device. One that the codec has refused lies there
/// already.
pub(super) fn decode_staged(shared: &Arc<Shared>, task: Task, from: &Region, (coding, refused): (Coding, bool)) {
    let Some(using) = shared.use_memory() else { return };
    let memory = match refused {
        true => Ok(None),
        false => match memory_for_sum(shared, task) {
            None => return,
            Some(memory) => memory.map(|memory| Some(Staging::new(memory))),
        },
    };
    let copies = shared.metrics.copies();
    let outcome = memory.map(|memory| {
        let decoded = memory.as_ref().map_or(Ok(()), |memory| {
            borrow::read(std::slice::from_ref(from), &copies, |body| {
                borrow::fill(vec![memory.region()], &copies, |elements| {
                    coding.codec().decode(shared.wire.kernels, body, elements)
                })
            })
        });
        (memory, decoded)
    });
    drop(using);
    shared.report(|state, now| match outcome {
        Err(error) => state.worker.handle_copied(now, task.id, Err(error)),
        Ok((memory, decoded)) => {
            let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
            if let Some(memory) = memory {
                payload.on_device().stage_decoded(memory);
            }
            state.worker.handle_decoded(now, task.id, decoded);
        }
    });
}

/// Memory for the elements of a sum on their way to their device. `None` after a panic of the machine.
fn memory_for_sum(shared: &Arc<Shared>, task: Task) -> Option<Result<Lease>> {
    let there = shared.with(|state, _| {
        let payload = state.payloads.get_mut(task.id).expect("a task has a payload until it is released");
        let there = payload.on_device();
        (there.device(), there.elements_bytes())
    });
    let (device, bytes) = there.ok()?;
    Some(copy::device(shared).lease(device, bytes, false))
}

/// Decodes a sum into its destination, or copies it if the codec has refused it.
pub(super) fn decode(
    shared: &Arc<Shared>,
    task: Task,
    from: &Region,
    to: Vec<Region>,
    (coding, refused): (Coding, bool),
) {
    let Some(using) = shared.use_memory() else { return };
    let (codec, kernels, copies) = (coding.codec(), shared.wire.kernels, shared.metrics.copies());
    let outcome = borrow::read(std::slice::from_ref(from), &copies, |body| {
        borrow::fill(to, &copies, |elements| match refused {
            true => {
                copies.copy(body, elements);
                Ok(())
            }
            false => codec.decode(kernels, body, elements),
        })
    });
    drop(using);
    shared.report(|state, now| {
        state.payloads.get_mut(task.id).expect("a task has a payload until it is released").drop_wire();
        state.worker.handle_decoded(now, task.id, outcome);
    });
}
