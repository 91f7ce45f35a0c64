//! Cells that hold more than one number: histograms of durations, and numbers by index. All are atomics, which are read without a lock.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::instance::{Histogram, Value};
use crate::types::{Cause, LinkLimit, Role, WorkerSet, whole_ns};

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
        if let Some(row) = self.row(index) {
            row[column].fetch_add(by, Ordering::Relaxed);
        }
    }

    /// The numbers of an index, which is shown from now on; none of one that is too high.
    fn row(&self, index: usize) -> Option<&[AtomicU64; COLUMNS]> {
        let chunk = self.chunks.get(index / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0)))));
        if self.shown.load(Ordering::Relaxed) <= index {
            self.show(index + 1);
        }
        Some(&chunk[index % CHUNK])
    }

    /// The rows that are shown: all, or if they are more than `shown_max`, the [`WORST`] with the highest sums and the sum of the others.
    fn rows(&self, shown_max: usize) -> Vec<(String, [u64; COLUMNS])> {
        let row = |index: usize| match self.chunks[index / CHUNK].get() {
            Some(chunk) => array::from_fn(|column| chunk[index % CHUNK][column].load(Ordering::Relaxed)),
            None => [0; COLUMNS],
        };
        let mut rows: Vec<(usize, [u64; COLUMNS])> =
            (0..self.shown.load(Ordering::Relaxed)).map(|index| (index, row(index))).collect();
        let mut others = None;
        if rows.len() > shown_max {
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
        f.debug_list().entries(self.rows(SHOWN_MAX)).finish()
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
        Value::Family(self.0.rows(SHOWN_MAX).into_iter().map(|(index, [value])| (vec![index], value)).collect())
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
        Value::Family(self.0.rows(SHOWN_MAX).into_iter().flat_map(of_rank).collect())
    }
}

/// A count for each server of which something was counted. All clones are one.
#[derive(Clone, Default, Debug)]
pub struct ByServer(Arc<ByIndex<2>>);

impl ByServer {
    /// Adds to the count of a server, which is shown from now on.
    pub fn add(&self, server: usize, by: u64) {
        if let Some([count, is_known]) = self.0.row(server) {
            count.fetch_add(by, Ordering::Relaxed);
            is_known.store(1, Ordering::Relaxed);
        }
    }
}

impl Cell for ByServer {
    fn value(&self) -> Value {
        let known = self.0.rows(SERVERS_SHOWN_MAX).into_iter().filter(|(_, [_, is_known])| *is_known > 0);
        Value::Family(known.map(|(server, [count, _])| (vec![server], count)).collect())
    }
}

/// A number for each server of which it is known now. A sum of such numbers says nothing, so of many servers only some are shown. All clones
/// are one.
#[derive(Clone, Default, Debug)]
pub struct NowByServer(Arc<ByIndex<2>>);

impl NowByServer {
    /// Sets the number of a server; `None` if it is not known any more.
    pub fn set(&self, server: usize, number: Option<u64>) {
        if let Some([value, is_known]) = self.0.row(server) {
            value.store(number.unwrap_or_default(), Ordering::Relaxed);
            is_known.store(number.is_some().into(), Ordering::Relaxed);
        }
    }
}

impl Cell for NowByServer {
    fn value(&self) -> Value {
        let is_one = |server: &str| server.parse::<usize>().is_ok();
        let rows = self.0.rows(SERVERS_SHOWN_MAX).into_iter();
        let known = rows.filter(|(server, [_, is_known])| *is_known > 0 && is_one(server));
        Value::Family(known.map(|(server, [value, _])| (vec![server], value)).collect())
    }
}

/// A number that is shown once it is known.
#[derive(Default, Debug)]
pub struct Known(OnceLock<AtomicU64>);

impl Known {
    /// Sets the number.
    pub fn set(&self, number: u64) {
        self.0.get_or_init(AtomicU64::default).store(number, Ordering::Relaxed);
    }
}

impl Cell for Known {
    fn value(&self) -> Value {
        match self.0.get() {
            Some(number) => Value::Plain(number.load(Ordering::Relaxed)),
            None => Value::Family(Vec::new()),
        }
    }
}

/// Numbers for each member of a job, all set at once.
#[derive(Default, Debug)]
pub struct ByMember(Mutex<Vec<(Vec<String>, u64)>>);

