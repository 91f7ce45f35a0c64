//! The options with which the ranks of a machine meet.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::{LocalRank, MakeDeviceCollective, Traffic};
use crate::error::Result;
use crate::local::PrivateSocket;
use crate::mem::{Copies, Doubt};
use crate::types::{Epoch, Time};
use crate::wire::frame::Stall;

/// How to meet the other ranks of a machine.
pub struct HostOptions {
    /// The job's name.
    pub job: String,
    /// The epoch in which they meet.
    pub epoch: Epoch,
    /// The ranks of this machine in ascending order, at most [`Order::RANKS_MAX`](crate::collective::order::Order::RANKS_MAX). The first
    /// leads.
    pub ranks: Vec<LocalRank>,
    /// The position of this process among them.
    pub me: usize,
    /// The positions of the ranks of its PCIe group, including its own, ascending. Only these reduce device memory with each other.
    pub group: Vec<usize>,
    /// The listening socket of this process. Only the first rank needs it.
    pub listener: Option<PrivateSocket>,
    /// How long the other ranks may take to join.
    pub join_timeout: Duration,
    /// How long a sum may take.
    pub step_timeout: Duration,
    /// How long a sum may wait for other ranks before the first rank reports it. Zero for never.
    pub stall_warn: Duration,
    /// Called for each such sum, also repeatedly. Must not block.
    pub on_stall: Box<dyn Fn(Stall) + Send>,
    /// Every `oldest_every`-th sum is the oldest. 0 for never.
    pub oldest_every: u32,
    /// Counts the bytes that are copied into shared memory.
    pub copies: Copies,
    /// Counts the bytes that go between devices.
    pub traffic: Traffic,
    /// Makes the transport for device memory. If there is none, this is the error for callers that submit an operation on device memory.
    pub devices: Result<MakeDeviceCollective>,
    /// Raised as long as a device may still write memory of an operation that was reported.
    pub doubt: Doubt,
    /// A monotonic clock.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}
