//! Detects submissions that make no progress on this worker, so that the log names them long before a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::ids::GroupId;
use super::scheduler::Scheduler;
use crate::error::Error;
use crate::pipeline::Stage;
use crate::types::{Round, ServerId, Time};

/// Inspects a scheduler at a fixed interval.
#[derive(Clone, Debug)]
pub struct StallDetector {
    warn_after: Duration,
    next: Option<Time>,
    /// What it found when it looked last.
    found: BTreeSet<GroupId>,
}

/// A submission without progress.
#[derive(Clone, PartialEq, Debug)]
pub struct StallReport {
    /// The submission.
    pub group: GroupId,
    /// The tensor's name.
    pub name: Arc<str>,
    /// The round.
    pub round: Round,
    /// The stage of its parts and their server; `None` for shared parts of which other tensors were not submitted.
    pub at: Option<(Stage, ServerId)>,
    /// How many of its parts have been there that long.
    pub parts: u32,
    /// How long the first of them has been there, with all repeats of its exchange.
    pub waited: Duration,
    /// Why the last of these exchanges failed; absent if none did.
    pub cause: Option<Error>,
}

impl StallDetector {
    /// A detector that looks every `warn_after` for parts that were in one stage for at least as long; zero switches it off.
    pub fn new(now: Time, warn_after: Duration) -> Self {
        Self { warn_after, next: (!warn_after.is_zero()).then(|| now + warn_after), found: BTreeSet::new() }
    }

    /// How many submissions it found when it looked last that have not ended since.
    pub fn stalled(&self, scheduler: &Scheduler) -> usize {
        self.found.iter().filter(|group| scheduler.group(**group).is_some()).count()
    }

    /// When to look next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next
    }

    /// Looks if it is time, and returns one report for each submission, stage and server.
    ///
    /// Scans all open tasks once per interval. An index by time would slow down every move, and cost more than this scan every ten seconds.
    pub fn handle_timeout(&mut self, now: Time, scheduler: &Scheduler) -> Vec<StallReport> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + self.warn_after);
        let mut reports: BTreeMap<(GroupId, Option<(Stage, ServerId)>), StallReport> = BTreeMap::new();
        let mut note = |id: GroupId, at: Option<(Stage, ServerId)>, parts: u32, since: Time, cause: Option<&Error>| {
            let waited = now.since(since);
            let Some(group) = scheduler.group(id).filter(|_| waited >= self.warn_after) else {
                return;
            };
            let first = || {
                let (name, round) = (Arc::clone(&group.name), group.round);
                StallReport { group: id, name, round, at, parts: 0, waited, cause: None }
            };
            let report = reports.entry((id, at)).or_insert_with(first);
            report.parts += parts;
            report.cause = report.cause.take().or_else(|| cause.cloned());
            report.waited = report.waited.max(waited);
        };
        for work in scheduler.tasks() {
            for group in &work.spec.groups {
                // Otherwise it waits for something else than its repeat.
                let cause = work.tries.last_failure.as_ref().filter(|_| work.is_paused());
                note(*group, Some((work.stage, work.spec.server)), 1, work.waits_since(), cause);
            }
        }
        for (id, group) in scheduler.groups().filter(|(_, group)| group.incomplete()) {
            let submitted = u32::try_from(group.tasks.len()).expect("fewer than its shares");
            note(id, None, group.shares - submitted, group.opened, None);
        }
        self.found = reports.keys().map(|(group, _)| *group).collect();
        reports.into_values().collect()
    }
}
