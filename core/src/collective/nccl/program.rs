//! What NCCL is told for an operation: pure, and the same on all ranks but for their positions.
//!
//! # Numbers
//! - NCCL adds in the element's own type along rings and trees: f16 and bf16 are rounded at every step, where host memory rounds once.
//! - A mean of floats multiplies each contribution by the reciprocal of the number of ranks, rounded to the element's type, and adds. Host
//!   memory adds first and divides once.
//! - For a weighted mean each contribution is multiplied by its share of the weights before NCCL sees it, by a kernel of ours: as in host
//!   memory a contribution whose weight is zero is not looked at, so that nothing of it shows that is not finite, which NCCL's own
//!   `ncclRedOpCreatePreMulSum` would multiply by zero.
//! - Which of a number and a NaN is the smaller is NCCL's matter; in host memory NaN wins.
//! - Sums of integers wrap, as elsewhere. Their mean would be rounded towards zero by NCCL and is rounded down elsewhere: for signed ones it
//!   is refused, not answered otherwise.

use crate::collective::{Goal, Walk};
use crate::error::{Error, Result};
use crate::sched::order::Claim;
use crate::types::{DType, Op};

/// What one rank calls, once for every run of the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Step {
    /// `ncclAllReduce`.
    AllReduce(Reduction),
    /// `ncclReduce` to a position.
    Reduce {
        reduction: Reduction,
        root: usize,
    },
    /// `ncclBroadcast` from a position.
    Broadcast {
        root: usize,
    },
    /// `ncclSend`.
    Send {
        to: usize,
    },
    /// `ncclRecv`.
    Receive {
        from: usize,
    },
    /// A copy within the device.
    Keep,
    Nothing,
}

/// How contributions become one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reduction {
    Sum,
    Min,
    Max,
    /// The sum divided by the number of ranks.
    Mean,
}

/// Refuses what NCCL would answer otherwise than host memory.
///
/// # Errors
/// [`Error::InvalidArgument`] for a mean of signed integers that is not divided elsewhere.
pub(super) fn check(goal: &Goal, claim: &Claim) -> Result<()> {
    let is_signed = matches!(claim.dtype, DType::I8 | DType::I32 | DType::I64);
    if *goal == Goal::AllReduce && claim.op == Op::Mean && is_signed {
        return Err(Error::InvalidArgument {
            what: format!(
                "a mean of {} on devices of one machine, which NCCL rounds towards zero instead of down",
                claim.dtype
            ),
            hint: "submit a sum and divide it, or keep the tensor in host memory".to_owned(),
        });
    }
    Ok(())
}

/// By what the contribution of the rank at position `me` is multiplied before it is reduced; `None` if by nothing. `weights` are those of
/// all ranks.
pub(super) fn share(walk: Walk, claim: &Claim, weights: &[f64], me: usize) -> Option<f64> {
    let total: f64 = weights.iter().sum();
    match (walk, claim.op) {
        // Other machines may have what makes it a mean.
        (Walk::Reduce { .. }, Op::WeightedMean) => Some(if total > 0.0 { weights[me] / total } else { 0.0 }),
        _ => None,
    }
}

/// What the rank at position `me` calls for an operation.
pub(super) fn step(walk: Walk, claim: &Claim, me: usize) -> Step {
    match walk {
        Walk::Reduce { taker: None, .. } => Step::AllReduce(reduction(claim.op, true)),
        Walk::Reduce { taker: Some(root), .. } => Step::Reduce { reduction: reduction(claim.op, false), root },
        Walk::Show { from, taker: None } => Step::Broadcast { root: from },
        Walk::Show { from, taker: Some(to) } if me == from => Step::Send { to },
        Walk::Show { from, taker: Some(to) } if me == to => Step::Receive { from },
        Walk::Keep { by } if me == by => Step::Keep,
        Walk::Show { .. } | Walk::Keep { .. } | Walk::Nothing => Step::Nothing,
    }
}

/// How contributions are added; `is_whole` if nobody else adds to what comes of it.
fn reduction(op: Op, is_whole: bool) -> Reduction {
    match op {
        Op::Mean if is_whole => Reduction::Mean,
        // A mean is divided once, by whoever knows all workers; contributions to a weighted mean are shares of it.
        Op::Sum | Op::Mean | Op::WeightedMean => Reduction::Sum,
        Op::Min => Reduction::Min,
        Op::Max => Reduction::Max,
        Op::Broadcast { .. } => unreachable!("a broadcast is shown, not reduced"),
    }
}

