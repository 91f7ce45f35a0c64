//! A rank's share of an operation: what it brings, what it gets, and what a block is.

use super::Agreement;
use super::words::{Brought, Party, Wish};
use crate::collective::dataflow::Dataflow;
use crate::collective::order::Claim;
use crate::error::Error;
use crate::types::{DeviceKind, Goal, Op, WorkerId};

impl<L> Agreement<L> {
    /// The data flow of an operation among the ranks that reach each other's memory of its kind. `None` if it names a rank outside of them,
    /// or if its result must reach all ranks where only some reach each other. In memory of devices all ranks must be members, because their
    /// communicator is of all ranks.
    pub(super) fn share(&self, wish: &Wish) -> Option<Dataflow> {
        let Party { ranks, group, me, .. } = &self.party;
        let position = |worker| self.party.position(worker);
        let Wish { goal, claim, .. } = wish;
        let members = Claim::members_among(claim.members, ranks.len()).filter(|members| members & (1 << me) != 0)?;
        match claim.device {
            DeviceKind::Host => {
                let is_member = |rank: &usize| members & (1 << rank) != 0;
                Dataflow::of(goal, claim.op, members, |worker| position(worker).filter(is_member))
            }
            DeviceKind::Cuda => {
                let near = |worker| position(worker).and_then(|rank| group.iter().position(|other| *other == rank));
                let reaches_all = match goal {
                    Goal::AllReduce => group.len() == ranks.len(),
                    Goal::Deliver { .. } => false,
                    Goal::Reduce { .. } | Goal::Join { .. } | Goal::Share { .. } | Goal::Broadcast { .. } => true,
                };
                let group = Claim::members_among(Claim::ALL_RANKS, group.len())?;
                Dataflow::of(goal, claim.op, group, near).filter(|_| reaches_all && claim.members == Claim::ALL_RANKS)
            }
        }
    }

    /// Why an operation is not possible any more that comes from one rank or goes to one: the job goes on without that rank.
    pub(super) fn who_is_gone(&self, Wish { part, goal, claim, .. }: &Wish) -> Option<Error> {
        let (origin, receiver) = match (goal, claim.op) {
            (Goal::AllReduce, Op::Broadcast { root }) => (Some(root), None),
            (Goal::Deliver { receiver }, Op::Broadcast { root }) => (Some(root), Some(*receiver)),
            (Goal::Deliver { receiver }, _) => (None, Some(*receiver)),
            (
                Goal::AllReduce | Goal::Reduce { .. } | Goal::Join { .. } | Goal::Share { .. } | Goal::Broadcast { .. },
                _,
            ) => (None, None),
        };
        let is_here = |worker: &WorkerId| self.party.ranks.iter().any(|rank| rank.rank == *worker);
        let gone = origin.into_iter().chain(receiver).find(|worker| !is_here(worker)).filter(|_| self.party.goes_on)?;
        Some(Error::RootLost { tensor: part.key.into(), root: gone.to_string() })
    }

    /// Whether an operation is the first of a block on devices, of which each rank has one part.
    pub(super) fn starts_block(&self, wish: &Wish) -> bool {
        match self.share(wish) {
            Some(Dataflow::Reduce { taker, .. }) => taker == Some(0),
            Some(Dataflow::Show { from, taker: None }) => from == 0 && wish.goal != Goal::AllReduce,
            Some(Dataflow::Show { .. } | Dataflow::Keep { .. } | Dataflow::Nothing) | None => false,
        }
    }

    /// Whether a rank brings the memory that its share of an operation needs.
    pub(super) fn is_enough(&self, brought: Brought, wish: &Wish, dataflow: Dataflow) -> bool {
        let Party { me, group, .. } = &self.party;
        let place = match wish.claim.device {
            DeviceKind::Host => *me,
            DeviceKind::Cuda => group.iter().position(|rank| rank == me).expect("it is of its own group"),
        };
        match brought {
            Brought::Nothing => wish.claim.bytes == 0 || wish.failure.is_some() || !dataflow.needs(place),
            Brought::AsClaimed => true,
            Brought::Other => false,
        }
    }
}
