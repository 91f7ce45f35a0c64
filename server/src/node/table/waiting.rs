//! Who waits for whom at a part of a table: uses that came whole, and are done when other workers have done theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::types::{ExchangeId, NodeId, Turns, WorkerId};

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

    /// The workers are these.
    pub(super) fn know(&mut self, workers: &Arc<[(WorkerId, NodeId)]>) {
        if Arc::ptr_eq(&self.workers, workers) {
            return;
        }
        self.workers = Arc::clone(workers);
        let slowest = self.slowest();
        for (_, node) in &*self.workers {
            self.pushes.entry(*node).or_insert(slowest);
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
        let node = *self.early.keys().find(|node| !self.is_early(**node))?;
        self.early.remove(&node)
    }

    /// The workers for which pushes wait, by rank.
    pub(super) fn not_in_round(&self) -> impl Iterator<Item = WorkerId> {
        let missing = self.workers.iter().filter(|(_, node)| !self.round.contains_key(node));
        missing.map(|(worker, _)| *worker)
    }

    /// The workers for which a pull of this one waits, by rank.
    pub(super) fn too_far_behind(&self, node: NodeId) -> impl Iterator<Item = WorkerId> {
        let ahead = if let Turns::Ssp { ahead } = self.turns { Some(u64::from(ahead)) } else { None };
        // From so many pushes on a worker is near enough.
        let enough = ahead.map(|ahead| self.pushes_of(node).saturating_sub(ahead));
        let behind = move |enough| self.workers.iter().filter(move |(_, other)| self.pushes_of(*other) < enough);
        enough.into_iter().flat_map(behind).map(|(worker, _)| *worker)
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