/// NCCL's code of an element type (`ncclDataType_t`).
pub(super) const fn data_type(dtype: DType) -> u32 {
    use cudarc::nccl::sys::ncclDataType_t as Type;
    (match dtype {
        DType::F32 => Type::ncclFloat32,
        DType::F64 => Type::ncclFloat64,
        DType::F16 => Type::ncclFloat16,
        DType::BF16 => Type::ncclBfloat16,
        DType::I32 => Type::ncclInt32,
        DType::I64 => Type::ncclInt64,
        DType::I8 => Type::ncclInt8,
        DType::U8 => Type::ncclUint8,
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::DeviceKind;
    use crate::types::{Priority, WorkerId};

    #[test]
    fn every_goal_becomes_one_call_a_rank() {
        let position = |worker: WorkerId| (worker.0 < 3).then_some(worker.0 as usize);
        let owner = WorkerId(1);
        let (whole, part) = (Goal::AllReduce, Goal::Reduce { owner });
        let back = Goal::Broadcast { owner };
        let root = |root| Op::Broadcast { root: WorkerId(root) };
        let reduced = |reduction| [Step::Reduce { reduction, root: 1 }; 3];
        let table = [
            (&whole, Op::Sum, [Step::AllReduce(Reduction::Sum); 3]),
            (&whole, Op::Mean, [Step::AllReduce(Reduction::Mean); 3]),
            (&whole, Op::Min, [Step::AllReduce(Reduction::Min); 3]),
            (&whole, Op::Max, [Step::AllReduce(Reduction::Max); 3]),
            (&whole, Op::WeightedMean, [Step::AllReduce(Reduction::Sum); 3]),
            (&whole, root(2), [Step::Broadcast { root: 2 }; 3]),
            (&part, Op::Mean, reduced(Reduction::Sum)),
            (&part, Op::Max, reduced(Reduction::Max)),
            (&part, root(1), [Step::Nothing, Step::Keep, Step::Nothing]),
            (&part, root(0), [Step::Send { to: 1 }, Step::Receive { from: 0 }, Step::Nothing]),
            (&part, root(9), [Step::Nothing; 3]),
            (&back, Op::Sum, [Step::Broadcast { root: 1 }; 3]),
        ];
        for (goal, op, expected) in table {
            let walk = Walk::of(goal, op, 3, position).unwrap();
            let steps = [0, 1, 2].map(|me| step(walk, &claim(op, DType::F32), me));
            assert_eq!(steps, expected, "{goal:?} of {op}");
        }
    }

    #[test]
    fn a_contribution_to_a_weighted_mean_is_multiplied_by_its_share_and_no_other_is() {
        let shares =
            |walk, op, weights: [f64; 3]| [0, 1, 2].map(|me| share(walk, &claim(op, DType::F32), &weights, me));
        for taker in [None, Some(0)] {
            let walk = Walk::Reduce { of: 0b111, taker };
            assert_eq!(shares(walk, Op::WeightedMean, [1.0, 0.0, 3.0]), [Some(0.25), Some(0.0), Some(0.75)]);
            assert_eq!(
                shares(walk, Op::WeightedMean, [0.0; 3]),
                [Some(0.0); 3],
                "a machine without weight adds nothing"
            );
            assert_eq!(shares(walk, Op::Mean, [1.0; 3]), [None; 3]);
        }
        assert_eq!(
            shares(Walk::Show { from: 0, taker: None }, Op::WeightedMean, [1.0; 3]),
            [None; 3],
            "it is the mean"
        );
    }

    #[test]
    fn a_mean_of_signed_integers_is_refused_where_nobody_else_divides_it() {
        for dtype in DType::ALL {
            let refused = matches!(dtype, DType::I8 | DType::I32 | DType::I64);
            assert_eq!(check(&Goal::AllReduce, &claim(Op::Mean, dtype)).is_err(), refused, "{dtype}");
            assert_eq!(check(&Goal::Reduce { owner: WorkerId(0) }, &claim(Op::Mean, dtype)), Ok(()));
            assert_eq!(check(&Goal::AllReduce, &claim(Op::Sum, dtype)), Ok(()));
        }
    }

    #[test]
    fn element_types_have_the_codes_of_the_header() {
        assert_eq!(DType::ALL.map(data_type), [7, 8, 6, 9, 2, 4, 0, 1]);
    }

    fn claim(op: Op, dtype: DType) -> Claim {
        let (device, priority) = (DeviceKind::Cuda, Priority(0));
        Claim { op, dtype, bytes: 64, device, failed: false, weight: 1.0, priority }
    }
}
