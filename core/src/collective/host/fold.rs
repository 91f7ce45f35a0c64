//! Adds up the contributions of one run of elements.

use crate::reduce::{Kernels, accumulator_bytes};
use crate::types::{DType, Op};

/// How contributions become a result.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    pub(super) kernels: Kernels,
    pub(super) op: Op,
    pub(super) dtype: DType,
    pub(super) divisor: f64,
}

impl Fold {
    /// Writes the result of `contributions`, each with its weight. `scratch` has room to add 16-bit floats in f32.
    pub(super) fn run<'a>(
        self,
        contributions: impl Iterator<Item = (f64, &'a [u8])>,
        scratch: &mut [u8],
        result: &mut [u8],
    ) {
        let Self { kernels, op, dtype, divisor } = self;
        let add_up = |accumulator: &mut [u8]| {
            for (turn, (weight, contribution)) in contributions.enumerate() {
                match turn {
                    0 => kernels.start(op, dtype, weight, contribution, accumulator),
                    _ => kernels.add(op, dtype, weight, contribution, accumulator),
                }
            }
        };
        if dtype == dtype.accumulator() {
            add_up(result);
            kernels.finish_in_place(op, dtype, divisor, result);
        } else {
            let bytes = accumulator_bytes(dtype, result.len() as u64);
            let accumulator = &mut scratch[..usize::try_from(bytes).expect("twice a slice at most")];
            add_up(accumulator);
            kernels.finish(op, dtype, divisor, accumulator, result);
        }
    }
}
