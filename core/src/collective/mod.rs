//! Sums among the ranks of one machine, without any server.
//!
//! A collective carries out the operations that all its ranks have submitted, in one order on all ranks. The engine decides which
//! operations to submit and when.
//!
//! Both kinds of memory follow one order. [`host`] sums host memory in shared memory; a [`DeviceCollective`] sums device memory.

pub mod agreement;
pub mod group;
pub mod order;
pub mod ranks;

mod dataflow;
mod explain;
mod needs;
mod operation;

pub mod device;
pub mod devices;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
#[cfg(feature = "cuda")]
pub mod nccl;

pub use dataflow::Dataflow;
pub use device::{Bootstrap, DeviceCollective, DeviceMemory, MakeDeviceCollective, Moved, Ordered, Team, Traffic};
pub use devices::device_collective;
pub use host::{Begun, Hears, HostCollective, HostOptions};
pub use needs::Needs;
pub use operation::{Memory, Operation};
pub use ranks::LocalRank;

pub use crate::types::Goal;

use std::time::Duration;

use crate::error::Error;
use crate::local::Progress;
use crate::types::{Declined, Done, Incarnation, Slot, Time, Unmet};

/// Reduces among the ranks of one machine.
pub trait Collective: Progress + Send + Sync {
    /// Carries an operation out, once all its members have submitted it. Ranks that are no members submit nothing, and only count its turn.
    /// `done` reports its end, when the collective holds none of its memory any more: the sum of the ranks' weights, [`Mismatch`](crate::Error::Mismatch) naming both sides,
    /// [`Stalled`](crate::Error::Stalled) naming the ranks that did not submit it, [`PeerLost`](crate::Error::PeerLost) naming the rank
    /// that died, or the error of a broadcast's owner. A tensor's name is its key.
    ///
    /// A rank that waits for the owner of a broadcast waits as long as the owner lives, because the owner's own wait has a deadline.
    ///
    /// If the ranks' memory is of different kinds, all get a mismatch of `device`. If device memory cannot be reduced here, the operation
    /// fails at once with an error that says what to do, and the other ranks learn that this rank will not take part.
    ///
    /// After [`part`](Self::part), here or on another rank, an operation that no rank has begun ends as [`Unmet::NotBegun`]. So does one in
    /// host memory that a lost rank has left undone, in a job that goes on: all ranks that are left have its result, or none. It has changed
    /// the memory of its results then, but not that of its contributions, if these lie elsewhere.
    fn run(&self, operation: Operation, done: Done<f64, Unmet>);

    /// Gives an operation up: it ends as [`Cancelled`](crate::Error::Cancelled), unless all ranks have submitted it. It ends for the other
    /// ranks too. Exception: only the owner of a broadcast can end it for the others. In device memory such a broadcast goes on for this
    /// rank as well, because NCCL on the other ranks needs its memory.
    fn abandon(&self, slot: Slot);

    /// Tells the other members that this rank will never submit an operation. It ends for them as [`Stalled`](crate::Error::Stalled).
    fn decline(&self, declined: Declined);

    /// Ends all operations at once with this cause, because the job is over. Does not wait for other ranks, which learn of it themselves.
    fn abort(&self, cause: Error);

    /// When an operation last moved: it began, went on, or ended. Does not wait for any other thread.
    fn moved(&self) -> Time;

    /// Leaves the other ranks in order, for the reason `why`, because this rank meets others from now on: `stay` are the lives that it
    /// meets. Waits until the operations have ended that any rank may have begun, at most for `patience`; then those fail. A rank that does
    /// not stay and does not leave in order is given up after two seconds. [`shutdown`](Self::shutdown) ends the wait.
    fn part(&self, why: Error, stay: &[Incarnation], patience: Duration);

    /// Ends the operations under way and leaves the other ranks. Idempotent.
    fn shutdown(&self);
}