impl ByMember {
    /// Sets the numbers of members by role and index. Of many members, those with the least numbers are shown.
    pub fn set(&self, mut numbers: Vec<((Role, u32), u64)>) {
        if numbers.len() > SHOWN_MAX {
            numbers.sort_by_key(|(member, number)| (*number, *member));
            numbers.truncate(WORST);
            numbers.sort();
        }
        let labels = |(role, index): (Role, u32)| vec![role.to_string(), index.to_string()];
        let numbers = numbers.into_iter().map(|(member, number)| (labels(member), number)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

impl Cell for ByMember {
    fn value(&self) -> Value {
        Value::Family(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Time for each server and [`LinkLimit`], of servers of which some was counted. All clones are one.
#[derive(Clone, Default, Debug)]
pub struct ByLimit(Arc<ByIndex<{ LinkLimit::ALL.len() }>>);

impl ByLimit {
    /// Adds so many nanoseconds.
    pub fn add(&self, server: usize, by: LinkLimit, nanoseconds: u64) {
        self.0.add(server, by as usize, nanoseconds);
    }
}

impl Cell for ByLimit {
    fn value(&self) -> Value {
        let rows = self.0.rows(SERVERS_SHOWN_MAX).into_iter().filter(|(_, times)| times.iter().any(|time| *time > 0));
        let of_server = |(server, times): (String, [u64; LinkLimit::ALL.len()])| {
            LinkLimit::ALL.map(|by| (vec![server.clone(), by.name().to_owned()], times[by as usize]))
        };
        Value::Family(rows.flat_map(of_server).collect())
    }
}

const CHUNK: usize = 64;
const CHUNKS: usize = WorkerSet::WORKERS_MAX / CHUNK;
/// Prometheus keeps a series for each index, so that there must not be too many.
const SHOWN_MAX: usize = 256;
/// As [`SHOWN_MAX`], of servers, for each of which there are a dozen metrics.
const SERVERS_SHOWN_MAX: usize = 64;
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
    fn servers_of_which_nothing_is_known_are_not_shown() {
        let (counts, now, limits) = (ByServer::default(), NowByServer::default(), ByLimit::default());
        counts.clone().add(2, 0);
        counts.add(0, 7);
        now.set(2, Some(5));
        now.set(1, Some(5));
        now.set(2, None);
        limits.add(1, LinkLimit::Cwnd, 9);
        limits.add(2, LinkLimit::Cwnd, 0);
        let family = |rows: &[(&str, u64)]| {
            Value::Family(rows.iter().map(|(server, number)| (vec![(*server).to_owned()], *number)).collect())
        };
        assert_eq!(counts.value(), family(&[("0", 7), ("2", 0)]));
        assert_eq!(now.value(), family(&[("1", 5)]));
        let Value::Family(times) = limits.value() else { panic!("a family") };
        assert_eq!(times.len(), LinkLimit::ALL.len(), "of one server");
        assert!(times.contains(&(vec!["1".to_owned(), "cwnd".to_owned()], 9)), "{times:?}");
    }

    #[test]
    fn a_number_is_shown_once_it_is_known() {
        let cell = Known::default();
        assert_eq!(cell.value(), Value::Family(vec![]));
        cell.set(0);
        assert_eq!(cell.value(), Value::Plain(0));
    }

    #[test]
    fn of_many_members_those_with_the_least_numbers_are_shown() {
        let cell = ByMember::default();
        let label = |role: &str, index: u32| vec![role.to_owned(), index.to_string()];
        cell.set(vec![((Role::Worker, 1), 5), ((Role::Server, 0), 4)]);
        assert_eq!(cell.value(), Value::Family(vec![(label("worker", 1), 5), (label("server", 0), 4)]));
        cell.set((0..300).map(|index| ((Role::Worker, index), u64::from(1000 - index))).collect());
        let Value::Family(rows) = cell.value() else { panic!("a family") };
        assert_eq!((rows.len(), &rows[WORST - 1]), (WORST, &(label("worker", 299), 701)));
    }

    #[test]
    fn no_sum_is_shown_of_what_cannot_be_added() {
        let now = NowByServer::default();
        (0..SERVERS_SHOWN_MAX + 1).for_each(|server| now.set(server, Some(1)));
        let Value::Family(rows) = now.value() else { panic!("a family") };
        assert_eq!(rows.len(), WORST);
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
