//! The interface to the library that reduces device memory, such as NCCL. It gets operations in the order of the machine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::dataflow::Dataflow;
use crate::collective::order::Claim;
use crate::cuda::{Mark, OnIssue};
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, Doubt};
use crate::types::{Done, Slot, Time};

/// Contribution and result in memory of one device.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The contribution, run after run; the claim gives its length.
    pub source: Vec<DeviceRegion>,
    /// The memory for the result, in runs of the same lengths; may be the same memory.
    pub destination: Vec<DeviceRegion>,
    /// Marks that must be reached before the memory is used.
    pub after: Vec<Mark>,
    /// Who is told once the operation is on a stream.
    pub issued: OnIssue,
}

/// An operation that all ranks of the machine have submitted, and that is next on all of them.
#[derive(Debug)]
pub struct Ordered {
    /// The operation.
    pub slot: Slot,
    /// The data flow among the ranks of the team.
    pub dataflow: Dataflow,
    /// The claim on which all ranks agree.
    pub claim: Claim,
    /// The weight of each rank of the team.
    pub weights: Vec<f64>,
    /// This rank's memory.
    pub memory: DeviceMemory,
}

/// Carries out operations on memory of devices among the ranks of one machine, or of one PCIe group of it.
pub trait DeviceCollective: Send + Sync {
    /// Checks whether an operation on this memory can be carried out here, before the other ranks learn of it. Returns the index of its
    /// device among this rank's devices, in the order of their first use. The first call may take long, because it loads libraries.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Error::FailedPrecondition) if this machine lacks something, [`InvalidArgument`](Error::InvalidArgument) if
    /// the memory must be elsewhere; each says what to do.
    fn check(&self, memory: &DeviceMemory) -> Result<u8>;

    /// Takes the next operations in the order, without waiting: one, or several of different parts on one device, which run side by side.
    /// The group is the same on all ranks. Each `done` is called at the end of its operation, when the memory is not used any more.
    /// Exception: after a failure, the memory may still be used as long as [`Team::doubt`] exists.
    ///
    /// An error of any operation ends the collective on all ranks, because they are no longer in step.
    fn issue(&self, group: Vec<(Ordered, Done<()>)>);

    /// Ends all issued and all future operations with this cause, whatever the other ranks do. Does not wait. Idempotent.
    fn abort(&self, cause: Error);

    /// Ends the operations under way, and the threads. Idempotent.
    fn shutdown(&self);
}

/// Makes the collective of one rank's devices, once all ranks have met.
pub type MakeDeviceCollective = Box<dyn FnOnce(Team) -> Result<Arc<dyn DeviceCollective>> + Send>;

/// Publishes a short notice of the first rank to the ranks of a PCIe group: the id under which their devices connect.
pub trait Bootstrap: Send + Sync {
    /// The notice about another of the first rank's devices.
    fn about(&self, device_index: u8) -> Arc<dyn Bootstrap>;

    /// Publishes the notice; called by the first rank. Only the first call counts.
    ///
    /// # Panics
    /// If the notice is empty or longer than [`NOTICE_BYTES_MAX`], or if this is not the first rank.
    fn post(&self, notice: &[u8]);

    /// Reads the notice. `None` if it was not published within `patience`, or if `gives_up` became true before.
    fn read(&self, patience: Duration, gives_up: &dyn Fn() -> bool) -> Option<Vec<u8>>;
}

/// The longest notice of a [`Bootstrap`], in bytes.
pub const NOTICE_BYTES_MAX: usize = 256;

/// The ranks that reduce memory of their devices with each other, for the collective of one of them.
#[derive(Clone)]
pub struct Team {
    /// The position of this rank among them.
    pub me: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The notice of the first rank to the others.
    pub bootstrap: Arc<dyn Bootstrap>,
    /// How long the other ranks may take to join.
    pub join_timeout: Duration,
    /// How long an operation may take.
    pub step_timeout: Duration,
    /// Raised before operations are reported whose memory may still be written.
    pub doubt: Doubt,
    /// Counts what goes between devices, and what that costs.
    pub traffic: Traffic,
    /// When an operation last moved.
    pub moved: Moved,
    /// A monotonic clock.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}

/// Counters of operations on devices: their bytes by the call that carried them out, which are the lengths of the parts, whatever this
/// rank gave; and the groups in which they were issued.
#[derive(Clone, Default, Debug)]
pub struct Traffic {
    /// Sums that all ranks got.
    pub all_reduce: Arc<AtomicU64>,
    /// Sums of which each rank got an equal share.
    pub reduce_scatter: Arc<AtomicU64>,
    /// Sums that one rank got.
    pub reduce: Arc<AtomicU64>,
    /// Shares of all ranks that all ranks got.
    pub all_gather: Arc<AtomicU64>,
    /// Bytes of one rank that one or all ranks got.
    pub broadcast: Arc<AtomicU64>,
    /// Groups.
    pub groups: Arc<AtomicU64>,
    /// Time that the issuing thread took to put them on streams.
    pub issue_nanoseconds: Arc<AtomicU64>,
}

/// When an operation of a collective last moved: it began, went on, or ended. All clones share it.
#[derive(Clone, Default, Debug)]
pub struct Moved(Arc<AtomicU64>);

impl Moved {
    /// Something moved now.
    pub fn note(&self, now: Time) {
        self.0.fetch_max(now.0, Ordering::Relaxed);
    }

    /// When something moved last; [`Time::ZERO`] before the first time.
    pub fn last(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("me", &self.me).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}
