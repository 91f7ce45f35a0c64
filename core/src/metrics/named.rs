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

/// A count for each name. Several threads may add to it.
#[derive(Default, Debug)]
pub struct ByName(Named<1>);

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

/// Time for each stage and what parts waited for.
#[derive(Clone, Default, Debug)]
pub struct StageWaits(Arc<Named<2>>);

impl StageWaits {
    /// Adds how long a part waited in the queue of a stage, without and with credit missing. Only one thread at a time may do so.
    ///
    /// # Panics
    /// If the index is 16 or more.
    pub(super) fn add_alone(&self, stage: Name, queue: Duration, credit: Duration) {
        let [queued, starved] = self.0.row(stage);
        add_alone(queued, whole_ns(queue));
        add_alone(starved, whole_ns(credit));
    }
}

impl Cell for StageWaits {
    fn value(&self) -> Value {
        let of_stage = |(stage, times): (&'static str, [u64; 2])| {
            let labels = move |reason: &str| vec![stage.to_owned(), reason.to_owned()];
            [(labels("queue"), times[0]), (labels("credit"), times[1])]
        };
        Value::Family(self.0.rows().flat_map(of_stage).collect())
    }
}

/// Adds to a number to which no other thread adds meanwhile.
fn add_alone(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// There are fewer stages, and fewer codecs.
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
