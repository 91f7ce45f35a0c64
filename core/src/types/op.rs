//! How the contributions of a round become one result.

use std::fmt;

use super::{DType, Round, TensorKey, WorkerId};
use crate::error::{Error, Result};

/// The reduction of one round, the same on every worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Sum over the workers. Integers wrap.
    Sum,
    /// Sum divided by the number of contributors. Integer division rounds down.
    Mean,
    /// Smallest value; NaN wins.
    Min,
    /// Largest value; NaN wins.
    Max,
    /// Σ wᵢ·xᵢ / Σ wᵢ with one weight per worker, such as its number of samples. Floating point only.
    WeightedMean,
    /// The bytes of `root`, unchanged. The other workers send no body.
    Broadcast {
        /// The worker whose bytes every worker gets.
        root: WorkerId,
    },
}

impl Op {
    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Mean => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::WeightedMean => 5,
            Self::Broadcast { .. } => 6,
        }
    }

    /// The rank that a broadcast carries with its code; 0 for the other reductions.
    pub const fn argument(self) -> u32 {
        match self {
            Self::Broadcast { root } => root.0,
            Self::Sum | Self::Mean | Self::Min | Self::Max | Self::WeightedMean => 0,
        }
    }

    /// The reduction with this wire code and argument.
    pub fn from_code(code: u8, argument: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Sum,
            2 => Self::Mean,
            3 => Self::Min,
            4 => Self::Max,
            5 => Self::WeightedMean,
            6 => Self::Broadcast { root: WorkerId(argument) },
            _ => return None,
        })
    }

    /// Refuses a reduction that has no meaning: a weighted mean of integers.
    pub fn check(self, dtype: DType) -> Result<()> {
        if self == Self::WeightedMean && !dtype.is_float() {
            return Err(Error::InvalidArgument {
                what: format!("a weighted mean of {dtype}"),
                hint: "convert the tensor to a floating-point type first".to_owned(),
            });
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum => f.write_str("sum"),
            Self::Mean => f.write_str("mean"),
            Self::Min => f.write_str("min"),
            Self::Max => f.write_str("max"),
            Self::WeightedMean => f.write_str("weighted mean"),
            Self::Broadcast { root } => write!(f, "broadcast from {root}"),
        }
    }
}

/// The total of the weights of a weighted mean, by which the sum of this round is divided.
///
/// # Errors
/// [`Error::TensorArgument`] unless it is above zero and finite.
pub fn total_weight(tensor: TensorKey, round: Round, total: f64) -> Result<f64> {
    if total > 0.0 && total.is_finite() {
        return Ok(total);
    }
    Err(Error::TensorArgument {
        tensor: tensor.into(),
        what: format!("the weights of {round} add up to {total}"),
        hint: "give at least one worker a weight above zero".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        let ops = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean, Op::Broadcast { root: WorkerId(3) }];
        for op in ops {
            assert_eq!(Op::from_code(op.code(), op.argument()), Some(op));
        }
        assert_eq!(Op::from_code(0, 0), None);
    }
}
