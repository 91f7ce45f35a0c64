//! Values that several samples have.

use crate::types::{ClockKey, Mode, Participants, WorkerId};

/// A mode by a clock.
pub(super) fn mode(text: &str) -> Mode {
    text.parse::<Mode>().expect("a mode").with_clock(ClockKey(0x0102_0304_0506_0708))
}

/// Two workers, of which one gets the sums.
pub(in crate::wire) fn participants() -> Participants {
    Participants::of([1, 9].into_iter().map(WorkerId).collect()).with_receiver(WorkerId(9))
}
