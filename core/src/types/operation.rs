//! What the ranks of one machine do together with a part: the goal, the claim that each rank makes, and its place among the operations of
//! the part.

use super::{DType, DeviceKind, Op, PartId, Priority, Round, WorkerId};

/// One operation on one part; those of a part are counted in the order in which ranks come to them.
pub type Slot = (PartId, Round);

/// What a rank says of the part that it is ready for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Claim {
    /// The reduction.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Length of the part in bytes.
    pub bytes: u64,
    /// What holds it.
    pub device: DeviceKind,
    /// Which of the rank's devices that is, in the order of their first use: below [`DEVICES_MAX`](Self::DEVICES_MAX), and 0 for host
    /// memory.
    pub device_index: u8,
    /// Whether this rank has an error to tell instead of what the others wait for. One that has is enough.
    pub failed: bool,
    /// Its weight in a weighted mean.
    pub weight: f64,
    /// How urgent it is to this rank; the part is as urgent as to the rank that wants it most.
    pub priority: Priority,
}

impl Claim {
    /// How many devices a rank may reduce on with the others of its machine.
    pub const DEVICES_MAX: u8 = 8;

    /// Whether both can be parts of one operation.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let what = |claim: &Self| (claim.op, claim.dtype, claim.bytes, claim.device, claim.device_index);
        what(self) == what(other)
    }
}

/// What comes of an operation.
///
/// ```text
///   one machine                  AllReduce
///   several                      Reduce ──► the owner exchanges it with a server ──► Broadcast
///   one, several PCIe groups     Reduce ──► Join ──► Broadcast
///   several of several groups    Reduce ──► Join ──► the owner exchanges it with a server ──► Share ──► Broadcast
/// ```
/// In memory of devices `Reduce` and `Broadcast` are those of a PCIe group, whose holder of the part is the owner.
#[derive(Clone, PartialEq, Debug)]
pub enum Goal {
    /// All ranks have the whole result.
    AllReduce,
    /// The owner has what is summed further: of a sum or mean the sum of its machine, of a weighted mean the weighted mean of its machine,
    /// whose weight is the sum of the weights, of a broadcast the root's bytes if the root is on this machine. The others' destinations
    /// stay as they were.
    Reduce {
        /// One of the ranks.
        owner: WorkerId,
    },
    /// What the holders have of their groups becomes one: all of them have the whole result, or what is summed further is the taker's. The
    /// other ranks help to add. A weight is that of a group. In host memory.
    Join {
        /// One rank a group, in the order of the groups.
        holders: Vec<WorkerId>,
        /// One of the holders.
        taker: Option<WorkerId>,
        /// In a broadcast: the holder that has the root's bytes, if the root is on this machine.
        origin: Option<WorkerId>,
    },
    /// Those with a destination have what the owner's destination holds. In host memory.
    Share {
        /// One of the ranks.
        owner: WorkerId,
    },
    /// All ranks have what the owner's destination holds.
    Broadcast {
        /// One of the ranks.
        owner: WorkerId,
    },
}

impl Goal {
    /// How many places there are for the operations of a round of a part.
    const A_ROUND: u64 = 4;

    /// The place of such an operation among those of a part.
    pub fn slot(&self, part: PartId, round: Round) -> Slot {
        let place = match self {
            Self::AllReduce | Self::Reduce { .. } => 0,
            Self::Join { .. } => 1,
            Self::Share { .. } => 2,
            Self::Broadcast { .. } => 3,
        };
        (part, Round(round.0 * Self::A_ROUND + place))
    }

    /// The round of the part that a place is of.
    pub fn round(place: Round) -> Round {
        Round(place.0 / Self::A_ROUND)
    }

    /// The one rank that has what is summed further.
    pub const fn taker(&self) -> Option<WorkerId> {
        match self {
            Self::Reduce { owner } => Some(*owner),
            Self::Join { taker, .. } => *taker,
            Self::AllReduce | Self::Share { .. } | Self::Broadcast { .. } => None,
        }
    }

    /// The rank that has the result already, which the others wait for.
    pub const fn bringer(&self) -> Option<WorkerId> {
        match self {
            Self::Share { owner } | Self::Broadcast { owner } => Some(*owner),
            Self::AllReduce | Self::Reduce { .. } | Self::Join { .. } => None,
        }
    }
}
