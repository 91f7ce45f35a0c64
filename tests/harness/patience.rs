//! Waiting for what has no event of its own.

use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::Time;

use crate::cluster::PATIENCE;

/// Looks every few milliseconds until there is something, and returns it.
///
/// # Panics
/// With `what` if there is nothing within [`PATIENCE`].
pub fn eventually<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let clock = Clock::start();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(elapsed(clock) < PATIENCE, "{what}: it never came");
        crossbeam_channel::after(Duration::from_millis(10)).recv().expect("a timer fires");
    }
}

/// How long ago `clock` was started.
pub fn elapsed(clock: Clock) -> Duration {
    clock.now().since(Time::ZERO)
}
