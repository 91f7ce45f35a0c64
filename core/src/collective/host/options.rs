//! The options with which the ranks of a machine meet.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::agreement::Last;
use crate::collective::{LocalRank, MakeDeviceCollective, Traffic};
use crate::config::NanCheck;
use crate::error::Result;
use crate::local::PrivateSocket;
use crate::mem::{Copies, Doubt};
use crate::types::{Epoch, Goal, Time};
use crate::wire::frame::Stall;

/// Who hears of sums among the ranks of a machine. None of these may block.
pub struct Hears {
    /// Called on the first rank for each sum that waits for other ranks for too long, also repeatedly.
    pub on_stall: Box<dyn Fn(Stall) + Send>,
    /// Called on the first rank for each sum to which all have come.
    pub on_last: Box<dyn Fn(Last) + Send>,
    /// Called for each operation that this rank begins.
    pub on_begun: Box<dyn Fn(Begun) + Send>,
}

impl Default for Hears {
    /// Nobody.
    fn default() -> Self {
        Self { on_stall: Box::new(|_| ()), on_last: Box::new(|_| ()), on_begun: Box::new(|_| ()) }
    }
}

/// An operation that a rank begins.
#[derive(Debug)]
pub struct Begun {
    /// Its goal.
    pub goal: Goal,
    /// How long the rank waited for the others since it was ready.
    pub waited: Duration,
}

/// How to meet the other ranks of a machine.
pub struct HostOptions {
    /// The job's name.
    pub job: String,
    /// The membership in which they meet. They have its term in common; its number may differ, where one has missed a view.
    pub epoch: Epoch,
    /// The ranks of this machine in ascending order, at most [`Order::RANKS_MAX`](crate::collective::order::Order::RANKS_MAX). The first
    /// leads.
    pub ranks: Vec<LocalRank>,
    /// The position of this process among them.
    pub me: usize,
    /// The positions of the ranks of its PCIe group, including its own, ascending. Only these reduce device memory with each other.
    pub group: Vec<usize>,
    /// The listening socket of this process. Only the first rank of several needs it.
    pub listener: Option<Arc<PrivateSocket>>,
    /// Whether this rank has met others before. Then one that cannot be reached may be about to hear of the same view, or may have left.
    pub is_again: bool,
    /// As [`Party::goes_on`](crate::collective::agreement::Party::goes_on).
    pub goes_on: bool,
    /// How long the other ranks may take to join.
    pub join_timeout: Duration,
    /// How long a sum may take.
    pub step_timeout: Duration,
    /// How long a sum may wait for other ranks before the first rank reports it. Zero for never.
    pub stall_warn: Duration,
    /// Who hears of sums.
    pub hears: Hears,
    /// Called with the position of a rank whose process has ended, in a job that goes on. Must not block.
    pub on_lost: Box<dyn Fn(usize) + Send>,
    /// Every `oldest_every`-th sum is the oldest. 0 for never.
    pub oldest_every: u32,
    /// What becomes of contributions of this rank that are not finite. The others look for it too, as far as they add them.
    pub nan_check: NanCheck,
    /// Counts the bytes that are copied into shared memory.
    pub copies: Copies,
    /// Counts the bytes that go between devices.
    pub traffic: Traffic,
    /// Makes the transport for device memory. If there is none, this is the error for callers that submit an operation on device memory.
    pub devices: Result<MakeDeviceCollective>,
    /// Raised as long as a device may still write memory of an operation that was reported.
    pub doubt: Doubt,
    /// A monotonic clock that all ranks of the machine share.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}
