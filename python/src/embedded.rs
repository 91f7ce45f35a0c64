//! `gradlane._core.Embedded`: a coordinator and servers inside this process.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gradlane_core::types::JoinString;
use gradlane_server::EmbeddedOptions;
use gradlane_server::launch::rendezvous::{self, Published};
use pyo3::prelude::*;

use crate::errors;
use crate::fork::OwnProcess;
use crate::settings::config;
use crate::wait::duration;

/// A job's coordinator and servers. Stops when it is dropped.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Embedded {
    inner: Mutex<Option<OwnProcess<gradlane_server::Embedded>>>,
    join: JoinString,
    /// The file that leads to this job, while it lives.
    published: Mutex<Option<Published>>,
}

#[pymethods]
impl Embedded {
    /// With `coordinator_only` the `servers` are processes of their own.
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
        settings.insert("bind".to_owned(), bind);
        settings.insert("job".to_owned(), job);
        let started = py.detach(|| {
            let config = config(&settings)?;
            let options = EmbeddedOptions { config, workers, servers };
            if coordinator_only {
                gradlane_server::Embedded::start_coordinator(&options)
            } else {
                gradlane_server::Embedded::start(options)
            }
        });
        let embedded = started.map_err(|error| errors::raise(py, &error))?;
        let join = embedded.join_string().clone();
        Ok(Self { inner: Mutex::new(Some(OwnProcess::new(embedded))), join, published: Mutex::default() })
    }

    /// What the workers need to join. It is a secret.
    #[getter]
    fn join(&self) -> String {
        self.join.to_string()
    }

    /// Leaves the join string in this user's state directory, for processes that look for `job`, until [`Embedded::stop`].
    fn publish(&self, py: Python<'_>, job: &str) -> PyResult<()> {
        let state_dir = config(&BTreeMap::new());
        let published =
            state_dir.and_then(|config| rendezvous::publish(rendezvous::state_dir(&config)?, job, &self.join));
        let published = published.map_err(|error| errors::raise(py, &error))?;
        *self.published.lock().expect(LOCK) = Some(published);
        Ok(())
    }

    /// Waits until all workers have left, at most `timeout` seconds, then stops everything. Idempotent.
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.published.lock().expect(LOCK).take();
        let embedded = self.inner.lock().expect(LOCK).take();
        let Some(embedded) = embedded else { return Ok(()) };
        let outcome = py.detach(|| embedded.stop(duration(timeout)));
        outcome.map_err(|error| errors::raise(py, &error))
    }
}

const LOCK: &str = "nobody panics while holding it";
