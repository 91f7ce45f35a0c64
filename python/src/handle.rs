//! `gradlane._core.Handle`.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine;
use pyo3::prelude::*;

use crate::errors;
use crate::session::Owners;

/// An operation under way. Every clone and every thread sees the same outcome.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Handle {
    pub(crate) inner: engine::Handle,
    pub(crate) owners: Arc<Owners>,
}

#[pymethods]
impl Handle {
    /// Unique within the session.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id()
    }

    /// Waits for the end of the operation, at most `timeout` seconds, and raises its error.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let outcome = wait_interruptibly(py, timeout, |slice| self.inner.wait(Some(slice)))?;
        self.owners.release(py);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Whether the operation has ended, well or not.
    fn poll(&self, py: Python<'_>) -> bool {
        self.owners.release(py);
        self.inner.outcome().is_some()
    }

    /// Gives the operation up; it ends with a `CancelledError` once its memory is free.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.inner.cancel());
    }

    /// The exception the operation ended with, or `None`.
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.inner.outcome() {
            Some(Err(error)) => errors::build(py, &error).map(Some),
            Some(Ok(())) | None => Ok(None),
        }
    }

    fn __repr__(&self) -> String {
        let state = match self.inner.outcome() {
            None => "pending".to_owned(),
            Some(Ok(())) => "done".to_owned(),
            Some(Err(error)) => format!("failed: {error}"),
        };
        format!("<gradlane handle {}: {state}>", self.inner.id())
    }
}

/// Repeats a wait in slices, with the interpreter free, so that Ctrl-C is seen; `wait` reports [`gradlane_core::Error::Timeout`] when a
/// slice passed.
pub(crate) fn wait_interruptibly(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl Fn(Duration) -> gradlane_core::Result<()> + Sync,
) -> PyResult<gradlane_core::Result<()>> {
    const SLICE: Duration = Duration::from_millis(200);
    let clock = engine::Clock::start();
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

/// Seconds as Python gives them; negative ones are zero, and what is too large is for ever.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
