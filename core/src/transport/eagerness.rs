//! Whether it is worth while to look for more for a moment before a thread sleeps; how it looks is for the roads to say.
//!
//! Who looks offers its core to others meanwhile, among whom may be the peer. If it is taken for long, strangers want it, who give it back later
//! than the system gives it to a thread that wakes: then nobody looks for a while.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Whether it is worth while to spin.
#[derive(Default, Debug)]
pub(super) struct Eagerness {
    /// So many sleeps begin without.
    pauses: AtomicU32,
    /// How many were the last time.
    before: AtomicU32,
}

impl Eagerness {
    /// Whether the sleep that comes begins without. To be asked once before each.
    pub(super) fn pauses(&self) -> bool {
        let less = |pauses: u32| pauses.checked_sub(1);
        self.pauses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Something came.
    pub(super) fn succeeded(&self) {
        self.before.store(0, Ordering::Relaxed);
    }

    /// The core was taken for longer than [`CROWDED`].
    pub(super) fn failed(&self) {
        let pauses = (self.before.load(Ordering::Relaxed) * 2).clamp(PAUSES_MIN, PAUSES_MAX);
        self.before.store(pauses, Ordering::Relaxed);
        self.pauses.store(pauses, Ordering::Relaxed);
    }
}

/// A core that was offered and taken for so long is wanted by others than the peers, who have shorter things to do.
pub(super) const CROWDED: Duration = Duration::from_micros(500);
/// Then so many sleeps begin without spinning, twice as many each time that it happens again.
const PAUSES_MIN: u32 = 32;
const PAUSES_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lost_its_core_sleeps_at_once_for_a_while_and_longer_if_it_happens_again() {
        let eagerness = Eagerness::default();
        let pauses = || (0..).take_while(|_| eagerness.pauses()).count();
        assert_eq!(pauses(), 0);
        for expected in [32, 64, 128] {
            eagerness.failed();
            assert_eq!(pauses(), expected);
        }
        eagerness.succeeded();
        eagerness.failed();
        assert_eq!(pauses(), 32, "it was worth while meanwhile");
    }
}
