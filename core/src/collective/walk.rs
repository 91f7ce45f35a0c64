//! What an operation's goal means for the ranks of one machine: the same for every kind of memory.

use super::Goal;
use crate::types::{Op, WorkerId};

/// What the ranks of a machine do for an operation. Ranks are positions among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// All contributions become one result.
    Reduce {
        /// For this rank alone, or for everybody.
        taker: Option<usize>,
    },
    /// One rank shows what it has.
    Show {
        /// Which.
        from: usize,
        /// To this rank alone, or to everybody.
        taker: Option<usize>,
    },
    /// What a rank has is the result, and is for it alone.
    Keep {
        /// Which.
        by: usize,
    },
    /// There is nothing to have here.
    Nothing,
}

impl Walk {
    /// What leads to `goal`; `None` if it names a rank that `position` does not know.
    pub fn of(goal: &Goal, op: Op, position: impl Fn(WorkerId) -> Option<usize>) -> Option<Self> {
        Some(match (goal, op) {
            (Goal::AllReduce, Op::Broadcast { root }) => Self::Show { from: position(root)?, taker: None },
            (Goal::AllReduce, _) => Self::Reduce { taker: None },
            (Goal::Reduce { owner }, Op::Broadcast { root }) => match (position(root), position(*owner)?) {
                (None, _) => Self::Nothing,
                (Some(root), owner) if root == owner => Self::Keep { by: owner },
                (Some(root), owner) => Self::Show { from: root, taker: Some(owner) },
            },
            (Goal::Reduce { owner }, _) => Self::Reduce { taker: Some(position(*owner)?) },
            (Goal::Broadcast { owner, .. }, _) => Self::Show { from: position(*owner)?, taker: None },
        })
    }

    /// Whether the result goes to `rank`.
    pub fn leads_to(self, rank: usize) -> bool {
        match self {
            Self::Reduce { taker } | Self::Show { taker, .. } => taker.is_none_or(|taker| taker == rank),
            Self::Keep { by } => by == rank,
            Self::Nothing => false,
        }
    }
}
