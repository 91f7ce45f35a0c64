//! Turns errors into the exceptions of `gradlane.errors`.

use gradlane_core::error::{ERRORS, Error, Field, Tensors};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(error_table, module)?)
}

/// The Python exception for `error`: `gradlane.errors._build(variant, message, fields)`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match build(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        // If the package's module is missing (a broken installation), the message is still raised.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

/// The exception object for `error`.
pub(crate) fn build<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    for (name, field) in error.fields() {
        match field {
            Field::Text(text) => fields.set_item(name, text)?,
            Field::Tensors(Tensors::Unknown) => fields.set_item(name, py.None())?,
            Field::Tensors(tensors) => fields.set_item(name, tensors.to_string())?,
            Field::Claim(claim) => fields.set_item(name, (claim.worker.0, &claim.value))?,
            Field::Round(round) => fields.set_item(name, round.0)?,
            Field::Ranks(ranks) => fields.set_item(name, ranks.iter().map(|worker| worker.0).collect::<Vec<_>>())?,
            Field::Members(members) => fields.set_item(name, members)?,
            Field::Duration(duration) => fields.set_item(name, duration.as_secs_f64())?,
            Field::Number(number) => fields.set_item(name, number)?,
            Field::Epoch(epoch) => fields.set_item(name, epoch.to_string())?,
        }
    }
    fields.set_item("code", format!("{:?}", error.code()))?;
    fields.set_item("retryable", error.retryable())?;
    py.import("gradlane.errors")?.getattr("_build")?.call1((error.kind().variant, error.to_string(), fields))
}

/// The table of native errors, one dictionary per row.
#[pyfunction]
fn error_table(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let rows = ERRORS.iter().map(|kind| {
        let row = PyDict::new(py);
        row.set_item("variant", kind.variant)?;
        row.set_item("exception", kind.exception)?;
        row.set_item("bases", kind.bases)?;
        row.set_item("code", format!("{:?}", kind.code))?;
        row.set_item("retryable", kind.code.retryable())?;
        row.set_item("doc", kind.doc)?;
        row.set_item("fields", kind.fields)?;
        Ok(row)
    });
    rows.collect()
}
