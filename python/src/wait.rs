//! Waiting from Python: seconds, and Ctrl-C.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use gradlane_core::Error;
use pyo3::prelude::*;

/// Repeats a wait in slices, with the interpreter lock released, so that Ctrl-C works. `wait` reports
/// [`Error::StillRunning`] when a slice has passed.
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
            Err(Error::StillRunning { .. }) if !expired => {}
            Err(Error::StillRunning { what, .. }) => {
                let waited = duration(timeout.expect("only a wait with a timeout expires"));
                return Ok(Err(Error::StillRunning { what, waited }));
            }
            outcome => return Ok(outcome),
        }
    }
}

/// Does `work` on a thread of its own, and waits for it with the interpreter lock released, so that Ctrl-C works. After Ctrl-C `work` goes
/// on; its outcome is dropped.
pub(crate) fn in_background<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> gradlane_core::Result<T> + Send + 'static,
) -> PyResult<gradlane_core::Result<T>> {
    let (sender, mut receiver) = std::sync::mpsc::channel();
    let run = move || {
        let _ = sender.send(work());
    };
    if let Err(error) = std::thread::Builder::new().name("gl-call".to_owned()).spawn(run) {
        return Ok(Err(Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() }));
    }
    loop {
        let (outcome, again) = py.detach(move || (receiver.recv_timeout(SLICE), receiver));
        receiver = again;
        py.check_signals()?;
        match outcome {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(Error::Internal { what: "a thread panicked; see its message above".to_owned() }));
            }
        }
    }
}

/// The time between two checks for Ctrl-C.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// Converts seconds from Python. Negative ones become zero; too large ones are unlimited.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
