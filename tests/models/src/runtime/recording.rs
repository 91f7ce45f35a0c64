//! A flight recorder, which is read while it is written.

#[path = "../../../../core/src/runtime/recording/open.rs"]
mod open;
#[path = "../../../../core/src/runtime/recording/ring.rs"]
mod ring;
#[path = "../../../../core/src/runtime/recording/slot.rs"]
mod slot;

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use open::{OpenOperation, OpenTable};
use ring::{Newest, Ring};
use slot::WORDS;

/// Two threads write into a ring that is smaller than what they write, and a third reads. No event is torn, and each number comes once.
pub fn ring() {
    let ring = Arc::new(Ring::new(2));
    let writing: Vec<_> = (0..2)
        .map(|thread| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || (0..3).for_each(|count| ring.write([10 * thread + count; WORDS])))
        })
        .collect();
    let whole = |Newest { events, .. }: Newest| {
        assert!(events.iter().all(|(_, words)| words.iter().all(|word| *word == words[0])), "torn: {events:?}");
        assert!(events.windows(2).all(|pair| pair[0].0 < pair[1].0), "in another order: {events:?}");
        events.len() as u64
    };
    for _ in 0..2 {
        assert!(whole(ring.read()) <= 2);
    }
    writing.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let newest = ring.read();
    let (written, lost) = (newest.written, newest.lost);
    assert_eq!(written, 6);
    assert!(whole(newest) + lost >= 2, "the newest events are there but for those that were lost");
}

/// An operation is found, and whole, from its begin to its end, while it changes and others begin and end beside it, also if its writer sleeps.
pub fn open() {
    let table = Arc::new(OpenTable::new(8));
    table.begin(Known { id: 1, count: 0 });
    let there = Arc::clone(&table);
    let writing = thread::spawn(move || {
        for count in 1..4 {
            there.change(1, |open: &mut Known| open.count = count);
            there.begin(Known { id: 9, count });
            there.end(9);
        }
    });
    for _ in 0..3 {
        let (found, left_out) = table.read();
        assert_eq!(left_out, 0);
        let ours: Vec<&Known> = found.iter().filter(|open| open.id == 1).collect();
        assert_eq!(ours.len(), 1, "it is there once, and whole");
    }
    writing.join().expect("no panic");
    assert_eq!(table.read().0, [Known { id: 1, count: 3 }]);
}

/// As [`ring`], with a reader that looks at the stamp only before it reads the words.
pub fn ring_whose_reader_looks_once() {
    let slot = Arc::new((AtomicU64::new(2), [AtomicU64::new(0), AtomicU64::new(0)]));
    let there = Arc::clone(&slot);
    let writing = thread::spawn(move || {
        there.0.store(3, Ordering::SeqCst);
        there.1.iter().for_each(|word| word.store(1, Ordering::SeqCst));
        there.0.store(4, Ordering::SeqCst);
    });
    if slot.0.load(Ordering::SeqCst).is_multiple_of(2) {
        let words = slot.1.each_ref().map(|word| word.load(Ordering::SeqCst));
        assert_eq!(words[0], words[1], "torn");
    }
    writing.join().expect("no panic");
}

/// As [`ring`], with writers that do not ask whether another one writes into their slot.
pub fn ring_whose_writers_do_not_ask() {
    let slot = Arc::new((AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]));
    let writing: Vec<_> = (1..3)
        .map(|number| {
            let there = Arc::clone(&slot);
            thread::spawn(move || {
                there.0.store(2 * number - 1, Ordering::SeqCst);
                there.1.iter().for_each(|word| word.store(number, Ordering::SeqCst));
                there.0.store(2 * number, Ordering::SeqCst);
            })
        })
        .collect();
    writing.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let words = slot.1.each_ref().map(|word| word.load(Ordering::SeqCst));
    assert_eq!(words[0], words[1], "torn");
}

/// An operation, all words of which tell its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    id: u64,
    count: u64,
}

impl OpenOperation for Known {
    type Id = u64;

    fn id(&self) -> u64 {
        self.id
    }

    fn place(id: u64) -> u64 {
        id
    }

    fn to_words(self) -> [u64; WORDS] {
        let Self { id, count } = self;
        [id, count, count, count, count, count, count]
    }

    fn of_words([id, count, others @ ..]: [u64; WORDS]) -> Option<Self> {
        assert_eq!(others, [count; WORDS - 2], "torn");
        if id > 0 { Some(Self { id, count }) } else { None }
    }
}
