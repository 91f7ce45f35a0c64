//! An operation of the ranks of one machine on a part: its goal, each rank's claim, and its slot among the operations of the part.

use super::{DType, DeviceKind, Op, PartId, Priority, Round, Time, Wait, Waited, WorkerId};
use crate::error::Error;

/// One operation on one part. The operations of a part are numbered in the order in which ranks submit them.
pub type Slot = (PartId, Round);

/// An operation in which a rank will not take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declined {
    /// The operation.
    pub slot: Slot,
    /// Its members, as in [`Claim::members`].
    pub members: u64,
}

/// Why an operation has no result on a rank.
#[derive(Clone, PartialEq, Debug)]
pub enum Unmet {
    /// It failed. Memory that it was to write may be overwritten.
    Failed(Error),
    /// No rank has begun it, and none will, because these ranks do not work together any more. All memory is as it was. The reason.
    NotBegun(Error),
}

impl Unmet {
    /// The reason, for whoever cannot begin again.
    pub fn into_error(self) -> Error {
        match self {
            Self::Failed(error) | Self::NotBegun(error) => error,
        }
    }
}

/// Why an operation is [`Unmet::NotBegun`]: after `change`, such as `worker 2 left`, the ranks of this machine meet again.
pub fn meeting_again(change: &str) -> Error {
    Error::Unavailable {
        what: "the sum of this machine's workers".to_owned(),
        cause: format!("{change}, and they meet again"),
    }
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A rank's description of the part for which it is ready.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Claim {
    /// The reduction.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Length of the part in bytes.
    pub bytes: u64,
    /// The kind of its memory.
    pub device: DeviceKind,
    /// Which of the rank's devices that is, in the order of their first use: below [`DEVICES_MAX`](Self::DEVICES_MAX), and 0 for host
    /// memory.
    pub device_index: u8,
    /// Whether this rank sends an error instead of the data for which the others wait. One such rank is enough.
    pub failed: bool,
    /// Its weight in a weighted mean.
    pub weight: f64,
    /// Its priority on this rank. The part gets the highest priority of all ranks.
    pub priority: Priority,
    /// The ranks that take part, one bit for each position among the ranks of the machine, or [`ALL_RANKS`](Self::ALL_RANKS). Equal on all of
    /// them in all rounds of the part.
    pub members: u64,
    /// Since when this rank is ready for the operation.
    pub ready: Ready,
}

/// Since when a rank is ready for an operation, and what the part waited for on this rank before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Since when, by the clock that the ranks of the machine share. The rank sets it when it announces the operation.
    pub since: Time,
    /// What the part waited for.
    pub waited: Waited,
}

impl Ready {
    /// Nothing is known of it.
    pub const UNKNOWN: Self = Self {
        since: Time::ZERO,
        waited: Waited { device: Wait::from_code(0), queue: Wait::from_code(0), credit: Wait::from_code(0) },
    };
}

impl Claim {
    /// The most devices on which a rank may reduce with the others of its machine.
    pub const DEVICES_MAX: u8 = 8;

    /// The [`members`](Self::members) if all ranks of the machine take part.
    pub const ALL_RANKS: u64 = u64::MAX;

    /// For tests: a sum of 64 bytes by all ranks.
    #[cfg(test)]
    pub(crate) const SUM: Self = Self {
        op: Op::Sum,
        dtype: DType::F32,
        bytes: 64,
        device: DeviceKind::Host,
        device_index: 0,
        failed: false,
        weight: 1.0,
        priority: Priority(0),
        members: Self::ALL_RANKS,
        ready: Ready::UNKNOWN,
    };

    /// The ranks of `members` on a machine of so many `ranks`, one bit each; `None` if it names no rank, or one that the machine lacks.
    ///
    /// # Panics
    /// If there are no ranks or more than 64.
    pub fn members_among(members: u64, ranks: usize) -> Option<u64> {
        assert!((1..=64).contains(&ranks), "{ranks} ranks on one machine");
        let everybody = u64::MAX >> (64 - ranks);
        match members {
            Self::ALL_RANKS => Some(everybody),
            members => Some(members).filter(|members| *members != 0 && members & !everybody == 0),
        }
    }

