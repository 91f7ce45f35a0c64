//! The messages between a [`Worker`](super::Worker) and its driver.

use std::time::Duration;

use crate::codec::Coding;
use crate::codec::feedback::Start;
use crate::error::{Error, Result};
use crate::pipeline::Stage;
use crate::sched::{Outcome, StallReport, Task, TaskId};
use crate::types::{
    Claim, Declined, Effect, Epoch, ExchangeId, Goal, Holdings, LinkId, PartId, Peer, ServerId, Slot, Span, TensorSpec,
    Time,
};
use crate::wire::{Body, Contributors, Request};

/// An instruction that the driver must carry out.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// [`take`](super::Worker::take) may have a step for this stage.
    Wake(Stage),
    /// A new task: keep the memory that it moves until [`Command::Release`].
    Carry {
        /// Which task.
        task: TaskId,
        /// The data that it moves.
        load: Load,
    },
    /// Ask the transport or the collective to end this early. Report its end as usual.
    Abandon(Held),
    /// Tell the other members on this machine that this rank will not take part in an operation that it was never handed.
    Decline(Declined),
    /// Only while a timeline is recorded ([`set_timeline`](super::Worker::set_timeline)): a stage of this task ended.
    Finished {
        /// Which task.
        task: TaskId,
        /// Which stage.
        stage: Stage,
        /// How the stage ended.
        outcome: Outcome,
    },
    /// The task is gone: let go of the memory that it moved.
    Release(TaskId),
    /// The part has no residual any more: let go of its memory, once no step encodes with it. [`Action::Encode`] made it.
    DropResidual(PartId),
    /// All that changes the memory of a submission is on its device, and none of it has failed yet. Comes at most once for each submission,
    /// before [`Command::Resolve`], and never for a submission whose driver calls no [`handle_issued`](super::Worker::handle_issued).
    Issued {
        /// Which submission.
        submission: u64,
    },
    /// A submission ended, and no task holds its memory. Comes once for each submission.
    Resolve {
        /// Which submission.
        submission: u64,
        /// How many tensors it has.
        tensors: u64,
        /// When it was submitted.
        submitted: Time,
        /// Of a parameter: what its use has come to, if it ended well.
        effect: Option<Effect>,
        /// How it ended.
        outcome: Result<()>,
    },
    /// Tell the coordinator that this worker uses these names no more, then call
    /// [`handle_undeclared`](super::Worker::handle_undeclared).
    Undeclare {
        /// The number of the request.
        request: u64,
        /// The names.
        names: Vec<String>,
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
    /// This task begins again: let go of the memory in which it was reduced, encoded, or its sum landed, except for a sum that is kept. From
    /// now on it moves its contribution.
    StartOver(TaskId),
    /// The sum of a part has come to this task: keep its bytes as they came, in place of those of an earlier round, until
    /// [`Command::DropKept`], also when the task is released.
    Keep {
        /// Which task.
        task: TaskId,
        /// Which part.
        part: PartId,
    },
    /// Let go of the kept sum of this part, if there is one.
    DropKept(PartId),
    /// Tell the coordinator what this worker has and wants of the parts whose servers were lost.
    Report(Holdings),
    /// Tell the coordinator that servers have the sums that this worker was to restore in this epoch.
    Restored(Epoch),
    /// Connect to a server.
    Dial(Dial),
    /// Close a link to a server that is no longer in the view, or that has moved.
    Disconnect(LinkId),
    /// Warn that submissions do not move. All that wait for the same are one warning.
    Warn(Box<Stuck>),
    /// The job failed: end at once the operations that the ranks of this machine do together.
    Abort(Error),
    /// This worker cannot go on, and the job does: tell the coordinator why it ends.
    BreakDown(Error),
    /// There is another formation. Equip for the latest one: let the ranks of its team meet, if it is another team than before, and report by
    /// [`handle_equipped`](super::Worker::handle_equipped).
    Follow,
    /// This worker has sent all messages that it must send before it leaves, or the time for them has passed. Tell the coordinator that it
    /// leaves.
    Leave,
}

/// The data that a task moves.
#[derive(Clone, PartialEq, Debug)]
pub enum Load {
    /// The tensors of submissions: [`pieces`](super::Worker::pieces) says which.
    Pieces,
    /// The kept sum of a part. Nothing comes back.
    Kept {
        /// Which part.
        part: PartId,
        /// How many of its bytes came, at the front of the memory.
        bytes: u64,
    },
    /// A message of these bytes. It tells the server why this worker withdraws from a round. Nothing comes back.
    Message(Vec<u8>),
}

/// A run of bytes of a submission's tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which submission.
    pub submission: u64,
    /// Which of its tensors.
    pub tensor: usize,
    /// Which of the bytes that the caller gives.
    pub span: Span,
    /// Which of the bytes that come back.
    pub into: Span,
}

/// A user of a task's memory that can be asked to release it. A copy of a device is not asked, because it ends soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// An exchange with a server.
    Exchange {
        /// The link on which it was pushed.
        link: LinkId,
        /// Which one.
        exchange: ExchangeId,
    },
    /// An operation of the ranks of this machine.
    Operation(Slot),
}

/// A server to connect to. The end of the attempt is reported by [`handle_dialled`](super::Worker::handle_dialled). If the link came up,
/// its loss is reported later by [`handle_link_lost`](super::Worker::handle_link_lost).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dial {
    /// Which server.
    pub server: ServerId,
    /// Names the attempt in the reports.
    pub attempt: u64,
    /// How to reach it.
    pub to: Peer,
    /// How long to try.
    pub timeout: Duration,
}

