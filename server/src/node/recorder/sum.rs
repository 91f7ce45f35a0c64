//! What is known of a sum that has begun and that not all have taken.

use gradlane_core::runtime::recording::{WORDS, words};
use gradlane_core::types::{PartId, Round, TensorKey, Time, WorkerId};

use crate::node::command::SlotId;

words! {
    /// How far a worker is with a sum.
    pub(super) enum Standing {
        /// It does not contribute.
        Apart = "apart",
        /// Nothing of its contribution came.
        Due = "due",
        /// Its contribution has begun.
        Begun = "begun",
        /// Its contribution is whole.
        Whole = "whole",
        /// It has taken the sum.
        Taken = "taken",
    }
}

/// How far up to [`RANKS`] workers are with a sum. A sum of more workers has several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenSum {
    pub(super) slot: SlotId,
    /// Which workers: those of the ranks from `block * RANKS` on.
    pub(super) block: u16,
    /// When the sum began.
    pub(super) began: Time,
    /// The standing of each worker: one bit of each of the three words.
    standings: [u64; 3],
}

/// Workers of one [`OpenSum`]: the bits of a word.
pub(super) const RANKS: u32 = u64::BITS;

impl OpenSum {
    /// A sum to which these workers, of one block, will contribute.
    pub(super) fn new(slot: SlotId, block: u16, began: Time, due: impl Iterator<Item = WorkerId>) -> Self {
        let mut open = Self { slot, block, began, standings: [0; 3] };
        due.for_each(|worker| open.set(worker, Standing::Due));
        open
    }

    /// The block in which a worker is.
    pub(super) fn block_of(worker: WorkerId) -> u16 {
        u16::try_from(worker.0 / RANKS).unwrap_or(u16::MAX)
    }

    /// A worker of this block stands so.
    pub(super) fn set(&mut self, worker: WorkerId, standing: Standing) {
        let at = worker.0 % RANKS;
        for (bit, word) in (0..).zip(&mut self.standings) {
            *word = *word & !(1 << at) | (standing as u64 >> bit & 1) << at;
        }
    }

    /// The workers that contribute, and how each of them stands.
    pub(super) fn workers(&self) -> impl Iterator<Item = (WorkerId, Standing)> + '_ {
        let standing = |at: u32| {
            let bits = (0..).zip(self.standings).map(|(bit, word)| (word >> at & 1) << bit).sum();
            let worker = WorkerId(u32::from(self.block) * RANKS + at);
            Some((worker, Standing::of(bits).filter(|standing| *standing != Standing::Apart)?))
        };
        (0..RANKS).filter_map(standing)
    }

    /// Whether all of them have taken the sum.
    pub(super) fn is_over(&self) -> bool {
        // Whoever does not contribute has no bit, and whoever has taken the sum only the third.
        const { assert!(Standing::Apart as u64 == 0 && Standing::Taken as u64 == 0b100) };
        self.standings[0] | self.standings[1] == 0
    }

    /// Where it lies. Keys are hashes. The parts of a tensor, its rounds and the blocks of a round follow each other, each in its own stride.
    pub(super) fn place(SlotId { part, round }: SlotId, block: u16) -> u64 {
        let stride = |number: u64, step: u64| number.wrapping_mul(step);
        part.key.0
            ^ stride(part.index.into(), 0x9e37_79b9)
            ^ stride(round.0, 0x85eb_ca6b)
            ^ stride(block.into(), 0xc2b2_ae35)
    }

    /// It in words.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { slot: SlotId { part, round }, block, began, standings: [first, second, third] } = self;
        let head = TAKEN | u64::from(block) << 16 | u64::from(part.index) << 32;
        [head, part.key.0, round.0, began.0, first, second, third]
    }

    /// That of words; `None` for words that are none of a sum.
    pub(super) fn of_words([head, key, round, began, first, second, third]: [u64; WORDS]) -> Option<Self> {
        if head & 0xffff != TAKEN {
            return None;
        }
        let part = PartId { key: TensorKey(key), index: u32::try_from(head >> 32).ok()? };
        Some(Self {
            slot: SlotId { part, round: Round(round) },
            block: u16::try_from(head >> 16 & 0xffff).ok()?,
            began: Time(began),
            standings: [first, second, third],
        })
    }
}

/// The mark of a place that a sum has taken.
const TAKEN: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_standing_of_every_worker_comes_back_from_the_words() {
        let slot = SlotId { part: PartId { key: TensorKey(u64::MAX), index: u32::MAX }, round: Round(7) };
        let all = Standing::ALL.iter().copied();
        for (rank, standing) in [64, 65, 100, 127].into_iter().flat_map(|rank| all.clone().map(move |to| (rank, to))) {
            let mut open = OpenSum::new(slot, OpenSum::block_of(WorkerId(rank)), Time(5), (64..128).map(WorkerId));
            open.set(WorkerId(rank), standing);
            assert_eq!(OpenSum::of_words(open.to_words()), Some(open));
            let found = open.workers().find(|(worker, _)| worker.0 == rank).map(|(_, standing)| standing);
            assert_eq!(found, Some(standing).filter(|standing| *standing != Standing::Apart));
            let others = open.workers().filter(|(worker, _)| worker.0 != rank);
            assert_eq!(others.filter(|(_, standing)| *standing == Standing::Due).count(), 63);
        }
        assert_eq!(OpenSum::of_words([0; WORDS]), None);
    }
}
