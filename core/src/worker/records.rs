//! The records that the worker keeps of submissions and tasks, and the facts that it gets about tensors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::command::Held;
use super::recovery::Kept;
use crate::codec::{self, Coding};
use crate::error::{Error, Result};
use crate::mem::Ordinal;
use crate::pipeline::Route;
use crate::pipeline::registry::ReadyPart;
use crate::sched::{GroupId, TaskId};
use crate::types::{
    CodecSpec, Defect, Demand, DeviceKind, Effect, InCopies, Priority, RowsCut, TensorKey, Time, WorkerSet, planted,
};
use crate::wire::Body;

/// What is asked of the tensors of a submission.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// The same of all of them.
    pub demand: Demand,
    /// The submission fails after this long.
    pub timeout: Option<Duration>,
}

/// A tensor whose memory the caller lends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Its key.
    pub key: TensorKey,
    /// Its length.
    pub bytes: u64,
    /// The device in whose memory it lies; `None` for host memory.
    pub device: Option<Ordinal>,
    /// What copies of that device do with it and its codec.
    pub in_copies: InCopies,
    /// Whether its sum goes to the memory of its contribution.
    pub in_place: bool,
    /// How urgent it is.
    pub priority: Priority,
    /// Of a table: what goes to each of its parts, in their order. `None` of tensors whose parts have their places in its memory.
    pub cuts: Option<Arc<[RowsCut]>>,
}

/// A batch that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The id of its first submission; the others have the ids that follow.
    pub first: u64,
    /// The members of the batch in each submission.
    pub submissions: Vec<Members>,
}

/// The members of a batch that form one submission. Members count from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Members {
    /// One tensor.
    One(usize),
    /// Tensors that fill a part, in piece order.
    Whole(Vec<usize>),
}

impl Members {
    /// The members as a slice.
    pub fn as_slice(&self) -> &[usize] {
        match self {
            Self::One(member) => std::slice::from_ref(member),
            Self::Whole(members) => members,
        }
    }
}

/// The open submissions of a batch. The batch ends with its last submission, and with the error of the first submission that failed.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Submissions that have not ended.
    open: usize,
    /// The error of the first submission that failed.
    failed: Option<Error>,
    defect: Option<Defect>,
}

impl Tally {
    /// A batch of this many submissions, at least one. `defect` is a mistake to make on purpose, for the simulation.
    pub const fn new(submissions: usize, defect: Option<Defect>) -> Self {
        Self { open: submissions, failed: None, defect }
    }

    /// One of its submissions ended. Returns the outcome of the batch if that was the last one.
    pub fn ended(&mut self, outcome: Result<()>) -> Option<Result<()>> {
        self.open -= 1;
        if let Err(error) = outcome {
            // Later errors are often caused by the first one.
            self.failed.get_or_insert(error);
        }
        let last = usize::from(planted(self.defect, Defect::BatchEndsEarly));
        (self.open == last).then(|| self.failed.take().map_or(Ok(()), Err))
    }
}

/// A submission that has not ended.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) tensors: Tensors,
    pub(super) terms: Terms,
    pub(super) bytes: u64,
    pub(super) priority: Priority,
    pub(super) submitted: Time,
    pub(super) deadline: Option<Time>,
    /// While it is parked: when its declaration must be answered.
    pub(super) declared_until: Time,
    /// Absent while the submission is parked.
    pub(super) group: Option<GroupId>,
    /// How many of its parts are not on their device yet with all of their work.
    pub(super) unissued: u32,
    /// Of a parameter: what the use of its parts has come to so far.
    pub(super) effect: Option<Effect>,
}

/// The tensors of a submission; several are in piece order. A single one costs no allocation.
#[derive(Debug)]
pub(super) enum Tensors {
    One(Tensor),
    Whole(Vec<Tensor>),
}

impl Tensors {
    pub(super) fn as_slice(&self) -> &[Tensor] {
        match self {
            Self::One(tensor) => std::slice::from_ref(tensor),
            Self::Whole(tensors) => tensors,
        }
    }
}

/// A place in the queue of a tensor that waits for the answer to its declaration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) submission: u64,
    pub(super) demand: Demand,
}

