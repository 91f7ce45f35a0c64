//! Cells whose numbers have names that are known when the program is built, such as those of stages and codecs. Names of which nothing was
//! counted are not shown.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::cells::Cell;
use super::instance::{Histogram, Value};
use crate::types::whole_ns;

/// `COLUMNS` numbers for each name.
struct Named<const COLUMNS: usize>([OnceLock<(&'static str, [AtomicU64; COLUMNS])>; NAMES_MAX]);

/// A name, and which of its kind it is.
pub(super) type Name = (usize, &'static str);

impl<const COLUMNS: usize> Named<COLUMNS> {
    /// The numbers of a name.
    ///
    /// # Panics
    /// If there are more than [`NAMES_MAX`] of its kind.
    fn row(&self, (index, name): Name) -> &[AtomicU64; COLUMNS] {
        let (_, row) = self.0[index].get_or_init(|| (name, array::from_fn(|_| AtomicU64::new(0))));
        row
    }

    fn rows(&self) -> impl Iterator<Item = (&'static str, [u64; COLUMNS])> {
        let numbers = |row: &[AtomicU64; COLUMNS]| array::from_fn(|column| row[column].load(Ordering::Relaxed));
        self.0.iter().filter_map(move |row| row.get().map(|(name, row)| (*name, numbers(row))))
    }
}

impl<const COLUMNS: usize> Default for Named<COLUMNS> {
    fn default() -> Self {
        Self(array::from_fn(|_| OnceLock::new()))
    }
}

impl<const COLUMNS: usize> fmt::Debug for Named<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.rows()).finish()
    }
}

/// A count for each name. Several threads may add to it. All clones are one.
#[derive(Clone, Default, Debug)]
pub struct ByName(Arc<Named<1>>);

impl ByName {
    /// Adds to the count of a name.
    ///
    /// # Panics
    /// If the index is 16 or more.
    pub fn add(&self, name: Name, by: u64) {
        self.0.row(name)[0].fetch_add(by, Ordering::Relaxed);
    }
}

impl Cell for ByName {
    fn value(&self) -> Value {
        Value::Family(self.0.rows().map(|(name, [count])| (vec![name.to_owned()], count)).collect())
    }
}

/// A histogram for each stage.
#[derive(Clone, Default, Debug)]
pub struct StageDurations(Arc<Named<{ Histogram::BUCKETS + 1 }>>);

impl StageDurations {
    /// Adds how long a stage took. Only one thread at a time may do so.
    ///
    /// # Panics
    /// If the index is 16 or more.
    pub(super) fn add_alone(&self, stage: Name, took: Duration) {
        let (row, nanoseconds) = (self.0.row(stage), whole_ns(took));
        add_alone(&row[Histogram::bucket_of(nanoseconds)], 1);
        add_alone(&row[Histogram::BUCKETS], nanoseconds);
    }
}

impl Cell for StageDurations {
    fn value(&self) -> Value {
        let histogram = |(stage, numbers): (&str, [u64; Histogram::BUCKETS + 1])| {
            let buckets = array::from_fn(|bucket| numbers[bucket]);
            (vec![stage.to_owned()], Histogram { buckets, nanoseconds: numbers[Histogram::BUCKETS] })
        };
        Value::Histograms(self.0.rows().map(histogram).collect())
    }
}

/// Why a part waits in the queue of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitReason {
    /// Others go first.
    Queue,
    /// The credit is used up.
    Credit,
    /// The sum of the part's round before has not come.
    Order,
    /// The server is not connected, or a repeat pauses.
    Link,
    /// As many copies as may be are under way on the device.
    Device,
}

impl WaitReason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Credit, Self::Order, Self::Link, Self::Device];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Credit => "credit",
            Self::Order => "order",
            Self::Link => "link",
            Self::Device => "device",
        }
    }
}

/// How long a part waited, by [`WaitReason`].
pub type WaitTimes = [Duration; WaitReason::ALL.len()];

/// Time for each stage and what parts waited for.
#[derive(Clone, Default, Debug)]
pub struct StageWaits(Arc<Named<{ PEERS + 1 }>>);

/// Behind those of the queue: the time for which other ranks of the machine were not ready.
const PEERS: usize = WaitReason::ALL.len();

impl StageWaits {
    /// Adds how long a part waited in the queue of a stage. Only one thread at a time may do so.
    ///
    /// # Panics
    /// If the index is 16 or more.
    pub(super) fn add_alone(&self, stage: Name, times: WaitTimes) {
        for (number, time) in self.0.row(stage).iter().zip(times) {
            add_alone(number, whole_ns(time));
        }
    }

    /// Adds how long a part waited in a stage for other ranks of its machine.
    ///
    /// # Panics
    /// If the index is 16 or more.
    pub(super) fn add_peers(&self, stage: Name, peers: Duration) {
        self.0.row(stage)[PEERS].fetch_add(whole_ns(peers), Ordering::Relaxed);
    }
}

impl Cell for StageWaits {
    fn value(&self) -> Value {
        let of_stage = |(stage, times): (&'static str, [u64; PEERS + 1])| {
            let labels = move |reason: &str| vec![stage.to_owned(), reason.to_owned()];
            let in_queue = WaitReason::ALL.map(|reason| (labels(reason.name()), times[reason as usize]));
            // Few stages meet other ranks.
            let peers = (times[PEERS] > 0).then(|| (labels("peers"), times[PEERS]));
            in_queue.into_iter().chain(peers)
        };
        Value::Family(self.0.rows().flat_map(of_stage).collect())
    }
}

/// Adds to a number to which no other thread adds meanwhile.
fn add_alone(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// There are fewer stages, fewer codecs, and fewer classes of errors.
const NAMES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_their_order() {
        let counts = ByName::default();
        counts.add((4, "int8"), 2);
        counts.add((2, "fp16"), 3);
        counts.add((4, "int8"), 2);
        let expected = [("fp16", 3), ("int8", 4)].map(|(codec, count)| (vec![codec.to_owned()], count));
        assert_eq!(counts.value(), Value::Family(expected.to_vec()));
    }
}
