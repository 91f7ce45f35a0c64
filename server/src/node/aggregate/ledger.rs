//! Who was counted in a round: one bit a worker. This is all the memory that exactly-once summation needs.

use gradlane_core::types::WorkerId;

/// A set of workers. It grows to the highest rank that was inserted, so the caller bounds the ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Ledger {
    words: Vec<u64>,
    len: usize,
}

impl Ledger {
    /// Sets the bit of `worker`; whether it was clear before.
    pub(super) fn insert(&mut self, worker: WorkerId) -> bool {
        let (word, bit) = place(worker);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let clear = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += usize::from(clear);
        clear
    }

    /// Whether the bit of `worker` is set.
    pub(super) fn contains(&self, worker: WorkerId) -> bool {
        let (word, bit) = place(worker);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many bits are set.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

fn place(worker: WorkerId) -> (usize, u64) {
    (worker.0 as usize / 64, 1 << (worker.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_counted_once() {
        let mut ledger = Ledger::default();
        assert!(ledger.insert(WorkerId(70)));
        assert!(!ledger.insert(WorkerId(70)), "a repeat");
        assert!(ledger.contains(WorkerId(70)));
        assert_eq!(ledger.len(), 1);
    }

    #[test]
    fn a_rank_beyond_the_highest_is_not_in_the_set() {
        let mut ledger = Ledger::default();
        ledger.insert(WorkerId(3));
        assert!(!ledger.contains(WorkerId(67)));
    }
}
