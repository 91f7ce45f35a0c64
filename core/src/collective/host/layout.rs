//! The layout of the segment that the ranks of a machine share.
//!
//! ```text
//!  header | words of each rank | announcements of each rank | orders | staging: DEPTH x ranks x ranks slices | results: DEPTH x ranks
//! ```
//! Every word that one rank writes and others read has two cache lines of its own, because processors fetch cache lines in pairs.

use xxhash_rust::xxh3::xxh3_64;

use crate::collective::device::NOTICE_BYTES_MAX;
use crate::collective::order::Claim;

/// The first word of a segment.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"GLlocalA");
/// The most chunks under way at once.
pub(super) const DEPTH: u64 = 4;
/// The most unread announcements of each rank.
pub(super) const ANNOUNCEMENTS: u64 = 1024;
/// The most orders that the slowest rank has not read.
pub(super) const ORDERS: u64 = 64;
/// The number of words of an announcement.
pub(super) const ANNOUNCEMENT_WORDS: usize = 8;
/// The number of words of an order before the weights of the ranks.
pub(super) const ORDER_WORDS: usize = 16;

const LINE: usize = 128;
const HEADER_BYTES: usize = 4096;
const RANK_BYTES: usize = (13 + Claim::DEVICES_MAX as usize * NOTICE_BYTES_MAX / LINE) * LINE;
/// The approximate size of staging and results together, small enough for the cache.
const CACHED_BYTES: usize = 1 << 20;
/// A slice is the share of a chunk that one rank owns.
const SLICE_MIN: usize = 4 << 10;
const SLICE_MAX: usize = 64 << 10;

/// Words of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    Magic = 0,
    Layout = 8,
    Job = 16,
    IncarnationLow = 24,
    IncarnationHigh = 32,
    Term = 40,
    Bytes = 48,
    Ranks = 56,
    /// Why the board is broken. 0 while it is not broken.
    Broken = LINE as isize,
    /// The number of orders that the leader has written.
    Orders = 2 * LINE as isize,
    /// Once a rank is lost: one more than the number of orders that the ranks that are left still carry out.
    LastOrder = 2 * LINE as isize + 8,
    /// The verdicts of the first chunks of broadcasts, one word for each chunk that may be under way.
    Verdicts = 3 * LINE as isize,
}

impl Head {
    /// What the word says, in words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Magic => "version of Gradlane",
            Self::Layout | Self::Bytes => "layout",
            Self::Job => "job",
            Self::IncarnationLow | Self::IncarnationHigh => "lowest rank",
            Self::Ranks => "list of ranks",
            Self::Term => "term of the coordinator",
            Self::Broken | Self::Orders | Self::LastOrder | Self::Verdicts => "state of the sums",
        }
    }
}

/// Words of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Changes when the thread that drives the rank is woken.
    Bell = 0,
    /// Changes when the rank's own thread is woken.
    Idle = LINE as isize,
    /// Whether the rank must be woken, and how.
    Presence = 2 * LINE as isize,
    /// The number of chunks whose contributions it has staged for others.
    Staged = 3 * LINE as isize,
    /// The number of chunks of which it has reduced its slice.
    Reduced = 4 * LINE as isize,
    /// The number of chunks whose results it has taken.
    Taken = 5 * LINE as isize,
    /// The number of announcements that it wrote.
    Announced = 6 * LINE as isize,
    /// The number of its announcements that the leader has read.
    Heard = 7 * LINE as isize,
    /// The number of orders that it has read.
    Obeyed = 8 * LINE as isize,
    /// One more than the number of the core on which it was last driven.
    Core = 9 * LINE as isize,
    /// The length of each of its notices, one for each of its devices. 0 until the notice is published.
    Noticed = 10 * LINE as isize,
    /// Written by the others once it is lost: one more than its word `Staged` counts then, for all of them.
    LastStaged = 11 * LINE as isize,
    /// The same of its word `Reduced`.
    LastReduced = 11 * LINE as isize + 8,
    /// The same of its word `Taken`.
    LastTaken = 11 * LINE as isize + 16,
    /// The ranks whose contributions it found not finite, one bit each: a word for each chunk that may be under way.
    Unfit = 12 * LINE as isize,
    /// Its setting `nan_check`.
    NanCheck = 12 * LINE as isize + 64,
    /// The notices.
    Notice = 13 * LINE as isize,
}

/// The offsets of the words for a number of ranks. They are the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) ranks: usize,
    /// Bytes of a slice, a multiple of every element size.
    pub(super) slice: usize,
}

impl Layout {
    pub(super) fn new(ranks: usize) -> Self {
        let slices = DEPTH as usize * (ranks * ranks + ranks);
        let fair = (CACHED_BYTES / slices).clamp(SLICE_MIN, SLICE_MAX);
        Self { ranks, slice: 1 << fair.ilog2() }
    }

