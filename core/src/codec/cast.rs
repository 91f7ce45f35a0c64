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
//! With `stochastic=1` bf16 becomes one of the two neighbours of a value, by a chance that makes it right on average. A finite value stays
//! finite.
//!
//! f64 is rounded to f32 first, as PyTorch does.

use std::num::NonZeroU32;

use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{Draws, F32_BYTES, SIGN, Tools, divides, dividing, narrow_doubles, widen_floats};
use crate::reduce::{Kernels, Loops};
use crate::types::{CodecSpec, DType, Encoding, Op};

/// Elements of one floating-point type that travel as a narrower one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cast {
    elements: DType,
    wire: DType,
    /// Whether it rounds by chance.
    stochastic: bool,
}

/// Number of elements that are cast at a time, through f32 on the stack.
const RUN: usize = 512;

impl Cast {
    /// The cast `spec` of elements of type `elements`.
    ///
    /// # Panics
    /// Unless `elements` is f32 or f64, and `spec` is a cast to f16 or bf16.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert!(matches!(elements, DType::F32 | DType::F64), "casts are for f32 and f64, not {elements}");
        let wire = match spec.encoding() {
            Encoding::F16 => DType::F16,
            Encoding::BF16 => DType::BF16,
            other => unreachable!("{other} is no cast"),
        };
        Self { elements, wire, stochastic: spec.is_stochastic() }
    }

    /// Divides f32 elements as `op` says and rounds them to the wire type. `first` is the index in the call of the first of them.
    fn narrow(self, tools: &Tools<'_>, op: Op, divisor: f64, first: usize, floats: &[u8], body: &mut [u8]) {
        let kernels = tools.kernels;
        if !self.stochastic {
            return kernels.finish(op, self.wire, divisor, floats, body);
        }
        let draws = tools.seed.draws();
        let mut row = [0; F32_BYTES * RUN];
        for (at, (floats, body)) in floats.chunks(F32_BYTES * RUN).zip(body.chunks_mut(2 * RUN)).enumerate() {
            let row = if divides(op) {
                let row = &mut row[..floats.len()];
                kernels.finish(op, DType::F32, divisor, floats, row);
                &*row
            } else {
                floats
            };
            // A part has fewer elements than 2^32.
            let first = (first + at * RUN) as u32;
            kernels.vectorise(ByChance { draws, first, floats: row, body });
        }
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
            DType::BF16 if self.stochastic => CodecSpec::BF16.with_stochastic(),
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
        let op = dividing(divisor);
        if self.elements == DType::F32 {
            self.narrow(&tools, op, divisor, 0, elements, body);
            return Ok(body.len());
        }
        let (doubles, torn) = elements.as_chunks::<8>();
        assert!(torn.is_empty() && body.len() == doubles.len() * self.wire_bytes(), "as many elements");
        let mut floats = [[0; F32_BYTES]; RUN];
        for (at, (run, body)) in doubles.chunks(RUN).zip(body.chunks_mut(RUN * self.wire_bytes())).enumerate() {
            let floats = &mut floats[..run.len()];
            narrow_doubles(run, floats);
            self.narrow(&tools, op, divisor, at * RUN, floats.as_flattened(), body);
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
        let mut floats = [[0; F32_BYTES]; RUN];
        for (run, body) in doubles.chunks_mut(RUN).zip(body.chunks(RUN * self.wire_bytes())) {
            let floats = &mut floats[..run.len()];
            self.widen(kernels, body, floats.as_flattened_mut());
            widen_floats(floats, run);
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
        self.narrow(&tools, op, divisor, 0, sum, body);
        Ok(body.len())
    }
}

/// Rounds f32 to bf16 by chance.
struct ByChance<'a> {
    draws: Draws,
    /// The index of the first element among those that are drawn for.
    first: u32,
    floats: &'a [u8],
    body: &'a mut [u8],
}

impl Loops for ByChance<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { draws, first, floats, body } = self;
        let places = body.as_chunks_mut().0.iter_mut().zip(floats.as_chunks().0);
        for (at, (place, float)) in places.enumerate() {
            let bits = u32::from_le_bytes(*float);
            *place = bf16_by_chance(bits, draws.draw(first.wrapping_add(at as u32))).to_le_bytes();
        }
    }
}

/// The bf16 above or below an f32 in magnitude, both as bits: the nearer is the likelier.
#[inline(always)]
pub(super) fn bf16_by_chance(bits: u32, draw: u32) -> u16 {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    const LARGEST: u32 = INFINITE - (1 << 16);
    let (sign, magnitude) = (bits & SIGN, bits & !SIGN);
    // The chance to reach the next bf16 is what is above the last one.
    let rounded = (magnitude + (draw >> 16)).min(LARGEST);
    // A NaN keeps a bit of its payload.
    let special = if magnitude > INFINITE { magnitude | 1 << 22 } else { INFINITE };
    let magnitude = if magnitude < INFINITE { rounded } else { special };
    ((magnitude | sign) >> 16) as u16
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
