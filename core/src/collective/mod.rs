//! Sums among the ranks of one machine, without any server.
//!
//! A collective carries out what its ranks are ready for, in one order on all of them. What is reduced when, and who is told of the
//! outcome, is decided by whoever hands the operations in.
//!
//! There is one order and there are two roads: memory of the host is summed in shared memory ([`host`]), memory of devices by a
//! [`DeviceRoad`], to which the same order is handed.

pub mod device;
pub mod host;
#[cfg(feature = "cuda")]
pub mod nccl;
mod walk;

use std::time::Duration;

pub use device::{Bulletin, DeviceMemory, DeviceRoad, MakeRoad, Ordered, Team, device_road};
pub use host::{HostCollective, HostOptions, LocalRank};
pub use walk::Walk;

use crate::error::Error;
use crate::mem::Region;
use crate::pipeline::DeviceKind;
use crate::sched::order::{Claim, Slot};
use crate::types::{Done, PartId, Round, WorkerId};

/// What the ranks of a machine do with one part, as one of them sees it.
#[derive(Debug)]
pub struct Operation {
    /// Which part.
    pub part: PartId,
    /// Which sum of it; each rank comes to the rounds of a part in order.
    pub round: Round,
    /// What shall come of it; equal on all ranks, but for what only the owner knows.
    pub goal: Goal,
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
        /// The contribution, run after run; as long as the claim says.
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
///   one machine      AllReduce
///   several          Reduce ──► the owner exchanges it with a server ──► Broadcast
/// ```
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
    /// All ranks have what the owner's destination holds, or its error.
    Broadcast {
        /// One of the ranks.
        owner: WorkerId,
        /// At the owner: why there is nothing to have.
        failure: Option<Error>,
    },
}

impl Operation {
    /// Its place among what is done with its part.
    pub fn slot(&self) -> Slot {
        self.goal.slot(self.part, self.round)
    }
}

impl Goal {
    /// The place of such an operation among those of a part: two a round, the one before the exchange and the one after it.
    pub fn slot(&self, part: PartId, round: Round) -> Slot {
        let after = match self {
            Self::AllReduce | Self::Reduce { .. } => 0,
            Self::Broadcast { .. } => 1,
        };
        (part, Round(round.0 * 2 + after))
    }

    /// Whether this rank is an owner that has nothing but an error.
    pub const fn has_failed(&self) -> bool {
        matches!(self, Self::Broadcast { failure: Some(_), .. })
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