/// Names that this worker uses no more, until the coordinator will hear of it.
#[derive(Debug)]
pub(super) struct Ending {
    /// Empty once the driver has them.
    pub(super) names: Vec<String>,
    pub(super) keys: BTreeSet<TensorKey>,
    /// What is left to do for them.
    pub(super) tasks: BTreeSet<TaskId>,
}

/// The body of a part on its way to its server and back; of a codec whose bodies vary in length, the longest that there can be. Memory and
/// credit are taken for it.
pub(super) fn longest_body(part: &ReadyPart, coding: Option<Coding>) -> Body {
    let codec = coding.map_or(CodecSpec::PLAIN, |coding| coding.codec);
    let bytes = codec::body_bytes(codec, part.layout.dtype, part.layout.bytes()).max();
    Body { bytes, codec, refused: false }
}

/// How a part goes through a formation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Plan {
    /// Decides which stages it passes.
    pub(super) route: Route,
    /// As in [`Record`].
    pub(super) coding: Option<Coding>,
    /// As in [`Record`].
    pub(super) in_copies: InCopies,
    /// As in [`Record`].
    pub(super) is_overwritten: bool,
    /// As in [`Record`].
    pub(super) lands_beside: bool,
}

impl Plan {
    /// Makes it the way of this task.
    pub(super) fn note_in(self, record: &mut Record) {
        let Self { route: _, coding, in_copies, is_overwritten, lands_beside } = self;
        (record.coding, record.in_copies) = (coding, in_copies);
        (record.is_overwritten, record.lands_beside) = (is_overwritten, lands_beside);
    }
}

/// What the machine keeps of a task.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) part: ReadyPart,
    pub(super) memory: DeviceKind,
    /// How it is encoded on its way to the server and back; `None` if its body is plain.
    pub(super) coding: Option<Coding>,
    /// What travels: the contribution, from COMPRESS on as it was encoded, and once the sum has landed the sum. A repeat sends what the first
    /// attempt sent.
    pub(super) body: Body,
    /// What the device does in its copies, instead of the host.
    pub(super) in_copies: InCopies,
    /// Whether the sum lands on what is pushed. Otherwise the contribution is whole after every failed exchange.
    pub(super) is_overwritten: bool,
    /// Whether the sum lands in memory of the engine, because its own place holds what is pushed, and that is kept until the sum is whole.
    pub(super) lands_beside: bool,
    pub(super) priority: Priority,
    pub(super) held: Option<Held>,
    /// The team that does its operation with the others of this machine, if one is under way.
    pub(super) met_by: Option<u32>,
    /// Whether it begins again once its present stage has ended, because the ranks that reduced it are others now.
    pub(super) begins_again: bool,
    /// When its latest exchange began.
    pub(super) asked: Option<Time>,
    /// If it is encoded with error feedback: the workers from which its round was due when its latest exchange began.
    pub(super) due: Option<WorkerSet>,
    /// Whether its current stage should end early.
    pub(super) abandoned: bool,
    /// What the task does, if no submission waits for it.
    pub(super) errand: Option<Errand>,
    /// Of a part of a table: what its use sends there, and what comes back.
    pub(super) rows: Option<RowsCut>,
}

/// What a task does for other workers alone.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Errand {
    /// It tells a server that this worker withdraws, by a message of this length.
    Withdraw(u64),
    /// It brings a sum to a server that has it not.
    Restore(Kept),
}

impl Record {
    /// Makes it a use of rows.
    pub(super) fn note_rows(&mut self, rows: Option<RowsCut>) {
        if let Some(RowsCut { sent, got, .. }) = rows {
            self.body.bytes = sent.bytes.max(got.bytes);
        }
        self.rows = rows;
    }

    /// A task at its start: nothing of it is under way.
    pub(super) fn new(part: ReadyPart, memory: DeviceKind, coding: Option<Coding>, priority: Priority) -> Self {
        Self {
            body: longest_body(&part, coding),
            part,
            memory,
            coding,
            in_copies: InCopies::Nothing,
            is_overwritten: false,
            lands_beside: false,
            priority,
            held: None,
            met_by: None,
            begins_again: false,
            asked: None,
            due: None,
            abandoned: false,
            errand: None,
            rows: None,
        }
    }
}