    /// Whether both can belong to one operation.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let what = |claim: &Self| (claim.op, claim.dtype, claim.bytes, claim.device, claim.device_index, claim.members);
        what(self) == what(other)
    }
}

/// The goal of an operation.
///
/// ```text
///   one machine                  AllReduce, or Deliver if the sums of the tensor have one receiver
///   several                      Reduce ──► the owner exchanges it with a server ──► Broadcast
///   one, several PCIe groups     Reduce ──► Join ──► Broadcast
///   several of several groups    Reduce ──► Join ──► the owner exchanges it with a server ──► Share ──► Broadcast
/// ```
/// In device memory, `Reduce` and `Broadcast` concern a PCIe group; its owner is the group's holder of the part.
#[derive(Clone, PartialEq, Debug)]
pub enum Goal {
    /// All members get the whole result.
    AllReduce,
    /// One member gets the whole result. The destinations of the others do not change.
    Deliver {
        /// The member.
        receiver: WorkerId,
    },
    /// The owner gets the machine's result, which is summed further. For a sum or a mean this is the sum of the machine. For a weighted
    /// mean it is the weighted mean of the machine, with the sum of the weights as its weight. For a broadcast it is the root's bytes, if
    /// the root is on this machine. The destinations of the other ranks do not change.
    Reduce {
        /// One of the ranks.
        owner: WorkerId,
    },
    /// Adds the results of the groups, which the holders have. All holders get the whole result, or the taker gets the result that is
    /// summed further. The other ranks help to add. A weight is that of a group. In host memory.
    Join {
        /// One rank of each group, in the order of the groups.
        holders: Vec<WorkerId>,
        /// One of the holders.
        taker: Option<WorkerId>,
        /// In a broadcast: the holder that has the root's bytes, if the root is on this machine.
        origin: Option<WorkerId>,
    },
    /// Ranks with a destination get the content of the owner's destination. In host memory.
    Share {
        /// One of the ranks.
        owner: WorkerId,
    },
    /// All ranks get the content of the owner's destination.
    Broadcast {
        /// One of the ranks.
        owner: WorkerId,
    },
}

impl Goal {
    /// The number of slots for the operations of a round of a part.
    const A_ROUND: u64 = 4;

    /// The slot of this operation among those of the part.
    pub fn slot(&self, part: PartId, round: Round) -> Slot {
        let place = match self {
            Self::AllReduce | Self::Deliver { .. } | Self::Reduce { .. } => 0,
            Self::Join { .. } => 1,
            Self::Share { .. } => 2,
            Self::Broadcast { .. } => 3,
        };
        (part, Round(round.0 * Self::A_ROUND + place))
    }

    /// Whether the operation of a slot is the one that takes the contributions of the ranks themselves.
    pub const fn adds_contributions(place: Round) -> bool {
        place.0.is_multiple_of(Self::A_ROUND)
    }

    /// The round of the part to which a slot belongs.
    pub fn round(place: Round) -> Round {
        Round(place.0 / Self::A_ROUND)
    }

    /// The one rank that gets the result that is summed further.
    pub const fn taker(&self) -> Option<WorkerId> {
        match self {
            Self::Reduce { owner } => Some(*owner),
            Self::Join { taker, .. } => *taker,
            Self::AllReduce | Self::Deliver { .. } | Self::Share { .. } | Self::Broadcast { .. } => None,
        }
    }

    /// The rank that has the result already, and sends it to the others.
    pub const fn bringer(&self) -> Option<WorkerId> {
        match self {
            Self::Share { owner } | Self::Broadcast { owner } => Some(*owner),
            Self::AllReduce | Self::Deliver { .. } | Self::Reduce { .. } | Self::Join { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_ranks_of_the_machine() {
        for (members, ranks, expected) in [
            (Claim::ALL_RANKS, 3, Some(0b111)),
            (Claim::ALL_RANKS, 64, Some(u64::MAX)),
            (0b101, 3, Some(0b101)),
            (0b101, 2, None),
            (0, 2, None),
        ] {
            assert_eq!(Claim::members_among(members, ranks), expected, "{members:b} of {ranks}");
        }
    }
}
