//! `gradlane._core.Handle`.

use std::sync::Arc;

use gradlane_core::engine;
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

    /// Whether the operation has ended, with success or an error.
    fn poll(&self, py: Python<'_>) -> bool {
        release(py, &self.owners);
        self.inner.outcome().is_some()
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
