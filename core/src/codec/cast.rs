//! Casts: f32 and f64 travel as f16 or bfloat16. The arithmetic is that of [`reduce`](crate::reduce) for tensors of the wire type: they are
//! added in f32 and rounded once as well.
//!
//! # Values
//! | value | f16 | bf16 |
//! |---|---|---|
//! | between two neighbours | the nearer, of two equally near ones the even | the same |
//! | magnitude above the largest finite | infinite from 65,520 on, which is half way to the next power of two | infinite from 2^128 - 2^119 on |
//! | below the smallest normal | in steps of 2^-24; half a step and less is zero | f32's subnormals, with 8 bits at most |
//! | ±0, ±infinity | kept | kept |
//! | NaN | NaN with its sign; the payload may change | the same |
//!
//! f64 is rounded to f32 first, as PyTorch does.

use std::num::NonZeroU32;

use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::Tools;
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op};

/// Elements of one floating-point type that travel as a narrower one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cast {
    elements: DType,
    wire: DType,
}

/// Bytes of one f32. Sums are f32, and f64 is cast through f32.
const F32_BYTES: usize = 4;
/// Number of f64 elements that are cast at a time, through f32 on the stack.
const F64_RUN: usize = 512;

impl Cast {
    /// A cast from `elements` to `wire`.
    ///
    /// # Panics
    /// Unless `elements` is f32 or f64, and `wire` is f16 or bf16.
    pub fn new(elements: DType, wire: DType) -> Self {
        assert!(matches!(elements, DType::F32 | DType::F64), "casts are for f32 and f64, not {elements}");
        assert!(matches!(wire, DType::F16 | DType::BF16), "casts are to f16 and bf16, not {wire}");
        Self { elements, wire }
    }

    /// Divides f32 elements and rounds them to the wire type.
    fn narrow(self, kernels: Kernels, divisor: f64, floats: &[u8], body: &mut [u8]) {
        let op = if divisor == 1.0 { Op::Sum } else { Op::Mean };
        kernels.finish(op, self.wire, divisor, floats, body);
    }

    /// Writes the exact values of the wire type as f32.
    fn widen(self, kernels: Kernels, body: &[u8], floats: &mut [u8]) {
        kernels.start(Op::Sum, self.wire, 1.0, body, floats);
    }

    fn wire_bytes(self) -> usize {
        usize::try_from(self.wire.bytes()).expect("two")
    }
}

impl Codec for Cast {
    fn spec(&self) -> CodecSpec {
        match self.wire {
            DType::F16 => CodecSpec::F16,
            DType::BF16 => CodecSpec::BF16,
            DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::I8 | DType::U8 => {
                unreachable!("`new` refuses it")
            }
        }
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::Exact(len * self.wire.bytes())
    }

    fn unit(&self, _len: u64) -> Unit {
        Unit { len: 1, bytes: self.wire.bytes() }
    }

    fn divisor(&self, op: Op, ranks: NonZeroU32) -> f64 {
        let adds = match op {
            Op::Sum | Op::Mean => true,
            // The result of a machine's ranks is no larger than the largest contribution.
            Op::Min | Op::Max | Op::WeightedMean | Op::Broadcast { .. } => false,
        };
        // bf16 has the range of f32, and the ranks added in f32.
        if adds && self.wire == DType::F16 { f64::from(ranks.get().next_power_of_two()) } else { 1.0 }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        if self.elements == DType::F32 {
            self.narrow(tools.kernels, divisor, elements, body);
            return Ok(body.len());
        }
        let (doubles, torn) = elements.as_chunks::<8>();
        assert!(torn.is_empty() && body.len() == doubles.len() * self.wire_bytes(), "as many elements");
        let mut floats = [[0; F32_BYTES]; F64_RUN];
        for (run, body) in doubles.chunks(F64_RUN).zip(body.chunks_mut(F64_RUN * self.wire_bytes())) {
            let floats = &mut floats[..run.len()];
            for (float, double) in floats.iter_mut().zip(run) {
                *float = (f64::from_le_bytes(*double) as f32).to_le_bytes();
            }
            self.narrow(tools.kernels, divisor, floats.as_flattened(), body);
        }
        Ok(body.len())
    }

    fn check(&self, _body: &[u8], _len: u64) -> Result<(), Malformed> {
        // All bits are a number, an infinity or a NaN.
        Ok(())
    }

    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        if self.elements == DType::F32 {
            self.widen(kernels, body, elements);
            return Ok(());
        }
        let (doubles, torn) = elements.as_chunks_mut::<8>();
        assert!(torn.is_empty() && body.len() == doubles.len() * self.wire_bytes(), "as many elements");
        let mut floats = [[0; F32_BYTES]; F64_RUN];
        for (run, body) in doubles.chunks_mut(F64_RUN).zip(body.chunks(F64_RUN * self.wire_bytes())) {
            let floats = &mut floats[..run.len()];
            self.widen(kernels, body, floats.as_flattened_mut());
            for (double, float) in run.iter_mut().zip(floats) {
                *double = f64::from(f32::from_le_bytes(*float)).to_le_bytes();
            }
        }
        Ok(())
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        kernels.start(folding(op, weight), self.wire, weight, body, sum);
        Ok(())
    }

    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        kernels.add(folding(op, weight), self.wire, weight, body, sum);
        Ok(())
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        tools.kernels.finish(op, self.wire, divisor, sum, body);
        Ok(body.len())
    }
}

/// The operation with which the kernels fold a contribution with this weight. For a sum or a mean, the weight is the divisor of
/// [`Codec::divisor`], which the kernels apply as the weight of a weighted mean.
pub(super) fn folding(op: Op, weight: f64) -> Op {
    match op {
        Op::Sum | Op::Mean if weight != 1.0 => Op::WeightedMean,
        Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => op,
        Op::Broadcast { .. } => unreachable!("a broadcast is not encoded"),
    }
}

#[cfg(test)]
mod tests;
