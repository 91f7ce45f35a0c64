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
        what: &'static str,
    },
    /// What a thread's row is called.
    Thread {
        /// Which row.
        row: u64,
        /// The thread's name.
        name: String,
    },
    /// Something that took time.
    Span(Span),
    /// Something that happened to a worker's share of a sum.
    Moment {
        /// On which row.
        row: u64,
        /// What happened.
        name: &'static str,
        /// When, since the origin of the process's clock.
        at_ns: i64,
        /// The part.
        part: PartId,
        /// The round.
        round: Round,
        /// The worker.
        worker: WorkerId,
    },
}

/// A group of rows of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// The threads of the training script.
    Script,
    /// The parts.
    Parts,
}

/// Something that took time.
#[derive(Debug)]
pub struct Span {
    /// Where its row is.
    pub group: Group,
    /// On which row. The spans of a row do not overlap, or lie within each other.
    pub row: u64,
    /// What it is called.
    pub name: Cow<'static, str>,
    /// When it began, since the origin of the process's clock.
    pub start_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// Absent for the script's own.
    pub of: Option<Of>,
}

/// What a span is about, and what more there is to say of it.
#[derive(Debug)]
pub enum Of {
    /// A task of a worker.
    Task {
        /// The task.
        subject: Subject,
        /// The tensors of its part.
        tensors: Arc<[String]>,
        /// A word and its value.
        note: (&'static str, String),
    },
    /// A sum of a server.
    Sum {
        /// The part.
        part: PartId,
        /// The round.
        round: Round,
        /// Bytes of the part.
        bytes: u64,
        /// The workers that took part.
        workers: Vec<WorkerId>,
        /// What became of it.
        outcome: &'static str,
    },
}

/// A thread of the training script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread<'a> {
    /// The system's number for it.
    pub id: u64,
    /// For people.
    pub name: &'a str,
}

/// What is said of a task with each of its spans.
#[derive(Clone, Debug)]
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
}
