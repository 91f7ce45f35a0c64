//! Whether elements are finite: neither NaN nor an infinity.

use super::kernels::{Kernels, Loops};
use crate::types::DType;

impl Kernels {
    /// Whether no element is a NaN or an infinity. Integers never are.
    ///
    /// # Panics
    /// If the bytes are not whole elements.
    pub fn all_finite(self, dtype: DType, elements: &[u8]) -> bool {
        assert_eq!(elements.len() as u64 % dtype.bytes(), 0, "a buffer holds whole elements");
        // Short enough to stop early, and long enough for vectors.
        elements.chunks(RUN_BYTES).all(|run| self.vectorise(Finite { dtype, run }))
    }

    /// The same of numbers.
    pub fn all_finite_numbers(self, numbers: &[f32]) -> bool {
        numbers.chunks(RUN_BYTES / size_of::<f32>()).all(|run| self.vectorise(FiniteNumbers(run)))
    }
}

const RUN_BYTES: usize = 1 << 14;

/// Looks at all elements of a run.
struct Finite<'a> {
    dtype: DType,
    run: &'a [u8],
}

impl Loops for Finite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // The exponent of a NaN or an infinity has all bits. Every element is looked at, because a branch for each costs more.
        match self.dtype {
            DType::F32 => {
                let special = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & F32_EXPONENT == F32_EXPONENT;
                !self.run.as_chunks().0.iter().fold(false, |any, bytes| any | special(bytes))
            }
            DType::F64 => {
                let special = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) & F64_EXPONENT == F64_EXPONENT;
                !self.run.as_chunks().0.iter().fold(false, |any, bytes| any | special(bytes))
            }
            DType::F16 => !any_of_halves::<F16_EXPONENT>(self.run),
            DType::BF16 => !any_of_halves::<BF16_EXPONENT>(self.run),
            DType::I32 | DType::I64 | DType::I8 | DType::U8 => true,
        }
    }
}

/// Looks at all numbers of a run.
struct FiniteNumbers<'a>(&'a [f32]);

impl Loops for FiniteNumbers<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        self.0.iter().fold(true, |all, number| all & number.is_finite())
    }
}

#[inline(always)]
fn any_of_halves<const EXPONENT: u16>(run: &[u8]) -> bool {
    let special = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & EXPONENT == EXPONENT;
    run.as_chunks().0.iter().fold(false, |any, bytes| any | special(bytes))
}

const F32_EXPONENT: u32 = 0xff << 23;
const F64_EXPONENT: u64 = 0x7ff << 52;
const F16_EXPONENT: u16 = 0x1f << 10;
const BF16_EXPONENT: u16 = 0xff << 7;

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn a_nan_or_an_infinity_is_found_wherever_it_is() {
        let finite = [0.0, -0.0, 1.0, -1.0, 1e-40, 60_000.0, -60_000.0];
        let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        type Bytes = fn(f64) -> Vec<u8>;
        let types: [(DType, Bytes); 4] = [
            (DType::F32, |value| (value as f32).to_le_bytes().to_vec()),
            (DType::F64, |value| value.to_le_bytes().to_vec()),
            (DType::F16, |value| f16::from_f64(value).to_le_bytes().to_vec()),
            (DType::BF16, |value| bf16::from_f64(value).to_le_bytes().to_vec()),
        ];
        for (dtype, bytes) in types {
            for len in [1, 2, 3, 15, 64, 5000] {
                let values: Vec<f64> = finite.iter().copied().cycle().take(len).collect();
                let elements: Vec<u8> = values.iter().flat_map(|value| bytes(*value)).collect();
                for kernels in Kernels::all() {
                    assert!(kernels.all_finite(dtype, &elements), "{dtype} {len} {kernels}");
                }
                for (at, value) in [0, len / 2, len - 1].into_iter().zip(special.iter().cycle()) {
                    let mut elements = elements.clone();
                    let item = bytes(*value);
                    elements[at * item.len()..][..item.len()].copy_from_slice(&item);
                    for kernels in Kernels::all() {
                        assert!(!kernels.all_finite(dtype, &elements), "{dtype} {len}: {value} at {at}, {kernels}");
                    }
                }
            }
        }
        assert!(Kernels::detect().all_finite(DType::F32, &[]));
        assert!(
            Kernels::detect().all_finite(DType::I32, &[0xff; 8]) && Kernels::detect().all_finite(DType::U8, &[0xff])
        );
    }
}
