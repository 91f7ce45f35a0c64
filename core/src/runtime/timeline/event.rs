//! What the rows and spans of a timeline are about.

use std::borrow::Cow;
use std::sync::Arc;

use crate::types::{PartId, Priority, Round, ServerId, WorkerId};

/// One thing to write.
#[derive(Debug)]
pub enum Event {
    /// What the row of a worker's part is called and where it lies.
    Row {
        /// Which row.
        row: u64,
        /// A task of the part.
        subject: Subject,
        /// The tensors of the part.
        tensors: Arc<[String]>,
    },
    /// What the row of a server's part is called.
    SumRow {
        /// Which row.
        row: u64,
        /// The part.
        part: PartId,
        /// What the row shows of the part, as the end of its name.
        what: Cow<'static, str>,
    },
    /// What a thread's row is called.
    Thread {
        /// Which row.
        row: u64,
        /// The thread's name.
        name: String,
    },
    /// What the training script did.
    Script {
        /// The row of the thread.
        row: u64,
        /// What it did.
        name: String,
        /// When.
        times: Times,
    },
    /// A stage of a task of a worker, or its wait for one.
    Task {
        /// The row of the part.
        row: u64,
        /// What it is called: plain letters.
        name: &'static str,
        /// When.
        times: Times,
        /// The task.
        subject: Subject,
        /// What else is said of it.
        note: Note,
    },
    /// A sum of a server, or a use of what it keeps.
    Sum {
        /// A row of the part.
        row: u64,
        /// What it is called: plain letters.
        name: &'static str,
        /// When.
        times: Times,
        /// The round.
        round: Round,
        /// Bytes of the part.
        bytes: u64,
        /// The workers that took part.
        workers: Vec<WorkerId>,
        /// Whether it is a use of the residual of the answers.
        is_residual: bool,
        /// What became of it.
        outcome: &'static str,
    },
    /// Something that happened to a worker's share of a sum.
    Moment {
        /// A row of the part.
        row: u64,
        /// What happened.
        name: &'static str,
        /// When, since the origin of the process's clock.
        at_ns: i64,
        /// The round.
        round: Round,
        /// The worker.
        worker: WorkerId,
    },
}

/// What is said of a span of a task.
#[derive(Debug)]
pub enum Note {
    /// The stage for which it waits: plain letters.
    For(&'static str),
    /// How the stage ended; plain letters if it is one of the usual ends.
    Outcome(Cow<'static, str>),
}

/// When something began and ended, since the origin of the process's clock. The spans of a row do not overlap, or lie within each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// The beginning.
    pub start_ns: i64,
    /// The end.
    pub end_ns: i64,
}

/// A thread of the training script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread<'a> {
    /// The system's number for it.
    pub id: u64,
    /// For people.
    pub name: &'a str,
}

/// What a task is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The part.
    pub part: PartId,
    /// The round.
    pub round: Round,
    /// Bytes of the part.
    pub bytes: u64,
    /// Higher goes first.
    pub priority: Priority,
    /// The server that sums the part.
    pub server: ServerId,
    /// Whether it only uses the residual of the answers. Its round is that of the next sum.
    pub is_residual: bool,
}
