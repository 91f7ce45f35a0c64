//! Metrics for Python.

use gradlane_core::metrics::{Instance, METRICS};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(metrics_table, module)?)
}

/// The values of `instance` by name. A histogram has two: its sum and its count.
pub(crate) fn values<'py>(py: Python<'py>, instance: &Instance) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    for (name, value) in instance.plain() {
        values.set_item(name, value)?;
    }
    Ok(values)
}

/// The table of metrics, one dictionary per row.
#[pyfunction]
fn metrics_table(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let rows = METRICS.iter().map(|metric| {
        let row = PyDict::new(py);
        row.set_item("scope", metric.scope)?;
        row.set_item("name", metric.name)?;
        row.set_item("labels", metric.labels)?;
        row.set_item("kind", metric.kind.name())?;
        row.set_item("unit", metric.unit.name())?;
        row.set_item("help", metric.help)?;
        Ok(row)
    });
    rows.collect()
}
