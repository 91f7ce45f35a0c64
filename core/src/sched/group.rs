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
    /// Its tasks so far, including released ones.
    pub(super) tasks: Vec<TaskId>,
    /// How many of them are not released: they may hold its memory.
    pub(super) live: u32,
    /// How many passed all stages.
    pub(super) done: u32,
    /// Why it failed.
    pub(super) fate: Option<Error>,
}

impl Group {
    pub(super) fn new(name: Arc<str>, round: Round, shares: u32, opened: Time, deadline: Option<Time>) -> Self {
        Self { name, round, opened, deadline, shares, tasks: Vec::new(), live: 0, done: 0, fate: None }
    }

    /// Whether it can be resolved: with success when all shares are done, with failure when no task holds its memory.
    pub(super) fn settled(&self) -> bool {
        match self.fate {
            None => self.done == self.shares,
            Some(_) => self.live == 0,
        }
    }

    /// Whether some of its parts were not submitted yet, because other tensors of these parts are missing.
    pub(super) fn incomplete(&self) -> bool {
        self.tasks.len() < self.shares as usize
    }
}
