//! The types that an [`Agreement`](super::Agreement) and its driver exchange.

use std::time::Duration;

use crate::collective::dataflow::Dataflow;
use crate::collective::order::{Claim, Slot};
use crate::collective::ranks::LocalRank;
use crate::error::Error;
use crate::types::{Declined, Defect, Goal, Late, PartId, Round, WorkerId};

/// The ranks that agree.
#[derive(Clone, Debug)]
pub struct Party {
    /// The ranks of the machine, in ascending order; the first leads.
    pub ranks: Vec<LocalRank>,
    /// The position of this rank among them.
    pub me: usize,
    /// The positions of the ranks whose devices are in its PCIe group, including its own, ascending.
    pub group: Vec<usize>,
    /// How long an operation may wait for other ranks.
    pub step_timeout: Duration,
    /// How long an operation may wait for other ranks before the leader reports it. Zero for never.
    pub stall_warn: Duration,
    /// Every `oldest_every`-th decision goes to the oldest operation. 0 for never.
    pub oldest_every: u32,
    /// Whether the job goes on when a rank leaves. Then the others part, to meet again without it. Otherwise what waits for that rank fails.
    pub goes_on: bool,
    /// A defect to plant, for the simulation.
    pub defect: Option<Defect>,
}

impl Party {
    /// The position of a worker among the ranks of the machine, if it is one of them.
    pub(super) fn position(&self, worker: WorkerId) -> Option<usize> {
        self.ranks.iter().position(|other| other.rank == worker)
    }
}

/// An operation that a rank wants to do with the others.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The part.
    pub part: PartId,
    /// The round of the part. Each rank comes to the rounds of a part in order.
    pub round: Round,
    /// The ranks that get the result.
    pub goal: Goal,
    /// The reason why this rank has no data for the others, if it has none.
    pub failure: Option<Error>,
    /// The claim of this rank about the operation.
    pub claim: Claim,
}

/// The memory that a rank brings to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// No memory. The rank takes part because the others need it.
    Nothing,
    /// Memory of the kind and length that it claims.
    AsClaimed,
    /// Memory of another kind or length than it claims.
    Other,
}

/// A message of a rank to the leader.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Announcement {
    /// It is ready for an operation.
    Ready(Slot, Claim),
    /// It gives an operation up.
    Withdrawn(Declined),
    /// It has waited too long for an operation.
    Overdue(Slot, Duration),
}

/// The rank that came last to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Last {
    /// Its rank in the job.
    pub rank: WorkerId,
    /// For how long only it was missing, without the time in which another operation waited for it alone.
    pub late: Late,
    /// Whether it is a further step: to no operation of a higher or equal round had all ranks come before.
    pub is_step: bool,
}

/// A command for the driver.
#[derive(Debug)]
pub enum Act<L> {
    /// All members do this now. Acts of one group, which are on devices, begin together.
    Run {
        /// The goal of the operation.
        goal: Goal,
        /// How long this rank waited for the others since it was ready.
        waited: Duration,
        /// The operation.
        slot: Slot,
        /// The claim on which all ranks agree.
        claim: Claim,
        /// The weight of each rank of the machine.
        weights: Vec<f64>,
        /// The data flow among the ranks. On devices, among the ranks of the PCIe group.
        dataflow: Dataflow,
        /// Absent if the caller does not wait any more: this rank then takes part without memory.
        load: Option<L>,
    },
    /// The other ranks do this now, and this one is no member. It takes a turn in host memory, without any data.
    Pass {
        /// The claim on which the members agree.
        claim: Claim,
        /// The position of the rank whose data, or whose error, the members get. `None` if they add up the data of all of them.
        shown_by: Option<usize>,
    },
    /// All members learn now why there is no data. This takes a turn as an operation in host memory does, but touches no tensor.
    Tell {
        /// The claim on which all ranks agree.
        claim: Claim,
        /// The position of the rank that tells.
        from: usize,
        /// The error, on that rank.
        failure: Option<Error>,
        /// Absent if the caller does not wait any more.
        load: Option<L>,
    },
    /// The operation does not begin, for this reason.
    End {
        /// The driver's load of the operation.
        load: L,
        /// The reason.
        error: Error,
    },
    /// The ranks part, for this reason, and none of them has begun the operation.
    Return {
        /// The driver's load of the operation.
        load: L,
        /// The reason.
        why: Error,
    },
}

impl<L> Act<L> {
    /// What becomes of an act that nobody has begun, if what waits for it ends so.
    pub(super) fn unbegun(self, end: impl FnOnce(L) -> Self) -> Option<Self> {
        match self {
            Self::Run { load, .. } | Self::Tell { load, .. } => load.map(end),
            Self::Pass { .. } => None,
            Self::End { .. } | Self::Return { .. } => Some(self),
        }
    }
}

impl Wish {
    /// Its part and round.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }
}
