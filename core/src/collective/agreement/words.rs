//! The words between an [`Agreement`](super::Agreement) and its driver.

use std::time::Duration;

use crate::collective::dataflow::Dataflow;
use crate::collective::order::{Claim, Slot};
use crate::collective::ranks::LocalRank;
use crate::error::Error;
use crate::types::{Defect, Goal, PartId, Round};

/// The ranks that agree.
#[derive(Clone, Debug)]
pub struct Party {
    /// The ranks of the machine, in ascending order; the first leads.
    pub ranks: Vec<LocalRank>,
    /// The position of this rank among them.
    pub me: usize,
    /// The positions of those whose devices are of its PCIe group, itself among them, ascending.
    pub group: Vec<usize>,
    /// How long an operation may wait for other ranks.
    pub step_timeout: Duration,
    /// Every so many decisions the oldest goes first.
    pub oldest_every: u32,
    /// A defect to plant, for the simulation.
    pub defect: Option<Defect>,
}

/// What a rank wants to do with the others.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Which part.
    pub part: PartId,
    /// Which sum of it; each rank comes to the rounds of a part in order.
    pub round: Round,
    /// The ranks that get the result.
    pub goal: Goal,
    /// Why this rank has no data for the others.
    pub failure: Option<Error>,
    /// What this rank claims about the operation.
    pub claim: Claim,
}

/// The memory that a rank brings to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// None: it takes part because the others need it.
    Nothing,
    /// Memory of the kind and length that it claims.
    AsClaimed,
    /// Other memory than it claims.
    Other,
}

/// What a rank tells the leader.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Announcement {
    /// It is ready for an operation.
    Ready(Slot, Claim),
    /// It gives an operation up.
    Withdrawn(Slot),
    /// It has waited too long for an operation.
    Overdue(Slot, Duration),
}

/// What the driver does.
#[derive(Debug)]
pub enum Act<L> {
    /// All ranks do this now. Begin it after the acts before it. Acts of one group, which are on devices, begin together.
    Run {
        /// What all ranks claim alike.
        claim: Claim,
        /// The weight of each rank of the machine.
        weights: Vec<f64>,
        /// What the ranks do. Those of the PCIe group if it is on devices.
        dataflow: Dataflow,
        /// Absent if the caller does not wait any more: this rank then takes part without memory.
        load: Option<L>,
    },
    /// All ranks learn now why there is no data. This takes a turn like an operation in host memory, and touches no tensor.
    Tell {
        /// What all ranks claim alike.
        claim: Claim,
        /// The position of the rank that tells.
        from: usize,
        /// The error, on that rank.
        failure: Option<Error>,
        /// Absent if the caller does not wait any more.
        load: Option<L>,
    },
    /// It is not begun, for this reason.
    End {
        /// Whose.
        load: L,
        /// Why.
        error: Error,
    },
}

impl Wish {
    /// Its part and round.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }
}
