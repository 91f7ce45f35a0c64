//! What the coordinator said of sums that wait.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::{PartId, Round, Time};

/// What the coordinator said of sums that wait.
#[derive(Default, Debug)]
pub(super) struct Notices {
    /// The newest ones: what the missing workers did last.
    newest: VecDeque<(PartId, Round, String)>,
    /// When the last of them came.
    latest: Option<Time>,
}

/// How many notices are kept. The coordinator sends no more in one interval.
const NOTICES_MAX: usize = 8;

impl Notices {
    /// The coordinator said this of a round.
    pub(super) fn add(&mut self, now: Time, part: PartId, round: Round, detail: String) {
        self.latest = Some(now);
        self.newest.retain(|(known, of, _)| (*known, *of) != (part, round));
        self.newest.push_back((part, round, detail));
        if self.newest.len() > NOTICES_MAX {
            self.newest.pop_front();
        }
    }

    /// What was last said about the workers for which this round waits.
    pub(super) fn of(&self, part: PartId, round: Round) -> Option<&str> {
        let notice = self.newest.iter().find(|(known, of, _)| (*known, *of) == (part, round))?;
        Some(&notice.2)
    }

    /// Whether one came within the last `interval`.
    pub(super) fn came_within(&self, now: Time, interval: Duration) -> bool {
        self.latest.is_some_and(|latest| now.since(latest) <= interval)
    }
}
