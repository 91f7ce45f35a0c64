//! What is known of the uses that wait at a part of a table: for which workers.

use gradlane_core::runtime::recording::WORDS;
use gradlane_core::types::{PartId, TensorKey};

use crate::node::command::Missing;
use crate::node::event::Waits;

/// The workers for which all uses wait that wait at a part of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenWaits {
    pub(super) part: PartId,
    pub(super) missing: Missing,
    /// The number of the event that told it.
    pub(super) change: u64,
}

impl OpenWaits {
    /// As the store of the table tells it.
    pub(super) fn of(Waits { part, missing, change, .. }: Waits) -> Self {
        Self { part, missing, change }
    }

    /// Where it lies. Keys are hashes, and the parts of a table follow each other.
    pub(super) fn place(PartId { key, index }: PartId) -> u64 {
        key.0.wrapping_add(index.into())
    }

    /// It in words.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { part, missing: Missing { count, first, bits }, change } = self;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [TAKEN, part.key.0, pair(part.index, first), count.into(), bits, change, 0]
    }

    /// That of words; `None` for words that are none of it.
    pub(super) fn of_words([head, key, pair, count, bits, change, _]: [u64; WORDS]) -> Option<Self> {
        if head != TAKEN {
            return None;
        }
        let half = |word: u64| u32::try_from(word).ok();
        let part = PartId { key: TensorKey(key), index: half(pair & 0xffff_ffff)? };
        Some(Self { part, missing: Missing { count: half(count)?, first: half(pair >> 32)?, bits }, change })
    }
}

/// The mark of a place that the uses at a part have taken.
const TAKEN: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::recorder::sum::OpenSum;
    use crate::node::recorder::used::OpenUse;

    #[test]
    fn what_is_known_of_a_part_comes_back_from_its_words_and_is_no_sum_and_no_use() {
        let part = PartId { key: TensorKey(u64::MAX), index: u32::MAX };
        let all = Missing { count: u32::MAX, first: 4_095, bits: u64::MAX };
        for missing in [Missing::default(), Missing { count: 1, first: 7, bits: 1 }, all] {
            let waits = OpenWaits { part, missing, change: u64::MAX };
            assert_eq!(OpenWaits::of_words(waits.to_words()), Some(waits));
            assert_eq!(OpenSum::of_words(waits.to_words()), None);
            assert_eq!(OpenUse::of_words(waits.to_words()), None);
        }
        assert_eq!(OpenWaits::of_words([0; WORDS]), None);
    }
}
