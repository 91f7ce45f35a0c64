//! The spin policy: whether a thread spins for a moment before it sleeps. Each transport says how it spins.
//!
//! A spinning thread yields its core to other threads, and the peer may be one of them. If the core comes back late, other programs
//! want it. They keep it longer than the system needs to wake a sleeping thread, so no thread spins for a while.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Whether spinning has paid lately. Shared by the threads of one transport.
#[derive(Default, Debug)]
pub(super) struct SpinPolicy {
    /// How many of the next sleeps begin without spinning.
    pauses: AtomicU32,
    /// How many it were after the last failure.
    before: AtomicU32,
}

impl SpinPolicy {
    /// Whether the next sleep begins without spinning. Asked once before each sleep.
    pub(super) fn pauses(&self) -> bool {
        let less = |pauses: u32| pauses.checked_sub(1);
        self.pauses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Work came while the thread was spinning.
    pub(super) fn succeeded(&self) {
        self.before.store(0, Ordering::Relaxed);
    }

    /// The core came back later than after [`CROWDED`].
    pub(super) fn failed(&self) {
        let pauses = (self.before.load(Ordering::Relaxed) * 2).clamp(PAUSES_MIN, PAUSES_MAX);
        self.before.store(pauses, Ordering::Relaxed);
        self.pauses.store(pauses, Ordering::Relaxed);
    }
}

/// A yielded core that stays away for so long is used by other programs. The peer's threads need it for less.
pub(super) const CROWDED: Duration = Duration::from_micros(500);
/// After a failure so many sleeps begin without spinning, and twice as many after each further one.
const PAUSES_MIN: u32 = 32;
const PAUSES_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lost_its_core_sleeps_at_once_for_a_while_and_longer_if_it_happens_again() {
        let spin_policy = SpinPolicy::default();
        let pauses = || (0..).take_while(|_| spin_policy.pauses()).count();
        assert_eq!(pauses(), 0);
        for expected in [32, 64, 128] {
            spin_policy.failed();
            assert_eq!(pauses(), expected);
        }
        spin_policy.succeeded();
        spin_policy.failed();
        assert_eq!(pauses(), 32, "it was worth while meanwhile");
    }
}
