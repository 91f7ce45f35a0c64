//! What is known of an operation of a worker that has not ended.

use crate::runtime::recording::{OpenOperation, WORDS};

/// An operation that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    /// The number of the operation.
    pub(super) id: u64,
    /// The key of its first tensor.
    pub(super) key: u64,
    /// Its round; `u64::MAX` as long as that is not known.
    pub(super) round: u64,
    /// When it was submitted.
    pub(super) submitted: u64,
    /// When something last happened to it.
    pub(super) moved: u64,
    /// What happened last, as the head of an event.
    pub(super) last: u64,
    /// How far its parts are.
    pub(super) parts: Parts,
}

/// How many parts of an operation have come how far. A count that does not fit stays at its largest value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Parts {
    /// Parts of which all tensors were submitted.
    pub(super) queued: u16,
    /// Parts whose contribution was handed over to the server.
    pub(super) handed_over: u16,
    /// Parts whose sum has come.
    pub(super) answered: u16,
}

impl Parts {
    /// With the mark of a place that is taken.
    fn to_word(self) -> u64 {
        TAKEN | u64::from(self.queued) << 16 | u64::from(self.handed_over) << 32 | u64::from(self.answered) << 48
    }

    fn of_word(word: u64) -> Option<Self> {
        let count = |at: u32| u16::try_from(word >> at & 0xffff).expect("16 bits");
        (word & 0xffff == TAKEN).then(|| Self { queued: count(16), handed_over: count(32), answered: count(48) })
    }
}

impl OpenOperation for Open {
    type Id = u64;

    fn id(&self) -> u64 {
        self.id
    }

    /// Numbers follow each other and operations end about in their order, so the place is free but for those that wait for long.
    fn place(id: u64) -> u64 {
        id
    }

    fn to_words(self) -> [u64; WORDS] {
        let Self { id, key, round, submitted, moved, last, parts } = self;
        [parts.to_word(), id, key, round, submitted, moved, last]
    }

    fn of_words([parts, id, key, round, submitted, moved, last]: [u64; WORDS]) -> Option<Self> {
        Some(Self { id, key, round, submitted, moved, last, parts: Parts::of_word(parts)? })
    }
}

/// The mark of a place that is taken.
const TAKEN: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_comes_back_from_its_words_and_zeros_are_none() {
        let parts = Parts { queued: u16::MAX, handed_over: 2, answered: 1 };
        let open = Open { id: 3, key: u64::MAX, round: 1, submitted: 5, moved: 6, last: 7, parts };
        assert_eq!(Open::of_words(open.to_words()), Some(open));
        let none = Open { id: 0, key: 0, round: 0, submitted: 0, moved: 0, last: 0, parts: Parts::default() };
        assert_eq!(Open::of_words(none.to_words()), Some(none));
        assert_eq!(Open::of_words([0; WORDS]), None);
    }
}
