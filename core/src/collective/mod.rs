//! Sums among the ranks of one machine, without any server.
//!
//! A collective carries out what its ranks are ready for, in one order on all of them. What is reduced when, and who is told of the
//! outcome, is decided by whoever hands the operations in.
//!
//! There is one order and there are two roads: memory of the host is summed in shared memory ([`host`]), memory of devices by a
//! [`DeviceRoad`], to which the same order is handed.

pub mod agreement;
pub mod group;
pub mod order;
pub mod ranks;

mod dataflow;
mod explain;
mod operation;

pub mod device;
pub mod devices;
pub mod host;
#[cfg(feature = "cuda")]
pub mod nccl;

use std::time::Duration;

pub use dataflow::Dataflow;
pub use device::{Bulletin, DeviceMemory, DeviceRoad, MakeRoad, Ordered, Team};
pub use devices::device_road;
pub use host::{HostCollective, HostOptions};
pub use operation::{Memory, Operation};
pub use ranks::LocalRank;

pub use crate::types::Goal;

use crate::error::Error;
use crate::types::{Done, Slot};

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
