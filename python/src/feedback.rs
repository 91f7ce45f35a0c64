//! `gradlane._core.answer_feedback`: what servers keep of the answers of sums with error feedback.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::session::Session;
use crate::wait::in_background;

/// What the answers to these tensors have lost, of each as bytes of float32; empty where answers lose nothing.
#[pyfunction]
pub(crate) fn answer_feedback<'py>(
    py: Python<'py>,
    session: &Session,
    names: Vec<String>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let session = Arc::clone(&session.0.get(py)?.inner);
    let read = in_background(py, move || {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        session.answer_feedback(&names)
    })?;
    let read = read.map_err(|error| errors::raise(py, &error))?;
    Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
}

/// Gives that back, by the names of tensors.
#[pyfunction]
pub(crate) fn set_answer_feedback(py: Python<'_>, session: &Session, given: Vec<(String, Vec<u8>)>) -> PyResult<()> {
    let session = Arc::clone(&session.0.get(py)?.inner);
    let given = in_background(py, move || {
        let given: Vec<(&str, &[u8])> = given.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        session.set_answer_feedback(&given)
    })?;
    given.map_err(|error| errors::raise(py, &error))
}
