//! Arithmetic of a round: contributions are folded into an accumulator, and the accumulator becomes the result.
//!
//! This module decides how numbers are added, rounded and divided. The server's rounds decide which workers contribute, in which order, and
//! who may read the result. Their driver decides how many threads share a part: every call may be cut into runs of whole elements.
//!
//! ```
//! use gradlane_core::reduce::{Kernels, accumulator_bytes};
//! use gradlane_core::types::{DType, Op};
//!
//! let kernels = Kernels::detect();
//! let [first, second] = [[1.0_f32, 2.0], [3.0, 6.0]].map(|x| x.map(f32::to_le_bytes).concat());
//! let mut accumulator = vec![0; accumulator_bytes(DType::F32, 8) as usize];
//! kernels.start(Op::Mean, DType::F32, 1.0, &first, &mut accumulator);
//! kernels.add(Op::Mean, DType::F32, 1.0, &second, &mut accumulator);
//! let mut mean = vec![0; 8];
//! kernels.finish(Op::Mean, DType::F32, 2.0, &accumulator, &mut mean);
//! assert_eq!(mean, [2.0_f32, 4.0].map(f32::to_le_bytes).concat());
//! ```
//!
//! # Numbers
//! - Elements are little-endian, at any address. An accumulator holds elements of [`DType::accumulator`].
//! - Floats are added one contribution after the other, in the order of the calls. Each addition is rounded as IEEE 754 says, and none is
//!   fused with a product. So the same calls give the same bits on every machine, except for the payload of a NaN.
//! - f16 and bf16 are added, weighted and divided in f32, and rounded to nearest even once, by [`Kernels::finish`].
//! - Integer sums wrap; an integer mean is rounded down.
//! - Min and max do not depend on the order: NaN wins, and -0 counts as smaller than +0.
//! - A broadcast keeps every bit.
//!
//! An accumulator that starts at a multiple of 64 bytes is fastest. At other addresses the widest vectors cross cache lines.

mod convert;
mod distinct;
mod element;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod finite;
mod kernels;
mod norm;
mod optimizer;
mod passes;

use std::ops::DerefMut;

pub(crate) use convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use distinct::Distinct;
pub use kernels::Kernels;
pub(crate) use kernels::Loops;
pub use norm::clip_factor;
pub use optimizer::{Counters, OptimizerState, RowRule, RowStep};

use self::passes::Pass;
use crate::types::{DType, Op};

/// Bytes of the accumulator for a contribution of `bytes` bytes: twice as many for f16 and bf16, which are added in f32.
pub fn accumulator_bytes(dtype: DType, bytes: u64) -> u64 {
    bytes / dtype.bytes() * dtype.accumulator().bytes()
}

/// The reductions. `weight` is used for [`Op::WeightedMean`] only. With a weight of zero the contribution is not read.
///
/// # Panics
/// Every method panics if a buffer does not hold a whole number of elements, if two buffers differ in their number of elements, or if `op`
/// has no meaning for `dtype` ([`Op::check`]).
impl Kernels {
    /// Makes the first contribution the accumulator, and overwrites its old content.
    pub fn start(self, op: Op, dtype: DType, weight: f64, contribution: &[u8], accumulator: &mut [u8]) {
        check(op, dtype, contribution, accumulator);
        self.run(dtype, Pass::Start { op, weight, contribution, accumulator });
    }

    /// Folds a further contribution into the accumulator. A broadcast has one contribution; a second one would replace it.
    pub fn add(self, op: Op, dtype: DType, weight: f64, contribution: &[u8], accumulator: &mut [u8]) {
        check(op, dtype, contribution, accumulator);
        self.run(dtype, Pass::Add { op, weight, contribution, accumulator });
    }

    /// Writes the result of a round into `out`.
    ///
    /// `divisor` is used for the means only. It is the number of contributors for [`Op::Mean`], and the sum of the weights for
    /// [`Op::WeightedMean`]. If the weights of a float mean add up to zero, the result is NaN.
    ///
    /// # Panics
    /// Also if an integer mean has no contributor.
    pub fn finish(self, op: Op, dtype: DType, divisor: f64, accumulator: &[u8], out: &mut [u8]) {
        check(op, dtype, out, accumulator);
        check_divisor(op, dtype, divisor);
        self.run(dtype, Pass::Finish { op, divisor, accumulator, out });
    }

    /// Turns the accumulator itself into the result, without a copy. For a sum, a minimum, a maximum or a broadcast there is nothing to do.
    /// `divisor` as for [`finish`](Self::finish).
    ///
    /// # Panics
    /// Also for f16 and bf16, whose accumulator is of another type.
    pub fn finish_in_place(self, op: Op, dtype: DType, divisor: f64, accumulator: &mut [u8]) {
        assert_eq!(dtype, dtype.accumulator(), "only a type that is added in itself is finished in place");
        check(op, dtype, accumulator, accumulator);
        check_divisor(op, dtype, divisor);
        self.run(dtype, Pass::FinishInPlace { op, divisor, accumulator });
    }

    /// Adds elements to others of their type. f16 and bf16 are added in f32 and rounded once; `scratch` gives the accumulator for that, of so
    /// many bytes.
    pub fn add_elements<M: DerefMut<Target = [u8]>>(
        self,
        dtype: DType,
        from: &[u8],
        into: &mut [u8],
        scratch: impl FnOnce(usize) -> M,
    ) {
        if dtype.accumulator() == dtype {
            return self.add(Op::Sum, dtype, 1.0, from, into);
        }
        let bytes = accumulator_bytes(dtype, into.len() as u64);
        let mut sum = scratch(usize::try_from(bytes).expect("twice what lies in memory"));
        self.start(Op::Sum, dtype, 1.0, into, &mut sum);
        self.add(Op::Sum, dtype, 1.0, from, &mut sum);
        self.finish(Op::Sum, dtype, 1.0, &sum, into);
    }

    /// Multiplies every element by `factor`: floats in their accumulator's type, integers in f64, rounded down and clamped to what
    /// the type holds.
    pub fn scale(self, dtype: DType, factor: f64, data: &mut [u8]) {
        assert_eq!(data.len() as u64 % dtype.bytes(), 0, "a buffer holds whole elements");
        self.run(dtype, Pass::Scale { factor, data });
    }
}

fn check(op: Op, dtype: DType, elements: &[u8], accumulator: &[u8]) {
    op.check(dtype).expect("the op was checked when the tensor was declared");
    let bytes = elements.len() as u64;
    assert_eq!(bytes % dtype.bytes(), 0, "a buffer holds whole elements");
    assert_eq!(accumulator.len() as u64, accumulator_bytes(dtype, bytes), "an accumulator fits its contributions");
}

fn check_divisor(op: Op, dtype: DType, divisor: f64) {
    assert!(op != Op::Mean || dtype.is_float() || divisor >= 1.0, "an integer mean has a contributor");
}

#[cfg(test)]
mod tests;
