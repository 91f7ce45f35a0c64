//! The shared words of a machine's ranks: ring buffers of records, counters of chunks, and the [presence](super::presence) of each rank.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::layout::{ANNOUNCEMENT_WORDS, ANNOUNCEMENTS, Head, Layout, MAGIC, ORDER_WORDS, ORDERS, Word};
use super::presence::{Bells, Presence, ring};
use super::record::{mark_more, order_of, order_words, take_more};
use crate::collective::agreement::Announcement;
use crate::collective::device::NOTICE_BYTES_MAX;
use crate::collective::group;
use crate::collective::order::Decision;
use crate::collective::ranks::Breakage;
use crate::error::{Error, Result};
use crate::local::{Segment, futex};
use crate::types::Time;

/// The shared memory as one rank sees it.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) segment: Segment,
    pub(super) layout: Layout,
    pub(super) me: usize,
}

/// The identity in the header of a board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) job: u64,
    pub(super) leader: u128,
    pub(super) term: u64,
    /// A hash of the lives of all ranks.
    pub(super) ranks: u64,
}

impl Board {
    /// Creates the board, as the leader.
    pub(super) fn create(ranks: usize, identity: Identity) -> Result<Self> {
        let layout = Layout::new(ranks);
        let segment = Segment::create(layout.bytes())?;
        let board = Self { segment, layout, me: 0 };
        for (word, value) in board.expected(identity) {
            board.segment.u64(word as usize).store(value, Ordering::Relaxed);
        }
        Ok(board)
    }

    /// Opens the board of another rank, in the leader's segment.
    pub(super) fn open(segment: Segment, ranks: usize, me: usize, identity: Identity) -> Result<Self> {
        let layout = Layout::new(ranks);
        let board = Self { segment, layout, me };
        for (word, value) in board.expected(identity) {
            let found = board.segment.u64(word as usize).load(Ordering::Relaxed);
            if found != value {
                return Err(Error::Incompatible {
                    field: format!("the {} in the shared memory", word.name()),
                    ours: "its own".to_owned(),
                    peer: "the lowest rank of this machine".to_owned(),
                    theirs: "another one".to_owned(),
                });
            }
        }
        Ok(board)
    }

    fn expected(&self, identity: Identity) -> [(Head, u64); 8] {
        [
            (Head::Magic, MAGIC),
            (Head::Layout, self.layout.hash()),
            (Head::Job, identity.job),
            (Head::IncarnationLow, identity.leader as u64),
            (Head::IncarnationHigh, (identity.leader >> 64) as u64),
            (Head::Term, identity.term),
            (Head::Ranks, identity.ranks),
            (Head::Bytes, self.layout.bytes()),
        ]
    }

