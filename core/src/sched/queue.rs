//! The tasks that wait for a stage. The most urgent goes next, in order of submission among equals; every so often the oldest goes first.
//!
//! Every operation is logarithmic in the number of waiting tasks, averaged over many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::ids::TaskId;
use crate::types::Priority;

/// A task in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The task.
    pub task: TaskId,
    /// Higher goes first.
    pub priority: Priority,
    /// Lower goes first among equal priorities; unique. A task keeps it in every stage, so that a repeat does not lose its turn.
    pub order: u64,
    /// Its bytes in flight.
    pub bytes: u64,
}

/// The queue before one stage.
#[derive(Debug)]
pub struct StageQueue {
    ready: BTreeMap<Rank, Waiting>,
    gated: BTreeMap<TaskId, Entry>,
    /// Ranks by age. Entries of tasks that were taken or gated since stay until they reach the top, or until most entries are stale. This
    /// heap is read rarely, and removing entries lazily costs half of what a second ordered map does.
    ages: BinaryHeap<Reverse<(u64, Priority)>>,
    oldest_every: u32,
    /// Takes since the oldest task had its turn.
    taken: u32,
}

/// The most urgent first, then the one submitted first.
type Rank = (Reverse<Priority>, u64);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    task: TaskId,
    bytes: u64,
}

impl StageQueue {
    /// An empty queue in which every `oldest_every`-th take goes to the oldest task, so that a stream of urgent tasks starves no other; 0
    /// for strict priority.
    pub const fn new(oldest_every: u32) -> Self {
        Self { ready: BTreeMap::new(), gated: BTreeMap::new(), ages: BinaryHeap::new(), oldest_every, taken: 0 }
    }

    /// Adds a task that can be taken.
    pub fn submit(&mut self, entry: Entry) {
        let Entry { task, priority, order, bytes } = entry;
        self.ready.insert((Reverse(priority), order), Waiting { task, bytes });
        if self.oldest_every > 0 {
            self.ages.push(Reverse((order, priority)));
            if self.ages.len() > 2 * self.ready.len() + AGES_SLACK {
                self.forget_the_gone();
            }
        }
    }

    /// Adds a task that is skipped until its gate is opened.
    pub fn submit_gated(&mut self, entry: Entry) {
        self.gated.insert(entry.task, entry);
    }

    /// Opens the gate of a task; returns whether it was closed.
    pub fn open(&mut self, task: TaskId) -> bool {
        let entry = self.gated.remove(&task);
        entry.into_iter().for_each(|entry| self.submit(entry));
        entry.is_some()
    }

    /// Closes the gate of a task whose gate is open.
    pub fn close(&mut self, entry: Entry) {
        if self.ready.remove(&rank(&entry)).is_some() {
            self.submit_gated(entry);
        }
    }

    /// Drops a task, gated or not.
    pub fn remove(&mut self, entry: Entry) {
        if self.ready.remove(&rank(&entry)).is_none() {
            self.gated.remove(&entry.task);
        }
    }

    /// Takes the next task if it `fits`. If it does not fit, takes nothing: smaller tasks behind it would delay it further, and a large one
    /// could wait forever. Exception: if the oldest task does not fit in its turn, the most urgent task may go, and the oldest has its turn
    /// next time.
    pub fn take(&mut self, fits: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let turn = self.oldest_every > 0 && self.taken + 1 >= self.oldest_every;
        let is_patient = self.taken + 1 < self.oldest_every.saturating_mul(2);
        let oldest = if turn { self.oldest() } else { None };
        let entry = match oldest.filter(&fits) {
            Some(oldest) => {
                self.taken = 0;
                oldest
            }
            None if turn && !is_patient => return None,
            None => {
                let first = self.ready.first_key_value().map(entry_of).filter(fits)?;
                self.taken = self.taken.saturating_add(1);
                first
            }
        };
        self.ready.remove(&rank(&entry));
        Some(entry)
    }

