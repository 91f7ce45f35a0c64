//! `gradlane._core.Embedded`: a coordinator and servers inside this process.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gradlane_core::config::Config;
use gradlane_server::EmbeddedOptions;
use pyo3::prelude::*;

use crate::errors;
use crate::handle::duration;

/// A job's coordinator and servers. Stops when it is dropped.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Embedded {
    inner: Mutex<Option<gradlane_server::Embedded>>,
    join: String,
}

#[pymethods]
impl Embedded {
    #[new]
    #[pyo3(signature = (*, bind, workers, servers, job, settings))]
    fn new(
        py: Python<'_>,
        bind: String,
        workers: u32,
        servers: u32,
        job: String,
        mut settings: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        settings.insert("bind".to_owned(), bind);
        settings.insert("job".to_owned(), job);
        let started = py.detach(|| {
            let (config, _) = Config::from_process(&settings)?;
            gradlane_server::Embedded::start(EmbeddedOptions { config, workers, servers })
        });
        let embedded = started.map_err(|error| errors::raise(py, &error))?;
        let join = embedded.join_string().to_string();
        Ok(Self { inner: Mutex::new(Some(embedded)), join })
    }

    /// What the workers need to join. It is a secret.
    #[getter]
    fn join(&self) -> &str {
        &self.join
    }

    /// Waits until all workers have left, at most `timeout` seconds, then stops everything. Idempotent.
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let embedded = self.inner.lock().expect("nobody panics while holding it").take();
        let Some(embedded) = embedded else { return Ok(()) };
        let outcome = py.detach(|| embedded.stop(duration(timeout)));
        outcome.map_err(|error| errors::raise(py, &error))
    }
}
