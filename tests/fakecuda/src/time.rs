//! A device takes its time: the only place that looks at a clock or waits by it.

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "events of the device carry the time at which they were reached")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Lets a stream be slow.
#[expect(clippy::disallowed_methods, reason = "that it takes time is what is asked for; nothing is waited for")]
pub(crate) fn pass(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}
