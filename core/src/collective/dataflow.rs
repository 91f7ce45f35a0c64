//! The data flow of an operation among the ranks of one machine, derived from its goal. It is the same for every kind of memory.

use crate::types::Goal;
use crate::types::{Op, WorkerId};

/// The data flow of an operation. Ranks are positions among those of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dataflow {
    /// Contributions become one result.
    Reduce {
        /// The contributing ranks, one bit each.
        of: u64,
        /// The rank that gets the result; `None` for all ranks that want it.
        taker: Option<usize>,
        /// The number of ranks whose contributions make the result, if it is whole. `None` if it is summed further, and divided later.
        whole_of: Option<u32>,
    },
    /// One rank sends its data.
    Show {
        /// The rank.
        from: usize,
        /// The rank that gets it; `None` for all ranks that want it.
        taker: Option<usize>,
    },
    /// The data of one rank is the result, for that rank alone.
    Keep {
        /// The rank.
        by: usize,
    },
    /// No rank of this machine gets a result.
    Nothing,
}

impl Dataflow {
    /// The data flow of `goal` among the ranks of `members`, one bit each; `None` if it names a rank that `position` does not know.
    pub fn of(goal: &Goal, op: Op, members: u64, position: impl Fn(WorkerId) -> Option<usize>) -> Option<Self> {
        let all = Some(members.count_ones());
        Some(match (goal, op) {
            (Goal::AllReduce, Op::Broadcast { root }) => Self::Show { from: position(root)?, taker: None },
            (Goal::AllReduce, _) => Self::Reduce { of: members, taker: None, whole_of: all },
            (Goal::Deliver { receiver }, Op::Broadcast { root }) => {
                Self::bring(Some(position(root)?), Some(position(*receiver)?))
            }
            (Goal::Deliver { receiver }, _) => {
                Self::Reduce { of: members, taker: Some(position(*receiver)?), whole_of: all }
            }
            (Goal::Reduce { owner }, Op::Broadcast { root }) => Self::bring(position(root), Some(position(*owner)?)),
            (Goal::Reduce { owner }, _) => Self::Reduce { of: members, taker: Some(position(*owner)?), whole_of: None },
            (Goal::Join { holders, taker, origin }, op) => {
                let known = |rank: &Option<WorkerId>| rank.map_or(Some(None), |rank| position(rank).map(Some));
                let (taker, origin) = (known(taker)?, known(origin)?);
                match op {
                    Op::Broadcast { .. } => Self::bring(origin, taker),
                    Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => {
                        let bit = |of: u64, holder: &WorkerId| Some(of | 1 << position(*holder)?);
                        // Each holder has the sum of its group, and all groups together are all members.
                        let whole_of = if taker.is_none() { all } else { None };
                        Self::Reduce { of: holders.iter().try_fold(0, bit)?, taker, whole_of }
                    }
                }
            }
            (Goal::Share { owner } | Goal::Broadcast { owner }, _) => {
                Self::Show { from: position(*owner)?, taker: None }
            }
        })
    }

    /// The data of `root`, if it is here, goes to `taker`.
    fn bring(root: Option<usize>, taker: Option<usize>) -> Self {
        match (root, taker) {
            (None, _) => Self::Nothing,
            (Some(root), Some(taker)) if root == taker => Self::Keep { by: root },
            (Some(root), taker) => Self::Show { from: root, taker },
        }
    }

    /// Whether the rank at position `rank` must provide data.
    pub fn needs(self, rank: usize) -> bool {
        match self {
            Self::Reduce { of, .. } => of & (1 << rank) != 0,
            Self::Show { from: by, .. } | Self::Keep { by } => by == rank,
            Self::Nothing => false,
        }
    }

    /// The sum of the weights of the contributing ranks.
    pub fn weight(self, weights: &[f64]) -> f64 {
        let contributes = |rank: &usize| match self {
            Self::Reduce { of, .. } => of & (1 << rank) != 0,
            Self::Show { .. } | Self::Keep { .. } | Self::Nothing => true,
        };
        (0..).zip(weights).filter(|(rank, _)| contributes(rank)).map(|(_, weight)| weight).sum()
    }

    /// How contributions are added, and the divisor of their sum. `weights` are those of all ranks.
    ///
    /// # Panics
    /// If the data flow adds nothing.
    pub fn reduction(self, op: Op, weights: &[f64]) -> (Op, f64) {
        let Self::Reduce { whole_of, .. } = self else { unreachable!("only what is added is reduced") };
        match (op, whole_of) {
            (Op::Mean, Some(ranks)) => (Op::Mean, f64::from(ranks)),
            // A later step divides, once, because it knows all workers.
            (Op::Mean, None) => (Op::Sum, 1.0),
            (Op::WeightedMean, _) => {
                let total = self.weight(weights);
                // If all weights here are zero, other machines may have weights; a contribution without weight adds nothing there either.
                (Op::WeightedMean, if total > 0.0 { total } else { 1.0 })
            }
            (op @ (Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. }), _) => (op, 1.0),
        }
    }

    /// Whether the result goes to `rank`.
    pub fn leads_to(self, rank: usize) -> bool {
        match self {
            Self::Reduce { taker, .. } | Self::Show { taker, .. } => taker.is_none_or(|taker| taker == rank),
            Self::Keep { by } => by == rank,
            Self::Nothing => false,
        }
    }
}
