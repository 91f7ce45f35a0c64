//! A record of fixed size that threads write and read without a lock.

use crate::local::sync::{AtomicU64, Ordering};

/// How many words a record has.
pub const WORDS: usize = 7;

/// A record of seven words behind a stamp: one cache line.
///
/// The stamp is even while the record is whole, and odd while a thread writes it. It only grows. A reader takes a record whose stamp was even
/// and the same before and after it read the words (a *seqlock*: H. Boehm, "Can seqlocks get along with programming language memory models?",
/// 2012). Words are stored with `Release` and read with `Acquire`, in place of fences: a reader that sees a word of a later record also sees
/// the odd stamp of that record. Nobody waits: a writer that meets another writer in the same slot gives up.
#[derive(Default, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slot {
    /// Writes a record, whose stamp is the even number `stamp`. Returns false, and writes nothing, if another thread writes there now, or has
    /// written a record with as high a stamp.
    pub(super) fn write(&self, stamp: u64, words: [u64; WORDS]) -> bool {
        let was = self.stamp.load(Ordering::Relaxed);
        let is_free = was.is_multiple_of(2) && was < stamp;
        if !is_free || self.stamp.compare_exchange(was, stamp - 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        self.fill(stamp, words);
        true
    }

    /// Writes a record where only one thread writes at a time. That needs no exchange, which takes as long as all the rest.
    pub(super) fn write_alone(&self, words: [u64; WORDS]) {
        let was = self.stamp.load(Ordering::Relaxed);
        debug_assert!(was.is_multiple_of(2), "one thread writes at a time");
        // The first word is stored with `Release`, so a reader that sees it also sees that the stamp is odd.
        self.stamp.store(was + 1, Ordering::Relaxed);
        self.fill(was + 2, words);
    }

    /// What is there, for the only thread that writes.
    pub(super) fn read_alone(&self) -> [u64; WORDS] {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Whether the first word there is 0, for the only thread that writes.
    pub(super) fn has_zeros_alone(&self) -> bool {
        self.words[0].load(Ordering::Relaxed) == 0
    }

    fn fill(&self, stamp: u64, words: [u64; WORDS]) {
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
        self.stamp.store(stamp, Ordering::Release);
    }

    /// What is there now.
    pub(super) fn read(&self) -> Seen {
        let before = self.stamp.load(Ordering::Acquire);
        if before == 0 {
            return Seen::Nothing;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Acquire));
        if before.is_multiple_of(2) && self.stamp.load(Ordering::Relaxed) == before {
            Seen::Whole { stamp: before, words }
        } else {
            Seen::Changing
        }
    }
}

/// A setting as a number of places.
pub(super) fn places_of(setting: u32) -> usize {
    usize::try_from(setting).expect("a setting of 32 bits")
}

/// What a reader finds in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// Nothing was ever written.
    Nothing,
    /// A thread writes there.
    Changing,
    /// A record.
    Whole {
        /// Its stamp.
        stamp: u64,
        /// Its words.
        words: [u64; WORDS],
    },
}
