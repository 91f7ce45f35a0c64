//! A small segment: the words of `core::transport::shm::layout`, a ring of two messages, and few cells.

/// Messages that a ring holds.
pub(super) const RING_MESSAGES: u64 = 2;
/// 64-bit words of a message.
pub(super) const MESSAGE_WORDS: usize = 2;
/// All cells.
pub(super) const CELLS: usize = 1;
/// What can be released.
pub(super) const SLOTS: usize = 2;

/// Offsets of single words.
pub(super) const SENT_AT: usize = 0;
pub(super) const READ_AT: usize = 8;
pub(super) const ASLEEP_AT: usize = 16;
pub(super) const STARVED_AT: usize = 24;
pub(super) const RELEASED_AT: usize = 32;
const RING_AT: usize = 64;
/// Bytes of a segment.
pub(crate) const SEGMENT_BYTES: usize = RING_AT + 2 * MESSAGE_WORDS * 8;

/// A message in the ring.
pub(super) type Words = [u64; MESSAGE_WORDS];

/// Where the message with this number lies.
pub(super) fn message_at(number: u64) -> usize {
    RING_AT + (number % RING_MESSAGES) as usize * MESSAGE_WORDS * 8
}

/// Where a cell lies, and how long it is. No model writes to one.
pub(super) fn cell_at(_cell: u16) -> (usize, usize) {
    (RING_AT, 0)
}
