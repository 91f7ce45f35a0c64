//! Who waits for whom at a part of a table: uses that came whole, and are done when other workers have done theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::types::{ExchangeId, NodeId, Turns};

/// The uses that wait, and how far each worker is.
#[derive(Debug)]
pub(super) struct Waiting {
    turns: Turns,
    /// The processes of the workers, by rank.
    workers: Arc<[NodeId]>,
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

    /// The workers are these.
    pub(super) fn know(&mut self, workers: &Arc<[NodeId]>) {
        if Arc::ptr_eq(&self.workers, workers) {
            return;
        }
        self.workers = Arc::clone(workers);
        let slowest = self.slowest();
        for worker in &*self.workers {
            self.pushes.entry(*worker).or_insert(slowest);
        }
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
        self.workers = self.workers.iter().copied().filter(|worker| *worker != node).collect();
        self.pushes.remove(&node);
        self.round.remove(&node);
        self.early.remove(&node);
    }

    /// The pushes of a round for which every worker has come, by rank. They wait no more.
    pub(super) fn whole_round(&mut self) -> Option<Vec<ExchangeId>> {
        let is_whole = self.has_round() && self.workers.iter().all(|worker| self.round.contains_key(worker));
        is_whole.then(|| self.workers.iter().filter_map(|worker| self.round.remove(worker)).collect())
    }

    /// A pull whose worker is too far ahead no more. It waits no more.
    pub(super) fn next_pull(&mut self) -> Option<ExchangeId> {
        let node = *self.early.keys().find(|node| !self.is_early(**node))?;
        self.early.remove(&node)
    }

    fn is_early(&self, node: NodeId) -> bool {
        let Turns::Ssp { ahead } = self.turns else { return false };
        self.pushes.get(&node).is_some_and(|pushes| *pushes > self.slowest() + u64::from(ahead))
    }

    fn slowest(&self) -> u64 {
        self.workers.iter().filter_map(|worker| self.pushes.get(worker)).min().copied().unwrap_or_default()
    }
}
