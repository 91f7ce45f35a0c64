//! Errors become the exceptions of `gradlane.errors`.

use gradlane_core::Error;
use gradlane_core::error::Claim;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The Python exception for `error`: `gradlane.errors._build(variant, message, fields)`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match build(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        // Without the package's module (a broken installation) the message still arrives.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

/// The exception object for `error`.
pub(crate) fn build<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    let variant = describe(error, &fields)?;
    fields.set_item("code", format!("{:?}", error.code()))?;
    fields.set_item("retryable", error.retryable())?;
    py.import("gradlane.errors")?.getattr("_build")?.call1((variant, error.to_string(), fields))
}

/// The variant's name; its fields go into `fields`.
fn describe(error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    let claim = |claim: &Claim| (claim.worker.0, claim.value.clone());
    Ok(match error {
        Error::InvalidArgument { what, hint } => {
            fields.set_item("what", what)?;
            fields.set_item("hint", hint)?;
            "InvalidArgument"
        }
        Error::Config { knob, problem, hint } => {
            fields.set_item("knob", knob)?;
            fields.set_item("problem", problem)?;
            fields.set_item("hint", hint)?;
            "Config"
        }
        Error::Mismatch { tensor, field, first, second } => {
            fields.set_item("tensor", tensor)?;
            fields.set_item("field", field)?;
            fields.set_item("first", claim(first))?;
            fields.set_item("second", claim(second))?;
            "Mismatch"
        }
        Error::Stalled { tensor, round, missing, waited, detail } => {
            fields.set_item("tensor", tensor)?;
            fields.set_item("round", round.0)?;
            fields.set_item("missing", missing.iter().map(|worker| worker.0).collect::<Vec<_>>())?;
            fields.set_item("waited", waited.as_secs_f64())?;
            fields.set_item("detail", detail)?;
            "Stalled"
        }
        Error::Timeout { what, waited } => {
            fields.set_item("what", what)?;
            fields.set_item("waited", waited.as_secs_f64())?;
            "Timeout"
        }
        Error::PeerLost { member, host, cause } => {
            fields.set_item("member", member)?;
            fields.set_item("host", host)?;
            fields.set_item("cause", cause)?;
            "PeerLost"
        }
        Error::NotFormed { missing, waited } => {
            fields.set_item("missing", missing)?;
            fields.set_item("waited", waited.as_secs_f64())?;
            "NotFormed"
        }
        Error::DuplicateRank { member, holder } => {
            fields.set_item("member", member)?;
            fields.set_item("holder", holder)?;
            "DuplicateRank"
        }
        Error::Incompatible { field, ours, peer, theirs } => {
            fields.set_item("field", field)?;
            fields.set_item("ours", ours)?;
            fields.set_item("peer", peer)?;
            fields.set_item("theirs", theirs)?;
            "Incompatible"
        }
        Error::Fenced { current } => {
            fields.set_item("current", current.to_string())?;
            "Fenced"
        }
        Error::Auth { problem, hint } => {
            fields.set_item("problem", problem)?;
            fields.set_item("hint", hint)?;
            "Auth"
        }
        Error::Protocol { peer, field, problem } => {
            fields.set_item("peer", peer)?;
            fields.set_item("field", field)?;
            fields.set_item("problem", problem)?;
            "Protocol"
        }
        Error::Checksum { tensor, round, from } => {
            fields.set_item("tensor", tensor)?;
            fields.set_item("round", round.0)?;
            fields.set_item("from", from)?;
            "Checksum"
        }
        Error::Exhausted { what, limit, hint } => {
            fields.set_item("what", what)?;
            fields.set_item("limit", limit)?;
            fields.set_item("hint", hint)?;
            "Exhausted"
        }
        Error::Unavailable { what, cause } => {
            fields.set_item("what", what)?;
            fields.set_item("cause", cause)?;
            "Unavailable"
        }
        Error::FailedPrecondition { what, hint } => {
            fields.set_item("what", what)?;
            fields.set_item("hint", hint)?;
            "FailedPrecondition"
        }
        Error::Cancelled => "Cancelled",
        Error::Io { what, cause } => {
            fields.set_item("what", what)?;
            fields.set_item("cause", cause)?;
            "Io"
        }
        Error::Internal { what } => {
            fields.set_item("what", what)?;
            "Internal"
        }
        Error::Device { device, what, cause } => {
            fields.set_item("device", device)?;
            fields.set_item("what", what)?;
            fields.set_item("cause", cause)?;
            "Device"
        }
    })
}