    /// The other ranks.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.layout.ranks).filter(move |rank| *rank != me)
    }

    /// Reads a counter of `rank`. Everything that the rank wrote before it set the counter is visible.
    pub(super) fn count(&self, rank: usize, word: Word) -> u64 {
        self.segment.u64(self.layout.word(rank, word)).load(Ordering::Acquire)
    }

    /// Sets a counter of this rank. A rank that sees the value also sees everything that this rank wrote before.
    pub(super) fn set_count(&self, word: Word, count: u64) {
        self.segment.u64(self.layout.word(self.me, word)).store(count, Ordering::Release);
    }

    /// Writes an announcement. Returns whether there was room.
    pub(super) fn announce(&self, announcement: Announcement) -> bool {
        if !self.may_announce() {
            return false;
        }
        let number = self.count(self.me, Word::Announced);
        self.write(self.layout.announcement(self.me, number), &announcement.words());
        self.set_count(Word::Announced, number.wrapping_add(1));
        true
    }

    /// Whether there is room for an announcement of this rank.
    pub(super) fn may_announce(&self) -> bool {
        !self.is_full(self.me)
    }

    /// Whether there is no room for an announcement of `rank`.
    pub(super) fn is_full(&self, rank: usize) -> bool {
        // A leader that claims to have read more than was written harms only itself.
        self.count(rank, Word::Announced).wrapping_sub(self.count(rank, Word::Heard)) >= ANNOUNCEMENTS
    }

    /// The next announcement of `rank`, for the leader, who reads it now. An error if it is invalid.
    pub(super) fn hear(&self, now: Time, rank: usize) -> std::result::Result<Option<Announcement>, Breakage> {
        let heard = self.segment.u64(self.layout.word(rank, Word::Heard));
        let number = heard.load(Ordering::Relaxed);
        let ahead = self.count(rank, Word::Announced).wrapping_sub(number);
        if ahead == 0 {
            return Ok(None);
        }
        let mut words = [0; ANNOUNCEMENT_WORDS];
        self.read(self.layout.announcement(rank, number), &mut words);
        heard.store(number.wrapping_add(1), Ordering::Release);
        let known = Announcement::of(now, words).filter(|_| ahead <= ANNOUNCEMENTS);
        known.map(Some).ok_or(Breakage::Confused(rank))
    }

    /// How many orders still fit for the slowest rank.
    pub(super) fn room(&self) -> u64 {
        let orders = self.orders();
        let unread = |rank| orders.wrapping_sub(self.count(rank, Word::Obeyed));
        ORDERS.saturating_sub(self.others().map(unread).max().unwrap_or(0))
    }

    /// Writes the orders of one group, for the leader. The others see the whole group at once. There must be room.
    pub(super) fn order(&self, decisions: &[Decision]) {
        let mut orders = self.orders();
        for (index, decision) in decisions.iter().enumerate() {
            let mut words = order_words(decision, self.layout.ranks);
            if index + 1 < decisions.len() {
                mark_more(&mut words);
            }
            self.write(self.layout.order(orders), &words);
            orders += 1;
        }
        self.segment.u64(Head::Orders as usize).store(orders, Ordering::Release);
    }

    /// The group of orders that begins at `number`, if the leader has written it. An error if it is no valid group.
    pub(super) fn obey(&self, number: u64) -> std::result::Result<Option<Vec<Decision>>, Breakage> {
        let ahead = self.orders().wrapping_sub(number);
        if ahead == 0 {
            return Ok(None);
        }
        let (mut decisions, mut more) = (Vec::new(), ahead <= ORDERS);
        while more && (decisions.len() as u64) < ahead && decisions.len() < group::OPERATIONS_MAX {
            let mut words = vec![0; ORDER_WORDS + self.layout.ranks];
            self.read(self.layout.order(number.wrapping_add(decisions.len() as u64)), &mut words);
            more = take_more(&mut words);
            decisions.push(order_of(&words, self.layout.ranks).ok_or(Breakage::Confused(0))?);
        }
        // The leader publishes whole groups only.
        if more || !group::is_sound(&decisions) {
            return Err(Breakage::Confused(0));
        }
        self.set_count(Word::Obeyed, number.wrapping_add(decisions.len() as u64));
        Ok(Some(decisions))
    }

    /// Sets the verdict of chunk `number`, the first of a broadcast: the chunk holds an error of `error_bytes` bytes, or data if that is 0.
    /// A rank that sees the chunk counted also sees its verdict.
    pub(super) fn set_verdict(&self, number: u64, error_bytes: usize) {
        self.segment.u64(self.layout.verdict(number)).store(error_bytes as u64, Ordering::Relaxed);
    }

    /// The verdict of a chunk that is counted; see [`set_verdict`](Self::set_verdict).
    pub(super) fn verdict(&self, number: u64) -> usize {
        let bytes = self.segment.u64(self.layout.verdict(number)).load(Ordering::Relaxed);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Publishes this rank's notice about a device, unless it is published already.
    pub(super) fn post(&self, device_index: u8, notice: &[u8]) {
        assert!((1..=NOTICE_BYTES_MAX).contains(&notice.len()), "a notice of {} bytes", notice.len());
        let ready = self.noticed(self.me, device_index);
        let (_, start) = self.layout.notice(self.me, device_index);
        if ready.load(Ordering::Relaxed) != 0 {
            return;
        }
        for (index, bytes) in notice.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.segment.u64(start + 8 * index).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        ready.store(u32::try_from(notice.len()).expect("checked above"), Ordering::Release);
        futex::wake(ready);
    }

    /// The notice of `rank` about a device, if it was published.
    pub(super) fn notice(&self, rank: usize, device_index: u8) -> Option<Vec<u8>> {
        let bytes = self.noticed(rank, device_index).load(Ordering::Acquire) as usize;
        let mut words = [0; NOTICE_BYTES_MAX / 8];
        self.read(self.layout.notice(rank, device_index).1, &mut words);
        let mut notice: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        notice.truncate(bytes);
        (bytes > 0).then_some(notice)
    }

    /// Sleeps until there may be a notice of `rank` about a device, at most for `timeout`. Returns whether it was woken.
    pub(super) fn await_notice(&self, rank: usize, device_index: u8, timeout: Duration) -> bool {
        futex::wait(self.noticed(rank, device_index), 0, timeout)
    }

    fn noticed(&self, rank: usize, device_index: u8) -> &AtomicU32 {
        self.segment.u32(self.layout.notice(rank, device_index).0)
    }

    /// The number of orders so far.
    pub(super) fn orders(&self) -> u64 {
        self.segment.u64(Head::Orders as usize).load(Ordering::Acquire)
    }

    /// Wakes `rank` if its thread sleeps or if it waits for others. With `urgent`, also if it waits for nothing.
    pub(super) fn knock(&self, rank: usize, urgent: bool) {
        self.bells(rank).knock(urgent);
    }

    /// Wakes each other rank as [`knock`](Self::knock) does.
    pub(super) fn knock_others(&self, urgent: bool) {
        for rank in self.others() {
            self.knock(rank, urgent);
        }
    }

    /// Changes a bell and wakes the threads that sleep on it.
    pub(super) fn ring(&self, rank: usize, word: Word) {
        ring(self.segment.u32(self.layout.word(rank, word)));
    }

    /// The value of a bell of this rank, for [`sleep`](Self::sleep).
    pub(super) fn bell(&self, word: Word) -> u32 {
        self.segment.u32(self.layout.word(self.me, word)).load(Ordering::Acquire)
    }

    /// Sleeps until the value of a bell of this rank is not `shown` any more, at most for `timeout`.
    pub(super) fn sleep(&self, word: Word, shown: u32, timeout: Duration) {
        futex::wait(self.segment.u32(self.layout.word(self.me, word)), shown, timeout);
    }

    /// Sets the presence of this rank. Afterwards the caller must check once more for new records.
    pub(super) fn appear(&self, presence: Presence) {
        self.bells(self.me).appear(presence);
    }

    fn bells(&self, rank: usize) -> Bells<'_> {
        let word = |word| self.segment.u32(self.layout.word(rank, word));
        Bells { presence: word(Word::Presence), bell: word(Word::Bell), idle: word(Word::Idle) }
    }

    /// Records the core on which this rank is driven. Returns whether another rank was last driven there.
    pub(super) fn settle_on(&self, core: usize) -> bool {
        // Only a hint, so no ordering is needed.
        let shown = |rank: usize| self.segment.u64(self.layout.word(rank, Word::Core));
        let core = core as u64 + 1;
        if shown(self.me).load(Ordering::Relaxed) != core {
            shown(self.me).store(core, Ordering::Relaxed);
        }
        self.others().any(|rank| shown(rank).load(Ordering::Relaxed) == core)
    }

    /// Marks the board as broken, unless it is broken already. Wakes all ranks.
    pub(super) fn break_down(&self, breakage: Breakage) {
        let (kind, rank) = match breakage {
            Breakage::Lost(rank) => (1, rank),
            Breakage::Stuck(rank) => (2, rank),
            Breakage::Confused(rank) => (3, rank),
            Breakage::Failed(rank) => (4, rank),
        };
        let word = self.segment.u64(Head::Broken as usize);
        let _ = word.compare_exchange(0, kind << 32 | rank as u64, Ordering::SeqCst, Ordering::Relaxed);
        self.wake_all();
    }

    /// Wakes the threads of all ranks, whatever they wait for.
    pub(super) fn wake_all(&self) {
        for rank in 0..self.layout.ranks {
            self.ring(rank, Word::Bell);
            self.ring(rank, Word::Idle);
        }
    }

    /// Why the board is broken, if it is.
    pub(super) fn broken(&self) -> Option<Breakage> {
        let word = self.segment.u64(Head::Broken as usize).load(Ordering::SeqCst);
        let rank = (word & 0xffff_ffff) as usize;
        match (word >> 32, rank < self.layout.ranks) {
            (0, _) => None,
            (1, true) => Some(Breakage::Lost(rank)),
            (2, true) => Some(Breakage::Stuck(rank)),
            (4, true) => Some(Breakage::Failed(rank)),
            (_, true) => Some(Breakage::Confused(rank)),
            (_, false) => Some(Breakage::Confused(0)),
        }
    }

    fn write(&self, offset: usize, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.segment.u64(offset + 8 * index).store(*word, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: usize, words: &mut [u64]) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.segment.u64(offset + 8 * index).load(Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::order::Claim;
    use crate::types::{DeviceKind, PartId, Round, TensorKey};

    #[test]
    fn a_group_is_read_as_it_was_written_and_at_once() {
        let board = board();
        board.order(&[run(1)]);
        board.order(&[run(2), run(3), run(4)]);
        assert_eq!(board.obey(0), Ok(Some(vec![run(1)])));
        assert_eq!(board.obey(1), Ok(Some(vec![run(2), run(3), run(4)])));
        assert_eq!(board.obey(4), Ok(None));
        assert_eq!(board.count(0, Word::Obeyed), 4);
    }

    #[test]
    fn a_group_that_is_broken_off_is_what_its_writer_is_blamed_for() {
        let board = board();
        board.order(&[run(1)]);
        let first = board.segment.u64(board.layout.order(0));
        let mut words = [first.load(Ordering::Relaxed)];
        mark_more(&mut words);
        first.store(words[0], Ordering::Relaxed);
        assert_eq!(board.obey(0), Err(Breakage::Confused(0)));
        assert_eq!(board.count(0, Word::Obeyed), 0);
    }

    #[test]
    fn a_group_that_is_none_is_what_its_writer_is_blamed_for() {
        for decisions in [(1..10).map(run).collect::<Vec<_>>(), vec![run(1), run(1)]] {
            let board = board();
            board.order(&decisions);
            assert_eq!(board.obey(0), Err(Breakage::Confused(0)), "{} of them", decisions.len());
        }
    }

    #[test]
    fn there_is_room_for_what_the_slowest_rank_can_still_read() {
        let board = board();
        assert_eq!(board.room(), ORDERS);
        for part in 0..ORDERS / 4 {
            board.order(&[4 * part, 4 * part + 1, 4 * part + 2, 4 * part + 3].map(run));
        }
        assert_eq!(board.room(), 0);
        let slow = Board { me: 1, segment: board.segment, layout: board.layout };
        slow.set_count(Word::Obeyed, 3);
        let board = Board { me: 0, segment: slow.segment, layout: slow.layout };
        assert_eq!(board.room(), 3);
    }

    fn board() -> Board {
        Board::create(2, Identity { job: 1, leader: 2, term: 3, ranks: 4 }).unwrap()
    }

    fn run(part: u64) -> Decision {
        let slot = (PartId { key: TensorKey(part), index: 0 }, Round(0));
        let claim = Claim { bytes: 8, device: DeviceKind::Cuda, ..Claim::SUM };
        Decision::Run { slot, claim, failed: None, weights: vec![1.0; 2] }
    }
}
