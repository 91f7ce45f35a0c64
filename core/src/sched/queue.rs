//! What waits for a stage, and what goes next: the most urgent, in order of submission among equals, and now and then the oldest.
//!
//! Every operation is logarithmic in the number of waiting tasks, averaged over many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::task::TaskId;
use crate::types::Priority;

/// A task in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which task.
    pub task: TaskId,
    /// Higher goes first.
    pub priority: Priority,
    /// Lower goes first among equal priorities; unique. A task keeps it wherever it goes, so that a repeat does not lose its turn.
    pub order: u64,
    /// What it costs.
    pub bytes: u64,
}

/// The queue before one stage.
#[derive(Debug)]
pub struct StageQueue {
    ready: BTreeMap<Rank, Waiting>,
    gated: BTreeMap<TaskId, Entry>,
    /// Ranks by age. Those of tasks that were taken or gated since are left in it until they come up or prevail: looked at rarely, a heap
    /// that forgets late costs half of what a second ordered map does.
    ages: BinaryHeap<Reverse<(u64, Priority)>>,
    oldest_every: u32,
    /// Takes since the oldest had its turn.
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
    /// An empty queue in which every `oldest_every`-th take goes to the oldest task, so that a stream of urgent ones starves
    /// nobody; 0 for strict priority.
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

    /// Opens the gate of a task; says whether it had been closed.
    pub fn open(&mut self, task: TaskId) -> bool {
        let entry = self.gated.remove(&task);
        entry.into_iter().for_each(|entry| self.submit(entry));
        entry.is_some()
    }

    /// Closes the gate of a task that could be taken.
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

    /// Takes the next task if it `fits`. If it does not, nothing is taken: a smaller one behind it would delay it further, and a large
    /// one could wait forever.
    pub fn take(&mut self, fits: impl FnOnce(u64) -> bool) -> Option<Entry> {
        let oldest_turn = self.oldest_every > 0 && self.taken + 1 >= self.oldest_every;
        let (rank, next) = if oldest_turn { self.oldest() } else { self.ready.first_key_value() }?;
        if !fits(next.bytes) {
            return None;
        }
        let (rank @ (Reverse(priority), order), Waiting { task, bytes }) = (*rank, *next);
        self.ready.remove(&rank);
        self.taken = if oldest_turn { 0 } else { self.taken.saturating_add(1) };
        Some(Entry { task, priority, order, bytes })
    }

    /// How many tasks wait, gated ones included.
    pub fn len(&self) -> usize {
        self.ready.len() + self.gated.len()
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a task waits for nothing but its turn.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn oldest(&mut self) -> Option<(&Rank, &Waiting)> {
        let gone = |(order, priority)| !self.ready.contains_key(&(Reverse(priority), order));
        while self.ages.peek().is_some_and(|Reverse(oldest)| gone(*oldest)) {
            self.ages.pop();
        }
        let Reverse((order, priority)) = self.ages.peek()?;
        self.ready.get_key_value(&(Reverse(*priority), *order))
    }

    fn forget_the_gone(&mut self) {
        self.ages.clear();
        self.ages.extend(self.ready.keys().map(|(Reverse(priority), order)| Reverse((*order, *priority))));
    }
}

/// So many ranks of tasks that are gone are not worth a pass over the queue.
const AGES_SLACK: usize = 64;

fn rank(entry: &Entry) -> Rank {
    (Reverse(entry.priority), entry.order)
}

/// Bytes and tasks in flight, and how many of each there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    bytes_max: u64,
    tasks_max: u32,
    bytes: u64,
    tasks: u32,
}

impl Credit {
    /// Nothing in flight yet, `bytes_max` bytes in `tasks_max` tasks allowed.
    pub const fn new(bytes_max: u64, tasks_max: u32) -> Self {
        Self { bytes_max, tasks_max, bytes: 0, tasks: 0 }
    }

    /// Whether a task of `bytes` may start. One larger than the whole credit runs alone.
    pub const fn fits(&self, bytes: u64) -> bool {
        self.tasks == 0 || (self.tasks < self.tasks_max && self.bytes.saturating_add(bytes) <= self.bytes_max)
    }

    /// Takes `bytes` for a task that starts.
    pub const fn draw(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.tasks += 1;
    }

    /// Gives back what a task drew.
    pub fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.checked_sub(bytes).expect("credit is given back once");
        self.tasks = self.tasks.checked_sub(1).expect("credit is given back once");
    }

    /// Bytes drawn and not given back.
    pub const fn in_flight(&self) -> u64 {
        self.bytes
    }
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
        assert_eq!(queue.take(|bytes| bytes <= 50), None);
        assert_eq!(drain(&mut queue), [1, 0]);
    }

    #[test]
    fn a_part_larger_than_the_credit_runs_alone() {
        let mut credit = Credit::new(100, 10);
        assert!(credit.fits(250));
        credit.draw(250);
        assert!(!credit.fits(1), "nothing beside it");
        credit.give_back(250);
        credit.draw(60);
        assert!(credit.fits(40));
        assert!(!credit.fits(41));
        assert!(!credit.fits(u64::MAX));
    }

    #[test]
    fn many_small_parts_are_bounded_by_their_number() {
        let mut credit = Credit::new(100, 2);
        credit.draw(1);
        assert!(credit.fits(1));
        credit.draw(1);
        assert!(!credit.fits(1), "though there are 98 bytes left");
        credit.give_back(1);
        assert!(credit.fits(1));
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
