//! Sums among the ranks of one machine, without any server.
//!
//! A collective carries out what its ranks are ready for, in one order on all of them. What is reduced when, and who is told of the
//! outcome, is decided by whoever hands the operations in.

pub mod host;

use std::time::Duration;

pub use host::{HostCollective, HostOptions, LocalRank};

use crate::error::Error;
use crate::mem::Region;
use crate::sched::order::{Claim, Slot};
use crate::types::Done;

/// One sum of one part, as one rank sees it.
#[derive(Debug)]
pub struct Operation {
    /// Which sum; equal on all ranks, announced by each in the order of the rounds of a part.
    pub slot: Slot,
    /// What this rank thinks it is.
    pub claim: Claim,
    /// The contribution, run after run; as long as the claim says.
    pub source: Vec<Region>,
    /// Where the result goes, as long; may be the same memory.
    pub destination: Vec<Region>,
}

/// Reduces among the ranks of one machine.
pub trait Collective: Send + Sync {
    /// Reduces, once all ranks have come to this slot. `done` hears of the end, when nothing of the memory is held any more: success,
    /// [`Mismatch`](crate::Error::Mismatch) naming both sides, [`Stalled`](crate::Error::Stalled) naming the ranks that did not come,
    /// [`PeerLost`](crate::Error::PeerLost) naming the one that died. A tensor's name is its key.
    fn all_reduce(&self, operation: Operation, done: Done<()>);

    /// Gives an operation up: it ends as [`Cancelled`](crate::Error::Cancelled), unless all ranks had come to it.
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
