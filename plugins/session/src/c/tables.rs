//! Uses of tables.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::sync::Arc;

use gradlane_core::engine::{RowCounts, RowsUse, Scan};
use gradlane_core::types::{Priority, RowAction, ShrinkBounds, TableSpec, TensorSpec};
use gradlane_core::{Error, Result};

use super::answer::answer;
use super::landing::{Brings, Landing};
use super::operations::{Begun, find_begun, submit_with};
use super::read::{limit, name, numbers, present, structures, text, write};
use super::sessions::member;
use gradlane_abi::{
    GradlaneError, GradlaneOperation, GradlaneSession, GradlaneStatus, GradlaneTableCounts, GradlaneTableUse,
};

/// Reads rows of a table for training, and returns at once; only the first use of a table waits until it is declared. An id without a row
/// gets one, if the table admits it. A worker waits for no other worker. Uses of one table by this worker come one after the other, in the
/// order of these calls.
///
/// `operation` receives the operation, as that of `gradlane_submit`. The rows are in the caller's memory once `gradlane_poll`, `gradlane_wait`
/// or `gradlane_wait_any` tells that it has ended well, and when its callback runs. It ends with `GRADLANE_STATUS_FAILED_PRECONDITION` if the
/// table is full, or a server has no memory for more rows. A job of one worker without servers keeps its tables itself.
///
/// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_pull(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Pull, ShrinkBounds::KEEP, operation)) }
}

/// Reads rows of a table for evaluation, as `gradlane_table_pull`. It makes no row and changes nothing: ids without a row read as what it would
/// begin with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_look(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Look, ShrinkBounds::KEEP, operation)) }
}

/// Changes rows of a table by gradients, as its rule says, and returns once the gradients were read; otherwise as `gradlane_table_pull`. A change
/// is made once, also if a connection breaks.
///
/// Fails with `GRADLANE_STATUS_INVALID_ARGUMENT` if a gradient is infinite or not a number; nothing was sent then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_push(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Push, ShrinkBounds::KEEP, operation)) }
}

/// Removes rows of a table that are not worth their place, on all servers. `gradlane_operation_counts` tells how many.
///
/// A row's score is 1 for each push. The scores of all rows are multiplied by `decay` first, from 0 to 1. Then rows with a score below
/// `min_score` go, and rows whose last push or pull is more than `max_idle` steps ago; `UINT64_MAX` for none of these. `floor` rows of the highest
/// scores stay in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_shrink(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    decay: f64,
    min_score: f64,
    max_idle: u64,
    floor: u64,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let bounds = ShrinkBounds { decay, min_score, max_idle, floor };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Shrink, bounds, operation)) }
}

/// Counts what is in a table, on all servers. `gradlane_operation_counts` tells the numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_stats(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Stats, ShrinkBounds::KEEP, operation)) }
}

/// Removes all rows of a table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_table_clear(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || begin(session, table_use, RowAction::Clear, ShrinkBounds::KEEP, operation)) }
}

/// Writes what the servers have counted in a shrink, or for stats.
///
/// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_operation_counts(
    operation: GradlaneOperation,
    counts: *mut GradlaneTableCounts,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let begun = find_begun(operation)?;
        let counted = begun.ended_rows().and_then(Landing::counts).ok_or_else(|| Error::FailedPrecondition {
            what: format!("operation {operation:#x} tells no counts"),
            hint: "ask for those of gradlane_table_shrink or gradlane_table_stats, after it has ended well".to_owned(),
        })?;
        let RowCounts { scanned, evicted, rows, waiting, bytes, dropped } = counted;
        let told = GradlaneTableCounts { scanned, evicted, rows, waiting, bytes, dropped };
        // SAFETY: promised by the caller of this function.
        unsafe { write(counts, "counts", told) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Begins a use.
///
/// # Safety
/// As [`gradlane_table_pull`].
unsafe fn begin(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    action: RowAction,
    bounds: ShrinkBounds,
    operation: *mut GradlaneOperation,
) -> Result<GradlaneStatus> {
    present(operation, "operation")?;
    let member = member(session)?;
    // SAFETY: promised by the caller of this function.
    let given = unsafe { structures(table_use, 1) }?[0];
    let begun = submit_with(&member, (given.callback, given.user), |member, ended| {
        // SAFETY: promised by the caller of this function.
        let Read { tensor, ids, gradients, brings } = unsafe { read(&given, action) }?;
        let session = member.job.session();
        let asked = RowsUse {
            tensor,
            action,
            step: given.step,
            ids: &ids,
            gradients: &gradients,
            marks: &[],
            scan: Scan::default(),
            bounds,
            priority: Priority(given.priority),
            timeout: limit(given.timeout_ms),
        };
        let rows = session.begin_rows(asked, ended)?;
        let operation = session.operation(rows.handle().clone());
        Ok(Some(Begun { operation, rows: Some(Arc::new(Landing::new(rows, brings, &member.gate))) }))
    })?;
    // SAFETY: promised by the caller of this function.
    unsafe { write(operation, "operation", begun) }?;
    Ok(GradlaneStatus::Ok)
}

/// What a structure says.
struct Read {
    tensor: TensorSpec,
    ids: Vec<u64>,
    gradients: Vec<f32>,
    brings: Brings,
}

/// # Safety
/// The pointers of the structure are as its documentation says.
unsafe fn read(given: &GradlaneTableUse, action: RowAction) -> Result<Read> {
    let invalid = |what: String, hint: String| Error::InvalidArgument { what, hint };
    // SAFETY: promised by the caller of this function.
    let (name, spec) = unsafe { (name(given.name)?, text(given.table, "the table")?) };
    let spec: TableSpec = spec.parse()?;
    if given.reserved != 0 {
        return Err(invalid(format!("table {name}: reserved is {}", given.reserved), "set it to 0".to_owned()));
    }
    let tensor = TensorSpec::table(name, spec);
    if !action.has_ids() {
        let brings = if action == RowAction::Clear { Brings::Nothing } else { Brings::Counts };
        return Ok(Read { tensor, ids: Vec::new(), gradients: Vec::new(), brings });
    }
    let name = &tensor.name;
    if given.count as u64 > TableSpec::IDS_MAX {
        let hint = format!("use at most {} ids at a time", TableSpec::IDS_MAX);
        return Err(invalid(format!("table {name}: {action} of {} ids at once", given.count), hint));
    }
    let len = given.count * usize::try_from(spec.dim).expect("a few");
    if given.bytes != len * size_of::<f32>() {
        let what = format!("table {name}: rows of {} bytes for {} ids", given.bytes, given.count);
        return Err(invalid(what, format!("give {} bytes for each id", spec.dim * 4)));
    }
    if len > 0 {
        present(given.rows, "rows")?;
    }
    // SAFETY: promised by the caller of this function.
    let ids = unsafe { numbers(given.ids, given.count, "ids") }?;
    if action != RowAction::Push {
        // SAFETY: promised by the caller of this function.
        let brings = unsafe { Brings::rows(given.rows, len) };
        return Ok(Read { tensor, ids, gradients: Vec::new(), brings });
    }
    // SAFETY: `rows` is not null if there are any, and the caller of this function promises so many.
    let gradients = if len > 0 { unsafe { std::slice::from_raw_parts(given.rows, len) }.to_vec() } else { Vec::new() };
    Ok(Read { tensor, ids, gradients, brings: Brings::Nothing })
}
