//! The clock of the drivers. They pass its time to their state machines.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::types::{Time, whole_ns};

/// A monotonic clock whose origin is its creation. All clones show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The origin on the system's monotonic clock, in nanoseconds.
    origin_monotonic_ns: i64,
}

/// What the wall clock of this host showed at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WallReading {
    /// The moment.
    pub at: Time,
    /// In nanoseconds since 1970; 0 if the wall clock showed a time before that.
    pub unix_ns: u64,
}

impl WallReading {
    /// When the clock's [`Time::ZERO`] was by this reading, in nanoseconds since 1970.
    pub fn origin_unix_ns(self) -> u64 {
        self.unix_ns.saturating_sub(self.at.0)
    }
}

impl Clock {
    /// Starts at [`Time::ZERO`].
    pub fn start() -> Self {
        Self { origin_monotonic_ns: monotonic_ns() }
    }

    /// The time now.
    pub fn now(self) -> Time {
        Time(self.since_origin_ns(monotonic_ns()).unsigned_abs())
    }

    /// What the wall clock shows now. The wall clock may be set at any time, so later readings may give another origin.
    #[expect(clippy::disallowed_methods, reason = "the one place where drivers read the clock")]
    pub fn read_wall(self) -> WallReading {
        let (at_ns, wall) = between(|| self.now().signed_ns(), SystemTime::now);
        let unix = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        WallReading { at: Time(at_ns.unsigned_abs()), unix_ns: whole_ns(unix) }
    }

    /// When [`Time::ZERO`] was on the system's monotonic clock, in nanoseconds.
    pub fn origin_monotonic_ns(self) -> i64 {
        self.origin_monotonic_ns
    }

    /// How long after [`Time::ZERO`] the system's monotonic clock shows `monotonic_ns`, in nanoseconds; negative before it. Python's
    /// `time.monotonic_ns()` reads that clock.
    pub fn since_origin_ns(self, monotonic_ns: i64) -> i64 {
        monotonic_ns.saturating_sub(self.origin_monotonic_ns)
    }

    /// `time` by the system's monotonic clock, which the processes of a machine share. Exception: a process in a time namespace of its own.
    pub fn shared(self, time: Time) -> Time {
        Time(self.origin_monotonic_ns.saturating_add(time.signed_ns()).unsigned_abs())
    }

    /// The time that [`shared`](Self::shared) gives as `shared`; the origin for one before that.
    pub fn own(self, shared: Time) -> Time {
        Time(u64::try_from(self.since_origin_ns(shared.signed_ns())).unwrap_or_default())
    }

    /// `time` as the operating system counts it, for waits with a deadline; for a time that has passed, the present one.
    #[expect(clippy::disallowed_methods, reason = "the one place where drivers read the clock")]
    pub fn instant(self, time: Time) -> Instant {
        // Later than any deadline, and still representable: an endless wait wakes once a century.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        let left = time.since(self.now()).min(CENTURY);
        Instant::now() + left
    }
}

/// Reads another clock between two readings of `ns`, and gives it with the middle of the two.
///
/// This thread may be interrupted between the readings. So of a few attempts it takes the one whose readings lie closest together.
fn between<T>(ns: impl Fn() -> i64, other: impl Fn() -> T) -> (i64, T) {
    const ATTEMPTS: usize = 4;
    let attempts = (0..ATTEMPTS).map(|_| (ns(), other(), ns()));
    let (before, read, after) =
        attempts.min_by_key(|(before, _, after)| after - before).expect("there is more than one attempt");
    (before + (after - before) / 2, read)
}

/// The processor time that the calling thread has used since it began.
pub(super) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it does not begin below zero")
}

fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_monotonic_clock_is_counted_from_the_origin() {
        let before = monotonic_ns();
        let clock = Clock::start();
        assert!(clock.since_origin_ns(before) <= 0, "it was read before the origin");
        let (first, monotonic, second) = (clock.now().signed_ns(), monotonic_ns(), clock.now().signed_ns());
        let since = clock.since_origin_ns(monotonic);
        assert!(first - 1_000_000 <= since && since <= second + 1_000_000, "{first} {since} {second}");
    }

    #[test]
    fn clocks_of_two_processes_share_a_time() {
        let (first, second) = (Clock { origin_monotonic_ns: 1_000 }, Clock { origin_monotonic_ns: 1_300 });
        assert_eq!(first.shared(Time(500)), second.shared(Time(200)));
        assert_eq!([first, second].map(|clock| clock.own(Time(1_500))), [Time(500), Time(200)]);
        assert_eq!(second.own(Time(1_200)), Time::ZERO);
    }

    #[test]
    fn a_reading_of_the_wall_clock_gives_an_origin() {
        let clock = Clock::start();
        let WallReading { at, unix_ns } = clock.read_wall();
        assert!(at <= clock.now());
        assert!(unix_ns > 1_700_000_000_000_000_000, "after 2023");
        let reading = WallReading { at: Time(7), unix_ns: 100 };
        assert_eq!(reading.origin_unix_ns(), 93);
        assert_eq!(WallReading { at: Time(7), unix_ns: 0 }.origin_unix_ns(), 0, "no time before 1970");
    }

    #[test]
    fn of_several_attempts_the_quickest_counts() {
        let readings = std::cell::RefCell::new([0, 50, 60, 62, 70, 90, 100, 140].into_iter());
        let others = std::cell::RefCell::new(0..4);
        let read = between(|| readings.borrow_mut().next().unwrap(), || others.borrow_mut().next().unwrap());
        assert_eq!(read, (61, 1));
    }
}
