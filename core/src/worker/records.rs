//! What the machine keeps of submissions and tasks, and what it is told of tensors.

use std::time::Duration;

use super::command::Held;
use crate::codec::{self, Coding};
use crate::error::{Error, Result};
use crate::mem::Ordinal;
use crate::pipeline::registry::ReadyPart;
use crate::sched::GroupId;
use crate::types::{Defect, DeviceKind, Encoding, Op, Priority, TensorKey, Time, planted};
use crate::wire::Body;

/// How the tensors of a submission are reduced.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// How the contributions become one.
    pub op: Op,
    /// This worker's weight in a weighted mean; 1 elsewhere.
    pub weight: f64,
    /// The submission fails after this long.
    pub timeout: Option<Duration>,
}

/// A tensor whose memory is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Which.
    pub key: TensorKey,
    /// Its length.
    pub bytes: u64,
    /// The device in whose memory it lies; `None` for host memory.
    pub device: Option<Ordinal>,
    /// Whether copies of that device encode and decode it as its codec says.
    pub device_encodes: bool,
    /// How urgent it is.
    pub priority: Priority,
}

/// A batch that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The id of its first submission; the others have the ids that follow.
    pub first: u64,
    /// Which members of the batch each submission has.
    pub submissions: Vec<Members>,
}

/// The members of a batch that are one submission. Members count from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Members {
    /// One tensor.
    One(usize),
    /// Tensors that fill a part, in piece order.
    Whole(Vec<usize>),
}

impl Members {
    /// Which members.
    pub fn as_slice(&self) -> &[usize] {
        match self {
            Self::One(member) => std::slice::from_ref(member),
            Self::Whole(members) => members,
        }
    }
}

/// What is left of a batch: it ends with its last submission, and with the error of the first that failed.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Submissions that have not ended.
    open: usize,
    /// Why the first one failed that did.
    failed: Option<Error>,
    defect: Option<Defect>,
}

impl Tally {
    /// A batch of so many submissions, at least one. `defect` is a mistake to make, for the simulation.
    pub const fn new(submissions: usize, defect: Option<Defect>) -> Self {
        Self { open: submissions, failed: None, defect }
    }

    /// One of its submissions ended; how the batch did, if that was the last one.
    pub fn ended(&mut self, outcome: Result<()>) -> Option<Result<()>> {
        self.open -= 1;
        if let Err(error) = outcome {
            // Those after it often failed by it.
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
    /// Absent while parked.
    pub(super) group: Option<GroupId>,
}

/// In piece order if they are several. A single one costs no allocation.
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
    pub(super) op: Op,
    pub(super) weight: f64,
}

/// What a part is on its way to its server and back.
pub(super) fn body(part: &ReadyPart, coding: Option<Coding>) -> Body {
    let encoding = coding.map_or(Encoding::Plain, |coding| coding.encoding);
    let bytes = codec::body_bytes(encoding, part.layout.dtype, part.layout.bytes()).max();
    Body { bytes, encoding }
}

/// What the machine keeps of a task.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) part: ReadyPart,
    pub(super) memory: DeviceKind,
    /// How it is encoded on its way to the server and back; `None` if its body is plain.
    pub(super) coding: Option<Coding>,
    /// Whether the device does so in its copies, and not the host.
    pub(super) coded_by_device: bool,
    pub(super) priority: Priority,
    pub(super) held: Option<Held>,
    /// The stage that it is in shall end early.
    pub(super) abandoned: bool,
    /// The length of the message that is all it carries, if it tells a server that this worker withdraws.
    pub(super) message: Option<u64>,
}
