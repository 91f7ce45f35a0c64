//! Who waits for whom at a part of a table: uses that came whole, and are done when other workers have done theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::types::{ExchangeId, NodeId, Turns, WorkerId};

use crate::node::command::Missing;

/// The uses that wait, and how far each worker is.
#[derive(Debug)]
pub(super) struct Waiting {
    turns: Turns,
    /// The workers, by rank.
    workers: Arc<[(WorkerId, NodeId)]>,
    /// How often each has pushed. One that comes later begins with the slowest.
    pushes: BTreeMap<NodeId, u64>,
    /// The pushes of the present round, of tables whose pushes wait for all workers.
    round: BTreeMap<NodeId, ExchangeId>,
    /// Pulls of workers that are too far ahead.
    early: BTreeMap<NodeId, ExchangeId>,
}

impl Waiting {
    /// Nobody waits yet.
    pub(super) fn new(turns: Turns) -> Self {
        let (pushes, round, early) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { turns, workers: Arc::default(), pushes, round, early }
    }

    /// The workers are these. Returns whether they were others before.
    pub(super) fn know(&mut self, workers: &Arc<[(WorkerId, NodeId)]>) -> bool {
        if Arc::ptr_eq(&self.workers, workers) {
            return false;
        }
        self.workers = Arc::clone(workers);
        let slowest = self.slowest();
        for (_, node) in &*self.workers {
            self.pushes.entry(*node).or_insert(slowest);
        }
        true
    }

    /// Whether this one waits.
    pub(super) fn has(&self, exchange: ExchangeId) -> bool {
        self.round.values().chain(self.early.values()).any(|waits| *waits == exchange)
    }

    /// Whether a round has begun, so that its other pushes are due.
    pub(super) fn has_round(&self) -> bool {
        !self.round.is_empty()
    }

    /// Whether pushes wait for those of all workers.
    pub(super) fn gathers(&self) -> bool {
        matches!(self.turns, Turns::Sync { .. })
    }

    /// A push of a worker came whole, and waits.
    pub(super) fn hold_push(&mut self, node: NodeId, exchange: ExchangeId) {
        self.round.insert(node, exchange);
    }

    /// A pull of a worker came whole. Returns whether it waits.
    pub(super) fn holds_pull(&mut self, node: NodeId, exchange: ExchangeId) -> bool {
        let waits = self.is_early(node);
        if waits {
            self.early.insert(node, exchange);
        }
        waits
    }

    /// A push of a worker was done.
    pub(super) fn pushed(&mut self, node: NodeId) {
        *self.pushes.entry(node).or_default() += 1;
    }

