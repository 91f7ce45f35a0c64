//! The two segments of a link, and what each side tells the other through them.
//!
//! Whatever is read from the peer's segment may be anything, and may change while it is read: words are read once and checked, and the
//! bytes in cells are data, which the peer spoils for itself only: a worker that changes a body while it is added changes its own
//! contribution, which it could have sent so in the first place; a server that changes a sum could have computed it wrong.
#![expect(unsafe_code, reason = "bytes in memory that another process maps are reached by address")]

use std::sync::Arc;

use bytes::Bytes;

use super::bell::Rope;
use super::layout::{
    ASLEEP_AT, CELLS, MESSAGE_WORDS, READ_AT, RELEASED_AT, RING_MESSAGES, SENT_AT, SLOTS, STARVED_AT, Words, cell_at,
    message_at,
};
use crate::error::Result;
use crate::local::sync::{AtomicBool, AtomicU32, Ordering, fence};
use crate::local::{Segment, Shown, process_id};
use crate::mem::Copies;
use crate::transport::exchange::bad;

/// The memory of one link, as one of its sides has it.
pub(super) struct Memory {
    own: Segment,
    peer: Shown,
    /// Wakes the peer's thread.
    rope: Rope,
    /// Which wait of the peer was rung last, for messages and for room. Until the peer has woken, once is enough.
    rung: [AtomicU32; 2],
    /// Which cells of the peer, and for which tickets what it lends, are being read here.
    held: Box<[AtomicBool]>,
    copies: Copies,
    /// The process that has the link: a fork's child inherits it, and must not speak through it.
    process: u32,
}

impl Memory {
    pub(super) fn new(own: Segment, peer: Shown, rope: Rope, copies: Copies) -> Self {
        let held = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        let rung = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { own, peer, rope, rung, held, copies, process: process_id() }
    }

    /// Writes the message with this number, and after it the number of messages there are.
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
    /// [`Error::Protocol`](crate::Error::Protocol) if the peer counts what cannot be.
    pub(super) fn read(&self, read: u64, peer: &str) -> Result<Option<Words>> {
        let sent = self.peer.u64(SENT_AT);
        match sent.checked_sub(read) {
            Some(0) => return Ok(None),
            Some(unread) if unread <= RING_MESSAGES => {}
            Some(_) | None => {
                return Err(bad(peer, "ring", format!("has {sent} messages after {read} were read")));
            }
        }
        let (at, mut words) = (message_at(read), [0; MESSAGE_WORDS]);
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.peer.u64(at + index * 8);
        }
        self.own.u64(READ_AT).store(read + 1, Ordering::Release);
        Ok(Some(words))
    }

    /// How many of `sent` messages the peer has read; `before` is what it said last.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if that cannot be.
    pub(super) fn peer_has_read(&self, before: u64, sent: u64, peer: &str) -> Result<u64> {
        let read = self.peer.u64(READ_AT);
        if (before..=sent).contains(&read) {
            return Ok(read);
        }
        Err(bad(peer, "ring", format!("has read {read} messages of {sent}, and {before} before")))
    }

    /// Whether there are messages of the peer that nobody read.
    pub(super) fn has_unread(&self) -> bool {
        self.peer.u64(SENT_AT) != self.own.u64(READ_AT).load(Ordering::Relaxed)
    }

    /// How often the peer has released a slot: an own cell, or a ticket.
    pub(super) fn releases(&self, slot: usize) -> u32 {
        self.peer.u32(RELEASED_AT + slot * 4)
    }

    /// Copies `pieces` into an own cell that the peer does not read.
    pub(super) fn fill(&self, cell: u16, pieces: &[Bytes]) {
        let (at, room) = cell_at(cell);
        // SAFETY: the caller, `Outbound`, has taken the cell for itself, and no message that names it is unreleased.
        let mut rest = unsafe { self.own.slice_mut(at, room) };
        for piece in pieces {
            let (now, later) = rest.split_at_mut(piece.len());
            self.copies.copy(piece, now);
            rest = later;
        }
    }

    /// The bytes in a cell of the peer, released when the last reference to them is dropped. Nothing if they are still being read.
    pub(super) fn hold(self: &Arc<Self>, cell: u16, bytes: u32) -> Option<Bytes> {
        let slot = usize::from(cell);
        let (offset, room) = cell_at(cell);
        let bytes = room.min(bytes as usize);
        let from = Source::Link;
        (!self.take(slot)).then(|| Bytes::from_owner(Held { memory: Arc::clone(self), slot, from, offset, bytes }))
    }

    /// The `bytes` bytes at `offset` of what the peer has shown, as [`hold`](Self::hold).
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

    /// Says whether this side waits for its bell. Only one thread at a time may say so.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.set_waiting(ASLEEP_AT, asleep);
    }

    /// Says whether this side waits for room; again before each look for room that precedes a sleep. Only one thread at a time may say so.
    pub(super) fn set_starved(&self, starved: bool) {
        self.set_waiting(STARVED_AT, starved);
        fence(Ordering::SeqCst);
    }

    /// Counts the waits of this side: the number is odd during a wait, and each wait has its own.
    fn set_waiting(&self, at: usize, waits: bool) {
        let word = self.own.u32(at);
        let next = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(if waits { next | 1 } else { next & !1 }, Ordering::SeqCst);
    }

    /// Wakes the peer if it sleeps: there are messages for it.
    pub(super) fn nudge(&self) {
        // Between what was written before and what the peer says of itself: one of the two sides sees the other.
        fence(Ordering::SeqCst);
        // One that woke meanwhile, read everything and sleeps again needs no bell.
        if self.peer.u64(READ_AT) != self.own.u64(SENT_AT).load(Ordering::Relaxed) {
            self.ring_for(self.peer.u32(ASLEEP_AT), 0);
        }
    }

    /// Wakes the peer if it waits for room: there is some.
    pub(super) fn relieve(&self) {
        fence(Ordering::SeqCst);
        self.ring_for(self.peer.u32(STARVED_AT), 1);
    }

    /// Rings if this is the number of a wait that was not rung yet: a peer whose thread gets no core is not rung a hundred times.
    fn ring_for(&self, wait: u32, kind: usize) {
        if wait % 2 == 1 && self.rung[kind].swap(wait, Ordering::SeqCst) != wait {
            self.rope.ring();
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
        self.relieve();
    }
}

/// Bytes of the peer while they are read here.
struct Held {
    memory: Arc<Memory>,
    slot: usize,
    from: Source,
    offset: usize,
    bytes: usize,
}

/// Which memory of the peer.
enum Source {
    /// The segment of the link.
    Link,
    /// What it shows beside that.
    Shown(Arc<Shown>),
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        let segment = match &self.from {
            Source::Link => &self.memory.peer,
            Source::Shown(shown) => shown,
        };
        // SAFETY: a peer that follows the protocol does not write the bytes before they are released, which is when `self` is dropped. One
        // that does not can change what is read, as the module's words say: bytes of tensors, any of which are a value.
        unsafe { segment.slice(self.offset, self.bytes) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.release(self.slot);
    }
}
