//! The ids that were removed from a part of a table, each with the version at which it was: what a reader who follows changes has to remove.

use std::collections::VecDeque;

/// The latest removals.
#[derive(Debug, Default)]
pub(super) struct Tombs {
    ring: VecDeque<(u64, u64)>,
    /// Removals after this version are all there.
    floor: u64,
}

/// Removals that are kept of a table without rows. Beside these, a quarter of as many as there are rows.
const KEPT_MIN: usize = 65_536;
/// A ring of so many is never too long.
const CAPACITY_MIN: usize = 64;

impl Tombs {
    /// Bytes that one takes at most: a ring that grows is twice as long.
    pub(super) const ENTRY_BYTES: u64 = 2 * size_of::<(u64, u64)>() as u64;

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.ring.capacity() * size_of::<(u64, u64)>()) as u64
    }

    /// The oldest version since which all removals are known.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// An id was removed at a version, which is not below those before. So many rows are left.
    pub(super) fn push(&mut self, id: u64, version: u64, rows: usize) {
        self.ring.push_back((id, version));
        while self.ring.len() > KEPT_MIN + rows / 4 {
            let (_, oldest) = self.ring.pop_front().expect("there is one");
            self.floor = oldest;
        }
        // With room to spare, so that as many must come or go before it is copied again.
        if self.ring.capacity() > 4 * self.ring.len().max(CAPACITY_MIN) {
            self.ring.shrink_to(2 * self.ring.len());
        }
    }

    /// Everything was removed at this version.
    pub(super) fn clear(&mut self, version: u64) {
        *self = Self { ring: VecDeque::new(), floor: version };
    }

    /// The ids that were removed after a version, each once.
    pub(super) fn since(&self, version: u64) -> Vec<u64> {
        let first = self.ring.partition_point(|(_, at)| *at <= version);
        let mut ids: Vec<u64> = self.ring.range(first..).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_known_as_far_back_as_there_is_room() {
        let mut tombs = Tombs::default();
        (1..=KEPT_MIN as u64 + 10).for_each(|version| tombs.push(version % 7, version, 20));
        let last = KEPT_MIN as u64 + 10;
        assert_eq!((tombs.floor(), tombs.ring.len()), (5, KEPT_MIN + 5));
        assert_eq!(tombs.since(5), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(tombs.since(last - 1), [last % 7]);
        assert!(tombs.since(last).is_empty());
        assert!(tombs.bytes() <= 2 * Tombs::ENTRY_BYTES * tombs.ring.len() as u64);
        tombs.clear(last + 1);
        assert_eq!((tombs.floor(), tombs.bytes(), tombs.since(0)), (last + 1, 0, vec![]));
    }
}
