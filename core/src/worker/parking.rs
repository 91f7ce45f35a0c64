//! Submissions that wait for the answer to their declaration.

use std::collections::{BTreeMap, BTreeSet};

use super::records::Parked;
use crate::types::{TensorKey, Time};

/// The queue of each tensor that has no layout yet, and the deadlines of those that wait. A submission that ends early keeps its place in
/// its queue, because its round counts; its deadline leaves with it.
#[derive(Default, Debug)]
pub(super) struct Parking {
    /// Oldest first.
    queues: BTreeMap<TensorKey, Vec<Parked>>,
    due: BTreeSet<(Time, u64)>,
}

impl Parking {
    /// A submission waits for the answer to the declaration of `key`, at most until `due`.
    pub(super) fn add(&mut self, key: TensorKey, parked: Parked, due: Time) {
        self.due.insert((due, parked.submission));
        self.queues.entry(key).or_default().push(parked);
    }

    /// A submission that waited until `due` waits no more.
    pub(super) fn forget(&mut self, submission: u64, due: Time) {
        self.due.remove(&(due, submission));
    }

    /// A submission that waited until `due` may wait until `later`.
    pub(super) fn defer(&mut self, submission: u64, due: Time, later: Time) {
        self.due.remove(&(due, submission));
        self.due.insert((later, submission));
    }

    /// Takes the queue of a tensor, whose declaration was answered or failed.
    pub(super) fn take(&mut self, key: TensorKey) -> Vec<Parked> {
        self.queues.remove(&key).unwrap_or_default()
    }

    /// How many submissions of a tensor wait.
    pub(super) fn count(&self, key: TensorKey) -> usize {
        self.queues.get(&key).map_or(0, Vec::len)
    }

    /// Takes all queues.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Parked> + use<> {
        std::mem::take(&mut self.queues).into_values().flatten()
    }

    /// The submission that has waited longest beyond its deadline, if one has.
    pub(super) fn overdue(&self, now: Time) -> Option<u64> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, submission)| *submission)
    }

    /// The next deadline.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }
}
