//! Memory for received datagrams. The chunks of a stream are slices of it.
//!
//! A slot holds the largest batch that receive offload delivers. Received datagrams are cut off its front one by one. When the last slice is
//! dropped, on any thread, the slot is used again. A short batch is copied out instead, because a few bytes would occupy a whole slot, and
//! the copy costs less.
#![expect(unsafe_code, reason = "a slot that came back is known to be initialised")]

use std::collections::VecDeque;

use bytes::BytesMut;

/// Bytes of a slot: a batch of receive offload is no longer.
pub(super) const SLOT_BYTES: usize = 1 << 16;

/// Slots, and the slices that are out.
#[derive(Debug)]
pub(super) struct Arena {
    /// Whole slots.
    idle: Vec<BytesMut>,
    /// The ends of slots whose beginnings are in use, oldest first. With its end, the memory of a slot can be reclaimed.
    lent: VecDeque<BytesMut>,
    /// Where short batches go.
    short: BytesMut,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { idle: Vec::new(), lent: VecDeque::new(), short: BytesMut::with_capacity(SHORT_BYTES) }
    }

    /// A slot of [`SLOT_BYTES`].
    pub(super) fn slot(&mut self) -> BytesMut {
        if let Some(slot) = self.idle.pop() {
            return slot;
        }
        // The newest slots are the most likely to be in a cache. They are free where bytes are copied out at once. Where bytes are held
        // for a while, the oldest slots are free.
        let count = self.lent.len();
        let (newest, oldest) = ((count.saturating_sub(LOOKS)..count).rev(), 0..LOOKS.min(count.saturating_sub(LOOKS)));
        let back = newest.chain(oldest).find(|at| reclaim(&mut self.lent[*at]));
        if let Some(slot) = back.and_then(|at| self.lent.remove(at)) {
            return slot;
        }
        BytesMut::zeroed(SLOT_BYTES)
    }

    /// The first `len` bytes of `slot`, which were received. The slot stays usable if they are few.
    pub(super) fn cut(&mut self, slot: &mut BytesMut, len: usize) -> BytesMut {
        if len < SHORT_BATCH {
            if self.short.capacity() < len {
                self.short.reserve(SHORT_BYTES);
            }
            self.short.extend_from_slice(&slot[..len]);
            return self.short.split();
        }
        let fresh = self.slot();
        let mut used = std::mem::replace(slot, fresh);
        let received = used.split_to(len);
        // Slots beyond these are not reused. Their memory is freed with their last slice.
        if self.lent.len() >= LENT_MAX {
            self.lent.pop_front();
        }
        self.lent.push_back(used);
        received
    }
}

/// Makes `slot` whole again if nothing cut from it is left.
fn reclaim(slot: &mut BytesMut) -> bool {
    slot.clear();
    let back = slot.try_reclaim(SLOT_BYTES);
    if back {
        // SAFETY: reclaiming without allocating gives the allocation that the slot was made of, back from its beginning, because its
        // capacity is no larger than a slot (`BytesMut::zeroed`). All of it was initialised when it was made, and nothing makes
        // bytes uninitialised again.
        unsafe { slot.set_len(SLOT_BYTES) };
    }
    back
}

/// A batch below this is copied out of its slot.
const SHORT_BATCH: usize = 16 << 10;
/// How much room for them is made at once.
const SHORT_BYTES: usize = 256 << 10;
/// How many slots are looked at, from each end, before another is made.
const LOOKS: usize = 4;
/// Slots that are watched for coming back.
const LENT_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_once_all_that_was_cut_from_it_is_gone() {
        let mut arena = Arena::new();
        let mut slot = arena.slot();
        let address = slot.as_ptr();
        slot[SHORT_BATCH - 1] = 7;
        let mut received = arena.cut(&mut slot, SHORT_BATCH);
        assert_eq!((received.as_ptr(), received[SHORT_BATCH - 1]), (address, 7), "cut, not copied");
        let kept = received.split_to(100).freeze().slice(1..2);
        drop(received);
        let other = arena.slot();
        assert!(other.as_ptr() != address, "a slice of it is still out");
        drop(kept);
        let again = arena.slot();
        assert_eq!((again.as_ptr(), again.len()), (address, SLOT_BYTES));
    }

    #[test]
    fn a_short_batch_is_copied_and_leaves_the_slot_in_place() {
        let mut arena = Arena::new();
        let mut slot = arena.slot();
        let address = slot.as_ptr();
        slot[..3].copy_from_slice(b"abc");
        let received = arena.cut(&mut slot, 3);
        slot[..3].copy_from_slice(b"def");
        assert_eq!((&received[..], &arena.cut(&mut slot, 3)[..]), (b"abc" as &[u8], b"def" as &[u8]));
        assert_eq!((slot.as_ptr(), slot.len()), (address, SLOT_BYTES));
    }
}
