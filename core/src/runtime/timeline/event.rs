//! What the rows and spans of a timeline are about.

use crate::types::{PartId, Priority, Round, ServerId};

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
pub(in crate::engine) struct Subject {
    pub(in crate::engine) part: PartId,
    pub(in crate::engine) round: Round,
    pub(in crate::engine) bytes: u64,
    pub(in crate::engine) priority: Priority,
    pub(in crate::engine) server: ServerId,
}
