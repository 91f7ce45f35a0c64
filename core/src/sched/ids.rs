//! The ids of tasks and submissions while they are under way.

use std::fmt;

use super::arena::Key;

/// A submission; resolved exactly once, by [`Command::Resolved`](super::Command::Resolved).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub(super) Key);

/// A task; never reused while anything of it is alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub(super) Key);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
