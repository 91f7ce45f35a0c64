//! The Python objects whose memory is lent to the engine.

use pyo3::prelude::*;

/// The Python objects whose memory is lent to the engine, by the number of the operation.
pub(crate) type Owners = gradlane_session::Owners<Py<PyAny>>;

/// Drops the owners of operations that have ended. Called by Python threads only.
pub(crate) fn release(_py: Python<'_>, owners: &Owners) {
    drop(owners.release());
}
