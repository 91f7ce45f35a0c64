//! The clock of the drivers. They pass its time to their state machines.

use std::time::{Duration, Instant, SystemTime};

use crate::types::Time;

/// A monotonic clock whose origin is its creation. All clones show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at [`Time::ZERO`].
    #[expect(clippy::disallowed_methods, reason = "the one place where drivers read the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time now.
    pub fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }

    /// When [`Time::ZERO`] was, in nanoseconds since 1970. 0 if the wall clock shows a time before that.
    #[expect(clippy::disallowed_methods, reason = "the one place where drivers read the clock")]
    pub fn origin_unix_ns(self) -> u64 {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(wall.saturating_sub(self.0.elapsed()).as_nanos()).unwrap_or(u64::MAX)
    }

    /// `time` as the operating system counts it, for waits with a deadline.
    pub fn instant(self, time: Time) -> Instant {
        // Later than any deadline, and still representable: an endless wait wakes once a century.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        self.0 + Duration::from_nanos(time.0).min(CENTURY)
    }
}
