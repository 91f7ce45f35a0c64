//! Signs and one scale: a bit for each element of a part of f32.
//!
//! ```text
//!  ┌────────────────────────────┬───────┐
//!  │ words, one for 32 elements │ scale │
//!  └────────────────────────────┴───────┘
//! ```
//! A word has the bits of 32 elements, that of the first in its highest place. A bit is 1 if its element is below zero. Places behind the
//! last element are 0. Words and scale (f32) are in little-endian order. This is the form of BytePS.
//!
//! An element becomes the scale, or minus the scale if its bit is 1. The scale is the mean of the magnitudes of the part. With `scaling=0`
//! it is 1, so a sum counts signs, and its answer is what most of the workers say.
//!
//! The magnitudes are added in f64 and in one order, so that vectors of any length and the warps of a device find the same mean. A block
//! of 2048 elements has a sum for each place of a word, in the order of the words. [`by_halves`] adds the 32 of them. The sums of blocks 0,
//! 32, 64 and so on are added one after the other, and so are those of blocks 1, 33, 65. `by_halves` adds these 32 too.
//!
//! # Values
//! | elements | what they become |
//! |---|---|
//! | 0 and -0 | the scale |
//! | a part of zeros | 0 if `scaling` is 1 |
//! | a part with a NaN or an infinity | NaN, all of them, so that nobody takes them for numbers |
//!
//! What is lost is as large as the elements. So a training needs error feedback, which makes the sum right over the rounds.
//!
//! A part is one unit, because all of its elements share the scale.

use super::cast::folding;
use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{BLOCK, F32_BYTES, LANES, SIGN, Tools, by_halves, divided, dividing};
use crate::reduce::{Kernels, Loops};
use crate::types::{CodecSpec, DType, Op};

/// The signs of parts of f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneBit {
    spec: CodecSpec,
    /// Whether the scale is the mean of the magnitudes.
    scales: bool,
}

/// Elements of a word, which lanes add beside each other.
const PER_WORD: usize = LANES;
/// Elements that are decoded at a time, to be added.
const RUN: usize = 64 * PER_WORD;

impl OneBit {
    /// The codec `spec`, whose only parameter says whether there is a scale.
    ///
    /// # Panics
    /// Unless `elements` is f32.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert_eq!(elements, DType::F32, "onebit is for float32");
        let [scaling] = spec.parameters() else { unreachable!("its row has one parameter") };
        Self { spec, scales: *scaling == 1 }
    }

    /// Whether the scale is the mean of the magnitudes, not 1.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_mean(self) -> bool {
        self.scales
    }

    /// Writes the signs of f32 that are divided as `op` says, and their scale.
    fn write(&self, tools: Tools<'_>, op: Op, divisor: f64, elements: &[u8], body: &mut [u8]) -> usize {
        let Tools { kernels, workspace, .. } = tools;
        let (floats, _) = divided(kernels, op, divisor, elements, &mut workspace.bytes).as_chunks();
        let Some((words, scale)) = body.split_last_chunk_mut::<F32_BYTES>() else { return 0 };
        let sum = kernels.vectorise(Signs { floats, words: words.as_chunks_mut().0 });
        let found = if self.scales { (sum / floats.len() as f64) as f32 } else { 1.0 };
        *scale = if sum.is_finite() { found } else { f32::NAN }.to_le_bytes();
        body.len()
    }

    /// Reads a body of `len` elements: its words, and the scale.
    ///
    /// # Errors
    /// [`Malformed`] for a scale that no part has, and for a bit without an element.
    fn read(self, body: &[u8], len: usize) -> Result<(&[[u8; F32_BYTES]], f32), Malformed> {
        let Some((words, scale)) = body.split_last_chunk::<F32_BYTES>() else { return Ok((&[], 0.0)) };
        let (words, _) = words.as_chunks();
        assert_eq!(words.len(), len.div_ceil(PER_WORD), "words of {len} elements");
        let scale = f32::from_le_bytes(*scale);
        let is_scale = if self.scales { scale.is_sign_positive() && scale.is_finite() } else { scale == 1.0 };
        if !is_scale && !scale.is_nan() {
            return Err(Malformed { problem: format!("has the scale {scale}") });
        }
        let beyond = if len.is_multiple_of(PER_WORD) { 0 } else { u32::MAX >> (len % PER_WORD) };
        if words.last().is_some_and(|word| u32::from_le_bytes(*word) & beyond != 0) {
            return Err(Malformed { problem: format!("has a bit behind the last of {len} elements") });
        }
        Ok((words, scale))
    }

    /// Calls `act` with runs of the elements of a body, and their place in a sum.
    fn each_run(
        self,
        kernels: Kernels,
        body: &[u8],
        sum: &mut [u8],
        mut act: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<(), Malformed> {
        let (words, scale) = self.read(body, sum.len() / F32_BYTES)?;
        let mut row = [0; F32_BYTES * RUN];
        for (words, sum) in words.chunks(RUN / PER_WORD).zip(sum.chunks_mut(F32_BYTES * RUN)) {
            let row = &mut row[..sum.len()];
            kernels.vectorise(Values::<false> { words, scale, floats: row.as_chunks_mut().0 });
            act(row, sum);
        }
        Ok(())
    }
}

