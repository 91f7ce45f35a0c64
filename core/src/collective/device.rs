//! How operations on memory of devices are carried out: in the order of the machine, by whoever knows the devices' own library.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::dataflow::Dataflow;
use crate::collective::order::Claim;
use crate::cuda::Mark;
use crate::error::{Error, Result};
use crate::mem::DeviceRegion;
use crate::types::{Done, Time};

/// Contribution and result in memory of one device.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The contribution, run after run; as long as the claim says.
    pub source: Vec<DeviceRegion>,
    /// Where the result goes, in as many runs, each as long as that of the contribution; may be the same memory.
    pub destination: Vec<DeviceRegion>,
    /// What must be reached before the memory is touched.
    pub after: Vec<Mark>,
}

/// An operation that all ranks of the machine have come to and that is next on all of them.
#[derive(Debug)]
pub struct Ordered {
    /// What the ranks of the team do.
    pub dataflow: Dataflow,
    /// What all ranks claim alike.
    pub claim: Claim,
    /// The weight of each rank of the team.
    pub weights: Vec<f64>,
    /// This rank's part of it.
    pub memory: DeviceMemory,
}

/// Carries out operations on memory of devices among the ranks of one machine, or of one PCIe group of it.
pub trait DeviceRoad: Send + Sync {
    /// Whether an operation on this memory can be carried out here, asked before the other ranks hear of it: which of this rank's devices
    /// it is on, counted as they are first used. May take long the first time, when libraries are loaded.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Error::FailedPrecondition) if this machine lacks something, [`InvalidArgument`](Error::InvalidArgument) if
    /// the memory must be elsewhere; each says what to do.
    fn check(&self, memory: &DeviceMemory) -> Result<u8>;

    /// Takes what is next in the order, without waiting: one operation or several of different parts on one device, the same on all ranks,
    /// which go side by side. Each `done` hears of its end, when nothing of the memory is used any more.
    ///
    /// An error of any operation is the end of the road on all ranks: they are no longer in step.
    fn issue(&self, group: Vec<(Ordered, Done<()>)>);

    /// Ends everything that was issued with this cause, and what will be, whatever the other ranks do. Does not wait. Idempotent.
    fn abort(&self, cause: Error);

    /// Ends what is under way, and the threads of the road. Idempotent.
    fn shutdown(&self);
}

/// Makes the road of one rank, once all ranks have met.
pub type MakeRoad = Box<dyn FnOnce(Team) -> Result<Arc<dyn DeviceRoad>> + Send>;

/// Tells the ranks of a PCIe group one short notice of their first rank: the name under which their devices find each other.
pub trait Bulletin: Send + Sync {
    /// The notice about another of the first rank's devices.
    fn about(&self, device_index: u8) -> Arc<dyn Bulletin>;

    /// Publishes the notice; called by the first rank. Only the first call counts.
    ///
    /// # Panics
    /// If the notice is empty or longer than [`NOTICE_BYTES_MAX`], or if this is not the first rank.
    fn post(&self, notice: &[u8]);

    /// The notice. `None` if it was not published within `patience`, or if `gives_up` became true before.
    fn read(&self, patience: Duration, gives_up: &dyn Fn() -> bool) -> Option<Vec<u8>>;
}

/// The longest notice of a [`Bulletin`], in bytes.
pub const NOTICE_BYTES_MAX: usize = 256;

/// The ranks that reduce memory of their devices with each other, for the road of one of them.
#[derive(Clone)]
pub struct Team {
    /// The position of this rank among them.
    pub me: usize,
    /// How many they are.
    pub ranks: usize,
    /// What the first of them has to tell the others.
    pub bulletin: Arc<dyn Bulletin>,
    /// How long the others may take to come.
    pub join_timeout: Duration,
    /// How long an operation may take.
    pub step_timeout: Duration,
    /// A monotonic clock.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("me", &self.me).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}
