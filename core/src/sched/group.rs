//! One submission of one tensor: the tasks that serve it, and its single outcome.

use std::sync::Arc;

use super::ids::TaskId;
use crate::error::Error;
use crate::types::{Round, Time};

#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Arc<str>,
    pub(super) round: Round,
    pub(super) opened: Time,
    pub(super) deadline: Option<Time>,
    /// Parts it takes part in.
    pub(super) shares: u32,
    /// Its tasks so far, those that are gone included.
    pub(super) tasks: Vec<TaskId>,
    /// How many of them are not gone: they may hold its memory.
    pub(super) live: u32,
    /// How many passed all stages.
    pub(super) done: u32,
    /// Why it cannot succeed any more.
    pub(super) fate: Option<Error>,
}

impl Group {
    pub(super) fn new(name: Arc<str>, round: Round, shares: u32, opened: Time, deadline: Option<Time>) -> Self {
        Self { name, round, opened, deadline, shares, tasks: Vec::new(), live: 0, done: 0, fate: None }
    }

    /// Whether it can be resolved: by success when all shares are done, by failure when no task holds its memory.
    pub(super) fn settled(&self) -> bool {
        match self.fate {
            None => self.done == self.shares,
            Some(_) => self.live == 0,
        }
    }

    /// Whether parts of it were not submitted yet, because tensors that share them are missing.
    pub(super) fn incomplete(&self) -> bool {
        self.tasks.len() < self.shares as usize
    }
}
