//! A node's side of the job's membership.
//!
//! [`Member`] speaks the control protocol with the coordinator: it joins, keeps the connection alive, asks for layouts, barriers and
//! the store, and tells its process when the job is over and why. [`View`](crate::types::View) describes the membership. The coordinator, in the
//! server crate, decides it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{
    Answer, Closing, ControlCommand, Defect, Epoch, Order, PartLayout, Passage, Process, Setup, SumId, TensorKey, Time,
    View, WorkersKey,
};
use crate::wire::Frame;
use crate::wire::frame::{Hold, Stall};
use crate::wire::limits::NAME_BYTES_MAX;

mod asks;
mod contact;
mod declarations;
mod entries;
mod line;
mod member;
mod obeying;
mod offsets;
mod requests;
mod steps;

pub mod ticks;

pub use contact::{Contact, ContactTerms, Patience};
pub use entries::Entries;
pub use member::Member;
pub use offsets::{Exchange, Offset, Offsets};
pub use steps::{Begin, Steps, left_at};

/// The identity of a process in a job, and its timeouts.
#[derive(Clone, PartialEq, Debug)]
pub struct MemberConfig {
    /// The description of itself that it sends.
    pub process: Process,
    /// The rank or index that it must have. Any if absent.
    pub requested: Option<u32>,
    /// How many workers the job must have; 0 if this process does not know.
    pub workers: u32,
    /// How many servers the job must have; 0 if this process does not know.
    pub servers: u32,
    /// The address of the coordinator, for error messages.
    pub coordinator: String,
    /// The time between two heartbeats.
    pub heartbeat_interval: Duration,
    /// A connection on which the coordinator was silent for so long is given up, and the coordinator is dialled again. Longer than
    /// `heartbeat_interval`, because the coordinator answers each heartbeat.
    pub silence_max: Duration,
    /// While the job forms, this process says in this interval why it has not formed yet; zero means never.
    pub warn_after: Duration,
    /// The time from the start until the job must have formed.
    pub join_timeout: Duration,
    /// How long a formed job goes on without a frame from the coordinator.
    pub control_lost_timeout: Duration,
    /// How patient it is without a coordinator, in a job that goes on without lost workers.
    pub contact: Option<ContactTerms>,
    /// How long it goes on if another coordinator answers in the place of its own: by then its own would have given it up, if it lived.
    pub replaced_timeout: Duration,
    /// The pause before the second attempt to connect. It doubles with each failure.
    pub redial_min: Duration,
    /// The longest pause between two attempts.
    pub redial_max: Duration,
    /// What it runs and its settings, which it tells the coordinator.
    pub setup: Setup,
    /// A defect to plant, in tests.
    pub defect: Option<Defect>,
}

/// A command of a [`Member`] for its driver. The driver carries them out in order.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberCommand {
    /// Connect to the coordinator. Report the outcome with `handle_connected` or `handle_disconnected`, or with `handle_undialled` if this
    /// process cannot even begin to connect. If there is a connection, the
    /// coordinator does not answer on it: give it up without waiting, and report nothing more of it.
    Dial,
    /// Send on the current connection.
    Send(Frame),
    /// Close the connection, or stop connecting, once everything was sent. The driver need not report anything any more.
    Hangup,
    /// Tell the log why the job has not formed yet.
    SayWhy {
        /// How long this process has waited for it.
        waited: Duration,
        /// Which processes are missing, or why the coordinator is not reached.
        reason: String,
    },
    /// Tell the process this event.
    Event(MemberEvent),
}

