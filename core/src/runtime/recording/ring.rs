//! The ring of events: the newest ones, in memory of a fixed size.

use super::slot::{Seen, Slot, WORDS, places_of};
use crate::local::sync::{AtomicU64, Ordering};

/// The newest events. Any thread writes, and any thread reads at the same time; none of them ever waits.
///
/// A writer that is a whole lap late finds its slot taken by a newer event, or in the middle of being written. Then its event is lost, and
/// counted.
#[derive(Debug)]
pub struct Ring {
    /// A power of two of them; none if nothing is recorded.
    slots: Box<[Slot]>,
    /// The number of the next event.
    next: AtomicU64,
    lost: AtomicU64,
}

/// What a ring holds.
#[derive(Default, Debug)]
pub struct Newest {
    /// The events with their numbers, from old to new.
    pub events: Vec<(u64, [u64; WORDS])>,
    /// How many were ever written.
    pub written: u64,
    /// How many of them were lost because two threads met in one slot.
    pub lost: u64,
}

impl Ring {
    /// A ring of at least so many events; nothing is recorded if it is 0.
    pub fn new(events: u32) -> Self {
        let len = if events == 0 { 0 } else { places_of(events).next_power_of_two() };
        let slots = std::iter::repeat_with(Slot::default).take(len).collect();
        Self { slots, next: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// Whether it holds any events.
    pub fn is_on(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Writes an event over the oldest one.
    pub fn write(&self, words: [u64; WORDS]) {
        if self.slots.is_empty() {
            return;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.slot(number).write(stamp(number), words) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many events were ever written, and how many of them were lost because two threads met in one slot.
    pub fn counts(&self) -> (u64, u64) {
        (self.next.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }

    /// Reads all events that are whole.
    pub fn read(&self) -> Newest {
        let written = self.next.load(Ordering::Acquire);
        let oldest = written.saturating_sub(self.slots.len() as u64);
        let of = |number: u64| match self.slot(number).read() {
            Seen::Whole { stamp: found, words } if found == stamp(number) => Some((number, words)),
            Seen::Whole { .. } | Seen::Changing | Seen::Nothing => None,
        };
        let events = (oldest..written).filter_map(of).collect();
        Newest { events, written, lost: self.lost.load(Ordering::Relaxed) }
    }

    fn slot(&self, number: u64) -> &Slot {
        let mask = self.slots.len() as u64 - 1;
        &self.slots[usize::try_from(number & mask).expect("a slot has an index")]
    }
}

/// The stamp of an event: even, and never that of an empty slot.
fn stamp(number: u64) -> u64 {
    2 * (number + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_newest_events_are_kept_in_their_order() {
        let ring = Ring::new(4);
        (0..10).for_each(|value| ring.write([value; WORDS]));
        let Newest { events, written, lost } = ring.read();
        assert_eq!((written, lost), (10, 0));
        assert_eq!(ring.counts(), (10, 0));
        assert_eq!(events, (6..10).map(|value| (value, [value; WORDS])).collect::<Vec<_>>());
    }

    #[test]
    fn a_ring_that_is_not_full_has_what_was_written() {
        let ring = Ring::new(3);
        assert_eq!(ring.slots.len(), 4, "a power of two");
        assert!(ring.read().events.is_empty());
        ring.write([7; WORDS]);
        assert_eq!(ring.read().events, [(0, [7; WORDS])]);
    }

    #[test]
    fn a_ring_of_no_events_records_nothing() {
        let ring = Ring::new(0);
        ring.write([1; WORDS]);
        assert_eq!((ring.is_on(), ring.read().written), (false, 0));
    }

    #[test]
    fn no_event_is_torn_while_several_threads_write() {
        let ring = Arc::new(Ring::new(8));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let ring = Arc::clone(&ring);
                scope.spawn(move || (0..20_000).for_each(|count| ring.write([thread * 20_000 + count; WORDS])));
            }
            for _ in 0..2_000 {
                let Newest { events, .. } = ring.read();
                assert!(events.iter().all(|(_, words)| words.iter().all(|word| *word == words[0])), "{events:?}");
                assert!(events.is_sorted_by_key(|(number, _)| *number));
            }
        });
        let Newest { events, written, lost } = ring.read();
        assert_eq!(written, 60_000);
        assert!(events.len() as u64 + lost >= 8, "{} events and {lost} lost", events.len());
    }
}
