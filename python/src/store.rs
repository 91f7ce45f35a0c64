//! The key-value store of the job, as Python's values.

use std::sync::Arc;

use gradlane_core::types::{StoreAnswer, StoreAsk};
use gradlane_session::Session;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::wait::{duration, in_background};

/// Asks for something that is answered by [`StoreAnswer::Done`] or a value. Returns whether it was done, and the value.
pub(crate) fn put<'py>(
    py: Python<'py>,
    session: &Arc<Session>,
    ask: StoreAsk,
    timeout: Option<f64>,
) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
    match answer(py, session, ask, timeout)? {
        StoreAnswer::Done => Ok((true, None)),
        StoreAnswer::Value(value) => Ok((false, value.map(|value| PyBytes::new(py, &value)))),
        StoreAnswer::Number(_) | StoreAnswer::Keys(_) => unreachable!("{FITS}"),
    }
}

/// Asks for something that is answered by a number.
pub(crate) fn count(py: Python<'_>, session: &Arc<Session>, ask: StoreAsk, timeout: Option<f64>) -> PyResult<i64> {
    match answer(py, session, ask, timeout)? {
        StoreAnswer::Number(number) => Ok(number),
        StoreAnswer::Done | StoreAnswer::Value(_) | StoreAnswer::Keys(_) => unreachable!("{FITS}"),
    }
}

/// The keys that begin with `prefix`.
pub(crate) fn keys(
    py: Python<'_>,
    session: &Arc<Session>,
    prefix: String,
    timeout: Option<f64>,
) -> PyResult<Vec<String>> {
    match answer(py, session, StoreAsk::Dir { prefix }, timeout)? {
        StoreAnswer::Keys(keys) => Ok(keys),
        StoreAnswer::Done | StoreAnswer::Value(_) | StoreAnswer::Number(_) => unreachable!("{FITS}"),
    }
}

/// The membership checks it.
const FITS: &str = "an answer fits what was asked";

fn answer(py: Python<'_>, session: &Arc<Session>, ask: StoreAsk, timeout: Option<f64>) -> PyResult<StoreAnswer> {
    let session = Arc::clone(session);
    let answered = in_background(py, move || session.ask_store(ask, timeout.map(duration)))?;
    answered.map_err(|error| errors::raise(py, &error))
}
