//! Waiting from Python: seconds, and Ctrl-C.

use std::time::Duration;

use gradlane_core::engine;
use pyo3::prelude::*;

/// Repeats a wait in slices, with the interpreter lock released, so that Ctrl-C works. `wait` reports [`gradlane_core::Error::Timeout`]
/// when a slice has passed.
pub(crate) fn wait_interruptibly(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl Fn(Duration) -> gradlane_core::Result<()> + Sync,
) -> PyResult<gradlane_core::Result<()>> {
    let clock = gradlane_core::runtime::Clock::start();
    let due = timeout.map(|seconds| clock.now() + duration(seconds));
    loop {
        let left = due.map_or(SLICE, |due| due.since(clock.now()).min(SLICE));
        let outcome = py.detach(|| wait(left));
        py.check_signals()?;
        let expired = due.is_some_and(|due| due <= clock.now());
        match outcome {
            Err(gradlane_core::Error::Timeout { what, .. }) if what.starts_with(engine::STILL_RUNNING) && !expired => {}
            Err(gradlane_core::Error::Timeout { what, .. }) if what.starts_with(engine::STILL_RUNNING) => {
                let waited = duration(timeout.expect("only a wait with a timeout expires"));
                return Ok(Err(gradlane_core::Error::Timeout { what, waited }));
            }
            outcome => return Ok(outcome),
        }
    }
}

/// The time between two checks for Ctrl-C.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// Converts seconds from Python. Negative ones become zero; too large ones are unlimited.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
