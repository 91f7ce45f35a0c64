//! Sums among the ranks of one machine, without any server.
//!
//! A collective carries out what its ranks are ready for, in one order on all of them. What is reduced when, and who is told of the
//! outcome, is decided by whoever hands the operations in.
//!
//! There is one order and there are two roads: memory of the host is summed in shared memory ([`host`]), memory of devices by a
//! [`DeviceRoad`], to which the same order is handed.

pub mod order;

pub mod device;
pub mod host;
#[cfg(feature = "cuda")]
pub mod nccl;
mod walk;

use std::time::Duration;

pub use device::{Bulletin, DeviceMemory, DeviceRoad, MakeRoad, Ordered, Team, device_road};
pub use host::{HostCollective, HostOptions, LocalRank};
pub use walk::Walk;

use crate::collective::order::{Claim, Slot};
use crate::error::Error;
use crate::mem::Region;
use crate::types::{DeviceKind, Done, PartId, Round, WorkerId};

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

impl Operation {
    /// Its place among what is done with its part.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }
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

/// Reduces among the ranks of one machine.
pub trait Collective: Send + Sync {
    /// Carries an operation out, once all ranks have come to it. `done` hears of the end, when nothing of the memory is held any more:
    /// what the weights of the ranks add up to, [`Mismatch`](crate::Error::Mismatch) naming both sides,
    /// [`Stalled`](crate::Error::Stalled) naming the ranks that did not come, [`PeerLost`](crate::Error::PeerLost) naming the one that
    /// died, or what the owner of a broadcast has to tell. A tensor's name is its key.
    ///
    /// Who waits for the owner of a broadcast waits as long as the owner lives: what it waits for has deadlines of its own.
    ///
    /// Ranks whose memory is of different kinds hear a mismatch of `device`. Memory of devices that cannot be reduced here is refused
    /// at once, with what to do about it, and the others are told that this rank will not come.
    fn run(&self, operation: Operation, done: Done<f64>);

    /// Gives an operation up: it ends as [`Cancelled`](crate::Error::Cancelled), unless all ranks had come to it. The others lose it too,
    /// but for a broadcast, which only its owner can take from them; in memory of devices it then goes on for this rank as well, because
    /// the others' library needs its memory.
    fn abandon(&self, slot: Slot);

    /// Lets the calling thread do the work until `enough` says so, at most for `patience`. Returns at once if another thread is at it.
    ///
    /// Whoever has nothing better to do than to wait for an operation saves it two changes of thread. `attended` if this was announced
    /// by [`attend`](Self::attend).
    fn help(&self, enough: &dyn Fn() -> bool, patience: Duration, attended: bool);

    /// Says that the calling thread is about to submit something and then to help, so that nobody is woken for it. Must be followed by
    /// one [`help`](Self::help) that is `attended`.
    fn attend(&self);

    /// Lets whoever helps look again whether it had enough.
    fn nudge(&self);

    /// Ends everything at once with this cause, whatever the other ranks do: the job is over, and they hear so themselves.
    fn abort(&self, cause: Error);

    /// Ends what is under way and leaves the other ranks. Idempotent.
    fn shutdown(&self);
}
