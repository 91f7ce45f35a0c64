//! f16 with the conversion instructions of x86 processors (F16C), eight elements at a time, for processors without wider vectors.
//!
//! The portable conversions take about ten instructions; here it is one. With AVX-512 the portable loop waits for memory anyway. With AVX2
//! its conversions are the limit. Every processor with AVX2 has F16C.
//!
//! The results have the same bits as those of the portable loops, except the payload of a NaN.
#![expect(unsafe_code, reason = "vectors are loaded from and stored to bytes at any address")]

use std::arch::x86_64::{
    __m256, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_ps, _mm256_cvtph_ps,
    _mm256_cvtps_ph, _mm256_div_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps,
};

use super::passes::Pass;
use crate::types::Op;

/// Eight f16.
type Halves = [u8; 16];
/// Eight f32.
type Floats = [u8; 32];

/// Processes as many whole vectors as there are. Returns the rest of the work.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn vectors(pass: Pass<'_>) -> Pass<'_> {
    match pass {
        Pass::Start { op: op @ (Op::Sum | Op::Mean | Op::Min | Op::Max), weight, contribution, accumulator } => {
            let (halves, contribution) = contribution.as_chunks();
            let (floats, accumulator) = accumulator.as_chunks_mut();
            floats.iter_mut().zip(halves).for_each(|(sum, x)| store(sum, widen(x)));
            Pass::Start { op, weight, contribution, accumulator }
        }
        Pass::Add { op: op @ (Op::Sum | Op::Mean), weight, contribution, accumulator } => {
            let (halves, contribution) = contribution.as_chunks();
            let (floats, accumulator) = accumulator.as_chunks_mut();
            floats.iter_mut().zip(halves).for_each(|(sum, x)| store(sum, _mm256_add_ps(load(sum), widen(x))));
            Pass::Add { op, weight, contribution, accumulator }
        }
        // A weight of zero does not look at the contribution.
        Pass::Add { op: Op::WeightedMean, weight, contribution, accumulator } if weight != 0.0 => {
            let factor = _mm256_set1_ps(weight as f32);
            let (halves, contribution) = contribution.as_chunks();
            let (floats, accumulator) = accumulator.as_chunks_mut();
            let fold = |(sum, x): (&mut Floats, &Halves)| {
                store(sum, _mm256_add_ps(load(sum), _mm256_mul_ps(widen(x), factor)));
            };
            floats.iter_mut().zip(halves).for_each(fold);
            Pass::Add { op: Op::WeightedMean, weight, contribution, accumulator }
        }
        Pass::Finish { op: op @ (Op::Sum | Op::Min | Op::Max), divisor, accumulator, out } => {
            let (floats, accumulator) = accumulator.as_chunks();
            let (halves, out) = out.as_chunks_mut();
            halves.iter_mut().zip(floats).for_each(|(x, sum)| narrow(x, load(sum)));
            Pass::Finish { op, divisor, accumulator, out }
        }
        Pass::Finish { op: op @ (Op::Mean | Op::WeightedMean), divisor, accumulator, out } => {
            let by = _mm256_set1_ps(divisor as f32);
            let (floats, accumulator) = accumulator.as_chunks();
            let (halves, out) = out.as_chunks_mut();
            halves.iter_mut().zip(floats).for_each(|(x, sum)| narrow(x, _mm256_div_ps(load(sum), by)));
            Pass::Finish { op, divisor, accumulator, out }
        }
        Pass::Start { .. }
        | Pass::Add { .. }
        | Pass::Finish { .. }
        | Pass::FinishInPlace { .. }
        | Pass::Scale { .. } => pass,
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(halves: &Halves) -> __m256 {
    // SAFETY: reads the 16 bytes of `halves`, at any address.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) })
}

/// Rounds to nearest, ties to even.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(halves: &mut Halves, floats: __m256) {
    let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
    // SAFETY: writes the 16 bytes of `halves`, at any address.
    unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load(floats: &Floats) -> __m256 {
    // SAFETY: reads the 32 bytes of `floats`, at any address.
    unsafe { _mm256_loadu_ps(floats.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store(floats: &mut Floats, vector: __m256) {
    // SAFETY: writes the 32 bytes of `floats`, at any address.
    unsafe { _mm256_storeu_ps(floats.as_mut_ptr().cast(), vector) }
}
