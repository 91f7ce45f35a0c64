//! The words between a [`Worker`](super::Worker) and its driver.

use std::time::Duration;

use crate::codec::Coding;
use crate::error::{Error, Result};
use crate::pipeline::Stage;
use crate::sched::{Outcome, StallReport, Task, TaskId};
use crate::types::{Claim, ExchangeId, Goal, LinkId, NodeId, ServerId, Slot, Span, TensorSpec};
use crate::wire::Request;

/// What the driver has to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// [`take`](super::Worker::take) may have a step for this stage.
    Wake(Stage),
    /// A new task: keep what it moves until [`Command::Release`].
    Carry {
        /// Which task.
        task: TaskId,
        /// What it moves.
        load: Load,
    },
    /// Ask the transport or the collective to end this early. Its end is reported as always.
    Abandon(Held),
    /// Tell the other ranks of this machine that this one will not take part in an operation that it was never handed.
    Decline(Slot),
    /// Only while a timeline is recorded ([`set_timeline`](super::Worker::set_timeline)): a stage of this task ended.
    Finished {
        /// Which task.
        task: TaskId,
        /// How the stage ended.
        outcome: Outcome,
    },
    /// The task is gone: drop what it moved.
    Release(TaskId),
    /// A submission ended, and no task holds its memory. Comes once for each submission.
    Resolve {
        /// Which submission.
        submission: u64,
        /// How many tensors it has.
        tensors: u64,
        /// How it ended.
        outcome: Result<()>,
    },
    /// Ask the coordinator for the layout of these tensors; report by [`handle_declared`](super::Worker::handle_declared).
    Declare {
        /// Names the declaration in the report.
        request: u64,
        /// Which tensors.
        tensors: Vec<TensorSpec>,
        /// Whether small neighbours may share parts.
        fuse: bool,
    },
    /// Connect to a server.
    Dial(Dial),
    /// Close a link that no server of the view has any more.
    Disconnect(LinkId),
    /// Warn that a submission does not move.
    Warn(Stuck),
    /// The job failed: end at once what the ranks of this machine do together.
    Abort(Error),
    /// Everything that this worker had to tell before it leaves is told, or the time for it has passed: tell the coordinator that it leaves.
    Leave,
}

/// What a task moves.
#[derive(Clone, PartialEq, Debug)]
pub enum Load {
    /// The tensors of submissions: [`pieces`](super::Worker::pieces) says which.
    Pieces,
    /// These bytes, which tell the server why this worker withdraws from a round. Nothing comes back.
    Message(Vec<u8>),
}

/// A run of bytes of a submission's tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which submission.
    pub submission: u64,
    /// Which of its tensors.
    pub tensor: usize,
    /// Which of the tensor's bytes.
    pub span: Span,
}

/// Something that uses the memory of a task and can be asked to let go of it. A copy of a device is not asked: it ends soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// An exchange with a server.
    Exchange(ExchangeId),
    /// An operation of the ranks of this machine.
    Operation(Slot),
}

/// Where to connect to. The end is reported by [`handle_dialled`](super::Worker::handle_dialled), and by
/// [`handle_link_lost`](super::Worker::handle_link_lost) once a link that came up is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dial {
    /// Which server.
    pub server: ServerId,
    /// Names the attempt in the reports.
    pub attempt: u64,
    /// How to reach it.
    pub to: Destination,
    /// How long to try.
    pub timeout: Duration,
}

/// A server as a worker reaches it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Destination {
    /// `host:port`.
    pub address: String,
    /// Path of the socket at which processes of its machine reach it; empty if this worker is on another machine.
    pub socket_path: String,
    /// The identity that its certificate must prove.
    pub node: NodeId,
    /// For messages, such as `server 1`.
    pub name: String,
}

/// A submission that does not move.
#[derive(Clone, PartialEq, Debug)]
pub struct Stuck {
    /// Where it is.
    pub report: StallReport,
    /// The tensors that share a part with it and were not submitted on this worker.
    pub missing: Vec<String>,
}

/// One stage of one task, to be executed now.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Which task.
    pub task: Task,
    /// The stage.
    pub stage: Stage,
    /// What to do.
    pub action: Action,
}

/// What a stage does with a task.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Send `header` and what follows it: the contribution or the message that the task carries, or nothing. Report by [`handle_pushed`](super::Worker::handle_pushed).
    Push {
        /// To where.
        link: LinkId,
        /// Names the exchange.
        exchange: ExchangeId,
        /// Opens the exchange. The driver adds a checksum, if the link needs one.
        header: Request,
    },
    /// Wait for the sum and land it where the task's result goes; report by [`handle_pulled`](super::Worker::handle_pulled).
    Pull {
        /// The exchange that the task's PUSH opened.
        exchange: ExchangeId,
    },
    /// Stage the contribution in host memory; report by [`handle_copied`](super::Worker::handle_copied).
    CopyToHost {
        /// The bytes to be staged.
        bytes: u64,
        /// How the device encodes what it copies, if it does.
        coding: Option<Coding>,
        /// The link over which the staged bytes will go, if there is one now.
        link: Option<LinkId>,
        /// Whether there is anything to copy. If not, the sum needs the staging memory all the same.
        contributes: bool,
    },
    /// Copy the staged sum to where the task's result goes; report by [`handle_copied`](super::Worker::handle_copied).
    CopyToDevice {
        /// How the device decodes what it copies, if it does.
        coding: Option<Coding>,
    },
    /// Encode the contribution into memory from which it is pushed and where its sum lands; report by
    /// [`handle_coded`](super::Worker::handle_coded).
    Encode {
        /// How.
        coding: Coding,
        /// The link over which the body will go, if there is one now.
        link: Option<LinkId>,
    },
    /// Decode the sum to where the task's result goes; report by [`handle_coded`](super::Worker::handle_coded).
    Decode {
        /// How it is encoded.
        coding: Coding,
    },
    /// Do this together with the other ranks of the machine; report by [`handle_met`](super::Worker::handle_met).
    Meet(Meeting),
}

/// An operation of the ranks of one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Meeting {
    /// What comes of it.
    pub goal: Goal,
    /// What this rank claims the part to be.
    pub claim: Claim,
    /// Why this rank has nothing of what the others wait for.
    pub failure: Option<Error>,
    /// Which memory it uses.
    pub memory: Use,
    /// Whether the contribution lies, once it is done, where the result goes: this rank then has the sum of several.
    pub takes: bool,
}

/// Which memory of a task an operation uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// From where the contribution lies to where the result goes.
    Tensors,
    /// What was staged.
    Staged,
    /// The result, which has been received: from now on it is the contribution, and nothing is staged any more.
    Received,
}

/// How an exchange ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Exchanged {
    /// The sum lies where it was wanted.
    Sum,
    /// The server's reason not to give it.
    Rejected(Error),
    /// It broke off, after so many bytes of the sum had been written where it lands.
    Torn {
        /// The cause.
        error: Error,
        /// Bytes of the sum.
        landed: u64,
    },
}
