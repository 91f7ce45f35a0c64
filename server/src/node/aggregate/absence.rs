//! Workers whose connection was lost, which may ask again for sums that they were sent.

use std::time::Duration;

use gradlane_core::types::Time;

/// A worker whose connection was lost, which may ask again for sums that it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// It has no connection.
    Away,
    /// It has one again, and has been waited for since this time; absent if memory was not short since then.
    Back(Option<Time>),
}

impl Absence {
    /// Memory is short now: its time begins, if it has come back.
    pub(super) fn handle_shortage(&mut self, now: Time) {
        if let Self::Back(since @ None) = self {
            *since = Some(now);
        }
    }

    /// Whether the worker has had the time to ask again.
    pub(super) fn is_over(&self, now: Time) -> bool {
        match self {
            Self::Away | Self::Back(None) => false,
            Self::Back(Some(since)) => *since + RETURNED <= now,
        }
    }
}

/// A worker that lost its connection asks again within this time after it has the next one: more than its longest pause between two
/// attempts.
pub(super) const RETURNED: Duration = Duration::from_secs(3);