    /// How many tasks wait, including gated ones.
    pub fn len(&self) -> usize {
        self.ready.len() + self.gated.len()
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a task with an open gate waits.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn oldest(&mut self) -> Option<Entry> {
        let gone = |(order, priority)| !self.ready.contains_key(&(Reverse(priority), order));
        while self.ages.peek().is_some_and(|Reverse(oldest)| gone(*oldest)) {
            self.ages.pop();
        }
        let Reverse((order, priority)) = self.ages.peek()?;
        self.ready.get_key_value(&(Reverse(*priority), *order)).map(entry_of)
    }

    fn forget_the_gone(&mut self) {
        self.ages.clear();
        self.ages.extend(self.ready.keys().map(|(Reverse(priority), order)| Reverse((*order, *priority))));
    }
}

/// Up to this number of stale ranks, a pass over the queue is not worth its cost.
const AGES_SLACK: usize = 64;

fn entry_of((rank, waiting): (&Rank, &Waiting)) -> Entry {
    let ((Reverse(priority), order), Waiting { task, bytes }) = (*rank, *waiting);
    Entry { task, priority, order, bytes }
}

fn rank(entry: &Entry) -> Rank {
    (Reverse(entry.priority), entry.order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::arena::Arena;

    #[test]
    fn the_most_urgent_goes_first_and_equals_in_order_of_submission() {
        let mut queue = StageQueue::new(0);
        for entry in entries([(0, 5), (7, 5), (0, 5), (7, 5)]) {
            queue.submit(entry);
        }
        assert_eq!(drain(&mut queue), [1, 3, 0, 2]);
    }

    #[test]
    fn every_third_take_goes_to_the_oldest() {
        let mut queue = StageQueue::new(3);
        for entry in entries([(0, 1), (0, 1), (9, 1), (9, 1), (9, 1), (9, 1)]) {
            queue.submit(entry);
        }
        assert_eq!(drain(&mut queue), [2, 3, 0, 4, 5, 1]);
    }

    #[test]
    fn what_was_taken_leaves_no_trace() {
        let mut queue = StageQueue::new(1000);
        for entry in entries([(0, 1); 500]) {
            queue.submit(entry);
            queue.take(|_| true).unwrap();
        }
        assert!(queue.ages.len() <= AGES_SLACK + 2, "{}", queue.ages.len());
    }

    #[test]
    fn a_gated_task_is_skipped_until_opened() {
        let mut queue = StageQueue::new(1);
        let [gated, other] = entries([(9, 1), (0, 1)]);
        queue.submit_gated(gated);
        queue.submit(other);
        queue.close(other);
        assert_eq!(queue.take(|_| true), None, "not even the oldest");
        assert!(queue.open(other.task));
        assert!(queue.open(gated.task));
        assert!(!queue.open(gated.task), "it was open");
        assert_eq!(queue.take(|_| true), Some(gated));
        queue.remove(other);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_small_task_does_not_pass_a_more_urgent_one_that_does_not_fit() {
        let mut queue = StageQueue::new(0);
        for entry in entries([(0, 10), (9, 100)]) {
            queue.submit(entry);
        }
        assert_eq!(queue.take(|entry| entry.bytes <= 50), None);
        assert_eq!(drain(&mut queue), [1, 0]);
    }

    #[test]
    fn the_oldest_that_does_not_fit_lets_others_pass_for_one_more_turn_only() {
        let mut queue = StageQueue::new(2);
        for entry in entries([(0, 100), (9, 10), (9, 10), (9, 10), (9, 10), (9, 10)]) {
            queue.submit(entry);
        }
        let urgent = |entry: &Entry| entry.bytes <= 50;
        let taken: Vec<u64> = std::iter::from_fn(|| queue.take(urgent)).map(|entry| entry.order).collect();
        assert_eq!(taken, [1, 2, 3], "then it is waited for");
        assert_eq!(queue.take(|_| true).unwrap().order, 0);
    }

    fn entries<const N: usize>(tasks: [(i32, u64); N]) -> [Entry; N] {
        let mut arena = Arena::new();
        let mut order = 0;
        tasks.map(|(priority, bytes)| {
            order += 1;
            Entry { task: TaskId(arena.insert(())), priority: Priority(priority), order: order - 1, bytes }
        })
    }

    fn drain(queue: &mut StageQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(|_| true)).map(|entry| entry.order).collect()
    }
}
