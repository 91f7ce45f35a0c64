//! The table of operations that have not ended. Unlike events they are never overwritten.

use super::slot::{Seen, Slot, WORDS};
use crate::local::sync::{AtomicU64, Ordering};

/// The operations that have not ended, in memory of a fixed size. One thread writes at a time; any thread reads at the same time.
///
/// Each operation is there twice. The writer changes one copy after the other, so one of them is whole, also if the writer sleeps in the
/// middle.
///
/// An operation lies at its number modulo the size, or in one of the next [`PROBES`] places: numbers follow each other and operations end
/// about in their order, so its own place is free but for those that wait for long. An operation that finds no place is left out, and
/// counted.
#[derive(Debug)]
pub(super) struct OpenTable {
    places: Box<[Place]>,
    left_out: AtomicU64,
}

/// Both copies of an operation.
type Place = [Slot; 2];

/// An operation that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    /// The number of the operation.
    pub(super) id: u64,
    /// The key of its first tensor.
    pub(super) key: u64,
    /// Its round; `u64::MAX` as long as that is not known.
    pub(super) round: u64,
    /// When it was submitted.
    pub(super) submitted: u64,
    /// When something last happened to it.
    pub(super) moved: u64,
    /// What happened last, as the head of an event.
    pub(super) last: u64,
    /// How far its parts are.
    pub(super) parts: Parts,
}

/// How many parts of an operation have come how far. A count that does not fit stays at its largest value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Parts {
    /// Parts of which all tensors were submitted.
    pub(super) queued: u16,
    /// Parts whose contribution was handed over to the server.
    pub(super) handed_over: u16,
    /// Parts whose sum has come.
    pub(super) answered: u16,
}

impl Parts {
    /// With the mark of a place that is taken.
    fn to_word(self) -> u64 {
        TAKEN | u64::from(self.queued) << 16 | u64::from(self.handed_over) << 32 | u64::from(self.answered) << 48
    }

    fn of_word(word: u64) -> Option<Self> {
        let count = |at: u32| u16::try_from(word >> at & 0xffff).expect("16 bits");
        (word & 0xffff == TAKEN).then(|| Self { queued: count(16), handed_over: count(32), answered: count(48) })
    }
}

impl OpenTable {
    /// A table of at least so many operations.
    pub(super) fn new(operations: usize) -> Self {
        let len = if operations == 0 { 0 } else { operations.next_power_of_two().max(PROBES) };
        let places = std::iter::repeat_with(Place::default).take(len).collect();
        Self { places, left_out: AtomicU64::new(0) }
    }

    /// An operation begins.
    pub(super) fn begin(&self, open: Open) {
        match self.near(open.id).find(|place| read(place).is_none()) {
            Some(place) => write(place, Some(open)),
            None => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Changes what is known of an operation. Does nothing if it was left out.
    pub(super) fn change(&self, id: u64, change: impl FnOnce(&mut Open)) {
        if let Some((place, mut open)) = self.find(id) {
            change(&mut open);
            write(place, Some(open));
        }
    }

    /// An operation has ended.
    pub(super) fn end(&self, id: u64) {
        if let Some((place, _)) = self.find(id) {
            write(place, None);
        }
    }

    /// The operations that have not ended, by number, and how many were ever left out.
    pub(super) fn read(&self) -> (Vec<Open>, u64) {
        let mut open: Vec<Open> = self.places.iter().filter_map(read).collect();
        open.sort_by_key(|open| open.id);
        (open, self.left_out.load(Ordering::Relaxed))
    }

    fn find(&self, id: u64) -> Option<(&Place, Open)> {
        self.near(id).find_map(|place| read(place).filter(|open| open.id == id).map(|open| (place, open)))
    }

    /// The places where an operation may lie.
    fn near(&self, id: u64) -> impl Iterator<Item = &Place> {
        let mask = (self.places.len() as u64).wrapping_sub(1);
        let probes = if self.places.is_empty() { 0 } else { PROBES as u64 };
        let at = move |probe: u64| usize::try_from(id.wrapping_add(probe) & mask).expect("a place has an index");
        (0..probes).map(move |probe| &self.places[at(probe)])
    }
}

/// Says that `open` lies there, or nothing.
fn write(place: &Place, open: Option<Open>) {
    let words: [u64; WORDS] = match open {
        None => [0; WORDS],
        Some(Open { id, key, round, submitted, moved, last, parts }) => {
            [parts.to_word(), id, key, round, submitted, moved, last]
        }
    };
    for copy in place {
        let written = copy.write(copy.next_stamp(), words);
        debug_assert!(written, "one thread writes at a time");
    }
}

fn read(place: &Place) -> Option<Open> {
    for _ in 0..ATTEMPTS {
        for copy in place {
            match copy.read() {
                Seen::Whole { words: [parts, id, key, round, submitted, moved, last], .. } => {
                    let parts = Parts::of_word(parts)?;
                    return Some(Open { id, key, round, submitted, moved, last, parts });
                }
                // The second copy is written after the first one.
                Seen::Nothing => return None,
                Seen::Changing => {}
            }
        }
    }
    None
}

/// The places in which an operation may lie.
const PROBES: usize = 8;
/// How often a reader looks for a copy that is whole. It fails only if the writer changes the same operation as often meanwhile.
const ATTEMPTS: usize = 64;
/// The mark of a place that is taken.
const TAKEN: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_there_until_it_ends() {
        let table = OpenTable::new(16);
        table.begin(open(3));
        table.change(3, |open| (open.round, open.last) = (7, 9));
        assert_eq!(table.read(), (vec![Open { round: 7, last: 9, ..open(3) }], 0));
        table.end(3);
        assert_eq!(table.read(), (vec![], 0));
        table.change(3, |open| open.round = 8);
        assert_eq!(table.read().0, [], "it has ended");
    }

    #[test]
    fn an_operation_that_waits_for_long_is_not_overwritten_by_later_ones() {
        let table = OpenTable::new(16);
        table.begin(open(3));
        for id in 4..10_000 {
            table.begin(open(id));
            table.end(id);
        }
        assert_eq!(table.read(), (vec![open(3)], 0));
    }

    #[test]
    fn operations_beyond_the_size_are_counted() {
        let table = OpenTable::new(8);
        (0..11).for_each(|id| table.begin(open(id)));
        let (held, left_out) = table.read();
        assert_eq!((held.len(), left_out), (8, 3));
        table.end(10);
        assert_eq!(table.read().0, held, "one that was left out ends without a trace");
    }

    #[test]
    fn a_table_of_no_operations_leaves_all_out() {
        let table = OpenTable::new(0);
        table.begin(open(1));
        table.end(1);
        assert!(table.read().0.is_empty());
    }

    fn open(id: u64) -> Open {
        Open {
            id,
            key: id * 10,
            round: 1,
            submitted: 5,
            moved: 5,
            last: 0,
            parts: Parts { queued: u16::MAX, handed_over: 2, answered: 1 },
        }
    }
}
