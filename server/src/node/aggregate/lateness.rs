//! The times of a round on this server. With [`Blamed`](gradlane_core::types::Blamed) they say who was late, and why.
//!
//! A contribution that breaks off and is repeated counts from its first byte on: that is a slow transfer. After a restart all begin anew.

use std::time::Duration;

use gradlane_core::types::Time;

/// The times of a round so far.
#[derive(Default, Debug)]
pub(super) struct Lateness {
    began: Option<Time>,
    /// When the latest contribution was counted.
    counted: Option<Time>,
}

impl Lateness {
    /// A header of the round came.
    pub(super) fn handle_header(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    /// A contribution was counted. Returns when the one before it was; `None` if it is the first.
    pub(super) fn handle_counted(&mut self, now: Time) -> Option<Time> {
        self.counted.replace(now)
    }

    /// The time since the first header.
    pub(super) fn took(&self, now: Time) -> Duration {
        self.began.map(|began| now.since(began)).unwrap_or_default()
    }
}
