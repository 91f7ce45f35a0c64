//! The calls of NCCL for an operation: pure, and the same on all ranks except for their positions.
//!
//! # Numbers
//! - NCCL adds in the element's own type along rings and trees, so f16 and bf16 are rounded at every step. Host memory rounds once.
//! - A mean is a sum that a kernel of ours divides, never `ncclAvg`: to NCCL, a mean of floats is a sum with a factor, and switches of
//!   NVLink add no such sums (NVLS), so it loses a fifth of the bandwidth. The kernel multiplies floats by the reciprocal of the number of
//!   ranks. Host memory divides. With 2, 4 or 8 ranks both give the same result; with other numbers the last place may differ.
//! - A sum of f16 may be infinite although the mean is not. So contributions of f16 are multiplied before they are added.
//! - For a weighted mean, a kernel of ours first multiplies each contribution by its share of the weights. As in host memory, a
//!   contribution with weight zero becomes zeros, even if it is not finite; NCCL's own `ncclRedOpCreatePreMulSum` would multiply a NaN by
//!   zero.
//! - For min and max, NCCL decides between a number and a NaN; in host memory NaN wins.
//! - Sums of integers wrap, as elsewhere. NCCL rounds a mean of them towards zero; elsewhere it is rounded down. So the sum is divided by
//!   a kernel of ours, and the mean is that of host memory.

use crate::collective::Dataflow;
use crate::collective::order::Claim;
use crate::types::{DType, Op};

/// A call of one rank, once for every run of the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Step {
    /// `ncclAllReduce`.
    AllReduce(Reduction),
    /// `ncclReduceScatter`, in equal shares.
    ReduceScatter(Reduction),
    /// `ncclAllGather` of equal shares.
    AllGather,
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

/// The reduction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reduction {
    Sum,
    Min,
    Max,
}

/// The factor of the contribution of the rank at position `me`, if there is one. `weights` are those of all ranks.
pub(super) fn share(dataflow: Dataflow, claim: &Claim, weights: &[f64], me: usize) -> Option<f64> {
    let total: f64 = weights.iter().sum();
    match (dataflow, claim.op) {
        // If all weights here are zero, other machines may have weights.
        (Dataflow::Reduce { .. }, Op::WeightedMean) => Some(if total > 0.0 { weights[me] / total } else { 0.0 }),
        (Dataflow::Reduce { whole_of: Some(_), .. }, Op::Mean) if claim.dtype == DType::F16 => {
            Some((weights.len() as f64).recip())
        }
        _ => None,
    }
}

/// The divisor of the sum that all ranks get; `None` if there is none. `ranks` is the number of contributions.
pub(super) fn divisor(dataflow: Dataflow, claim: &Claim, ranks: usize) -> Option<u32> {
    match (dataflow, claim.op) {
        (Dataflow::Reduce { whole_of: Some(_), .. }, Op::Mean) if claim.dtype != DType::F16 => {
            Some(u32::try_from(ranks).expect("at most RANKS_MAX"))
        }
        _ => None,
    }
}

/// The calls of the rank at position `me` for an operation.
pub(super) fn step(dataflow: Dataflow, claim: &Claim, me: usize) -> Step {
    match dataflow {
        Dataflow::Reduce { taker: None, .. } => Step::AllReduce(reduction(claim.op)),
        Dataflow::Reduce { taker: Some(root), .. } => Step::Reduce { reduction: reduction(claim.op), root },
        Dataflow::Show { from, taker: None } => Step::Broadcast { root: from },
        Dataflow::Show { from, taker: Some(to) } if me == from => Step::Send { to },
        Dataflow::Show { from, taker: Some(to) } if me == to => Step::Receive { from },
        Dataflow::Keep { by } if me == by => Step::Keep,
        Dataflow::Show { .. } | Dataflow::Keep { .. } | Dataflow::Nothing => Step::Nothing,
    }
}

