//! Blocks of 8-bit integers with a common scale: a quarter of the bytes of f32.
//!
//! A block is its scale, an f32, and one signed byte for each element: element / scale, rounded to the nearest integer, of two equally near
//! ones to the even. The scale is the largest magnitude of the block divided by 127. So an element is off by at most 1/254 of the largest
//! magnitude of its block. The last block of a part may be shorter.
//!
//! # Values
//! | block | body |
//! |---|---|
//! | all zeros | scale 0; a zero has no sign |
//! | with a NaN or an infinity | scale NaN: all its elements become NaN, so that nobody takes them for numbers |
//! | largest magnitude below 2^-119 | less precise, because its scale is a subnormal number |
//!
//! f64 is rounded to f32 first. Sums are f32.

use std::num::NonZeroU32;

use super::cast::folding;
use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::Tools;
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op};

/// Elements of f32 or f64 that travel as bytes, block by block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int8 {
    spec: CodecSpec,
    elements: DType,
    /// Elements of a block.
    block: usize,
}

/// The most elements of a block: as floats they fit on the stack and into the nearest cache.
const BLOCK_MAX: usize = 4096;

const SCALE_BYTES: usize = 4;

impl Int8 {
    /// The codec `spec`, which has the elements of a block as its only parameter, of elements of type `elements`.
    ///
    /// # Panics
    /// Unless `elements` is f32 or f64.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert!(matches!(elements, DType::F32 | DType::F64), "int8 is for f32 and f64, not {elements}");
        let [block] = spec.parameters() else { unreachable!("its row has one parameter") };
        let block = usize::try_from(*block).expect("its row bounds it");
        assert!((1..=BLOCK_MAX).contains(&block), "its row bounds it");
        Self { spec, elements, block }
    }

    /// Divides f32 elements as `op` says, and writes their blocks.
    fn quantise_all(&self, kernels: Kernels, op: Op, divisor: f64, floats: &[u8], body: &mut [u8]) {
        let mut row = [0; 4 * BLOCK_MAX];
        let blocks = body.chunks_mut(self.block + SCALE_BYTES);
        for (floats, block) in floats.chunks(4 * self.block).zip(blocks) {
            let row = &mut row[..floats.len()];
            row.copy_from_slice(floats);
            kernels.finish_in_place(op, DType::F32, divisor, row);
            quantise(row, block);
        }
    }

    /// Calls `act` for each block of a body: with its elements as f32, and with its place in `others`, which has `bytes` for each element.
    fn each_block(
        &self,
        body: &[u8],
        others: &mut [u8],
        bytes: usize,
        mut act: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<(), Malformed> {
        let mut row = [0; 4 * BLOCK_MAX];
        let blocks = body.chunks(self.block + SCALE_BYTES);
        assert_eq!(blocks.len(), others.len().div_ceil(self.block * bytes), "as many blocks");
        for (block, others) in blocks.zip(others.chunks_mut(self.block * bytes)) {
            let row = &mut row[..others.len() / bytes * 4];
            dequantise(block, row)?;
            act(row, others);
        }
        Ok(())
    }
}

impl Codec for Int8 {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        let blocks = len.div_ceil(self.block as u64);
        BodyBytes::Exact(len + blocks * SCALE_BYTES as u64)
    }

    fn unit(&self, len: u64) -> Unit {
        let len = len.min(self.block as u64);
        Unit { len, bytes: len + SCALE_BYTES as u64 }
    }

    fn divisor(&self, _op: Op, _ranks: NonZeroU32) -> f64 {
        // A scale has the range of f32, and the ranks added in f32.
        1.0
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let (kernels, op) = (tools.kernels, if divisor == 1.0 { Op::Sum } else { Op::Mean });
        if self.elements == DType::F32 {
            self.quantise_all(kernels, op, divisor, elements, body);
            return Ok(body.len());
        }
        let mut floats = [[0; 4]; BLOCK_MAX];
        // As many whole blocks as fit.
        let run = BLOCK_MAX / self.block * self.block;
        let bodies = body.chunks_mut(run / self.block * (self.block + SCALE_BYTES));
        for (doubles, body) in elements.as_chunks::<8>().0.chunks(run).zip(bodies) {
            let floats = &mut floats[..doubles.len()];
            for (float, double) in floats.iter_mut().zip(doubles) {
                *float = (f64::from_le_bytes(*double) as f32).to_le_bytes();
            }
            self.quantise_all(kernels, op, divisor, floats.as_flattened(), body);
        }
        Ok(body.len())
    }

    fn check(&self, body: &[u8], _len: u64) -> Result<(), Malformed> {
        body.chunks(self.block + SCALE_BYTES).try_for_each(|block| read_scale(block).map(drop))
    }

    fn decode(&self, _kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        let bytes = usize::try_from(self.elements.bytes()).expect("4 or 8");
        self.each_block(body, elements, bytes, |row, elements| match self.elements {
            DType::F64 => {
                for (double, float) in elements.as_chunks_mut::<8>().0.iter_mut().zip(row.as_chunks().0) {
                    *double = f64::from(f32::from_le_bytes(*float)).to_le_bytes();
                }
            }
            _ => elements.copy_from_slice(row),
        })
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        self.each_block(body, sum, 4, |row, sum| kernels.start(folding(op, weight), DType::F32, weight, row, sum))
    }

    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        self.each_block(body, sum, 4, |row, sum| kernels.add(folding(op, weight), DType::F32, weight, row, sum))
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        self.quantise_all(tools.kernels, op, divisor, sum, body);
        Ok(body.len())
    }
}

/// Writes a block of these elements, which are f32.
fn quantise(row: &[u8], block: &mut [u8]) {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    let (scale_bytes, values) = block.split_first_chunk_mut::<SCALE_BYTES>().expect("a block begins with its scale");
    assert_eq!(4 * values.len(), row.len(), "a byte for each element");
    let floats = || row.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float));
    // Magnitudes are ordered as their bits are, and those of NaN and infinities come last.
    let largest = floats().fold(0, |largest, float| largest.max(float.to_bits() & !(1 << 31)));
    let scale = if largest < INFINITE { f32::from_bits(largest) / 127.0 } else { f32::NAN };
    *scale_bytes = scale.to_le_bytes();
    if scale > 0.0 {
        for (value, float) in values.iter_mut().zip(floats()) {
            *value = ((float / scale).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned();
        }
    } else {
        values.fill(0);
    }
}

/// Reads the elements of a block as f32.
///
/// # Errors
/// [`Malformed`] if it has another number of elements, or a scale that no block has.
fn dequantise(block: &[u8], row: &mut [u8]) -> Result<(), Malformed> {
    let (scale, values) = read_scale(block)?;
    if 4 * values.len() != row.len() {
        return Err(Malformed { problem: format!("has a block of {} bytes", block.len()) });
    }
    for (float, value) in row.as_chunks_mut().0.iter_mut().zip(values) {
        *float = (f32::from(value.cast_signed()) * scale).to_le_bytes();
    }
    Ok(())
}

/// The scale of a block, and its values.
///
/// # Errors
/// [`Malformed`] if no block has such a scale.
fn read_scale(block: &[u8]) -> Result<(f32, &[u8]), Malformed> {
    let (scale, values) = block
        .split_first_chunk::<SCALE_BYTES>()
        .ok_or_else(|| Malformed { problem: format!("has a block of {} bytes", block.len()) })?;
    let scale = f32::from_le_bytes(*scale);
    if scale < 0.0 || scale.is_infinite() {
        return Err(Malformed { problem: format!("has a block with the scale {scale}") });
    }
    Ok((scale, values))
}

#[cfg(test)]
mod tests;
