//! `gradlane._core.Handle`.

use std::sync::Arc;

use gradlane_core::engine;
use gradlane_core::mem::Ordinal;
use pyo3::prelude::*;

use crate::errors;
use crate::own_process::Own;
use crate::owners::{Owners, release};
use crate::wait::wait_interruptibly;

/// An operation under way. Every clone and every thread sees the same outcome. In a forked child its methods raise `ForkedProcessError`.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Handle(Own<Parts>);

/// What a handle is in the process that submitted the operation.
struct Parts {
    inner: engine::Handle,
    owners: Arc<Owners>,
}

impl Handle {
    /// The handle of an operation whose memory these owners keep.
    pub(crate) fn new(inner: engine::Handle, owners: Arc<Owners>) -> Self {
        Self(Own::new(Parts { inner, owners }))
    }
}

#[pymethods]
impl Handle {
    /// Unique within the session.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.inner.id())
    }

    /// Waits for the end of the operation, at most `timeout` seconds, and raises its error.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let Parts { inner, owners } = self.0.get(py)?;
        let outcome = wait_interruptibly(py, timeout, |slice| inner.wait(Some(slice)))?;
        release(py, owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Waits until all work of the operation is on its devices, at most `timeout` seconds, and makes streams wait for its end: for each
    /// device `(number, stream)` of `streams`. On a device that is not among them, and in host memory, this is `wait`.
    fn follow(&self, py: Python<'_>, timeout: Option<f64>, streams: Vec<(u16, u64)>) -> PyResult<()> {
        let stream =
            |device: Ordinal| streams.iter().find(|(number, _)| *number == device.0).map(|(_, stream)| *stream);
        let Parts { inner, owners } = self.0.get(py)?;
        let outcome = wait_interruptibly(py, timeout, |slice| inner.follow(Some(slice), stream))?;
        release(py, owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Whether `follow` returns at once.
    fn is_issued(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = &self.0.get(py)?.inner;
        // Also if the engine is stuck: then `follow` raises at once.
        Ok(inner.is_issued() || inner.is_given_up())
    }

    /// Whether the operation has ended, with success or an error, or is given up because the engine is stuck: then `wait` raises at once.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let Parts { inner, owners } = self.0.get(py)?;
        release(py, owners);
        Ok(inner.outcome().is_some() || inner.is_given_up())
    }

    /// Cancels the operation; it ends with a `CancelledError` once its memory is free.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let Parts { inner, .. } = self.0.get(py)?;
        py.detach(|| inner.cancel());
        Ok(())
    }

    /// The exception the operation ended with, or `None`.
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get(py)?.inner.outcome() {
            Some(Err(error)) => errors::build(py, &error).map(Some),
            Some(Ok(())) | None => Ok(None),
        }
    }

    fn __repr__(&self) -> String {
        let Some(Parts { inner, .. }) = self.0.find() else {
            return "<gradlane handle of the process that forked this one>".to_owned();
        };
        let state = match inner.outcome() {
            None => "pending".to_owned(),
            Some(Ok(())) => "done".to_owned(),
            Some(Err(error)) => format!("failed: {error}"),
        };
        format!("<gradlane handle {}: {state}>", inner.id())
    }
}
