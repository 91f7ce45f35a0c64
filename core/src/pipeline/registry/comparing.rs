//! Two declarations of one name on one worker.

use crate::error::Result;
use crate::types::{TensorSpec, WorkerId};

/// Refuses a declaration of a name that `rank` has declared otherwise before.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) naming the field in which they differ.
pub(super) fn compare(rank: WorkerId, known: &TensorSpec, spec: &TensorSpec) -> Result<()> {
    match known.declared().difference(&spec.declared()) {
        None => Ok(()),
        Some(difference) => Err(difference.into_error(known.name.clone(), rank, rank)),
    }
}
