//! How the ranks of a machine are told of each other before they meet.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::{LocalRank, MakeRoad};
use crate::error::Result;
use crate::local::PrivateSocket;
use crate::mem::Copies;
use crate::types::{Epoch, Time};

/// How to meet the other ranks of a machine.
pub struct HostOptions {
    /// The job's name.
    pub job: String,
    /// The membership in which it is done.
    pub epoch: Epoch,
    /// The ranks of this machine in ascending order, at most [`Order::RANKS_MAX`](crate::collective::order::Order::RANKS_MAX); the first leads.
    pub ranks: Vec<LocalRank>,
    /// The position of this process among them.
    pub me: usize,
    /// The positions of those whose devices are of its PCIe group, itself among them, ascending: they alone reduce memory of devices with
    /// each other.
    pub group: Vec<usize>,
    /// Where this process listens; the first needs it.
    pub listener: Option<PrivateSocket>,
    /// How long the others may take to come.
    pub join_timeout: Duration,
    /// How long a sum may take.
    pub step_timeout: Duration,
    /// Every so many sums the oldest goes first.
    pub oldest_every: u32,
    /// Counts what is copied into shared memory.
    pub copies: Copies,
    /// How operations on memory of devices are carried out, or the error for callers that submit one.
    pub devices: Result<MakeRoad>,
    /// A monotonic clock.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}
