//! Of which ranks an operation needs contributions: what is lost with a rank.

use super::dataflow::Dataflow;
use super::order::Claim;

/// The ranks of a machine whose contributions an operation in host memory needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Those of all its members, one bit each.
    Each(u64),
    /// That of one rank.
    One(usize),
    /// None: each rank ends it by itself.
    Nobody,
}

impl Needs {
    /// What an operation needs that one of `ranks` ranks carries out as `dataflow`. The same on all of them, also on those that are no members.
    /// These know by `shown_by` whose data the members get, if it is that of one rank.
    pub fn of(claim: &Claim, dataflow: Dataflow, shown_by: Option<usize>, ranks: usize) -> Self {
        let members = Claim::members_among(claim.members, ranks).unwrap_or_default();
        let is_of_all = claim.members == Claim::ALL_RANKS;
        match (dataflow, shown_by) {
            _ if members.count_ones() == 1 => Self::Nobody,
            (Dataflow::Keep { .. } | Dataflow::Nothing, None) if is_of_all => Self::Nobody,
            (Dataflow::Show { from: by, .. } | Dataflow::Keep { by }, _) | (_, Some(by)) => Self::One(by),
            (Dataflow::Reduce { .. } | Dataflow::Nothing, None) => Self::Each(members),
        }
    }

    /// Whether it needs that of this rank.
    pub fn include(self, rank: usize) -> bool {
        match self {
            Self::Each(members) => members & (1 << rank) != 0,
            Self::One(by) => by == rank,
            Self::Nobody => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Op, WorkerId};

    #[test]
    fn members_and_others_find_that_an_operation_needs_the_same() {
        let of_two = Claim { members: 0b101, ..Claim::SUM };
        let shown = Claim { op: Op::Broadcast { root: WorkerId(7) }, ..of_two };
        let sum = Dataflow::Reduce { of: 0b101, taker: None, whole_of: Some(2) };
        let show = Dataflow::Show { from: 2, taker: None };
        for (claim, dataflow, shown_by, expected) in [
            (of_two, sum, None, Needs::Each(0b101)),
            (of_two, Dataflow::Nothing, None, Needs::Each(0b101)),
            (shown, show, None, Needs::One(2)),
            (shown, Dataflow::Nothing, Some(2), Needs::One(2)),
            (Claim { members: 0b100, ..of_two }, sum, None, Needs::Nobody),
            (Claim::SUM, Dataflow::Keep { by: 1 }, None, Needs::Nobody),
            (Claim::SUM, Dataflow::Nothing, None, Needs::Nobody),
        ] {
            assert_eq!(Needs::of(&claim, dataflow, shown_by, 3), expected, "{dataflow:?}");
        }
        assert_eq!([0, 1, 2].map(|rank| Needs::Each(0b101).include(rank)), [true, false, true]);
    }
}
