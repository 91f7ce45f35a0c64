//! A job of one worker: every reduction of one contribution is that contribution.

use crate::error::{Error, Result};
use crate::mem::Region;
use crate::types::{DType, Op};

/// Reduces `source` into `destination` without a server. Both have the same length; they may be the same memory.
///
/// # Errors
/// [`Error::InvalidArgument`] for a reduction without meaning: a weighted mean whose only weight is zero, a root that does not exist.
pub fn reduce_alone(op: Op, dtype: DType, weight: f64, source: &Region, destination: &mut Region) -> Result<()> {
    op.check(dtype)?;
    match op {
        Op::Sum | Op::Mean | Op::Min | Op::Max => {}
        Op::WeightedMean if weight > 0.0 => {}
        Op::WeightedMean => {
            return Err(Error::InvalidArgument {
                what: format!("a weighted mean whose weights sum to {weight}"),
                hint: "at least one worker needs a weight above zero".to_owned(),
            });
        }
        Op::Broadcast { root } if root.0 == 0 => {}
        Op::Broadcast { root } => {
            return Err(Error::InvalidArgument {
                what: format!("a broadcast from {root} in a job of one worker"),
                hint: "the only root is rank 0".to_owned(),
            });
        }
    }
    destination.copy_from(source);
    Ok(())
}
