//! Two declarations of one name on one worker.

use crate::error::{Claim, Error, Result};
use crate::types::{TensorSpec, WorkerId};

/// Refuses a declaration of a name that `rank` has declared otherwise before.
///
/// # Errors
/// [`Error::Mismatch`] naming the field in which they differ.
pub(super) fn compare(rank: WorkerId, known: &TensorSpec, spec: &TensorSpec) -> Result<()> {
    let (field, before, now) = if known.name != spec.name {
        ("name", known.name.clone(), spec.name.clone())
    } else if known.dtype != spec.dtype {
        ("dtype", known.dtype.to_string(), spec.dtype.to_string())
    } else if known.shape != spec.shape {
        ("shape", format!("{:?}", known.shape), format!("{:?}", spec.shape))
    } else if known.codec != spec.codec {
        ("codec", known.codec.to_string(), spec.codec.to_string())
    } else if known.participants != spec.participants {
        ("participants", known.participants.to_string(), spec.participants.to_string())
    } else {
        return Ok(());
    };
    Err(Error::Mismatch {
        tensor: known.name.clone(),
        field: field.to_owned(),
        first: Claim { worker: rank, value: before },
        second: Claim { worker: rank, value: now },
    })
}
