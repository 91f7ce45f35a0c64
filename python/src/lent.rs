//! What op libraries of frameworks get of this module: the address of the engine's functions. They know a session by `Session.lend()`.

use std::ptr;

use gradlane_session::c;
use pyo3::prelude::*;

use crate::errors;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(engine_table, module)?)?;
    module.add_function(wrap_pyfunction!(operation_error, module)?)
}

/// The address of the table of the engine's functions, which stays as it is until the process ends.
#[pyfunction]
fn engine_table() -> usize {
    ptr::from_ref(c::engine_table()).addr()
}

/// The exception for an operation of an op library that has failed; `None` if it has not, or is not known any more.
#[pyfunction]
fn operation_error(py: Python<'_>, operation: u64) -> PyResult<Option<Bound<'_, PyAny>>> {
    c::failure(operation).map(|error| errors::build(py, &error)).transpose()
}
