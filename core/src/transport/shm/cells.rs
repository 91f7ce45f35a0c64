//! The slots of one side: its cells and its tickets. Keeps which are free, which the peer still reads, and what is lent for a ticket.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::layout::{CELLS, LARGE_CELLS, SLOTS, SMALL_CELLS, TICKETS};
use super::memory::Memory;

/// The kinds of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// A large cell.
    Large = 0,
    /// A small cell.
    Small = 1,
    /// A ticket, for bytes that are lent where they lie.
    Ticket = 2,
}

/// The slots of one side.
pub(super) struct Cells {
    /// By [`Size`].
    classes: [SlotClass; 3],
    /// The bytes that are lent, by the slot of their ticket.
    lent: BTreeMap<u16, Bytes>,
    /// How often each slot was sent. A slot is free when the peer has released it as often.
    uses: Vec<u32>,
    /// For each exchange that is not accepted: the slots that it holds, by [`Size`].
    waiting: BTreeMap<u64, [usize; 3]>,
}

/// Slots of one size.
struct SlotClass {
    /// The slot that was released last is on top, because it is the most likely to be in a cache.
    free: Vec<u16>,
    /// Oldest first.
    busy: VecDeque<u16>,
    /// Slots of exchanges that are not accepted.
    waiting: usize,
    /// The limit of `waiting`.
    waiting_max: usize,
}

impl Cells {
    pub(super) fn new() -> Self {
        let class = |from: usize, count: usize| SlotClass {
            free: (from..from + count).rev().map(|slot| u16::try_from(slot).expect("few slots")).collect(),
            busy: VecDeque::new(),
            waiting: 0,
            waiting_max: count / 2,
        };
        Self {
            classes: [class(0, LARGE_CELLS), class(LARGE_CELLS, SMALL_CELLS), class(CELLS, TICKETS)],
            lent: BTreeMap::new(),
            uses: vec![0; SLOTS],
            waiting: BTreeMap::new(),
        }
    }

    /// Takes a slot for bytes of an exchange. `None` if no slot is free, or if exchanges that are not accepted hold too many.
    pub(super) fn take(&mut self, size: Size, exchange: u64, accepted: bool) -> Option<u16> {
        let class = &mut self.classes[size as usize];
        if !accepted && class.waiting >= class.waiting_max {
            return None;
        }
        let slot = class.free.pop()?;
        class.busy.push_back(slot);
        let uses = &mut self.uses[usize::from(slot)];
        *uses = uses.wrapping_add(1);
        if !accepted {
            class.waiting += 1;
            self.waiting.entry(exchange).or_default()[size as usize] += 1;
        }
        Some(slot)
    }

    /// Keeps the bytes that are lent for a ticket, until the peer has released it.
    pub(super) fn lend(&mut self, slot: u16, bytes: Bytes) {
        self.lent.insert(slot, bytes);
    }

    /// Whether the peer may still read bytes that were lent to it.
    pub(super) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Takes back a slot that was not sent. Returns the bytes that were to be lent. The caller drops them without the lock.
    pub(super) fn undo(&mut self, slot: u16) -> Option<Bytes> {
        let uses = &mut self.uses[usize::from(slot)];
        *uses = uses.wrapping_sub(1);
        let class = &mut self.classes[size_of_slot(slot) as usize];
        class.busy.retain(|busy| *busy != slot);
        class.free.push(slot);
        self.lent.remove(&slot)
    }

    /// An exchange was accepted or is over. The peer will release its slots without waiting for other exchanges.
    pub(super) fn forget(&mut self, exchange: u64) {
        if let Some(slots) = self.waiting.remove(&exchange) {
            for (class, count) in self.classes.iter_mut().zip(slots) {
                class.waiting -= count;
            }
        }
    }

    /// Finds the slots that the peer has released. Returns the bytes that were lent for them. The caller drops them without the lock.
    pub(super) fn reclaim(&mut self, memory: &Memory) -> Vec<Bytes> {
        let Self { classes, lent, uses, .. } = self;
        let mut returned = Vec::new();
        let mut free_again = |slot: u16| returned.extend(lent.remove(&slot));
        for SlotClass { free, busy, .. } in classes {
            let released = |slot: u16| memory.releases(usize::from(slot)) == uses[usize::from(slot)];
            while let Some(slot) = busy.front().copied().filter(|slot| released(*slot)) {
                busy.pop_front();
                free.push(slot);
                free_again(slot);
            }
            // Slots usually come back in order. All slots are looked at only if no slot came back that way.
            if free.is_empty() {
                busy.retain(|slot| {
                    let back = released(*slot);
                    if back {
                        free.push(*slot);
                        free_again(*slot);
                    }
                    !back
                });
            }
        }
        returned
    }
}

fn size_of_slot(slot: u16) -> Size {
    match usize::from(slot) {
        slot if slot < LARGE_CELLS => Size::Large,
        slot if slot < CELLS => Size::Small,
        _ => Size::Ticket,
    }
}