impl Codec for OneBit {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::Exact(if len == 0 { 0 } else { self.unit(len).bytes })
    }

    fn unit(&self, len: u64) -> Unit {
        Unit { len, bytes: (len.div_ceil(PER_WORD as u64) + 1) * F32_BYTES as u64 }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        Ok(self.write(tools, dividing(divisor), divisor, elements, body))
    }

    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed> {
        self.read(body, usize::try_from(len).expect("within a part")).map(drop)
    }

    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        let (words, scale) = self.read(body, elements.len() / F32_BYTES)?;
        kernels.vectorise(Values::<false> { words, scale, floats: elements.as_chunks_mut().0 });
        Ok(())
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        self.each_run(kernels, body, sum, |row, sum| kernels.start(op, DType::F32, weight, row, sum))
    }

    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        if matches!(op, Op::Sum | Op::Mean) {
            let (words, scale) = self.read(body, sum.len() / F32_BYTES)?;
            kernels.vectorise(Values::<true> { words, scale, floats: sum.as_chunks_mut().0 });
            return Ok(());
        }
        self.each_run(kernels, body, sum, |row, sum| kernels.add(op, DType::F32, weight, row, sum))
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        Ok(self.write(tools, op, divisor, sum, body))
    }
}

/// Writes the signs of f32. Returns the sum of their magnitudes, which is no number if one of them is not finite.
struct Signs<'a> {
    floats: &'a [[u8; F32_BYTES]],
    words: &'a mut [[u8; F32_BYTES]],
}

impl Loops for Signs<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Self { floats, words } = self;
        let mut totals = [0.0; PER_WORD];
        let blocks = floats.chunks(BLOCK).zip(words.chunks_mut(BLOCK / PER_WORD));
        for (block, (floats, words)) in blocks.enumerate() {
            totals[block % PER_WORD] += by_halves(block_of_signs(floats, words));
        }
        by_halves(totals)
    }
}

/// Writes the words of a block. Returns the sum of the magnitudes at each place of a word.
#[inline(always)]
fn block_of_signs(floats: &[[u8; F32_BYTES]], words: &mut [[u8; F32_BYTES]]) -> [f64; PER_WORD] {
    let mut sums = [0.0; PER_WORD];
    let (rows, rest) = floats.as_chunks::<PER_WORD>();
    // Two loops, because the compiler keeps the sums in registers only if all rows of a loop have the same source.
    let (words, last_word) = words.split_at_mut(rows.len());
    for (word, row) in words.iter_mut().zip(rows) {
        *word = signs(row, &mut sums).to_le_bytes();
    }
    if let Some(word) = last_word.first_mut() {
        let mut row = [[0; F32_BYTES]; PER_WORD];
        row[..rest.len()].copy_from_slice(rest);
        *word = signs(&row, &mut sums).to_le_bytes();
    }
    sums
}

/// The word of 32 elements. Adds each magnitude to its sum.
#[inline(always)]
fn signs(floats: &[[u8; F32_BYTES]; PER_WORD], sums: &mut [f64; PER_WORD]) -> u32 {
    for (sum, float) in sums.iter_mut().zip(floats) {
        *sum += f64::from(f32::from_le_bytes(*float).abs());
    }
    let mut word = 0;
    for (at, float) in floats.iter().enumerate() {
        word |= if f32::from_le_bytes(*float) < 0.0 { SIGN >> at } else { 0 };
    }
    word
}

/// Turns words into f32, or with `ADD` adds these to others.
struct Values<'a, const ADD: bool> {
    words: &'a [[u8; F32_BYTES]],
    scale: f32,
    floats: &'a mut [[u8; F32_BYTES]],
}

impl<const ADD: bool> Loops for Values<'_, ADD> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { words, scale, floats } = self;
        let put = |word: u32, at: usize, float: &mut [u8; F32_BYTES]| {
            let value = f32::from_bits(scale.to_bits() | (word << at & SIGN));
            *float = if ADD { f32::from_le_bytes(*float) + value } else { value }.to_le_bytes();
        };
        let (whole, rest) = floats.as_chunks_mut::<PER_WORD>();
        for (floats, word) in whole.iter_mut().zip(words) {
            let word = u32::from_le_bytes(*word);
            floats.iter_mut().enumerate().for_each(|(at, float)| put(word, at, float));
        }
        if let (false, Some(word)) = (rest.is_empty(), words.last()) {
            let word = u32::from_le_bytes(*word);
            rest.iter_mut().enumerate().for_each(|(at, float)| put(word, at, float));
        }
    }
}

#[cfg(test)]
mod tests;