/// A submission that does not move.
#[derive(Clone, PartialEq, Debug)]
pub struct Stuck {
    /// Where the submission is stuck.
    pub report: StallReport,
    /// The tensors that share a part with it and were not submitted on this worker.
    pub missing: Vec<String>,
    /// Why the server does not answer this worker, if it does not.
    pub unreachable: Option<Error>,
    /// How many other submissions wait for the same.
    pub others: usize,
}

/// One stage of one task, to be executed now.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Which task.
    pub task: Task,
    /// The stage.
    pub stage: Stage,
    /// Whether the task has its result after this step.
    pub is_last: bool,
    /// What to do.
    pub action: Action,
}

/// The action of a stage on a task.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Send `header`, and after it the contribution or the message that the task carries, or nothing. Report by
    /// [`handle_pushed`](super::Worker::handle_pushed) that all of it was handed over. Wait for the sum from now on, which lands as `landing`
    /// says. Report by [`handle_pulled`](super::Worker::handle_pulled) how the exchange ended, once.
    Push {
        /// The link to send on.
        link: LinkId,
        /// Names the exchange.
        exchange: ExchangeId,
        /// Opens the exchange. The driver adds a checksum, if the link needs one.
        header: Request,
        /// Where the sum lands.
        landing: Landing,
    },
    /// Copy the contribution to host memory. Report by [`handle_copied`](super::Worker::handle_copied); if the device encodes it and its
    /// bodies vary in length, by [`handle_encoded`](super::Worker::handle_encoded) how long it is. If the codec refuses it, copy it plain.
    CopyToHost {
        /// The bytes to be staged.
        bytes: u64,
        /// How the device encodes what it copies, if it does.
        coding: Option<Coding>,
        /// The link over which the staged bytes will go, if there is one now.
        link: Option<LinkId>,
        /// Whether there is anything to copy. If not, the staging memory is still needed for the sum.
        contributes: bool,
        /// Whether the memory in which the sum lands is to be pinned as well, because the sum lands [`Landing::Beside`] what is staged.
        lands_beside: bool,
    },
    /// Copy the staged sum to the place of the task's result; report by [`handle_copied`](super::Worker::handle_copied).
    CopyToDevice {
        /// How the device decodes what it copies, if it does, and what has landed, at the front of the memory. If the codec refused the sum,
        /// it is copied as it is.
        coding: Option<(Coding, Body)>,
    },
    /// Encode the contribution into memory from which it is pushed, and to which its sum comes back. If the codec refuses it, copy it there.
    /// Report by [`handle_encoded`](super::Worker::handle_encoded).
    Encode {
        /// The encoding.
        coding: Coding,
        /// If it has error feedback: how it uses the part's residual. The driver keeps the residual until [`Command::DropResidual`].
        residual: Option<Start>,
        /// The link over which the body will go, if there is one now.
        link: Option<LinkId>,
    },
    /// Copy the sum, which has landed [`Landing::Beside`] the contribution or was reduced [`aside`](Meeting::aside), to the place of the
    /// task's result; report by [`handle_copied`](super::Worker::handle_copied).
    Land,
    /// Decode the sum to the place of the task's result; report by [`handle_decoded`](super::Worker::handle_decoded). If a device has encoded
    /// the contribution, that place is other memory, which COPYH2D copies.
    Decode {
        /// How it is encoded.
        coding: Coding,
        /// What has landed, at the front of the memory. If the codec refused the sum, it is copied.
        body: Body,
    },
    /// Do this together with the other ranks of the machine; report by [`handle_met`](super::Worker::handle_met).
    Meet(Meeting),
}

/// Where a sum lands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// It goes to another worker. Only its header comes here, and nothing is written.
    Nowhere,
    /// In the place of the task's result, or where the task is staged or encoded.
    InPlace,
    /// In memory of its own, which a repeat uses again. Once all of it is there, this memory takes the place of that in which the task was
    /// staged or encoded. If there is none, [`Action::Land`] follows.
    Beside,
}

/// An operation of the ranks of one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Meeting {
    /// The goal of the operation.
    pub goal: Goal,
    /// This rank's description of the part.
    pub claim: Claim,
    /// Why this rank does not have the data that the others wait for, if it does not.
    pub failure: Option<Error>,
    /// Which memory it uses.
    pub memory: Use,
    /// Whether the contribution lies in the place of the result once the operation is done. Then this rank has the sum of several ranks.
    pub takes: bool,
    /// Whether the task is reduced in memory of the engine, which it gets before its first operation and has until it is released: there is
    /// the place of the result. [`Action::Land`] copies it to where it belongs.
    pub aside: bool,
    /// The team whose ranks do it; see [`Worker::team`](super::Worker::team).
    pub team: u32,
}

/// Which memory of a task an operation uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// From the place of the contribution to the place of the result.
    Tensors,
    /// The staging memory.
    Staged,
    /// The result, which has been received. From now on it is also the contribution, and nothing is staged any more.
    Received,
}

/// How an exchange ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Exchanged {
    /// The sum is in the place where it was wanted.
    Sum {
        /// Its form.
        body: Body,
        /// What it was divided by.
        divisor: f64,
        /// The workers that are in it, as its header says.
        contributors: Contributors,
    },
    /// The parameter was used, and its value is in the place where it was wanted, if it was. The use has come to this.
    Value(Effect),
    /// The server's reason for not sending it.
    Rejected(Error),
    /// The exchange broke off, after `landed` bytes of the sum had been written in place.
    Torn {
        /// The cause.
        error: Error,
        /// Bytes of the sum.
        landed: u64,
    },
}
