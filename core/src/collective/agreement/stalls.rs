//! The leader's watch over operations that wait for some ranks. The log must name those ranks long before a deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::collective::order::{Order, Slot};
use crate::types::Time;

/// Looks at the order from time to time.
#[derive(Debug)]
pub(super) struct StallWatch {
    warn_after: Duration,
    /// When each operation was first seen to wait. This is up to one look after it began to.
    seen: BTreeMap<Slot, Time>,
    /// `None` while nothing waits.
    next: Option<Time>,
}

/// An operation that waits for some ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) slot: Slot,
    /// The ranks that did not come, one bit each.
    pub(super) missing: u64,
    pub(super) waited: Duration,
}

/// Looks in each `warn_after`. The first one of a rank that waits may only wake the leader, and the next one of the leader only sees that
/// the rank waits. So a warning comes after at most 5/4 of the time.
const LOOKS: u32 = 8;

/// The most operations that one look reports. A late rank is late with all of them.
const REPORTS_MAX: usize = 8;

impl StallWatch {
    /// A watch that reports operations that have waited for `warn_after`; zero switches it off.
    pub(super) fn new(warn_after: Duration) -> Self {
        Self { warn_after, seen: BTreeMap::new(), next: None }
    }

    /// The shortest time from the begin of an operation to a look; `None` if the watch is off.
    pub(super) fn interval(&self) -> Option<Duration> {
        (!self.warn_after.is_zero()).then_some(self.warn_after / LOOKS)
    }

    /// When to look next. `None` while nothing waits: the time counts from the first call that finds something.
    pub(super) fn poll_timeout(&mut self, now: Time, is_pending: bool) -> Option<Time> {
        let first = self.interval().filter(|_| is_pending).map(|interval| now + interval);
        self.next = first.map(|first| self.next.unwrap_or(first));
        self.next
    }

    /// Whether it is time to look. Then sets the time of the next look. Only the leader can look; another rank makes it look.
    pub(super) fn is_due(&mut self, now: Time, is_pending: bool) -> bool {
        let is_due = self.poll_timeout(now, is_pending).is_some_and(|due| due <= now);
        if is_due {
            self.next = self.interval().map(|interval| now + interval);
        }
        is_due
    }

    /// Looks if it is time, and returns the operations that wait for too long, also those that it has reported before.
    pub(super) fn handle_timeout(&mut self, now: Time, order: &Order) -> Vec<Waiting> {
        if !self.is_due(now, order.has_pending()) {
            return Vec::new();
        }
        let waiting: BTreeMap<Slot, u64> = order.waiting().collect();
        self.seen.retain(|slot, _| waiting.contains_key(slot));
        let mut reports = Vec::new();
        for (slot, missing) in waiting {
            let waited = now.since(*self.seen.entry(slot).or_insert(now));
            if waited >= self.warn_after && reports.len() < REPORTS_MAX {
                reports.push(Waiting { slot, missing, waited });
            }
        }
        reports
    }
}
