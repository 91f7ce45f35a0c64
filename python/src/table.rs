//! `gradlane._core.Rows`: a use of a table under way.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine::{RowsHandle, RowsUse, Scan};
use gradlane_core::types::{Effect, Priority, RowAction, ScanPoint, ShrinkBounds, TableSpec, TensorSpec};
use gradlane_core::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::own_process::Own;
use crate::session::Session;
use crate::wait::{duration, wait_interruptibly};

/// A use of a table that was begun. In a forked child its methods raise `ForkedProcessError`.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Rows(Own<Kept>);

struct Kept {
    rows: RowsHandle,
    numbers: usize,
}

/// What a use says beside its memory: the name of the table and its text, the action, the step, the bounds of a shrink, the priority and the
/// timeout.
type Asked = (String, String, String, u64, (f64, f64, u64, u64), i32, Option<f64>);

/// The text of a table as workers compare it, and how many numbers a row has with what its rule keeps.
///
/// # Errors
/// As [`TableSpec::from_str`](std::str::FromStr::from_str).
#[pyfunction]
pub(crate) fn table_text(py: Python<'_>, text: &str) -> PyResult<(String, u64)> {
    let spec = text.parse::<TableSpec>().map_err(|error| errors::raise(py, &error))?;
    Ok((spec.to_string(), spec.row_len()))
}

/// Numbers in memory that the caller keeps for the call: their address, and how many there are.
type Numbers = (usize, usize);

/// Where a scan of each part stands: the first shard, the life, the version and the cursor.
type Points = Vec<(u32, u64, u64, u64)>;

/// The pages of a scan: where it stands, and the bytes of the ids, of what is known of rows beside their numbers, of their numbers, and of the
/// ids that were removed.
type Paged<'py> = (Points, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Begins a use of a table. At one address are the ids, u64; at another one, of a push, a gradient for each, f32, or, of a restore, all numbers
/// of each row; and of a restore at a third one its mark, u64. `scan` has the life, whether there is state, and where the scan stands.
#[pyfunction]
#[expect(unsafe_code, reason = "Python gives addresses")]
pub(crate) fn use_rows(
    py: Python<'_>,
    session: &Session,
    asked: Asked,
    ids: Numbers,
    gradients: Numbers,
    marks: Numbers,
    scan: (u64, bool, Points),
) -> PyResult<Rows> {
    let session = Arc::clone(&session.0.get(py)?.inner);
    // SAFETY: the caller has found the memory of arrays of these types, which it keeps during the call.
    let (ids, gradients, marks) = unsafe { (numbers::<u64>(ids), numbers::<f32>(gradients), numbers::<u64>(marks)) };
    let (life, with_state, points) = scan;
    let point = |(first, life, version, cursor)| ScanPoint { first, life, version, cursor };
    let points: Vec<ScanPoint> = points.into_iter().map(point).collect();
    let scan = Scan { life, with_state, points: &points };
    let begun = py.detach(|| begin(&session, asked, ids, (gradients, marks), scan));
    begun.map_err(|error| errors::raise(py, &error))
}

/// These numbers.
///
/// # Safety
/// They are there, aligned, and nobody writes them while the slice lives.
#[expect(unsafe_code, reason = "Python gives addresses")]
unsafe fn numbers<'a, T>((address, len): Numbers) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), len) }
}

fn begin(
    session: &gradlane_session::Session,
    asked: Asked,
    ids: &[u64],
    (gradients, marks): (&[f32], &[u64]),
    scan: Scan<'_>,
) -> Result<Rows> {
    let (name, spec, action, step, (decay, min_score, max_idle, floor), priority, timeout) = asked;
    let spec: TableSpec = spec.parse()?;
    let found = RowAction::ALL.into_iter().find(|of| of.to_string() == action);
    let action = found.ok_or_else(|| Error::Internal { what: format!("there is no use {action} of a table") })?;
    let asked = RowsUse {
        tensor: TensorSpec::table(name, spec),
        action,
        step,
        ids,
        gradients,
        marks,
        scan,
        bounds: ShrinkBounds { decay, min_score, max_idle, floor },
        priority: Priority(priority),
        timeout: timeout.map(duration),
    };
    let numbers = if action.brings_rows() { ids.len() * usize::try_from(spec.dim).expect("DIM_MAX") } else { 0 };
    Ok(Rows(Own::new(Kept { rows: session.use_rows(asked)?, numbers })))
}

#[pymethods]
impl Rows {
    /// Waits for the end of the use, at most `timeout` seconds, and raises its error.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let kept = self.0.get(py)?;
        let outcome = wait_interruptibly(py, timeout, |slice: Duration| kept.rows.handle().wait(Some(slice)))?;
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Whether the use has ended, with success or an error.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get(py)?.rows.handle().outcome().is_some())
    }

    /// The lowest version of the parts of the table that were used, once the use has ended well.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.0.get(py)?.rows.handle().effect().map(|Effect { version, .. }| version.0))
    }

    /// Writes the rows of a pull that has ended well to this address, where there is memory for so many f32, in the order of the ids.
    #[expect(unsafe_code, reason = "Python gives addresses")]
    fn read_rows(&self, py: Python<'_>, address: usize) -> PyResult<()> {
        let Kept { rows, numbers } = self.0.get(py)?;
        if *numbers > 0 {
            // SAFETY: the caller has as much memory there, aligned, and uses it for nothing else during the call.
            let out =
                unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), *numbers) };
            py.detach(|| rows.read_rows(out));
        }
        Ok(())
    }

    /// The pages of a scan that has ended well.
    fn pages<'py>(&self, py: Python<'py>) -> PyResult<Paged<'py>> {
        let kept = self.0.get(py)?;
        let pages = py.detach(|| kept.rows.pages()).map_err(|error| errors::raise(py, &error))?;
        let point = |point: &ScanPoint| (point.first, point.life, point.version, point.cursor);
        let points = pages.points.iter().map(point).collect();
        let [ids, marks, numbers, gone] =
            [&pages.ids, &pages.marks, &pages.numbers, &pages.gone].map(|bytes| PyBytes::new(py, bytes));
        Ok((points, ids, marks, numbers, gone))
    }

    /// What all servers together have counted: rows that were looked at, rows that were removed, rows, ids that wait, bytes, and ids whose
    /// gradients were dropped.
    fn counts(&self, py: Python<'_>) -> PyResult<[u64; 6]> {
        let counts = self.0.get(py)?.rows.counts();
        Ok([counts.scanned, counts.evicted, counts.rows, counts.waiting, counts.bytes, counts.dropped])
    }
}
