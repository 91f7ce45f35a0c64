//! Cells that hold more than one number: histograms of durations, and numbers by index. All are atomics, which are read without a lock.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::instance::{Histogram, Value};
use crate::types::{Cause, Late, LinkLimit, Role, WorkerSet, whole_ns};

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

    /// Adds a duration of each cause.
    pub fn add_all(&self, rank: usize, late: &Late) {
        for cause in Cause::ALL {
            self.add(rank, cause, late[cause as usize]);
        }
    }
}

impl Cell for ByCause {
    fn value(&self) -> Value {
        Value::Family(self.0.rows(SHOWN_MAX).into_iter().flat_map(by_cause).collect())
    }
}

/// The times of a rank, each with its labels.
fn by_cause((rank, times): (String, [u64; Cause::ALL.len()])) -> [(Vec<String>, u64); Cause::ALL.len()] {
    Cause::ALL.map(|cause| (vec![rank.clone(), cause.name().to_owned()], times[cause as usize]))
}

/// Time for each rank of a machine and [`Cause`], of ranks that were late.
#[derive(Default, Debug)]
pub struct MachineLate(ByIndex<{ Cause::ALL.len() }>);

impl MachineLate {
    /// Adds a duration of each cause. A rank beyond [`WorkerSet::WORKERS_MAX`] is ignored.
    pub fn add(&self, rank: usize, late: &Late) {
        for cause in Cause::ALL.into_iter().filter(|cause| !late[*cause as usize].is_zero()) {
            self.0.add(rank, cause as usize, whole_ns(late[cause as usize]));
        }
    }
}

impl Cell for MachineLate {
    fn value(&self) -> Value {
        let late = self.0.rows(SHOWN_MAX).into_iter().filter(|(_, times)| times.iter().any(|time| *time > 0));
        Value::Family(late.flat_map(by_cause).collect())
    }
}

/// A count for each rank of a machine that has one.
#[derive(Default, Debug)]
pub struct MachineLast(ByIndex<1>);

impl MachineLast {
    /// Adds to the count of a rank. A rank beyond [`WorkerSet::WORKERS_MAX`] is ignored.
    pub fn add(&self, rank: usize, by: u64) {
        self.0.add(rank, 0, by);
    }
}

impl Cell for MachineLast {
    fn value(&self) -> Value {
        let counted = self.0.rows(SHOWN_MAX).into_iter().filter(|(_, [count])| *count > 0);
        Value::Family(counted.map(|(rank, [count])| (vec![rank], count)).collect())
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

/// A number for each sum lane of a server, which the lane itself keeps. Nothing before it is told them.
#[derive(Default, Debug)]
pub struct NowByLane(OnceLock<Vec<Arc<AtomicUsize>>>);

impl NowByLane {
    /// The numbers of all lanes, which is said once.
    pub fn show(&self, lanes: Vec<Arc<AtomicUsize>>) {
        let _ = self.0.set(lanes);
    }
}

impl Cell for NowByLane {
    fn value(&self) -> Value {
        let shown = ByIndex::<1>::default();
        for (lane, number) in self.0.get().into_iter().flatten().enumerate() {
            shown.add(lane, 0, number.load(Ordering::Relaxed) as u64);
        }
        Indexed(shown).value()
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

/// Numbers for each device of the machine, all set at once.
#[derive(Default, Debug)]
pub struct ByDevice(Mutex<Vec<(Vec<String>, u64)>>);

impl ByDevice {
    /// Sets the numbers of devices by name; the first 32 of them.
    pub fn set(&self, numbers: &[(String, u64)]) {
        let numbers = numbers.iter().take(DEVICES_MAX).map(|(device, number)| (vec![plain(device)], *number));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = numbers.collect();
    }
}

impl Cell for ByDevice {
    fn value(&self) -> Value {
        Value::Family(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// A label without the characters that stand around and between labels where metrics travel between processes.
fn plain(label: &str) -> String {
    label.replace([',', '{', '}'], "_")
}

/// The number 1, whose labels say what does not change. Prometheus joins them to other metrics. Nothing before they are known.
#[derive(Default, Debug)]
pub struct Fact(OnceLock<Vec<String>>);

impl Fact {
    /// The values of the labels. Only the first ones count.
    pub fn set(&self, labels: &[&str]) {
        let _ = self.0.set(labels.iter().map(|label| plain(label)).collect());
    }
}

impl Cell for Fact {
    fn value(&self) -> Value {
        Value::Family(self.0.get().map(|labels| (labels.clone(), 1)).into_iter().collect())
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
/// A machine has fewer network interfaces.
const DEVICES_MAX: usize = 32;
/// Prometheus keeps a series for each index, so that there must not be too many.
const SHOWN_MAX: usize = 256;
/// As [`SHOWN_MAX`], of servers, for each of which there are a dozen metrics.
const SERVERS_SHOWN_MAX: usize = 64;
/// How many are shown of more.
const WORST: usize = 32;

#[cfg(test)]
mod tests;
