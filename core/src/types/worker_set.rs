//! A set of workers as bits: the ranks that contributed to a sum, or the ranks from which a round is due.

use std::fmt;

use super::WorkerId;

/// Workers by rank. Ranks are below [`WorkerSet::WORKERS_MAX`].
///
/// The bytes are the wire form: worker `r` is bit `r % 8` of byte `r / 8`, and the last byte is not zero. So two equal sets have equal
/// bytes, and a set takes one bit for each rank up to its highest one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WorkerSet(Vec<u8>);

impl WorkerSet {
    /// Maximum number of workers of one job, which is also the highest rank plus one.
    pub const WORKERS_MAX: usize = 4_096;

    /// Adds a worker. Returns whether it was not in the set.
    ///
    /// # Panics
    /// If its rank is not below [`Self::WORKERS_MAX`].
    pub fn insert(&mut self, worker: WorkerId) -> bool {
        let rank = worker.0 as usize;
        assert!(rank < Self::WORKERS_MAX, "{worker} is beyond the {} workers of a job", Self::WORKERS_MAX);
        let added = !self.contains(worker);
        if self.0.len() <= rank / 8 {
            self.0.resize(rank / 8 + 1, 0);
        }
        self.0[rank / 8] |= 1 << (rank % 8);
        added
    }

    /// Takes a worker out. Returns whether it was in the set.
    pub fn remove(&mut self, worker: WorkerId) -> bool {
        let removed = self.contains(worker);
        if removed {
            self.0[worker.0 as usize / 8] &= !(1 << (worker.0 % 8));
            while self.0.last() == Some(&0) {
                self.0.pop();
            }
        }
        removed
    }

    /// Whether a worker is in the set.
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.0.get(worker.0 as usize / 8).is_some_and(|byte| byte & (1 << (worker.0 % 8)) != 0)
    }

    /// Whether every worker of `other` is in the set too.
    pub fn contains_all(&self, other: &Self) -> bool {
        let ours = self.0.iter().copied().chain(std::iter::repeat(0));
        other.0.iter().zip(ours).all(|(theirs, ours)| theirs & !ours == 0)
    }

    /// How many workers it holds.
    pub fn len(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its workers, by rank.
    pub fn iter(&self) -> impl Iterator<Item = WorkerId> + '_ {
        (0..u32::try_from(8 * self.0.len()).expect("at most WORKERS_MAX")).map(WorkerId).filter(|id| self.contains(*id))
    }

    /// The wire form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The set with this wire form; `None` if no set has it, because it is too long or ends with a zero.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (8 * bytes.len() <= Self::WORKERS_MAX && bytes.last() != Some(&0)).then(|| Self(bytes.to_vec()))
    }
}

impl FromIterator<WorkerId> for WorkerSet {
    fn from_iter<T: IntoIterator<Item = WorkerId>>(workers: T) -> Self {
        let mut set = Self::default();
        workers.into_iter().for_each(|worker| {
            set.insert(worker);
        });
        set
    }
}

impl fmt::Debug for WorkerSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter().map(|worker| worker.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranks: &[u32]) -> WorkerSet {
        ranks.iter().copied().map(WorkerId).collect()
    }

    #[test]
    fn it_holds_what_was_put_in_and_not_taken_out() {
        let mut workers = set(&[5, 0, 4095]);
        assert_eq!((workers.len(), workers.is_empty()), (3, false));
        assert!(!workers.insert(WorkerId(5)) && workers.insert(WorkerId(9)));
        assert!(
            workers.remove(WorkerId(4095)) && !workers.remove(WorkerId(4095)) && !workers.remove(WorkerId(u32::MAX))
        );
        assert_eq!(workers.iter().collect::<Vec<_>>(), [0, 5, 9].map(WorkerId));
        assert_eq!(format!("{workers:?}"), "{0, 5, 9}");
    }

    #[test]
    fn a_set_contains_all_of_another_whichever_is_longer() {
        for (ours, theirs, expected) in [
            (set(&[1, 9]), set(&[9]), true),
            (set(&[1, 9]), set(&[]), true),
            (set(&[9]), set(&[1]), false),
            (set(&[1]), set(&[1, 9]), false),
            (set(&[1, 9]), set(&[1, 9]), true),
        ] {
            assert_eq!(ours.contains_all(&theirs), expected, "{ours:?}, {theirs:?}");
        }
    }

    #[test]
    fn equal_sets_have_equal_bytes_whatever_was_done_to_them() {
        let mut workers = set(&[0, 9, 17]);
        workers.remove(WorkerId(17));
        assert_eq!(workers, set(&[9, 0]));
        assert_eq!(workers.as_bytes(), [0b1, 0b10]);
        workers.remove(WorkerId(9));
        workers.remove(WorkerId(0));
        assert_eq!(workers, WorkerSet::default());
    }

    #[test]
    fn bytes_that_are_no_set_are_refused() {
        assert_eq!(WorkerSet::from_bytes(&[]), Some(WorkerSet::default()));
        assert_eq!(WorkerSet::from_bytes(&[0, 3]), Some(set(&[8, 9])));
        assert_eq!(WorkerSet::from_bytes(&[3, 0]), None);
        assert_eq!(WorkerSet::from_bytes(&[1; 512]).map(|workers| workers.len()), Some(512));
        assert_eq!(WorkerSet::from_bytes(&[1; 513]), None);
    }

    #[test]
    #[should_panic(expected = "beyond the 4096 workers")]
    fn a_rank_beyond_the_limit_is_a_defect_of_the_caller() {
        set(&[4096]);
    }
}
