//! `gradlane._core.Handle`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gradlane_core::mem::Ordinal;
use gradlane_core::types::Effect;
use gradlane_core::{Error, engine};
use gradlane_session::Operation;
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
    operation: Operation,
    owners: Arc<Owners>,
}

impl Parts {
    fn inner(&self) -> &engine::Handle {
        self.operation.handle()
    }
}

impl Handle {
    /// The handle of an operation whose memory these owners keep.
    pub(crate) fn new(operation: Operation, owners: Arc<Owners>) -> Self {
        Self(Own::new(Parts { operation, owners }))
    }
}

#[pymethods]
impl Handle {
    /// Unique within the session.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.inner().id())
    }

    /// What a use of a parameter has come to, once it has ended well: the version that it has made or read, what became of the change, and its
    /// lag; `None` of a reduction.
    #[getter]
    fn effect(&self, py: Python<'_>) -> PyResult<Option<(u64, &'static str, u32)>> {
        Ok(self.0.get(py)?.operation.effect().map(|Effect { version, fate, lag }| (version.0, fate.name(), lag)))
    }

    /// Waits for the end of the operation, at most `timeout` seconds, and raises its error.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let parts = self.0.get(py)?;
        let outcome = wait_interruptibly(py, timeout, |slice| parts.inner().wait(Some(slice)))?;
        release(py, &parts.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Waits until all work of the operation is on its devices, at most `timeout` seconds, and makes streams wait for its end: for each
    /// device `(number, stream)` of `streams`. On a device that is not among them, and in host memory, this is `wait`.
    fn follow(&self, py: Python<'_>, timeout: Option<f64>, streams: Vec<(u16, u64)>) -> PyResult<()> {
        let stream =
            |device: Ordinal| streams.iter().find(|(number, _)| *number == device.0).map(|(_, stream)| *stream);
        let parts = self.0.get(py)?;
        let outcome = wait_interruptibly(py, timeout, |slice| parts.inner().follow(Some(slice), stream))?;
        release(py, &parts.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Whether `follow` returns at once.
    fn is_issued(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.0.get(py)?.inner();
        // Also if the engine is stuck: then `follow` raises at once.
        Ok(inner.is_issued() || inner.is_given_up())
    }

    /// Whether the operation has ended, with success or an error, or is given up because the engine is stuck: then `wait` raises at once.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let parts = self.0.get(py)?;
        release(py, &parts.owners);
        Ok(parts.operation.has_ended())
    }

    /// Cancels the operation; it ends with a `CancelledError` once its memory is free.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.0.get(py)?.inner();
        py.detach(|| inner.cancel());
        Ok(())
    }

    /// The exception the operation ended with, or `None`.
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get(py)?.inner().outcome() {
            Some(Err(error)) => errors::build(py, &error).map(Some),
            Some(Ok(())) | None => Ok(None),
        }
    }

    fn __repr__(&self) -> String {
        let Some(inner) = self.0.find().map(Parts::inner) else {
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

/// Waits until one of these groups has ended, at most `timeout` seconds, and returns the position of the first one that has. A group ends
/// when all of its operations have ended.
#[pyfunction]
pub(crate) fn wait_any(py: Python<'_>, groups: Vec<Vec<PyRef<'_, Handle>>>, timeout: Option<f64>) -> PyResult<usize> {
    let of_group = |group: &Vec<PyRef<'_, Handle>>| {
        let operations = group.iter().map(|handle| handle.0.get(py).map(|parts| parts.operation.clone()));
        operations.collect::<PyResult<Vec<_>>>()
    };
    let groups = groups.iter().map(of_group).collect::<PyResult<Vec<_>>>()?;
    let first = OnceLock::new();
    let wait = |slice: Duration| match gradlane_session::wait_any(&groups, slice) {
        Some(position) => {
            let _ = first.set(position);
            Ok(())
        }
        None => Err(Error::StillRunning { what: "each of the operations".to_owned(), waited: slice }),
    };
    wait_interruptibly(py, timeout, wait)?.map_err(|error| errors::raise(py, &error))?;
    Ok(first.into_inner().expect("the wait ended well"))
}
