//! One operation among the ranks of a machine, as one of them submits it.

use super::device::DeviceMemory;
use crate::error::Error;
use crate::mem::Region;
use crate::types::{Claim, DeviceKind, Goal, PartId, Round, Slot};

/// What the ranks of a machine do with one part, as one of them sees it.
#[derive(Debug)]
pub struct Operation {
    /// Which part.
    pub part: PartId,
    /// Which sum of it; each rank comes to the rounds of a part in order.
    pub round: Round,
    /// What shall come of it; equal on all ranks, but for owners of memory of devices, of which each PCIe group has its own.
    pub goal: Goal,
    /// Why this rank has nothing of what the others wait for. All of them then have its error, or that of another which has one, and
    /// nobody's memory is touched.
    pub failure: Option<Error>,
    /// What this rank thinks it is; of the kind of memory that it has.
    pub claim: Claim,
    /// Contribution and result.
    pub memory: Memory,
}

/// Where an operation's contribution and result lie.
#[derive(Debug)]
pub enum Memory {
    /// In host memory.
    Host {
        /// The contribution, run after run; as long as the claim says, or nothing where this rank contributes nothing and wants nothing.
        source: Vec<Region>,
        /// Where the result goes, as long; may be the same memory.
        destination: Vec<Region>,
    },
    /// In memory of a device.
    Device(DeviceMemory),
}

impl Memory {
    /// Which kind it is.
    pub const fn kind(&self) -> DeviceKind {
        match self {
            Self::Host { .. } => DeviceKind::Host,
            Self::Device(_) => DeviceKind::Cuda,
        }
    }
}

impl Operation {
    /// Its place among what is done with its part.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }
}
