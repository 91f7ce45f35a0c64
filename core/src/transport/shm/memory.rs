//! The two segments of a link, and what each side tells the other through them.
//!
//! The peer may write any value into its segment, also while this side reads it. So each word is read once and checked. The bytes in cells
//! are elements of tensors and are not checked. A peer that changes them gains nothing: a worker changes only its own contribution, and a
//! server could have computed a wrong sum in the first place.
#![expect(unsafe_code, reason = "bytes in memory that another process maps are reached by address")]

use std::sync::Arc;

use bytes::Bytes;

use super::layout::{
    ASLEEP_AT, CELLS, MESSAGE_WORDS, READ_AT, RELEASED_AT, RING_MESSAGES, SENT_AT, SLOTS, STARVED_AT, Words, cell_at,
    message_at,
};
use super::wakeup::Waker;
use crate::error::Result;
use crate::local::sync::{AtomicBool, AtomicU32, Ordering, fence};
use crate::local::{Segment, Shown, process_id};
use crate::mem::Copies;
use crate::transport::exchange::bad;

/// Both segments of one link, as seen from one of its sides.
pub(super) struct Memory {
    own: Segment,
    peer: Shown,
    /// Wakes the peer's thread.
    waker: Waker,
    /// The last wait of the peer that this side has ended by waking it: for messages, and for room. One wait is ended once.
    woken: [AtomicU32; 2],
    /// Whether this side reads each slot of the peer now.
    held: Box<[AtomicBool]>,
    copies: Copies,
    /// The process that made the link. The child of a fork inherits the memory and must not write to it.
    process: u32,
}

impl Memory {
    pub(super) fn new(own: Segment, peer: Shown, waker: Waker, copies: Copies) -> Self {
        let held = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        let woken = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { own, peer, waker, woken, held, copies, process: process_id() }
    }

    /// Writes the message with this number, and then the new count of messages.
    pub(super) fn write(&self, number: u64, words: &Words) {
        let at = message_at(number);
        for (word, value) in words.iter().enumerate() {
            self.own.u64(at + word * 8).store(*value, Ordering::Relaxed);
        }
        self.own.u64(SENT_AT).store(number + 1, Ordering::Release);
    }

