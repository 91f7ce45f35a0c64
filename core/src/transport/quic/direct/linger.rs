//! Whether a loop that found nothing to do looks once more, or sleeps. A machine without time.
//!
//! ```text
//!             nothing there                    nothing for LINGER, or the core was taken for long
//!   Worked ──────────────────► Looking(since) ─────────────────────────────────────────────────────► Resting
//!     ▲ └─ does not pay now ────────│───────────────────────────────────────────────────────────────────▲
//!     └────────── something came ───┴──────────────────── something came ───────────────────────────────┘
//! ```
//! An answer is often there sooner than a thread falls asleep and is woken. Between looks the core is offered to others, among whom are the
//! peer and the threads that wait for what was just done.

use std::time::{Duration, Instant};

use crate::transport::spin_policy::{CROWDED, SpinPolicy};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Linger {
    phase: Phase,
    spin_policy: SpinPolicy,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Worked,
    Looking(Instant),
    Resting,
}

impl Linger {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Resting, spin_policy: SpinPolicy::default() }
    }

    /// There was something to do.
    pub(super) fn worked(&mut self) {
        if let Phase::Looking(_) = self.phase {
            self.spin_policy.succeeded();
        }
        self.phase = Phase::Worked;
    }

    /// There was nothing to do. Whether to offer the core and look once more; else it is time to sleep.
    pub(super) fn goes_on(&mut self, now: Instant) -> bool {
        self.phase = match self.phase {
            Phase::Worked if self.spin_policy.pauses() => Phase::Resting,
            Phase::Worked => Phase::Looking(now),
            Phase::Looking(since) if now.saturating_duration_since(since) > LINGER => Phase::Resting,
            Phase::Looking(since) => Phase::Looking(since),
            Phase::Resting => Phase::Resting,
        };
        matches!(self.phase, Phase::Looking(_))
    }

    /// The core was offered, and came back after so long.
    pub(super) fn offered(&mut self, away: Duration) {
        if away > CROWDED {
            self.spin_policy.failed();
            self.phase = Phase::Resting;
        }
    }
}

/// How long nothing may come: about as long as it takes to sleep and be woken.
const LINGER: Duration = Duration::from_micros(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_looks_for_more_after_work_and_only_for_a_moment() {
        let (mut linger, begin) = (Linger::new(), begin());
        assert!(!linger.goes_on(begin), "nothing was done yet");
        linger.worked();
        assert!(linger.goes_on(begin));
        assert!(linger.goes_on(begin + LINGER));
        assert!(!linger.goes_on(begin + LINGER + Duration::from_nanos(1)));
        assert!(!linger.goes_on(begin + LINGER * 2), "it has slept, and nothing came");
        linger.worked();
        assert!(linger.goes_on(begin + LINGER * 3));
    }

    #[test]
    fn a_loop_that_lost_its_core_to_others_sleeps_at_once_for_a_while() {
        let (mut linger, begin) = (Linger::new(), begin());
        linger.worked();
        assert!(linger.goes_on(begin));
        linger.offered(CROWDED + Duration::from_nanos(1));
        assert!(!linger.goes_on(begin));
        linger.worked();
        assert!(!linger.goes_on(begin), "it does not pay now");
    }

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn begin() -> Instant {
        Instant::now()
    }
}
