//! An operation that this rank has submitted, until the leader orders it.

use super::devices;
use super::reduction::fits;
use crate::collective::Memory;
use crate::collective::agreement::Brought;
use crate::collective::order::Claim;
use crate::types::{Done, Finding, Unmet};

pub(super) struct Load {
    pub(super) memory: Memory,
    pub(super) done: Done<f64, Unmet>,
    pub(super) finding: Finding,
}

impl Load {
    /// Reports to the caller why the operation will not begin.
    pub(super) fn end(self, why: Unmet) {
        let Self { memory, done, finding: _ } = self;
        drop(memory);
        done.report(Err(why));
    }
}

/// Compares `memory` with the claim of its operation.
pub(super) fn brought(memory: &Memory, claim: &Claim) -> Brought {
    let is_as_claimed = match memory {
        Memory::Host { source, destination } if source.is_empty() && destination.is_empty() => return Brought::Nothing,
        Memory::Host { source, destination } => fits(claim, source) && fits(claim, destination),
        Memory::Device(memory) => devices::fits(memory, claim.bytes, claim.dtype.bytes()),
    };
    if is_as_claimed && memory.kind() == claim.device { Brought::AsClaimed } else { Brought::Other }
}