    /// This one is over.
    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        self.round.retain(|_, waits| *waits != exchange);
        self.early.retain(|_, waits| *waits != exchange);
    }

    /// This worker is gone for good.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.workers = self.workers.iter().copied().filter(|(_, worker)| *worker != node).collect();
        self.pushes.remove(&node);
        self.round.remove(&node);
        self.early.remove(&node);
    }

    /// The pushes of a round for which every worker has come, by rank. They wait no more.
    pub(super) fn whole_round(&mut self) -> Option<Vec<(WorkerId, ExchangeId)>> {
        let is_whole = self.has_round() && self.not_in_round().next().is_none();
        let mut take = |(worker, node): &(WorkerId, NodeId)| Some((*worker, self.round.remove(node)?));
        is_whole.then(|| self.workers.iter().filter_map(&mut take).collect())
    }

    /// A pull whose worker is too far ahead no more. It waits no more.
    pub(super) fn next_pull(&mut self) -> Option<ExchangeId> {
        let node = self.least_ahead().filter(|node| !self.is_early(*node))?;
        self.early.remove(&node)
    }

    /// The workers for which all uses wait that wait here. Of pulls those are the workers for which the pull of the least advanced worker waits,
    /// because each other pull waits for them too.
    pub(super) fn missing(&self) -> Missing {
        match self.least_ahead() {
            Some(node) => {
                let enough = self.enough_for(node);
                let count = self.too_far_behind(node).count();
                Missing::among(&self.workers, count, |other| self.pushes_of(*other) < enough)
            }
            None if self.has_round() => {
                let count = self.workers.len().saturating_sub(self.round.len());
                Missing::among(&self.workers, count, |node| !self.round.contains_key(node))
            }
            None => Missing::default(),
        }
    }

    /// The workers for which pushes wait, by rank.
    pub(super) fn not_in_round(&self) -> impl Iterator<Item = WorkerId> {
        let missing = self.workers.iter().filter(|(_, node)| !self.round.contains_key(node));
        missing.map(|(worker, _)| *worker)
    }

    /// The workers for which a pull of this one waits, by rank.
    pub(super) fn too_far_behind(&self, node: NodeId) -> impl Iterator<Item = WorkerId> {
        let enough = self.enough_for(node);
        let workers = if enough == 0 { &[] } else { &*self.workers };
        let behind = workers.iter().filter(move |(_, other)| self.pushes_of(*other) < enough);
        behind.map(|(worker, _)| *worker)
    }

    /// How often each worker must have pushed before a pull of this one is done.
    fn enough_for(&self, node: NodeId) -> u64 {
        match self.turns {
            Turns::Ssp { ahead } => self.pushes_of(node).saturating_sub(ahead.into()),
            Turns::Async | Turns::Sync { .. } => 0,
        }
    }

    /// The worker that has pushed least of those whose pulls wait.
    fn least_ahead(&self) -> Option<NodeId> {
        self.early.keys().min_by_key(|node| self.pushes_of(**node)).copied()
    }

    fn is_early(&self, node: NodeId) -> bool {
        self.too_far_behind(node).next().is_some()
    }

    fn slowest(&self) -> u64 {
        let known = self.workers.iter().filter_map(|(_, node)| self.pushes.get(node));
        known.min().copied().unwrap_or_default()
    }

    fn pushes_of(&self, node: NodeId) -> u64 {
        self.pushes.get(&node).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Merge;

    use super::*;

    #[test]
    fn the_pushes_of_a_round_wait_for_all_workers_that_are_not_in_it() {
        let mut waiting = with(100, Turns::Sync { merge: Merge::Mean });
        assert_eq!(told(&waiting), (vec![], 0));
        hold(&mut waiting, 0);
        assert_eq!(told(&waiting), ((1..65).collect(), 35));
        (2..99).for_each(|rank| hold(&mut waiting, rank));
        assert_eq!(told(&waiting), (vec![1], 1), "the next one is too far away");
        hold(&mut waiting, 1);
        assert_eq!(told(&waiting), (vec![99], 0));
        waiting.forget(ExchangeId(7));
        assert_eq!(told(&waiting), (vec![7], 1), "it broke off");
        waiting.leave(node(7));
        assert_eq!(told(&waiting), (vec![99], 0));
        waiting.leave(node(99));
        assert_eq!(waiting.whole_round().map(|pushes| pushes.len()), Some(98));
        assert_eq!(told(&waiting), (vec![], 0));
    }

    #[test]
    fn the_pull_of_the_worker_that_is_least_ahead_tells_for_whom_all_wait() {
        let mut waiting = with(4, Turns::Ssp { ahead: 1 });
        for (rank, times) in [(0, 2), (1, 5), (2, 3)] {
            (0..times).for_each(|_| waiting.pushed(node(rank)));
        }
        assert!(waiting.holds_pull(node(1), ExchangeId(1)));
        assert_eq!(told(&waiting), (vec![0, 2, 3], 0));
        assert!(waiting.holds_pull(node(0), ExchangeId(0)));
        assert_eq!((told(&waiting), waiting.next_pull()), ((vec![3], 0), None));
        waiting.pushed(node(3));
        assert_eq!(waiting.next_pull(), Some(ExchangeId(0)));
        assert_eq!(told(&waiting), (vec![0, 2, 3], 0));
        [2, 3].into_iter().for_each(|rank| waiting.leave(node(rank)));
        assert_eq!((told(&waiting), waiting.next_pull()), ((vec![0], 0), None));
        (0..2).for_each(|_| waiting.pushed(node(0)));
        assert_eq!((waiting.next_pull(), waiting.next_pull()), (Some(ExchangeId(1)), None));
        assert_eq!(told(&waiting), (vec![], 0));
    }

    fn with(workers: u32, turns: Turns) -> Waiting {
        let mut waiting = Waiting::new(turns);
        waiting.know(&(0..workers).map(|rank| (WorkerId(rank), node(rank))).collect());
        waiting
    }

    fn hold(waiting: &mut Waiting, rank: u32) {
        waiting.hold_push(node(rank), ExchangeId(rank.into()));
    }

    fn node(rank: u32) -> NodeId {
        NodeId([u8::try_from(rank).unwrap(); 32])
    }

    /// The ranks that are known to be missing, and how many others are.
    fn told(waiting: &Waiting) -> (Vec<u32>, u32) {
        let missing = waiting.missing();
        (missing.ranks().collect(), missing.others())
    }
}
