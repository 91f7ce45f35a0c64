//! Cells that hold more than one number: histograms of durations, and numbers by index. All are atomics, which are read without a lock.

use std::array;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::instance::{Histogram, Value};
use crate::types::{Cause, WorkerSet, whole_ns};

/// What a cell shows.
pub trait Cell {
    /// Its value now.
    fn value(&self) -> Value;
}

/// A histogram of durations. Its buckets are those of [`Histogram`].
#[derive(Default, Debug)]
pub struct Durations {
    buckets: [AtomicU64; Histogram::BUCKETS],
    nanoseconds: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn add(&self, duration: Duration) {
        let nanoseconds = whole_ns(duration);
        self.buckets[Histogram::bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Cell for Durations {
    fn value(&self) -> Value {
        let buckets = array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        Value::Histogram(Histogram { buckets, nanoseconds: self.nanoseconds.load(Ordering::Relaxed) })
    }
}

/// `COLUMNS` numbers for each index below [`ByIndex::INDICES_MAX`]. Memory is taken for indices that are used, and never more than for all.
struct ByIndex<const COLUMNS: usize> {
    /// The indices below this one are shown.
    shown: AtomicUsize,
    chunks: [OnceLock<Box<Chunk<COLUMNS>>>; CHUNKS],
}

type Chunk<const COLUMNS: usize> = [[AtomicU64; COLUMNS]; CHUNK];

impl<const COLUMNS: usize> ByIndex<COLUMNS> {
    /// A job has no more workers, and a server no more lanes.
    const INDICES_MAX: usize = CHUNK * CHUNKS;

    /// Shows the indices below `count`, also those of which nothing was counted.
    fn show(&self, count: usize) {
        self.shown.fetch_max(count.min(Self::INDICES_MAX), Ordering::Relaxed);
    }

    /// Adds to one number. An index that is too high is ignored.
    fn add(&self, index: usize, column: usize, by: u64) {
        let Some(chunk) = self.chunks.get(index / CHUNK) else { return };
        let chunk = chunk.get_or_init(|| Box::new(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0)))));
        chunk[index % CHUNK][column].fetch_add(by, Ordering::Relaxed);
        if self.shown.load(Ordering::Relaxed) <= index {
            self.show(index + 1);
        }
    }

    /// The rows that are shown: all, or if they are more than [`SHOWN_MAX`], the [`WORST`] with the highest sums and the sum of the others.
    fn rows(&self) -> Vec<(String, [u64; COLUMNS])> {
        let row = |index: usize| match self.chunks[index / CHUNK].get() {
            Some(chunk) => array::from_fn(|column| chunk[index % CHUNK][column].load(Ordering::Relaxed)),
            None => [0; COLUMNS],
        };
        let mut rows: Vec<(usize, [u64; COLUMNS])> =
            (0..self.shown.load(Ordering::Relaxed)).map(|index| (index, row(index))).collect();
        let mut others = None;
        if rows.len() > SHOWN_MAX {
            let sum = |row: &[u64; COLUMNS]| row.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
            rows.sort_by_key(|(index, row)| (std::cmp::Reverse(sum(row)), *index));
            let rest = rows.split_off(WORST);
            let add = |sums: [u64; COLUMNS], (_, row): &(usize, [u64; COLUMNS])| {
                array::from_fn(|column| sums[column].saturating_add(row[column]))
            };
            others = Some(("other".to_owned(), rest.iter().fold([0; COLUMNS], add)));
            rows.sort_by_key(|(index, _)| *index);
        }
        rows.into_iter().map(|(index, row)| (index.to_string(), row)).chain(others).collect()
    }
}

impl<const COLUMNS: usize> Default for ByIndex<COLUMNS> {
    fn default() -> Self {
        Self { shown: AtomicUsize::new(0), chunks: array::from_fn(|_| OnceLock::new()) }
    }
}

impl<const COLUMNS: usize> fmt::Debug for ByIndex<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rows()).finish()
    }
}

/// A number for each rank or lane.
#[derive(Default, Debug)]
pub struct Indexed(ByIndex<1>);