    /// The peer's message after `read` others, if there is one.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if the peer's count of messages is impossible.
    pub(super) fn read(&self, read: u64, peer: &str) -> Result<Option<Words>> {
        let sent = self.peer.u64(SENT_AT);
        match sent.checked_sub(read) {
            Some(0) => return Ok(None),
            Some(unread) if unread <= RING_MESSAGES => {}
            Some(_) | None => {
                return Err(bad(
                    peer,
                    "ring",
                    format!("says that {sent} messages were written, after {read} were read"),
                ));
            }
        }
        let (at, mut words) = (message_at(read), [0; MESSAGE_WORDS]);
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.peer.u64(at + index * 8);
        }
        self.own.u64(READ_AT).store(read + 1, Ordering::Release);
        Ok(Some(words))
    }

    /// How many of `sent` messages the peer has read. `before` is the count that was read last.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if the peer's count is impossible.
    pub(super) fn peer_has_read(&self, before: u64, sent: u64, peer: &str) -> Result<u64> {
        let read = self.peer.u64(READ_AT);
        if (before..=sent).contains(&read) {
            return Ok(read);
        }
        Err(bad(peer, "ring", format!("says that {read} of {sent} messages were read, after it said {before}")))
    }

    /// Whether there are messages of the peer that this side has not read.
    pub(super) fn has_unread(&self) -> bool {
        self.peer.u64(SENT_AT) != self.own.u64(READ_AT).load(Ordering::Relaxed)
    }

    /// How often the peer has released a slot: an own cell, or a ticket.
    pub(super) fn releases(&self, slot: usize) -> u32 {
        self.peer.u32(RELEASED_AT + slot * 4)
    }

    /// Copies `pieces` into an own cell that the peer does not read, block by block. Stops behind a block that `passes` refuses, and returns
    /// `false` then. `passes` reads each block right after it was copied, when it is in the cache: the copy then waits for memory as ever.
    pub(super) fn fill(&self, cell: u16, pieces: &[Bytes], mut passes: impl FnMut(&[u8]) -> bool) -> bool {
        let (at, room) = cell_at(cell);
        // SAFETY: the caller, `Outbound`, has taken the cell for itself, and no message that names it is unreleased.
        let mut rest = unsafe { self.own.slice_mut(at, room) };
        for block in pieces.iter().flat_map(|piece| piece.chunks(BLOCK_BYTES)) {
            let (now, later) = rest.split_at_mut(block.len());
            self.copies.copy(block, now);
            if !passes(block) {
                return false;
            }
            rest = later;
        }
        true
    }

    /// The bytes in a cell of the peer. The cell is released when the last reference to them is dropped. `None` if this side still reads the
    /// cell from an earlier message.
    pub(super) fn hold(self: &Arc<Self>, cell: u16, bytes: u32) -> Option<Bytes> {
        let slot = usize::from(cell);
        let (offset, room) = cell_at(cell);
        let bytes = room.min(bytes as usize);
        let from = Source::Link;
        (!self.take(slot)).then(|| Bytes::from_owner(Held { memory: Arc::clone(self), slot, from, offset, bytes }))
    }

    /// The `bytes` bytes at `offset` of a segment that the peer has shown. They are released like those of [`hold`](Self::hold).
    ///
    /// # Panics
    /// If they do not lie within `shown`.
    pub(super) fn borrow(
        self: &Arc<Self>,
        ticket: u16,
        shown: Arc<Shown>,
        offset: usize,
        bytes: usize,
    ) -> Option<Bytes> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= shown.bytes()), "checked by the caller");
        let slot = CELLS + usize::from(ticket);
        let from = Source::Shown(shown);
        (!self.take(slot)).then(|| Bytes::from_owner(Held { memory: Arc::clone(self), slot, from, offset, bytes }))
    }

    /// Takes a slot; whether it was taken already.
    fn take(&self, slot: usize) -> bool {
        self.held[slot].swap(true, Ordering::Acquire)
    }

    /// Tells the peer whether this side sleeps until a wakeup. Only one thread at a time may call this.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.set_waiting(ASLEEP_AT, asleep);
    }

    /// Tells the peer whether this side waits for room. Call it again before each look for room that precedes a sleep. Only one thread at a
    /// time may call this.
    pub(super) fn set_starved(&self, starved: bool) {
        self.set_waiting(STARVED_AT, starved);
        fence(Ordering::SeqCst);
    }

    /// Counts the waits of this side. The number is odd during a wait, and each wait has a number of its own.
    fn set_waiting(&self, at: usize, waits: bool) {
        let word = self.own.u32(at);
        let next = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(if waits { next | 1 } else { next & !1 }, Ordering::SeqCst);
    }

    /// Wakes the peer if it sleeps: there are messages for it.
    pub(super) fn wake_reader(&self) {
        // Orders the message before the look at the peer's state. The peer does the same the other way round, so one of the two sees the other.
        fence(Ordering::SeqCst);
        // A peer that woke meanwhile, read everything and sleeps again is not woken.
        if self.peer.u64(READ_AT) != self.own.u64(SENT_AT).load(Ordering::Relaxed) {
            self.wake_for(self.peer.u32(ASLEEP_AT), 0);
        }
    }

    /// Wakes the peer if it waits for room: there is some.
    pub(super) fn wake_writer(&self) {
        fence(Ordering::SeqCst);
        self.wake_for(self.peer.u32(STARVED_AT), 1);
    }

    /// Wakes the peer if `wait` is the number of a wait that this side has not ended yet. So a peer whose thread gets no core is woken once.
    fn wake_for(&self, wait: u32, kind: usize) {
        if wait % 2 == 1 && self.woken[kind].swap(wait, Ordering::SeqCst) != wait {
            self.waker.wake();
        }
    }

    /// Writes any word of the own segment, as a broken process might.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn scribble(&self, offset: usize, value: u64) {
        self.own.u64(offset).store(value, Ordering::SeqCst);
    }

    fn release(&self, slot: usize) {
        if self.process != process_id() {
            return;
        }
        self.held[slot].store(false, Ordering::Release);
        self.own.u32(RELEASED_AT + slot * 4).fetch_add(1, Ordering::Release);
        self.wake_writer();
    }
}

/// Bytes that are looked at and copied at once, so few that they stay in the first cache, and whole elements.
const BLOCK_BYTES: usize = 16 << 10;

/// Bytes of the peer while they are read here.
struct Held {
    memory: Arc<Memory>,
    slot: usize,
    from: Source,
    offset: usize,
    bytes: usize,
}

/// The memory of the peer in which the bytes lie.
enum Source {
    /// The segment of the link.
    Link,
    /// Another segment that the peer has shown.
    Shown(Arc<Shown>),
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        let segment = match &self.from {
            Source::Link => &self.memory.peer,
            Source::Shown(shown) => shown,
        };
        // SAFETY: a peer that follows the protocol does not write the bytes before they are released, which is when `self` is dropped. A peer
        // that breaks the protocol can change them while they are read. They are bytes of tensors, and every byte is a valid value.
        unsafe { segment.slice(self.offset, self.bytes) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.release(self.slot);
    }
}
