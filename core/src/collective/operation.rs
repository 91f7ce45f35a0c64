//! One operation among the ranks of a machine, as one of them submits it.

use super::device::DeviceMemory;
use crate::error::Error;
use crate::mem::Region;
use crate::types::{Claim, Declined, DeviceKind, Finding, Goal, PartId, Round, Slot};

/// One rank's share of an operation on one part.
#[derive(Debug)]
pub struct Operation {
    /// The part.
    pub part: PartId,
    /// The round; each rank submits the rounds of a part in order.
    pub round: Round,
    /// The goal, equal on all ranks. Exception: for device memory, each PCIe group names its own owner.
    pub goal: Goal,
    /// The error of this rank, if it lacks the data for which the others wait. Then all ranks get this error or that of another rank, and
    /// no memory is written.
    pub failure: Option<Error>,
    /// This rank's claim; its device kind is that of the memory.
    pub claim: Claim,
    /// Contribution and result.
    pub memory: Memory,
    /// Raised before the end is reported, if the collective looks at contributions in host memory and this rank's is not finite.
    pub finding: Finding,
}

/// The memory of an operation.
#[derive(Debug)]
pub enum Memory {
    /// In host memory.
    Host {
        /// The contribution, run after run; the claim gives its length. Empty if this rank contributes nothing and wants nothing.
        source: Vec<Region>,
        /// The memory for the result, of the same length; may be the same memory.
        destination: Vec<Region>,
    },
    /// In memory of a device.
    Device(DeviceMemory),
}

impl Memory {
    /// Its kind.
    pub const fn kind(&self) -> DeviceKind {
        match self {
            Self::Host { .. } => DeviceKind::Host,
            Self::Device(_) => DeviceKind::Cuda,
        }
    }
}

impl Operation {
    /// Its slot among the operations of its part.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }

    /// What the other members hear if this rank does not take part.
    pub fn declined(&self) -> Declined {
        Declined { slot: self.slot(), members: self.claim.members }
    }
}
