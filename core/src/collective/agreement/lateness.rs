//! What the leader counts of ranks that come last: for how long all operations together wait for a rank alone.

use std::time::Duration;

use super::words::Last;
use crate::collective::order::Latest;
use crate::types::{Blamed, Coming, Goal, Ready, Time, WorkerId};

/// The leader's record of late ranks.
#[derive(Default, Debug)]
pub(super) struct Lateness {
    blamed: Blamed,
    /// When the leader read all announcements last. `None` before the first time.
    looked: Option<Time>,
}

impl Lateness {
    /// The leader has read all announcements that there are.
    pub(super) fn handle_looked(&mut self, now: Time) {
        self.looked = Some(now);
    }

    /// Since when a rank was ready, of which the leader hears `now`: since the leader looked last at the earliest. So what a rank says shifts no
    /// more blame than the leader cannot know, whatever the clock of that rank shows.
    pub(super) fn bounded(&self, now: Time, ready: Ready) -> Ready {
        Ready { since: self.looked.map_or(now, |looked| ready.since.min(now).max(looked)), ..ready }
    }

    /// Counts the rank that came last to an operation; `rank` is its rank in the job.
    pub(super) fn count(&mut self, Latest { slot, ready, alone_since, .. }: Latest, rank: WorkerId) -> Last {
        let coming = Coming { since: ready.since, waited: ready.waited, behind: Duration::ZERO };
        let late = self.blamed.handle_last(ready.since, rank, alone_since, coming);
        Last { rank, late, is_step: self.blamed.is_step(Goal::round(slot.1)) }
    }
}
