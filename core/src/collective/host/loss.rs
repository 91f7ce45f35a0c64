//! What becomes of the operations under way when a rank is lost: the others end each of them, or none of them does.
//!
//! In a job that goes on, the ranks that are left meet again and do once more what was not done. So they must agree, without the lost rank
//! and without messages, on what was done. They read it from its counters. A process that is gone counts no more, so all of them read the
//! same. One that was only paused may go on meanwhile. So whoever notices the loss first writes down what the counters say, and how many
//! orders there are. All others use these numbers, the *cut*:
//!
//! 1. An order behind the cut is begun by nobody.
//! 2. An operation whose chunks the lost rank has counted as far as the others need them ends on all ranks that are left. They need nothing
//!    more from the lost one.
//! 3. Any other operation ends on none, and neither does one behind it.
//!
//! A rank that is about to report an operation looks whether the board broke, *after* its last look at the counters of others, with a full
//! fence between the two. If it did not, the counters of the cut are at least as high as those that it saw. So where one rank has reported an
//! operation as done, the cut says so too.

use super::board::Board;
use super::layout::{DEPTH, Head, Word};
use crate::collective::needs::Needs;
use crate::collective::ranks::Breakage;
use crate::local::sync::{AtomicU64, Ordering, fence};

/// What the ranks that are left still do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// The number of orders that they carry out.
    pub(super) orders: u64,
    /// What each lost rank has counted.
    pub(super) lost: Vec<Counted>,
}

/// The chunks that a lost rank has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    pub(super) rank: usize,
    staged: u64,
    reduced: u64,
    taken: u64,
}

impl Cut {
    /// Whether the ranks that are left can end an operation that needs so much, up to chunk `end`.
    pub(super) fn has(&self, needs: Needs, end: u64) -> bool {
        self.lost.iter().all(|lost| {
            let brought = match needs {
                Needs::Nobody => return true,
                needs if !needs.include(lost.rank) => true,
                Needs::Each(_) => lost.staged >= end && lost.reduced >= end,
                Needs::One(_) => lost.reduced >= end,
            };
            // Its places are free for the last chunks.
            let is_free = |counted: u64| counted.saturating_add(DEPTH) >= end;
            brought && is_free(lost.reduced) && is_free(lost.taken)
        })
    }
}

impl Board {
    /// Marks a rank as lost. Wakes all ranks.
    pub(super) fn lose(&self, rank: usize) {
        // First the breakage. What is counted from now on may be missing in the cut.
        self.break_down(Breakage::Lost(rank));
        self.counted(rank);
        self.wake_all();
    }

    /// Whether a rank is lost, as far as this one can see.
    pub(super) fn is_lost(&self, rank: usize) -> bool {
        self.count(rank, Word::LastStaged) != 0
    }

    /// The other ranks that are not lost.
    pub(super) fn others_left(&self) -> impl Iterator<Item = usize> {
        self.others().filter(|rank| !self.is_lost(*rank))
    }

    /// The cut; `None` if the board is whole, or broke otherwise than by a loss. Call it after the last look at what others count.
    pub(super) fn cut(&self) -> Option<Cut> {
        fence(Ordering::SeqCst);
        let Some(Breakage::Lost(first)) = self.broken() else { return None };
        let orders = once(self.segment.u64(Head::LastOrder as usize), || self.orders());
        let is_noticed = |rank: &usize| *rank == first || self.is_lost(*rank);
        let lost = (0..self.layout.ranks).filter(is_noticed).map(|rank| self.counted(rank)).collect();
        Some(Cut { orders, lost })
    }

    /// What a lost rank has counted, the same on all ranks.
    fn counted(&self, rank: usize) -> Counted {
        fence(Ordering::SeqCst);
        let last =
            |last: Word, word: Word| once(self.segment.u64(self.layout.word(rank, last)), || self.count(rank, word));
        Counted {
            rank,
            staged: last(Word::LastStaged, Word::Staged),
            reduced: last(Word::LastReduced, Word::Reduced),
            taken: last(Word::LastTaken, Word::Taken),
        }
    }
}

/// The number in a word that is written once. The first who asks writes it.
fn once(word: &AtomicU64, number: impl FnOnce() -> u64) -> u64 {
    match word.load(Ordering::SeqCst).checked_sub(1) {
        Some(written) => written,
        None => match word.compare_exchange(0, number().saturating_add(1), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => word.load(Ordering::SeqCst) - 1,
            Err(written) => written - 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Identity;
    use super::*;

    #[test]
    fn what_the_first_one_saw_of_a_lost_rank_counts_for_all() {
        let board = Board::create(3, Identity { job: 1, leader: 2, term: 3, ranks: 4 }).unwrap();
        assert_eq!(board.cut(), None);
        let other = Board { me: 1, segment: board.segment, layout: board.layout };
        for (word, chunks) in [(Word::Staged, 9), (Word::Reduced, 8), (Word::Taken, 7)] {
            other.set_count(word, chunks);
        }
        let board = Board { me: 0, segment: other.segment, layout: other.layout };
        board.lose(1);
        let cut = Cut { orders: 0, lost: vec![Counted { rank: 1, staged: 9, reduced: 8, taken: 7 }] };
        assert_eq!(board.cut(), Some(cut.clone()));
        let woken = Board { me: 1, segment: board.segment, layout: board.layout };
        woken.set_count(Word::Staged, 10);
        woken.lose(2);
        let none = Counted { rank: 2, staged: 0, reduced: 0, taken: 0 };
        assert_eq!(woken.cut(), Some(Cut { orders: 0, lost: vec![cut.lost[0], none] }));
    }

    #[test]
    fn a_board_that_breaks_otherwise_has_no_cut() {
        let board = Board::create(2, Identity { job: 1, leader: 2, term: 3, ranks: 4 }).unwrap();
        board.break_down(Breakage::Stuck(1));
        board.lose(1);
        assert_eq!((board.broken(), board.cut()), (Some(Breakage::Stuck(1)), None));
    }

    #[test]
    fn what_ends_without_a_lost_rank_is_what_needs_no_more_of_it() {
        let cut = |staged, reduced, taken| Cut { orders: 0, lost: vec![Counted { rank: 1, staged, reduced, taken }] };
        let all = Needs::Each(0b111);
        let table = [
            // What it had counted, what is needed of it up to chunk 10, and whether the others have that.
            ((10, 10, 6), all, true),
            ((10, 10, 5), all, false),
            ((10, 9, 9), all, false),
            ((9, 9, 9), all, false),
            ((6, 6, 6), Needs::Each(0b101), true),
            ((5, 5, 5), Needs::Each(0b101), false),
            ((0, 10, 10), Needs::One(1), true),
            ((10, 9, 9), Needs::One(1), false),
            ((6, 6, 6), Needs::One(0), true),
            ((5, 5, 5), Needs::One(0), false),
            ((0, 0, 0), Needs::Nobody, true),
        ];
        for ((staged, reduced, taken), needs, expected) in table {
            assert_eq!(cut(staged, reduced, taken).has(needs, 10), expected, "{staged} {reduced} {taken} {needs:?}");
        }
    }
}
