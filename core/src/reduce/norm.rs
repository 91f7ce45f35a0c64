//! The norm of gradients, and how they are clipped to it.

use half::{bf16, f16};

use super::element::Element;
use super::kernels::{Kernels, Loops};
use crate::types::DType;

impl Kernels {
    /// The sum of the squares of all elements, in f64; 0 of integers, which have no gradients. The same elements give the same bits on every
    /// machine, except for the payload of a NaN.
    ///
    /// # Panics
    /// If the bytes are not whole elements.
    pub fn squares(self, dtype: DType, elements: &[u8]) -> f64 {
        assert_eq!(elements.len() as u64 % dtype.bytes(), 0, "a buffer holds whole elements");
        self.vectorise(Squares { dtype, elements })
    }
}

/// The factor by which gradients of this norm are multiplied so that they have at most the norm `most`: that of PyTorch's `clip_grad_norm_`. 0
/// if the norm is infinite.
pub fn clip_factor(most: f64, norm: f64) -> f64 {
    (most / (norm + 1e-6)).min(1.0)
}

/// Sums that are added up apart, so that the compiler makes vectors of them: an addition waits for the one before.
const SUMS: usize = 8;

struct Squares<'a> {
    dtype: DType,
    elements: &'a [u8],
}

impl Loops for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        match self.dtype {
            DType::F32 => squares::<f32>(self.elements, f64::from),
            DType::F64 => squares::<f64>(self.elements, |element| element),
            DType::F16 => squares::<f16>(self.elements, f64::from),
            DType::BF16 => squares::<bf16>(self.elements, f64::from),
            DType::I32 | DType::I64 | DType::I8 | DType::U8 => 0.0,
        }
    }
}

#[inline(always)]
fn squares<E: Element>(elements: &[u8], number: impl Fn(E::Sum) -> f64) -> f64 {
    let mut sums = [0.0; SUMS];
    let (runs, rest) = E::elements(elements).as_chunks::<SUMS>();
    for run in runs {
        for (sum, element) in sums.iter_mut().zip(run) {
            let element = number(E::load(*element).widen());
            *sum += element * element;
        }
    }
    for (sum, element) in sums.iter_mut().zip(rest) {
        let element = number(E::load(*element).widen());
        *sum += element * element;
    }
    sums.iter().fold(0.0, |all, sum| all + sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_added_in_f64_and_every_processor_has_the_same_bits() {
        // The squares of whole numbers are exact.
        let numbers: Vec<f64> = (0..103).map(f64::from).collect();
        let expected = 102.0 * 103.0 * 205.0 / 6.0;
        let single = numbers.iter().flat_map(|number| (*number as f32).to_le_bytes()).collect();
        let double = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let half = numbers.iter().flat_map(|number| f16::from_f64(*number).to_le_bytes()).collect();
        let brain = numbers.iter().flat_map(|number| bf16::from_f64(*number).to_le_bytes()).collect();
        let all: [(DType, Vec<u8>); 4] =
            [(DType::F32, single), (DType::F64, double), (DType::F16, half), (DType::BF16, brain)];
        for kernels in Kernels::all() {
            for (dtype, bytes) in &all {
                assert_eq!(kernels.squares(*dtype, bytes), expected, "{dtype} {kernels}");
            }
            let odd: Vec<u8> = (1..1000).flat_map(|number| (1.0 / number as f32).to_le_bytes()).collect();
            let sums = [kernels, Kernels::portable()].map(|kernels| kernels.squares(DType::F32, &odd));
            assert_eq!(sums[0].to_bits(), sums[1].to_bits(), "{kernels}");
            assert_eq!(kernels.squares(DType::F32, &[]), 0.0);
            let vast = [f32::MAX, f32::MAX].map(f32::to_le_bytes).concat();
            assert!(kernels.squares(DType::F32, &vast).is_finite(), "beyond f32");
        }
    }

    #[test]
    fn a_norm_above_the_bound_comes_down_to_it_and_no_other_changes() {
        assert_eq!([0.0, 1.0, 2.0 - 1e-5].map(|norm| clip_factor(2.0, norm)), [1.0; 3]);
        assert_eq!(clip_factor(2.0, 4.0), 2.0 / 4.000_001);
        assert_eq!(clip_factor(2.0, f64::INFINITY), 0.0);
    }
}
