//! What the driver keeps of an operation that this rank has come to and that was not ordered yet.

use super::devices;
use super::road::fits;
use crate::collective::agreement::Wish;
use crate::collective::order::Claim;
use crate::collective::{Dataflow, Memory};
use crate::error::Error;
use crate::types::Done;

pub(super) struct Load {
    pub(super) memory: Memory,
    pub(super) done: Done<f64>,
}

impl Load {
    /// Reports to the caller that it will not begin.
    pub(super) fn end(self, error: Error) {
        let Self { memory, done } = self;
        drop(memory);
        done.err(error);
    }
}

/// Whether memory is what its share of an operation needs of the rank at position `me`.
pub(super) fn has_memory(memory: &Memory, wish: &Wish, dataflow: Dataflow, me: usize) -> bool {
    match memory {
        // It only looks on.
        Memory::Host { source, destination } if source.is_empty() && destination.is_empty() => {
            wish.claim.bytes == 0 || wish.failure.is_some() || !dataflow.needs(me)
        }
        memory => lies_in(memory, &wish.claim),
    }
}

/// Whether memory is of the kind and length that `claim` says.
fn lies_in(memory: &Memory, claim: &Claim) -> bool {
    memory.kind() == claim.device
        && match memory {
            Memory::Host { source, destination } => fits(claim, source) && fits(claim, destination),
            Memory::Device(memory) => devices::fits(memory, claim.bytes, claim.dtype.bytes()),
        }
}
