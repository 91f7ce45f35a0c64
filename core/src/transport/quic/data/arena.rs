//! Memory for received datagrams. The chunks of a stream are slices of it.
//!
//! A slot holds the largest batch that receive offload delivers. Received datagrams are cut off its front one by one. When the last slice is
//! dropped, on any thread, the slot is used again. A short batch is copied into a shared block instead, because a few bytes would occupy a
//! whole slot, and the copy costs less.
//!
//! One slice keeps its whole slot or block. A peer can arrange that a single datagram of each slot is not read. So slots and blocks are
//! counted, not bytes. When [`SLOTS_MAX`] or [`BLOCKS_MAX`] are in use, each further datagram is copied into memory of its own
//! ([`Cut::Apart`]). quinn-proto bounds this memory: it copies chunks together when they keep too much memory around them.
#![expect(unsafe_code, reason = "a slot that came back is known to be initialised")]

use std::collections::VecDeque;

use bytes::BytesMut;

/// Bytes of a slot: a batch of receive offload is no longer.
pub(super) const SLOT_BYTES: usize = 1 << 16;

/// Slots and blocks, and which of them are in use.
#[derive(Debug)]
pub(super) struct Arena {
    /// The ends of slots whose beginnings are in use. The memory of a slot can be reclaimed through its end.
    slots: Lent,
    /// The block that receives short batches.
    block: BytesMut,
    /// The ends of blocks that are full.
    blocks: Lent,
}

/// A received batch.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// Its bytes.
    Joint(BytesMut),
    /// There is no memory for it: copy each datagram, and then use the slot again.
    Apart,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self {
            slots: Lent::new(SLOT_BYTES, SLOTS_MAX),
            block: BytesMut::with_capacity(BLOCK_BYTES),
            blocks: Lent::new(BLOCK_BYTES, BLOCKS_MAX),
        }
    }

    /// A slot of [`SLOT_BYTES`].
    pub(super) fn slot(&mut self) -> BytesMut {
        match self.slots.reclaim() {
            Some(mut slot) => {
                // SAFETY: reclaiming without allocating gives the allocation that the slot was made of, back from its beginning, because
                // its capacity is no larger than a slot (`BytesMut::zeroed`). All of it was initialised when it was made, and nothing
                // makes bytes uninitialised again.
                unsafe { slot.set_len(SLOT_BYTES) };
                slot
            }
            None => BytesMut::zeroed(SLOT_BYTES),
        }
    }

    /// The first `len` bytes of `slot`, which were received. The slot stays usable if they are few, or if there is no memory for another.
    pub(super) fn cut(&mut self, slot: &mut BytesMut, len: usize) -> Cut {
        if len < SHORT_BATCH {
            if self.block.capacity() < len {
                if self.blocks.is_full() {
                    return Cut::Apart;
                }
                let block = self.blocks.reclaim().unwrap_or_else(|| BytesMut::with_capacity(BLOCK_BYTES));
                self.blocks.lend(std::mem::replace(&mut self.block, block));
            }
            self.block.extend_from_slice(&slot[..len]);
            return Cut::Joint(self.block.split());
        }
        if self.slots.is_full() {
            return Cut::Apart;
        }
        let fresh = self.slot();
        let mut used = std::mem::replace(slot, fresh);
        let received = used.split_to(len);
        self.slots.lend(used);
        Cut::Joint(received)
    }
}

/// The ends of pieces of memory that are in use, oldest first.
#[derive(Debug)]
struct Lent {
    ends: VecDeque<BytesMut>,
    bytes: usize,
    max: usize,
    /// How often it was full since all pieces were looked at.
    refusals: u32,
    /// Pieces that were lent since `trim` was called.
    lent: u32,
}

impl Lent {
    fn new(bytes: usize, max: usize) -> Self {
        Self { ends: VecDeque::new(), bytes, max, refusals: 0, lent: 0 }
    }

    fn lend(&mut self, end: BytesMut) {
        self.ends.push_back(end);
        self.lent += 1;
        if self.lent >= TRIM_EVERY {
            self.lent = 0;
            self.trim();
        }
    }

    /// Frees memory that came back after a burst. Keeps [`KEPT_BYTES`] of it.
    fn trim(&mut self) {
        let (bytes, mut kept) = (self.bytes, 0);
        if self.ends.len() * bytes > KEPT_BYTES {
            self.ends.retain_mut(|end| {
                let is_back = whole(end, bytes);
                kept += if is_back { bytes } else { 0 };
                !is_back || kept <= KEPT_BYTES
            });
        }
    }