impl Indexed {
    /// Shows the indices below `count`, also those of which nothing was counted.
    pub fn show(&self, count: usize) {
        self.0.show(count);
    }

    /// Adds to the number of an index. An index beyond [`WorkerSet::WORKERS_MAX`] is ignored.
    pub fn add(&self, index: usize, by: u64) {
        self.0.add(index, 0, by);
    }
}

impl Cell for Indexed {
    fn value(&self) -> Value {
        Value::Family(self.0.rows().into_iter().map(|(index, [value])| (vec![index], value)).collect())
    }
}

/// Time for each rank and [`Cause`].
#[derive(Default, Debug)]
pub struct ByCause(ByIndex<{ Cause::ALL.len() }>);

impl ByCause {
    /// Shows the ranks below `count`, also those of which nothing was counted.
    pub fn show(&self, count: usize) {
        self.0.show(count);
    }

    /// Adds a duration. A rank beyond [`WorkerSet::WORKERS_MAX`] is ignored.
    pub fn add(&self, rank: usize, cause: Cause, duration: Duration) {
        if !duration.is_zero() {
            self.0.add(rank, cause as usize, whole_ns(duration));
        }
    }
}

impl Cell for ByCause {
    fn value(&self) -> Value {
        let of_rank = |(rank, times): (String, [u64; Cause::ALL.len()])| {
            let labels = move |cause: Cause| vec![rank.clone(), cause.name().to_owned()];
            Cause::ALL.map(|cause| (labels(cause), times[cause as usize]))
        };
        Value::Family(self.0.rows().into_iter().flat_map(of_rank).collect())
    }
}

const CHUNK: usize = 64;
const CHUNKS: usize = WorkerSet::WORKERS_MAX / CHUNK;
/// Prometheus keeps a series for each index, so that there must not be too many.
const SHOWN_MAX: usize = 256;
/// How many are shown of more.
const WORST: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_before_anything_was_counted_of_them() {
        let cell = Indexed::default();
        assert_eq!(cell.value(), Value::Family(Vec::new()));
        cell.show(2);
        cell.add(1, 5);
        cell.add(1, 2);
        let rows = [("0", 0), ("1", 7)].map(|(rank, value)| (vec![rank.to_owned()], value));
        assert_eq!(cell.value(), Value::Family(rows.to_vec()));
        cell.add(WorkerSet::WORKERS_MAX, 1);
        assert_eq!(cell.value(), Value::Family(rows.to_vec()), "there is no such rank");
    }

    #[test]
    fn of_many_ranks_the_worst_are_shown_and_the_sum_of_the_others() {
        let cell = Indexed::default();
        (0..SHOWN_MAX).for_each(|rank| cell.add(rank, 1));
        let Value::Family(rows) = cell.value() else { panic!("a family") };
        assert_eq!(rows.len(), SHOWN_MAX);
        cell.add(4095, 10);
        cell.add(7, 10);
        let Value::Family(rows) = cell.value() else { panic!("a family") };
        assert_eq!(rows.len(), WORST + 1);
        for (rank, value) in [("7", 11), ("4095", 10), ("other", SHOWN_MAX as u64 + 20 - 21 - (WORST as u64 - 2))] {
            assert!(rows.contains(&(vec![rank.to_owned()], value)), "{rank} {value}: {rows:?}");
        }
    }

    #[test]
    fn a_rank_has_a_time_for_each_cause() {
        let cell = ByCause::default();
        cell.show(1);
        cell.add(0, Cause::Credit, Duration::from_nanos(3));
        cell.add(0, Cause::Credit, Duration::from_nanos(4));
        let Value::Family(rows) = cell.value() else { panic!("a family") };
        assert_eq!(rows.len(), Cause::ALL.len());
        assert!(rows.contains(&(vec!["0".to_owned(), "credit".to_owned()], 7)), "{rows:?}");
    }

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_it_fits() {
        let cell = Durations::default();
        for duration in [Duration::ZERO, Duration::from_micros(16), Duration::from_micros(17), Duration::MAX] {
            cell.add(duration);
        }
        let Value::Histogram(Histogram { buckets, .. }) = cell.value() else { panic!("a histogram") };
        assert_eq!(buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
