//! Time as an argument.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on a monotonic clock, in nanoseconds since an origin that the driver chose. State machines get it as an argument and never read
/// a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// The time since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// It as a number that may be compared with times before the origin.
    pub fn signed_ns(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

/// A duration in nanoseconds; the largest number for one of centuries.
pub fn whole_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(whole_ns(later)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(whole_ns(earlier)))
    }
}
