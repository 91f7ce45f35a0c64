//! What the shared memory of a team says: how much is ordered, how far each rank has come, and what that was when one was lost. All ranks read
//! the same at once, whatever their messages take.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::collective::Needs;

use crate::sim::world::Address;

/// The boards of all teams, by the lives of their ranks.
pub(in crate::sim) type Boards = BTreeMap<Arc<[Address]>, Board>;

/// The board of a team.
#[derive(Debug, Default)]
pub(in crate::sim) struct Board {
    /// How many orders the leader has written.
    orders: u64,
    /// How many operations in host memory each rank has begun, by position.
    begun: BTreeMap<usize, u64>,
    /// Once a rank is lost: how many orders count.
    last: Option<u64>,
    /// How many operations each lost rank had begun.
    lost: BTreeMap<usize, u64>,
}

impl Board {
    /// The leader writes so many orders.
    pub(super) fn order(&mut self, orders: usize) {
        self.orders += orders as u64;
    }

    /// A rank begins an operation in host memory, and has shown what it has.
    pub(super) fn begin(&mut self, rank: usize) {
        *self.begun.entry(rank).or_default() += 1;
    }

    /// A rank is lost.
    pub(super) fn lose(&mut self, rank: usize) {
        self.last.get_or_insert(self.orders);
        let begun = self.begun.get(&rank).copied().unwrap_or_default();
        self.lost.entry(rank).or_insert(begun);
    }

    /// How many orders are carried out, once a rank is lost.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// The first of the lost ranks.
    pub(super) fn lost(&self) -> Option<usize> {
        self.lost.keys().next().copied()
    }

    /// Whether the ranks that are left end an operation: that of the last of so many orders, which was begun as this one.
    pub(super) fn survives(&self, obeyed: u64, number: u64, needs: Needs) -> bool {
        let has_begun = |(rank, begun): (&usize, &u64)| !needs.include(*rank) || *begun > number;
        self.last.is_none_or(|last| obeyed <= last) && self.lost.iter().all(has_begun)
    }
}
