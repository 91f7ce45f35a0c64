//! Where the bytes go that one side sends: its cells and tickets, which are free, and who has those that are not.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::layout::{CELLS, LARGE_CELLS, SLOTS, SMALL_CELLS, TICKETS};
use super::memory::Memory;

/// What kind of slot bytes need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// A large cell.
    Large = 0,
    /// A small cell.
    Small = 1,
    /// A ticket, for what is lent where it lies.
    Ticket = 2,
}

/// The slots of one side.
pub(super) struct Cells {
    /// By [`Size`].
    shelves: [Shelf; 3],
    /// What is lent, by the slot of its ticket.
    lent: BTreeMap<u16, Bytes>,
    /// How often each slot was sent; it is free again when the peer has released it as often.
    uses: Vec<u32>,
    /// Exchanges that have slots and are not accepted, and how many of each size.
    waiting: BTreeMap<u64, [usize; 3]>,
}

/// Slots of one size.
struct Shelf {
    /// The last released on top: it is the most likely to be in a cache.
    free: Vec<u16>,
    /// Oldest first.
    busy: VecDeque<u16>,
    /// Those of exchanges that are not accepted.
    waiting: usize,
    waiting_max: usize,
}

impl Cells {
    pub(super) fn new() -> Self {
        let shelf = |from: usize, count: usize| Shelf {
            free: (from..from + count).rev().map(|slot| u16::try_from(slot).expect("few slots")).collect(),
            busy: VecDeque::new(),
            waiting: 0,
            waiting_max: count / 2,
        };
        Self {
            shelves: [shelf(0, LARGE_CELLS), shelf(LARGE_CELLS, SMALL_CELLS), shelf(CELLS, TICKETS)],
            lent: BTreeMap::new(),
            uses: vec![0; SLOTS],
            waiting: BTreeMap::new(),
        }
    }

    /// Takes a slot for bytes of an exchange, if there is one for it.
    pub(super) fn take(&mut self, size: Size, exchange: u64, accepted: bool) -> Option<u16> {
        let shelf = &mut self.shelves[size as usize];
        if !accepted && shelf.waiting >= shelf.waiting_max {
            return None;
        }
        let slot = shelf.free.pop()?;
        shelf.busy.push_back(slot);
        let uses = &mut self.uses[usize::from(slot)];
        *uses = uses.wrapping_add(1);
        if !accepted {
            shelf.waiting += 1;
            self.waiting.entry(exchange).or_default()[size as usize] += 1;
        }
        Some(slot)
    }

    /// Keeps what is lent for a ticket until the peer has released it.
    pub(super) fn lend(&mut self, slot: u16, bytes: Bytes) {
        self.lent.insert(slot, bytes);
    }

    /// Whether the peer may read what was lent to it.
    pub(super) fn lend_anything(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Takes a slot back that was not sent. What was to be lent is returned, to be dropped without the lock.
    pub(super) fn undo(&mut self, slot: u16) -> Option<Bytes> {
        let uses = &mut self.uses[usize::from(slot)];
        *uses = uses.wrapping_sub(1);
        let shelf = &mut self.shelves[size_of_slot(slot) as usize];
        shelf.busy.retain(|busy| *busy != slot);
        shelf.free.push(slot);
        self.lent.remove(&slot)
    }

    /// An exchange is accepted or over: what the peer still holds of it, it will release.
    pub(super) fn forget(&mut self, exchange: u64) {
        if let Some(slots) = self.waiting.remove(&exchange) {
            for (shelf, count) in self.shelves.iter_mut().zip(slots) {
                shelf.waiting -= count;
            }
        }
    }

    /// Finds the slots that the peer has released. What was lent for them is returned, to be dropped without the lock.
    pub(super) fn reclaim(&mut self, memory: &Memory) -> Vec<Bytes> {
        let Self { shelves, lent, uses, .. } = self;
        let mut returned = Vec::new();
        let mut free_again = |slot: u16| returned.extend(lent.remove(&slot));
        for Shelf { free, busy, .. } in shelves {
            let released = |slot: u16| memory.releases(usize::from(slot)) == uses[usize::from(slot)];
            while let Some(slot) = busy.front().copied().filter(|slot| released(*slot)) {
                busy.pop_front();
                free.push(slot);
                free_again(slot);
            }
            // Usually they come back in order; only when that leaves nothing all are looked at.
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
