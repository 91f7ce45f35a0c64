//! The coordinator's clock, as this process knows it: one clock for all members of a job.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Clock;
use crate::cluster::Offsets;
use crate::types::Time;

/// The clock of a job. All clones show the same time, also after the end of the membership.
///
/// It is the monotonic clock of the coordinator, which began with what the coordinator's wall clock showed then. So it shows the time of the
/// day, and nobody sets it.
#[derive(Clone, Debug)]
pub struct JobClock {
    clock: Clock,
    offsets: Arc<Mutex<Offsets>>,
}

/// What the clock of the job showed at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobTime {
    /// In nanoseconds since 1970.
    pub unix_ns: u64,
    /// It may be wrong by so much.
    pub error: Duration,
}

/// How far the clock of the job is ahead of this host's wall clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WallOffset {
    /// What to add to the wall clock's time, in nanoseconds.
    pub ns: i64,
    /// It may be wrong by so much.
    pub error: Duration,
}

impl JobClock {
    /// Nothing is known of it yet. `clock` is that of this process's member.
    pub fn new(clock: Clock) -> Self {
        Self { clock, offsets: Arc::default() }
    }

    /// One of which these exchanges are known.
    #[cfg(any(test, feature = "testing"))]
    pub fn known(clock: Clock, offsets: Offsets) -> Self {
        Self { clock, offsets: Arc::new(Mutex::new(offsets)) }
    }

    /// What it shows when the clock of this process shows `at`, which is not before the last heartbeat. `None` before the coordinator has
    /// answered one.
    pub fn at(&self, at: Time) -> Option<JobTime> {
        let offsets = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = offsets.at(at)?;
        let unix_ns = at.0.saturating_add_signed(offset.ns).saturating_add(offsets.began_unix_ns());
        Some(JobTime { unix_ns, error: offset.error })
    }

    /// How far it is ahead of this host's wall clock now. `None` before the coordinator has answered a heartbeat.
    pub fn ahead_of_wall(&self) -> Option<WallOffset> {
        let wall = self.clock.read_wall();
        let JobTime { unix_ns, error } = self.at(wall.at)?;
        let ns = i64::try_from(i128::from(unix_ns) - i128::from(wall.unix_ns)).ok()?;
        Some(WallOffset { ns, error })
    }

    /// Takes over what the member knows.
    pub(super) fn follow(&self, offsets: &Offsets) {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner).clone_from(offsets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Exchange;

    #[test]
    fn it_shows_what_the_coordinators_clock_shows() {
        let clock = JobClock::new(Clock::start());
        assert_eq!((clock.at(Time(5)), clock.ahead_of_wall()), (None, None));
        let mut offsets = Offsets::default();
        let (sent, heard) = (Time(1_000), Time(1_200));
        offsets.add(1_000_000, Exchange { sent, received: Time(301_100), answered: Time(301_100), heard });
        clock.follow(&offsets);
        let JobTime { unix_ns, error } = clock.clone().at(heard).unwrap();
        assert_eq!(unix_ns, 1_000_000 + 300_000 + 1_200);
        assert!((100..=110).contains(&error.as_nanos()), "{error:?}");
        assert!(clock.ahead_of_wall().unwrap().ns < 0, "the job is as old as 1970");
    }
}
