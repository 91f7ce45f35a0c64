//! `gradlane._core.copy_seconds`: how fast the engine copies from and to a device.

use gradlane_session::Settings;
use gradlane_session::copy_speed::{CopyOrder, Direction, measure};
use pyo3::prelude::*;

use crate::errors;

/// Seconds to copy the `bytes` bytes from `address` of a device once, in chunks, of which `in_flight` are under way at a time: "out" to
/// pinned host memory, "in" from there, or "both" ways at once, with half of the bytes each.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called by name from one script")]
pub(crate) fn copy_seconds(
    py: Python<'_>,
    settings: Settings,
    device: u16,
    address: u64,
    bytes: usize,
    chunk_bytes: usize,
    in_flight: usize,
    direction: &str,
) -> PyResult<f64> {
    let direction = match direction {
        "out" => Direction::Out,
        "in" => Direction::In,
        _ => Direction::Both,
    };
    let order = CopyOrder { device, address, bytes, chunk_bytes, in_flight, direction };
    let measured = py.detach(|| measure(&settings, order));
    measured.map(|time| time.as_secs_f64()).map_err(|error| errors::raise(py, &error))
}