/// How contributions are added.
fn reduction(op: Op) -> Reduction {
    match op {
        // A mean is divided later, by the rank that knows all workers. Contributions to a weighted mean are shares already.
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
    use crate::collective::Goal;
    use crate::types::{DeviceKind, WorkerId};

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
            (&whole, Op::Mean, [Step::AllReduce(Reduction::Sum); 3]),
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
            let dataflow = Dataflow::of(goal, op, 0b111, position).unwrap();
            let steps = [0, 1, 2].map(|me| step(dataflow, &claim(op, DType::F32), me));
            assert_eq!(steps, expected, "{goal:?} of {op}");
        }
    }

    #[test]
    fn a_contribution_to_a_weighted_mean_is_multiplied_by_its_share_and_no_other_is() {
        let shares =
            |dataflow, op, weights: [f64; 3]| [0, 1, 2].map(|me| share(dataflow, &claim(op, DType::F32), &weights, me));
        for taker in [None, Some(0)] {
            let dataflow = Dataflow::Reduce { of: 0b111, taker, whole_of: taker.is_none().then_some(3) };
            assert_eq!(shares(dataflow, Op::WeightedMean, [1.0, 0.0, 3.0]), [Some(0.25), Some(0.0), Some(0.75)]);
            assert_eq!(
                shares(dataflow, Op::WeightedMean, [0.0; 3]),
                [Some(0.0); 3],
                "a machine without weight adds nothing"
            );
            assert_eq!(shares(dataflow, Op::Mean, [1.0; 3]), [None; 3]);
        }
        assert_eq!(
            shares(Dataflow::Show { from: 0, taker: None }, Op::WeightedMean, [1.0; 3]),
            [None; 3],
            "it is the mean"
        );
    }

    #[test]
    fn a_mean_is_a_sum_that_is_divided_after_it_and_one_of_f16_is_divided_before() {
        let dataflow = Dataflow::Reduce { of: 0b111, taker: None, whole_of: Some(3) };
        for dtype in DType::ALL {
            let claim = claim(Op::Mean, dtype);
            let (before, after) = match dtype {
                DType::F16 => (Some(1.0 / 3.0), None),
                DType::F32 | DType::F64 | DType::BF16 | DType::I32 | DType::I64 | DType::I8 | DType::U8 => {
                    (None, Some(3))
                }
            };
            assert_eq!(step(dataflow, &claim, 0), Step::AllReduce(Reduction::Sum), "{dtype}");
            assert_eq!(share(dataflow, &claim, &[1.0; 3], 0), before, "{dtype}");
            assert_eq!(divisor(dataflow, &claim, 3), after, "{dtype}");
        }
        // Of several machines, the sums of each are divided with the others.
        let part = Dataflow::Reduce { of: 0b111, taker: Some(0), whole_of: None };
        assert_eq!(share(part, &claim(Op::Mean, DType::F16), &[1.0; 3], 0), None);
    }

    #[test]
    fn nothing_else_is_divided() {
        let divided = |dataflow, op| divisor(dataflow, &claim(op, DType::I64), 3);
        let whole = Dataflow::Reduce { of: 0b111, taker: None, whole_of: Some(3) };
        assert_eq!([Op::Sum, Op::Max].map(|op| divided(whole, op)), [None; 2]);
        // Of several machines, whoever knows all workers divides.
        let part = Dataflow::Reduce { of: 0b111, taker: Some(0), whole_of: None };
        assert_eq!(divided(part, Op::Mean), None);
        assert_eq!(divided(Dataflow::Show { from: 0, taker: None }, Op::Mean), None, "it is the mean");
    }

    #[test]
    fn element_types_have_the_codes_of_the_header() {
        assert_eq!(DType::ALL.map(data_type), [7, 8, 6, 9, 2, 4, 0, 1]);
    }

    fn claim(op: Op, dtype: DType) -> Claim {
        Claim { op, dtype, device: DeviceKind::Cuda, ..Claim::SUM }
    }
}
