//! The workers for which uses of a table wait.

use gradlane_core::types::{NodeId, WorkerId};

/// Workers for which uses wait: how many they are, and which of them have the first missing rank or one of the next 63.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Missing {
    /// How many they are.
    pub count: u32,
    /// The first rank; 0 if nobody is missing.
    pub first: u32,
    /// A bit for each rank from the first on.
    pub bits: u64,
}

impl Missing {
    /// The missing ones among `workers`, which are sorted by rank. The caller counts them, so that this need not look at all workers.
    pub(in crate::node) fn among(
        workers: &[(WorkerId, NodeId)],
        count: usize,
        is_missing: impl Fn(&NodeId) -> bool,
    ) -> Self {
        let Some(at) = workers.iter().position(|(_, node)| is_missing(node)) else { return Self::default() };
        let first = workers[at].0.0;
        let near = workers[at..].iter().take_while(|(worker, _)| worker.0 - first < u64::BITS);
        let bits =
            near.filter(|(_, node)| is_missing(node)).fold(0, |bits, (worker, _)| bits | 1 << (worker.0 - first));
        Self { count: u32::try_from(count).unwrap_or(u32::MAX), first, bits }
    }

    /// Whether nobody is missing.
    pub fn is_nobody(self) -> bool {
        self.bits == 0
    }

    /// The ranks that it knows.
    pub fn ranks(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |at| self.bits >> at & 1 == 1).map(move |at| self.first.saturating_add(at))
    }

    /// How many workers it does not know by rank.
    pub fn others(self) -> u32 {
        self.count.saturating_sub(self.bits.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_workers_are_known_by_rank_from_the_first_one_on_and_all_are_counted() {
        let known = |ranks: &[u32]| {
            let node = |rank: u32| NodeId([u8::try_from(rank).unwrap(); 32]);
            let workers: Vec<(WorkerId, NodeId)> = (0..100).map(|rank| (WorkerId(rank), node(rank))).collect();
            let missing = Missing::among(&workers, ranks.len(), |of| ranks.iter().any(|rank| node(*rank) == *of));
            assert_eq!(missing.is_nobody(), ranks.is_empty());
            (missing.ranks().collect::<Vec<_>>(), missing.others())
        };
        assert_eq!(known(&[]), (vec![], 0));
        assert_eq!(known(&[99]), (vec![99], 0));
        assert_eq!(known(&[3, 4, 66]), (vec![3, 4, 66], 0));
        assert_eq!(known(&[3, 4, 66, 67, 99]), (vec![3, 4, 66], 2), "of 64 ranks only");
    }
}
