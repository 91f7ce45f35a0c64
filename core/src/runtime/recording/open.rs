//! The table of operations that have not ended. Unlike events they are never overwritten.

use std::marker::PhantomData;

use super::slot::{Seen, Slot, WORDS, places_of};
use crate::local::sync::{AtomicU64, Ordering};

/// The operations that have not ended, in memory of a fixed size. One thread writes at a time; any thread reads at the same time.
///
/// Each operation is there twice. The writer changes one copy after the other, so one of them is whole, also if the writer sleeps in the
/// middle.
///
/// An operation lies near the place that its [`OpenOperation::place`] says, modulo the size: in one of [`PROBES`] places of a small part of the
/// table, or, if those are taken, of the rest. So a job that has few open operations at once uses little of the processor's caches, and looks
/// nowhere else for one that has ended. An operation that finds no place is left out, and counted.
#[derive(Debug)]
pub struct OpenTable<O> {
    /// Both have a power of two of them, or none.
    small: Box<[Place]>,
    large: Box<[Place]>,
    /// How many operations the large part has.
    in_large: AtomicU64,
    left_out: AtomicU64,
    operations: PhantomData<fn() -> O>,
}

/// Both copies of an operation.
type Place = [Slot; 2];

/// What is known of an operation that has not ended.
pub trait OpenOperation: Copy {
    /// What tells it from the others.
    type Id: Copy + Ord;

    /// Which one it is.
    fn id(&self) -> Self::Id;

    /// Where it lies if that place is free. Operations that are open at the same time should have different places.
    fn place(id: Self::Id) -> u64;

    /// It in words, of which the first is not 0.
    fn to_words(self) -> [u64; WORDS];

    /// That of words; `None` for words that are none, such as zeros.
    fn of_words(words: [u64; WORDS]) -> Option<Self>;
}

impl<O: OpenOperation> OpenTable<O> {
    /// The table of a recorder of so many events: of none if those are 0.
    pub fn of_recorder(events: u32) -> Self {
        Self::new(if events == 0 { 0 } else { OPERATIONS })
    }

    /// A table of at least so many operations.
    pub fn new(operations: u32) -> Self {
        let large = if operations == 0 { 0 } else { places_of(operations).next_power_of_two().max(PROBES) };
        let places = |count| std::iter::repeat_with(Place::default).take(count).collect();
        Self {
            small: places(large / SMALL),
            large: places(large),
            in_large: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            operations: PhantomData,
        }
    }

    /// An operation begins.
    pub fn begin(&self, open: O) {
        let first = O::place(open.id());
        let free = |places| near(places, first).find(|place| place[0].has_zeros_alone());
        if let Some(place) = free(&self.small) {
            write(place, open.to_words());
        } else if let Some(place) = free(&self.large) {
            write(place, open.to_words());
            self.in_large.fetch_add(1, Ordering::Relaxed);
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Changes what is known of an operation. Does nothing if it was left out.
    pub fn change(&self, id: O::Id, change: impl FnOnce(&mut O)) {
        if let Some(Found { place, mut open, .. }) = self.find(id) {
            change(&mut open);
            write(place, open.to_words());
        }
    }

    /// An operation has ended.
    pub fn end(&self, id: O::Id) {
        if let Some(Found { place, is_in_large, .. }) = self.find(id) {
            write(place, [0; WORDS]);
            self.in_large.fetch_sub(is_in_large.into(), Ordering::Relaxed);
        }
    }

    /// The operations that have not ended, by their ids, and how many were ever left out.
    pub fn read(&self) -> (Vec<O>, u64) {
        let mut open: Vec<O> = self.small.iter().chain(&self.large).filter_map(read).collect();
        open.sort_by_key(O::id);
        (open, self.left_out.load(Ordering::Relaxed))
    }

    fn find(&self, id: O::Id) -> Option<Found<'_, O>> {
        let first = O::place(id);
        let found = |places, is_in_large| {
            let is_it = |place| read_alone(place).filter(|open: &O| open.id() == id).map(|open| (place, open));
            near(places, first).find_map(is_it).map(|(place, open)| Found { place, open, is_in_large })
        };
        let in_large = || (self.in_large.load(Ordering::Relaxed) > 0).then(|| found(&self.large, true)).flatten();
        found(&self.small, false).or_else(in_large)
    }
}

/// Where an operation lies.
struct Found<'a, O> {
    place: &'a Place,
    open: O,
    is_in_large: bool,
}

