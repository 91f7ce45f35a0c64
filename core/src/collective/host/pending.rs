//! An operation that this rank has come to and that was not ordered yet.

use super::devices;
use super::road::fits;
use crate::collective::order::Claim;
use crate::collective::{Dataflow, Memory, Operation};
use crate::error::Error;
use crate::types::{Done, Time};

pub(super) struct Pending {
    pub(super) operation: Operation,
    /// Absent where nobody waits for it any more: this rank takes part for the others' sake.
    pub(super) done: Option<Done<f64>>,
    pub(super) since: Time,
    pub(super) withdrawn: bool,
    /// The leader was told that it takes too long.
    pub(super) overdue: bool,
}

impl Pending {
    pub(super) fn new(operation: Operation, done: Done<f64>, now: Time) -> Self {
        Self { operation, done: Some(done), since: now, withdrawn: false, overdue: false }
    }

    /// It will not be begun; tells whoever waits for it.
    pub(super) fn end(self, error: Error) {
        drop(self.operation);
        if let Some(done) = self.done {
            done.err(error);
        }
    }
}

/// Whether an operation has the memory that its walk needs of the rank at position `me`.
pub(super) fn has_memory(operation: &Operation, dataflow: Dataflow, me: usize) -> bool {
    match &operation.memory {
        // It only looks on.
        Memory::Host { source, destination } if source.is_empty() && destination.is_empty() => {
            operation.claim.bytes == 0 || operation.failure.is_some() || !dataflow.needs(me)
        }
        memory => lies_in(memory, &operation.claim),
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
