//! Deadlines of submissions that wait for a server which does not answer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Scheduler;
use crate::error::Error;
use crate::sched::ids::GroupId;
use crate::sched::rules::exchanges;
use crate::sched::task::{Purpose, Work};
use crate::types::{ServerId, Time};

impl Scheduler {
    /// Fails the groups that have waited for `server` for `patience`, counted from `silent_since`, since when it has not answered, or from
    /// their submission if that was later. Returns when the next group is due; `None` if no other group waits for the server.
    ///
    /// Scans all tasks, because servers are rarely silent and an index would slow down every move.
    pub fn fail_unanswered(
        &mut self,
        now: Time,
        server: ServerId,
        silent_since: Time,
        patience: Duration,
        error: &Error,
    ) -> Option<Time> {
        let (mut overdue, mut next): (BTreeSet<GroupId>, Option<Time>) = (BTreeSet::new(), None);
        for work in self.tasks.iter().map(|(_, work)| work).filter(|work| self.waits_for(work, server)) {
            for (id, group) in work.spec.groups.iter().filter_map(|id| Some((*id, self.groups.get(id.0)?))) {
                let due = group.opened.max(silent_since) + patience;
                if group.fate.is_none() && due <= now {
                    overdue.insert(id);
                } else if group.fate.is_none() {
                    next = next.into_iter().chain([due]).min();
                }
            }
        }
        for group in overdue {
            self.fail_group(now, group, error.clone());
        }
        next
    }

    /// Whether this rank still has to get the sum of a task from `server`.
    fn waits_for(&self, work: &Work, server: ServerId) -> bool {
        let is_ours = exchanges(&self.pipeline, work.spec.route);
        is_ours && work.spec.server == server && work.purpose == Purpose::Wanted && !work.stage.follows_pull()
    }
}