/// The places of a part in which an operation may lie.
fn near(places: &[Place], first: u64) -> impl Iterator<Item = &Place> {
    let mask = (places.len() as u64).wrapping_sub(1);
    let at = move |probe: usize| usize::try_from(first.wrapping_add(probe as u64) & mask).expect("an index");
    (0..PROBES.min(places.len())).map(move |probe| &places[at(probe)])
}

fn write(place: &Place, words: [u64; WORDS]) {
    place.iter().for_each(|copy| copy.write_alone(words));
}

/// What lies there, for the thread that writes.
fn read_alone<O: OpenOperation>(place: &Place) -> Option<O> {
    if place[0].has_zeros_alone() { None } else { O::of_words(place[0].read_alone()) }
}

fn read<O: OpenOperation>(place: &Place) -> Option<O> {
    for _ in 0..ATTEMPTS {
        for copy in place {
            match copy.read() {
                Seen::Whole { words, .. } => return O::of_words(words),
                // The second copy is written after the first one.
                Seen::Nothing => return None,
                Seen::Changing => {}
            }
        }
    }
    None
}

/// The operations of a recorder that may be open at once, in 2 MiB.
const OPERATIONS: u32 = 16 << 10;
/// How much smaller the small part is.
const SMALL: usize = 256;
/// The places of each part in which an operation may lie.
const PROBES: usize = 8;
/// How often a reader looks for a copy that is whole. It fails only if the writer changes the same operation as often meanwhile.
const ATTEMPTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A number, and what is known of it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Known(u64, u64);

    impl OpenOperation for Known {
        type Id = u64;

        fn id(&self) -> u64 {
            self.0
        }

        fn place(id: u64) -> u64 {
            id
        }

        fn to_words(self) -> [u64; WORDS] {
            [1, self.0, self.1, 0, 0, 0, 0]
        }

        fn of_words(words: [u64; WORDS]) -> Option<Self> {
            (words[0] == 1).then(|| Self(words[1], words[2]))
        }
    }

    #[test]
    fn an_operation_is_there_until_it_ends() {
        let table = OpenTable::new(16);
        table.begin(Known(3, 0));
        table.change(3, |open: &mut Known| open.1 = 7);
        assert_eq!(table.read(), (vec![Known(3, 7)], 0));
        table.end(3);
        assert_eq!(table.read(), (vec![], 0));
        table.change(3, |open| open.1 = 8);
        assert_eq!(table.read().0, [], "it has ended");
    }

    #[test]
    fn an_operation_that_waits_for_long_is_not_overwritten_by_later_ones() {
        let table = OpenTable::new(16);
        table.begin(Known(3, 0));
        for id in 4..10_000 {
            table.begin(Known(id, 0));
            table.end(id);
        }
        assert_eq!(table.read(), (vec![Known(3, 0)], 0));
    }

    #[test]
    fn operations_lie_in_the_small_part_while_they_are_few() {
        let table = OpenTable::new(4096);
        assert_eq!((table.small.len(), table.large.len()), (16, 4096));
        let in_small = || table.small.iter().filter(|place| read::<Known>(place).is_some()).count();
        for id in 0..10_000 {
            table.begin(Known(id, 0));
            table.change(id, |open| open.1 = id);
            assert_eq!((in_small(), table.read().0), (1, vec![Known(id, id)]));
            table.end(id);
        }
        (0..1024).for_each(|id| table.begin(Known(id, 0)));
        assert_eq!((in_small(), table.read().0.len()), (16, 1024));
        assert_eq!(table.in_large.load(Ordering::Relaxed), 1008);
        (0..1024).for_each(|id| table.end(id));
        assert_eq!((table.read(), table.in_large.load(Ordering::Relaxed)), ((vec![], 0), 0));
    }

    #[test]
    fn operations_beyond_the_size_are_counted() {
        let table = OpenTable::new(8);
        (0..11).for_each(|id| table.begin(Known(id, 0)));
        let (held, left_out) = table.read();
        assert_eq!((held.len(), left_out), (8, 3));
        table.end(10);
        assert_eq!(table.read().0, held, "one that was left out ends without a trace");
    }

    #[test]
    fn a_table_of_no_operations_leaves_all_out() {
        let table = OpenTable::new(0);
        table.begin(Known(1, 0));
        table.end(1);
        assert!(table.read().0.is_empty());
    }
}
