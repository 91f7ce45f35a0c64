//! A state machine that decides how long an idle thread looks for work before it sleeps. Only `Spin::yield_core` reads the clock. The
//! caller passes the time to the other methods.
//!
//! ```text
//!            nothing to do                    nothing within the budget, or the core was away for long
//!   Worked ────────────────► Looking(since) ───────────────────────────────────────────────────────► Resting
//!     ▲ └─ spinning does not pay now ──│─────────────────────────────────────────────────────────────────▲
//!     └─────────────── work came ──────┴────────────────────── work came ────────────────────────────────┘
//! ```
//! Most answers come sooner than a thread falls asleep and is woken, so looking for a moment saves time. A thread that looks yields its
//! core to others, because the peer may need it. If the core comes back late, other programs use it. They keep it longer than the system
//! needs to wake a sleeping thread. So looking does not pay, and the next sleeps begin without it.

use std::time::{Duration, Instant};

/// See the module's documentation. Times are measured from any fixed point.
#[derive(Debug)]
pub(crate) struct Spin {
    phase: Phase,
    /// How many of the next sleeps begin without looking.
    pauses: u32,
    /// The value of `pauses` right after the core last stayed away. 0 if looking has found work since then.
    pauses_before: u32,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Worked,
    Looking(Duration),
    Resting,
}

impl Spin {
    /// A thread that has not worked yet.
    pub(crate) const fn new() -> Self {
        Self { phase: Phase::Resting, pauses: 0, pauses_before: 0 }
    }

    /// There was work.
    pub(crate) fn worked(&mut self) {
        if let Phase::Looking(_) = self.phase {
            self.pauses_before = 0;
        }
        self.phase = Phase::Worked;
    }

    /// There was no work at `now`. Returns whether to look again; if not, the thread should sleep. `budget` is how long to look without
    /// finding work: about as long as it takes to fall asleep and be woken.
    pub(crate) fn goes_on(&mut self, now: Duration, budget: Duration) -> bool {
        self.phase = match self.phase {
            Phase::Worked if budget.is_zero() => Phase::Resting,
            Phase::Worked if self.pauses > 0 => {
                self.pauses -= 1;
                Phase::Resting
            }
            Phase::Worked => Phase::Looking(now),
            Phase::Looking(since) if now.saturating_sub(since) > budget => Phase::Resting,
            Phase::Looking(since) => Phase::Looking(since),
            Phase::Resting => Phase::Resting,
        };
        matches!(self.phase, Phase::Looking(_))
    }

    /// Offers the core to other threads.
    #[expect(clippy::disallowed_methods, reason = "drivers call this, and no machine")]
    pub(crate) fn yield_core(&mut self) {
        let offered = Instant::now();
        std::thread::yield_now();
        self.core_was_away(offered.elapsed());
    }

    fn core_was_away(&mut self, away: Duration) {
        if away > CROWDED {
            self.pauses_before = (self.pauses_before * 2).clamp(PAUSES_MIN, PAUSES_MAX);
            self.pauses = self.pauses_before;
            self.phase = Phase::Resting;
        }
    }
}

/// If a yielded core stays away for longer than this, other programs use it. The peer's threads need it for a shorter time.
const CROWDED: Duration = Duration::from_micros(500);
/// The number of sleeps that then begin without looking. It doubles each time that the core stays away again.
const PAUSES_MIN: u32 = 32;
const PAUSES_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(30);

    #[test]
    fn a_thread_looks_for_more_after_work_and_only_for_its_budget() {
        let mut spin = Spin::new();
        assert!(!spin.goes_on(at(0), BUDGET), "nothing was done yet");
        spin.worked();
        assert!(spin.goes_on(at(0), BUDGET));
        assert!(spin.goes_on(BUDGET, BUDGET));
        assert!(!spin.goes_on(BUDGET + Duration::from_nanos(1), BUDGET));
        assert!(!spin.goes_on(BUDGET * 2, BUDGET), "it has slept, and nothing came");
        spin.worked();
        assert!(spin.goes_on(BUDGET * 3, BUDGET));
        spin.worked();
        assert!(!spin.goes_on(BUDGET * 4, Duration::ZERO), "it may not look at all");
    }

    #[test]
    fn a_thread_that_lost_its_core_sleeps_at_once_for_a_while_and_longer_if_it_happens_again() {
        let mut spin = Spin::new();
        assert_eq!(sleeps_at_once(&mut spin), 0);
        for expected in [32, 64, 128] {
            lose_core(&mut spin);
            assert_eq!(sleeps_at_once(&mut spin), expected);
        }
        spin.worked();
        assert!(spin.goes_on(at(0), BUDGET));
        spin.worked();
        lose_core(&mut spin);
        assert_eq!(sleeps_at_once(&mut spin), 32, "looking had paid meanwhile");
    }

    fn lose_core(spin: &mut Spin) {
        spin.worked();
        assert!(spin.goes_on(at(0), BUDGET));
        spin.core_was_away(CROWDED + Duration::from_nanos(1));
        assert!(!spin.goes_on(at(0), BUDGET));
    }

    /// How many times in a row the thread sleeps after work without looking.
    fn sleeps_at_once(spin: &mut Spin) -> u32 {
        let mut count = 0;
        loop {
            spin.worked();
            if spin.goes_on(at(0), BUDGET) {
                // It looks for its whole budget and finds nothing.
                assert!(!spin.goes_on(BUDGET * 2, BUDGET));
                return count;
            }
            count += 1;
        }
    }

    const fn at(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }
}
