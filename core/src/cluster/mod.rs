//! A node's side of the job's membership.
//!
//! [`Member`] speaks the control protocol with the coordinator: it joins, keeps the connection alive, asks for layouts and barriers,
//! and tells its process when the job is over and why. What a membership *is* stands in [`View`](crate::types::View). The
//! coordinator, in the server crate, decides it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{PartLayout, Process, TensorKey, View};
use crate::wire::Frame;
use crate::wire::frame::Stall;

mod declarations;
mod line;
mod member;
mod requests;

pub use member::Member;

/// What a process is and how long it waits.
#[derive(Clone, PartialEq, Debug)]
pub struct MemberConfig {
    /// What it says of itself.
    pub process: Process,
    /// The rank or index it must have; any if absent.
    pub requested: Option<u32>,
    /// How many workers the job must have; 0 if this process does not know.
    pub workers: u32,
    /// How many servers the job must have; 0 if this process does not know.
    pub servers: u32,
    /// Where the driver dials to, for messages.
    pub coordinator: String,
    /// A sign of life is sent this often.
    pub heartbeat_interval: Duration,
    /// From the start until the job must have formed.
    pub join_timeout: Duration,
    /// How long a formed job goes on without a word from the coordinator.
    pub control_lost_timeout: Duration,
    /// The pause before the second attempt to connect; doubles with each failure.
    pub redial_min: Duration,
    /// The longest pause.
    pub redial_max: Duration,
}

/// What a [`Member`] wants of its driver, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberCommand {
    /// Connect to the coordinator; report by `handle_connected` or `handle_disconnected`.
    Dial,
    /// Send on the current connection.
    Send(Frame),
    /// Close the connection, or stop connecting, once everything was sent. Nothing needs to be reported any more.
    Hangup,
    /// Tell the process.
    Event(MemberEvent),
}

/// What a process learns of its job.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberEvent {
    /// The job formed. Comes once, before any other view.
    Joined {
        /// This process's rank or server index.
        index: u32,
        /// All members.
        view: View,
    },
    /// The membership changed and the job goes on: this view replaces the one before as a whole. Each view comes once, in the order of
    /// their epochs. The view that ends the job comes to servers only, because it says which workers were lost before; for workers
    /// [`MemberEvent::Failed`] or [`MemberEvent::Left`] says all.
    View(View),
    /// Answers [`Member::declare`].
    Declared {
        /// Of the declaration.
        request: u64,
        /// Every part that holds bytes of the declared tensors, or why they cannot be used.
        outcome: Result<Vec<PartLayout>>,
    },
    /// Answers [`Member::barrier`].
    BarrierDone {
        /// Of the arrival.
        request: u64,
        /// Passed, or why not.
        outcome: Result<()>,
    },
    /// This tensor failed for good on every worker. May be repeated after a reconnection.
    Forget {
        /// Which tensor.
        key: TensorKey,
        /// Why.
        error: Error,
    },
    /// A tensor waits for some ranks; for the log.
    StallNotice {
        /// Its name.
        tensor: String,
        /// What its server reported.
        stall: Stall,
        /// What the missing ranks did last.
        detail: String,
    },
    /// The job is over for this process, with the original cause: refused, aborted, fenced, the coordinator lost, not joined in time.
    Failed(Error),
    /// The job is over in order.
    Left,
}
