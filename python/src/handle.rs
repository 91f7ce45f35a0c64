//! `gradlane._core.Handle`.

use std::sync::Arc;

use gradlane_core::engine;
use gradlane_core::mem::Ordinal;
use pyo3::prelude::*;

use crate::errors;
use crate::owners::{Owners, release};
use crate::wait::wait_interruptibly;

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
        release(py, &self.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Waits until all work of the operation is on its devices, at most `timeout` seconds, and makes streams wait for its end: for each
    /// device `(number, stream)` of `streams`. On a device that is not among them, and in host memory, this is `wait`.
    fn follow(&self, py: Python<'_>, timeout: Option<f64>, streams: Vec<(u16, u64)>) -> PyResult<()> {
        let stream =
            |device: Ordinal| streams.iter().find(|(number, _)| *number == device.0).map(|(_, stream)| *stream);
        let outcome = wait_interruptibly(py, timeout, |slice| self.inner.follow(Some(slice), stream))?;
        release(py, &self.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Whether `follow` returns at once.
    fn is_issued(&self) -> bool {
        // Also if the engine is stuck: then `follow` raises at once.
        self.inner.is_issued() || self.inner.is_given_up()
    }

    /// Whether the operation has ended, with success or an error, or is given up because the engine is stuck: then `wait` raises at once.
    fn poll(&self, py: Python<'_>) -> bool {
        release(py, &self.owners);
        self.inner.outcome().is_some() || self.inner.is_given_up()
    }

    /// Cancels the operation; it ends with a `CancelledError` once its memory is free.
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
