//! `gradlane._core.Embedded`: a coordinator and servers inside this process.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_session::{EmbeddedPlan, config};
use pyo3::prelude::*;

use crate::errors;
use crate::own_process::Own;
use crate::wait::{duration, in_background};

/// A job's coordinator and servers. Stops when it is dropped.
#[pyclass(frozen, weakref, module = "gradlane._core")]
pub(crate) struct Embedded {
    pub(crate) inner: Own<Arc<gradlane_session::Embedded>>,
}

#[pymethods]
impl Embedded {
    /// With `coordinator_only` the `servers` are separate processes.
    #[new]
    #[pyo3(signature = (*, bind, workers, servers, job, settings, coordinator_only = false))]
    fn new(
        py: Python<'_>,
        bind: String,
        workers: u32,
        servers: u32,
        job: String,
        mut settings: BTreeMap<String, String>,
        coordinator_only: bool,
    ) -> PyResult<Self> {
        // As settings they are checked, and errors say that they come from an argument.
        settings.insert("bind".to_owned(), bind.clone());
        settings.insert("job".to_owned(), job.clone());
        let plan = EmbeddedPlan { bind, workers, servers, job, coordinator_only };
        let started = py.detach(|| gradlane_session::Embedded::start(plan, config(&settings)?));
        started.map(|inner| Self { inner: Own::new(Arc::new(inner)) }).map_err(|error| errors::raise(py, &error))
    }

    /// The join string for the workers. It is a secret.
    #[getter]
    fn join(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.inner.get(py)?.join().to_string())
    }

    /// Writes the join string to this user's state directory, for processes that look for `job`, until [`Embedded::stop`].
    fn publish(&self, py: Python<'_>, job: &str) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        let published = config(&BTreeMap::new()).and_then(|config| inner.publish(&config, job));
        published.map_err(|error| errors::raise(py, &error))
    }

    /// Waits until all workers have left, at most `timeout` seconds, then stops everything. Idempotent.
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let inner = Arc::clone(self.inner.get(py)?);
        let stopped = in_background(py, move || inner.stop(duration(timeout)))?;
        stopped.map_err(|error| errors::raise(py, &error))
    }
}
