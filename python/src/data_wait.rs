//! How long a training waits for its data.

use gradlane_core::metrics::WorkerMetrics;
use pyo3::prelude::*;

use crate::session::Session;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(count_data_wait, module)?)
}

/// The training of a session has waited for its data for so many nanoseconds. Does nothing in a forked child.
#[pyfunction]
fn count_data_wait(session: &Session, nanoseconds: u64) {
    if let Some(parts) = session.0.find() {
        WorkerMetrics::add(&parts.inner.counters().data_wait_nanoseconds, nanoseconds);
    }
}