/// An event of the job, for the process.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberEvent {
    /// The job formed. Comes once, before any other view.
    Joined {
        /// This process's rank or server index.
        index: u32,
        /// All members.
        view: View,
    },
    /// The membership changed and the job goes on. This view replaces the one before as a whole. Each view comes once, in the order of the
    /// epochs. The view that ends the job comes to servers only, because it says which workers were lost before. A worker gets
    /// [`MemberEvent::Failed`] or [`MemberEvent::Left`] instead.
    View(View),
    /// Answers [`Member::declare`].
    Declared {
        /// The number of the declaration.
        request: u64,
        /// Every part that holds bytes of the declared tensors, or the error if they cannot be used.
        outcome: Result<Vec<PartLayout>>,
    },
    /// Answers [`Member::barrier`].
    BarrierDone {
        /// The number of the arrival.
        request: u64,
        /// Passed, or the error.
        outcome: Result<()>,
    },
    /// To servers: how a round of a clock is closed. May be said again.
    Close(Closing),
    /// To servers: do this for a checkpoint, and say so by [`Member::report_obeyed`]. May be said again.
    Order(Order),
    /// Obey this command of an operator, and say so by [`Member::report_commanded`].
    Command {
        /// The number of the command.
        number: u64,
        /// What to do.
        command: ControlCommand,
    },
    /// Answers [`Member::ask_coordinator`].
    Answered {
        /// The number of the request.
        request: u64,
        /// The answer, or the error.
        outcome: Result<Answer>,
    },
    /// These tensors have ended: no worker uses their names any more. Comes to servers, and may be repeated after a reconnection.
    Ended {
        /// The tensors.
        keys: Vec<TensorKey>,
        /// All their parts lie below this index. If a name is declared again, its parts lie above.
        below: u32,
    },
    /// Answers [`Member::renew`].
    Renewed {
        /// The next certificate of this process, in DER, or the error.
        outcome: Result<Vec<u8>>,
    },
    /// The key that only the coordinator and the workers have. Comes to workers, before [`MemberEvent::Joined`], and is repeated after a
    /// reconnection.
    WorkersKey(WorkersKey),
    /// This tensor failed for good on every worker. May be repeated after a reconnection.
    Forget {
        /// The tensor.
        key: TensorKey,
        /// The reason.
        error: Error,
    },
    /// The membership is to change at a boundary between steps; see [`Steps::handle_boundary`]. May be repeated after a reconnection.
    Boundary {
        /// The number of the change.
        change: u64,
        /// The last step that this worker may begin, once it is known.
        limit: Option<u64>,
        /// If the workers stand there until others have come.
        hold: Option<Hold>,
    },
    /// Bring these sums to the servers of their parts, and say so by [`Member::report_restored`]. Comes to workers, and may be repeated.
    Restore {
        /// The view whose lost servers had them.
        epoch: Epoch,
        /// Which sums.
        sums: Vec<SumId>,
        /// Sums that this worker waits for and nobody has.
        lost: Vec<SumId>,
    },
    /// This change is over; see [`Steps::handle_passed`]. May be repeated after a reconnection.
    Passed {
        /// The number of the change.
        change: u64,
        /// The passage, or why there was none.
        outcome: Result<Passage>,
    },
    /// The coordinator is out of contact, or is back. Comes after [`MemberEvent::Joined`], at each change.
    Contact {
        /// Since when.
        at: Time,
        /// Whether it is out of contact.
        is_lost: bool,
    },
    /// A tensor waits for some ranks. This is for the log.
    StallNotice {
        /// Its name.
        tensor: String,
        /// The report of its server.
        stall: Stall,
        /// The last work of the missing ranks.
        detail: String,
    },
    /// The job is over for this process because of this error. It is the original cause: the process was refused or fenced or did not join
    /// in time, the job was aborted, or the coordinator was lost.
    Failed(Error),
    /// The job is over for this process, without an error.
    Left,
}

/// The name of the barrier at which the workers meet if a tensor has no elements, because nothing of such a tensor is sent.
pub fn empty_barrier(tensor: &str) -> String {
    const WORDS: &str = "workers without elements of tensor";
    let named = format!("{WORDS} {tensor}");
    if named.len() <= NAME_BYTES_MAX { named } else { format!("{WORDS} {}", TensorKey::of(tensor)) }
}