    /// Whether as many pieces are in use as may be. Looks at all of them now and then, to find pieces that came back unnoticed.
    fn is_full(&mut self) -> bool {
        if self.ends.len() < self.max {
            return false;
        }
        if self.refusals.is_multiple_of(SWEEP_EVERY) {
            let bytes = self.bytes;
            self.ends.retain_mut(|end| !whole(end, bytes));
        }
        self.refusals += 1;
        if self.ends.len() < self.max {
            self.refusals = 0;
            return false;
        }
        true
    }

    /// A piece that came back, empty.
    fn reclaim(&mut self) -> Option<BytesMut> {
        // The newest pieces are the most likely to be in a cache. They are free if the readers copy the bytes at once. If the readers hold the
        // bytes for a while, the oldest pieces are free.
        let count = self.ends.len();
        let (newest, oldest) = ((count.saturating_sub(LOOKS)..count).rev(), 0..LOOKS.min(count.saturating_sub(LOOKS)));
        let bytes = self.bytes;
        let back = newest.chain(oldest).find(|at| whole(&mut self.ends[*at], bytes))?;
        self.ends.remove(back)
    }
}

/// Makes a piece of memory whole again, and empty. Returns false if a slice of it is still in use.
fn whole(end: &mut BytesMut, bytes: usize) -> bool {
    end.clear();
    end.try_reclaim(bytes)
}

/// A batch with fewer bytes is copied out of its slot.
const SHORT_BATCH: usize = 16 << 10;
/// Bytes of a block for short batches.
const BLOCK_BYTES: usize = 256 << 10;
/// Slots at each end of the list that are tried before a new slot is made.
const LOOKS: usize = 4;
/// Slots that may be in use: 128 MiB. A server receives fewer bytes of parts at once, so datagrams are rarely copied.
const SLOTS_MAX: usize = 2_048;
/// Blocks that may be in use: 32 MiB.
const BLOCKS_MAX: usize = 128;
/// Bytes of memory that came back and are kept for later.
const KEPT_BYTES: usize = 32 << 20;
/// Batches between two calls of `trim`.
const TRIM_EVERY: u32 = 256;
/// Batches without memory between two looks at all pieces.
const SWEEP_EVERY: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_once_all_that_was_cut_from_it_is_gone() {
        let mut arena = Arena::new();
        let mut slot = arena.slot();
        let address = slot.as_ptr();
        slot[SHORT_BATCH - 1] = 7;
        let mut received = joint(arena.cut(&mut slot, SHORT_BATCH));
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
        let received = joint(arena.cut(&mut slot, 3));
        slot[..3].copy_from_slice(b"def");
        assert_eq!((&received[..], &joint(arena.cut(&mut slot, 3))[..]), (b"abc" as &[u8], b"def" as &[u8]));
        assert_eq!((slot.as_ptr(), slot.len()), (address, SLOT_BYTES));
    }

    #[test]
    fn what_a_burst_needed_is_given_back_to_the_system() {
        let mut arena = Arena::new();
        let mut slot = arena.slot();
        let held: Vec<_> = (0..SLOTS_MAX).map(|_| joint(arena.cut(&mut slot, SHORT_BATCH))).collect();
        assert_eq!(arena.slots.ends.len(), SLOTS_MAX);
        drop(held);
        for _ in 0..TRIM_EVERY {
            drop(joint(arena.cut(&mut slot, SHORT_BATCH)));
        }
        assert!(arena.slots.ends.len() * SLOT_BYTES <= KEPT_BYTES + SLOT_BYTES, "{}", arena.slots.ends.len());
    }

    #[test]
    fn a_byte_kept_of_each_batch_pins_no_more_slots_than_there_may_be() {
        for (len, max) in [(SHORT_BATCH, SLOTS_MAX), (SHORT_BATCH - 1, BLOCKS_MAX * (BLOCK_BYTES / (SHORT_BATCH - 1)))]
        {
            let mut arena = Arena::new();
            let mut slot = arena.slot();
            let mut kept = Vec::new();
            let full = (0..2 * max).find(|_| match arena.cut(&mut slot, len) {
                Cut::Joint(mut received) => {
                    kept.push(received.split_to(1));
                    false
                }
                Cut::Apart => true,
            });
            assert!(full.is_some(), "at {max}");
            assert!(arena.slots.ends.len() <= SLOTS_MAX && arena.blocks.ends.len() <= BLOCKS_MAX);
            assert_eq!(slot.len(), SLOT_BYTES, "it is used again");
            kept.clear();
            let again = (0..2 * SWEEP_EVERY).find(|_| arena.cut(&mut slot, len) != Cut::Apart);
            assert!(again.is_some(), "what came back is found");
        }
    }

    fn joint(cut: Cut) -> BytesMut {
        match cut {
            Cut::Joint(received) => received,
            Cut::Apart => panic!("there is memory"),
        }
    }
}
