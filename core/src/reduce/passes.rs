//! The loops: each operation is one pass over memory, written once for all element types and all instruction sets.
//!
//! Everything is inlined into its caller, so that a caller compiled for wider vectors gets loops of wider vectors.

use half::{bf16, f16};

use super::element::{Element, Number};
use crate::types::{DType, Op};

/// One pass over memory. The code that made it has checked the lengths.
pub(super) enum Pass<'a> {
    /// The first contribution becomes the accumulator.
    Start { op: Op, weight: f64, contribution: &'a [u8], accumulator: &'a mut [u8] },
    /// A further contribution is folded in.
    Add { op: Op, weight: f64, contribution: &'a [u8], accumulator: &'a mut [u8] },
    /// The accumulator becomes the result.
    Finish { op: Op, divisor: f64, accumulator: &'a [u8], out: &'a mut [u8] },
    /// The accumulator becomes the result in place; only for an element type that is its own accumulator.
    FinishInPlace { op: Op, divisor: f64, accumulator: &'a mut [u8] },
    /// Every element is multiplied.
    Scale { factor: f64, data: &'a mut [u8] },
}

impl Pass<'_> {
    /// Runs the pass over elements of type `dtype`.
    #[inline(always)]
    pub(super) fn run(self, dtype: DType) {
        match dtype {
            DType::F32 => self.run_for::<f32>(),
            DType::F64 => self.run_for::<f64>(),
            DType::F16 => self.run_for::<f16>(),
            DType::BF16 => self.run_for::<bf16>(),
            DType::I32 => self.run_for::<i32>(),
            DType::I64 => self.run_for::<i64>(),
            DType::I8 => self.run_for::<i8>(),
            DType::U8 => self.run_for::<u8>(),
        }
    }

    #[inline(always)]
    fn run_for<E: Element>(self) {
        match self {
            Self::Start { op, weight, contribution, accumulator } => start::<E>(op, weight, contribution, accumulator),
            Self::Add { op, weight, contribution, accumulator } => add::<E>(op, weight, contribution, accumulator),
            Self::Finish { op, divisor, accumulator, out } => finish::<E>(op, divisor, accumulator, out),
            Self::FinishInPlace { op, divisor, accumulator } => match op {
                Op::Mean | Op::WeightedMean => update::<E::Sum>(accumulator, |sum| sum.over(divisor)),
                Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. } => {}
            },
            Self::Scale { factor, data } => update::<E>(data, |x| E::narrow(x.widen().times(factor))),
        }
    }
}

#[inline(always)]
fn start<E: Element>(op: Op, weight: f64, contribution: &[u8], accumulator: &mut [u8]) {
    match op {
        Op::Sum | Op::Mean | Op::Min | Op::Max => map::<E, E::Sum>(contribution, accumulator, E::widen),
        // Not 0·x: a worker without samples often contributes NaN, because it computed a mean over nothing.
        Op::WeightedMean if weight == 0.0 => map::<E, E::Sum>(contribution, accumulator, |_| E::Sum::ZERO),
        Op::WeightedMean => map::<E, E::Sum>(contribution, accumulator, |x| x.widen().times(weight)),
        Op::Broadcast { .. } => map::<E, E::Sum>(contribution, accumulator, E::pack),
    }
}

#[inline(always)]
fn add<E: Element>(op: Op, weight: f64, contribution: &[u8], accumulator: &mut [u8]) {
    match op {
        Op::Sum | Op::Mean => fold::<E>(contribution, accumulator, |sum, x| sum.plus(x.widen())),
        Op::Min => fold::<E>(contribution, accumulator, |least, x| least.smaller(x.widen())),
        Op::Max => fold::<E>(contribution, accumulator, |most, x| most.larger(x.widen())),
        Op::WeightedMean if weight == 0.0 => {}
        Op::WeightedMean => fold::<E>(contribution, accumulator, |sum, x| sum.plus(x.widen().times(weight))),
        Op::Broadcast { .. } => map::<E, E::Sum>(contribution, accumulator, E::pack),
    }
}

#[inline(always)]
fn finish<E: Element>(op: Op, divisor: f64, accumulator: &[u8], out: &mut [u8]) {
    match op {
        Op::Sum | Op::Min | Op::Max => map::<E::Sum, E>(accumulator, out, E::narrow),
        Op::Mean | Op::WeightedMean => map::<E::Sum, E>(accumulator, out, |sum| E::narrow(sum.over(divisor))),
        Op::Broadcast { .. } => map::<E::Sum, E>(accumulator, out, E::unpack),
    }
}

/// `accumulator[i] = f(accumulator[i], contribution[i])`
#[inline(always)]
fn fold<E: Element>(contribution: &[u8], accumulator: &mut [u8], f: impl Fn(E::Sum, E) -> E::Sum) {
    for (sum, x) in E::Sum::elements_mut(accumulator).iter_mut().zip(E::elements(contribution)) {
        *sum = f(E::Sum::load(*sum), E::load(*x)).store();
    }
}

/// `to[i] = f(from[i])`
#[inline(always)]
fn map<A: Element, B: Element>(from: &[u8], to: &mut [u8], f: impl Fn(A) -> B) {
    for (to, from) in B::elements_mut(to).iter_mut().zip(A::elements(from)) {
        *to = f(A::load(*from)).store();
    }
}

/// `data[i] = f(data[i])`
#[inline(always)]
fn update<E: Element>(data: &mut [u8], f: impl Fn(E) -> E) {
    for x in E::elements_mut(data) {
        *x = f(E::load(*x)).store();
    }
}