    /// Bytes of the segment.
    pub(super) fn bytes(self) -> u64 {
        (self.results() + DEPTH as usize * self.ranks * self.slice) as u64
    }

    /// A hash of the layout, equal for builds with the same layout.
    pub(super) fn hash(self) -> u64 {
        let facts = [self.ranks, self.slice, DEPTH as usize, ANNOUNCEMENTS as usize, ORDERS as usize, RANK_BYTES];
        xxh3_64(format!("{facts:?} {ANNOUNCEMENT_WORDS} {ORDER_WORDS} {LINE} {}", self.bytes()).as_bytes())
    }

    /// Bytes of a chunk: a slice for each rank.
    pub(super) fn chunk(self) -> usize {
        self.ranks * self.slice
    }

    pub(super) fn word(self, rank: usize, word: Word) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        HEADER_BYTES + rank * RANK_BYTES + word as usize
    }

    /// The offsets of the length and of the bytes of `rank`'s notice about a device.
    pub(super) fn notice(self, rank: usize, device_index: u8) -> (usize, usize) {
        assert!(device_index < Claim::DEVICES_MAX, "device {device_index} of {}", Claim::DEVICES_MAX);
        let device_index = usize::from(device_index);
        (
            self.word(rank, Word::Noticed) + 4 * device_index,
            self.word(rank, Word::Notice) + device_index * NOTICE_BYTES_MAX,
        )
    }

    pub(super) fn announcement(self, rank: usize, number: u64) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let place = rank * ANNOUNCEMENTS as usize + (number % ANNOUNCEMENTS) as usize;
        self.announcements() + place * ANNOUNCEMENT_WORDS * 8
    }

    pub(super) fn order(self, number: u64) -> usize {
        self.orders() + (number % ORDERS) as usize * self.order_bytes()
    }

    /// The offset to which `from` copies the slice of chunk `number` that `owner` reduces.
    pub(super) fn staged(self, number: u64, from: usize, owner: usize) -> usize {
        assert!(from < self.ranks && owner < self.ranks, "rank {from} or {owner} of {}", self.ranks);
        let place = ((number % DEPTH) as usize * self.ranks + from) * self.ranks + owner;
        self.staging() + place * self.slice
    }

    /// The offset of `owner`'s slice of the result of chunk `number`. The slices of all owners lie side by side.
    pub(super) fn result(self, number: u64, owner: usize) -> usize {
        assert!(owner < self.ranks, "rank {owner} of {}", self.ranks);
        self.results() + ((number % DEPTH) as usize * self.ranks + owner) * self.slice
    }

    /// The offset of the verdict of chunk `number`, the first of a broadcast.
    pub(super) fn verdict(self, number: u64) -> usize {
        Head::Verdicts as usize + (number % DEPTH) as usize * 8
    }

    /// The offset of what `rank` found in its slice of chunk `number`.
    pub(super) fn unfit(self, rank: usize, number: u64) -> usize {
        self.word(rank, Word::Unfit) + (number % DEPTH) as usize * 8
    }

    fn order_bytes(self) -> usize {
        ((ORDER_WORDS + self.ranks) * 8).next_multiple_of(LINE)
    }

    fn announcements(self) -> usize {
        HEADER_BYTES + self.ranks * RANK_BYTES
    }

    fn orders(self) -> usize {
        self.announcements() + self.ranks * ANNOUNCEMENTS as usize * ANNOUNCEMENT_WORDS * 8
    }

    fn staging(self) -> usize {
        (self.orders() + ORDERS as usize * self.order_bytes()).next_multiple_of(4096)
    }

    fn results(self) -> usize {
        self.staging() + DEPTH as usize * self.ranks * self.ranks * self.slice
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn nothing_overlaps_whatever_the_number_of_ranks() {
        for ranks in [2, 3, 5, 8, 64] {
            let layout = Layout::new(ranks);
            let mut runs = BTreeMap::from([(0, HEADER_BYTES)]);
            for rank in 0..ranks {
                runs.insert(layout.word(rank, Word::Bell), RANK_BYTES);
                runs.insert(layout.announcement(rank, 0), ANNOUNCEMENTS as usize * ANNOUNCEMENT_WORDS * 8);
                for number in 0..DEPTH {
                    runs.insert(layout.result(number, rank), layout.slice);
                    for from in 0..ranks {
                        runs.insert(layout.staged(number, from, rank), layout.slice);
                    }
                }
            }
            for number in 0..ORDERS {
                runs.insert(layout.order(number), layout.order_bytes());
            }
            let mut end = 0;
            for (start, bytes) in runs {
                assert!(start >= end, "{ranks} ranks: {start} lies before {end}");
                end = start + bytes;
            }
            assert_eq!(end as u64, layout.bytes(), "{ranks} ranks");
            assert_eq!(layout.slice % 64, 0);
        }
    }
}
