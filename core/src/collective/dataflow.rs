//! What an operation's goal means for the ranks of one machine: the same for every kind of memory.

use crate::types::Goal;
use crate::types::{Op, WorkerId};

/// What the ranks of a machine do for an operation. Ranks are positions among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dataflow {
    /// Contributions become one result.
    Reduce {
        /// Of these ranks, a bit each.
        of: u64,
        /// For this rank alone, or for everybody who wants it.
        taker: Option<usize>,
    },
    /// One rank shows what it has.
    Show {
        /// Which.
        from: usize,
        /// To this rank alone, or to everybody who wants it.
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

impl Dataflow {
    /// What leads `ranks` ranks to `goal`; `None` if it names a rank that `position` does not know.
    pub fn of(goal: &Goal, op: Op, ranks: usize, position: impl Fn(WorkerId) -> Option<usize>) -> Option<Self> {
        let everybody = u64::MAX >> (u64::BITS as usize - ranks);
        Some(match (goal, op) {
            (Goal::AllReduce, Op::Broadcast { root }) => Self::Show { from: position(root)?, taker: None },
            (Goal::AllReduce, _) => Self::Reduce { of: everybody, taker: None },
            (Goal::Reduce { owner }, Op::Broadcast { root }) => Self::bring(position(root), Some(position(*owner)?)),
            (Goal::Reduce { owner }, _) => Self::Reduce { of: everybody, taker: Some(position(*owner)?) },
            (Goal::Join { holders, taker, origin }, op) => {
                let known = |rank: &Option<WorkerId>| rank.map_or(Some(None), |rank| position(rank).map(Some));
                let (taker, origin) = (known(taker)?, known(origin)?);
                match op {
                    Op::Broadcast { .. } => Self::bring(origin, taker),
                    Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => {
                        let bit = |of: u64, holder: &WorkerId| Some(of | 1 << position(*holder)?);
                        Self::Reduce { of: holders.iter().try_fold(0, bit)?, taker }
                    }
                }
            }
            (Goal::Share { owner } | Goal::Broadcast { owner }, _) => {
                Self::Show { from: position(*owner)?, taker: None }
            }
        })
    }

    /// What `root` has, if it is here, goes to `taker`.
    fn bring(root: Option<usize>, taker: Option<usize>) -> Self {
        match (root, taker) {
            (None, _) => Self::Nothing,
            (Some(root), Some(taker)) if root == taker => Self::Keep { by: root },
            (Some(root), taker) => Self::Show { from: root, taker },
        }
    }

    /// Whether the rank at position `rank` must have something to show or to add.
    pub fn needs(self, rank: usize) -> bool {
        match self {
            Self::Reduce { of, .. } => of & (1 << rank) != 0,
            Self::Show { from: by, .. } | Self::Keep { by } => by == rank,
            Self::Nothing => false,
        }
    }

    /// What the weights of those who contribute add up to.
    pub fn weight(self, weights: &[f64]) -> f64 {
        let contributes = |rank: &usize| match self {
            Self::Reduce { of, .. } => of & (1 << rank) != 0,
            Self::Show { .. } | Self::Keep { .. } | Self::Nothing => true,
        };
        (0..).zip(weights).filter(|(rank, _)| contributes(rank)).map(|(_, weight)| weight).sum()
    }

    /// How contributions are added, and by what their sum is divided. `weights` are those of all ranks.
    ///
    /// # Panics
    /// If nothing is added.
    pub fn reduction(self, op: Op, weights: &[f64]) -> (Op, f64) {
        let Self::Reduce { taker, .. } = self else { unreachable!("only what is added is reduced") };
        match (op, taker) {
            (Op::Mean, None) => (Op::Mean, f64::from(u32::try_from(weights.len()).expect("at most RANKS_MAX"))),
            // Divided once, by whoever knows all workers.
            (Op::Mean, Some(_)) => (Op::Sum, 1.0),
            (Op::WeightedMean, _) => {
                let total = self.weight(weights);
                // Other machines may have what makes it a mean; there, too, what weighs nothing adds nothing.
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
