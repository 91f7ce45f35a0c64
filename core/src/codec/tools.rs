//! What an encoder works with beside the elements: kernels, a seed, and scratch memory.

use super::deflate::Deflater;
use crate::reduce::{Kernels, Loops};
use crate::types::{DType, Op, PartId, Round};

/// Bytes of an f32: sums are f32, and f64 is encoded through it.
pub(super) const F32_BYTES: usize = DType::F32.bytes() as usize;
/// The bit of an f32's sign.
pub(super) const SIGN: u32 = 1 << 31;

/// What [`Codec::encode`](super::Codec::encode) and [`Codec::finish`](super::Codec::finish) work with.
#[derive(Debug)]
pub struct Tools<'a> {
    /// The arithmetic.
    pub kernels: Kernels,
    /// The source of what the codec draws.
    pub seed: Seed,
    /// Scratch memory. Its content before and after a call means nothing.
    pub workspace: &'a mut Workspace,
}

/// A source of numbers that look random and depend on the part, the round and the element only. So a repeat draws what the first attempt
/// drew, whichever thread encodes, and in whichever runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed {
    of: u64,
    round: Round,
    /// The index in the part of the first element of the call.
    first: u64,
}

impl Seed {
    /// The seed of a part in a round.
    pub fn of(part: PartId, round: Round) -> Self {
        let PartId { key, index } = part;
        Self { of: mix(mix(key.0 ^ u64::from(index)) ^ round.0), round, first: 0 }
    }

    /// The round.
    pub fn round(self) -> Round {
        self.round
    }

    /// The seed for a call that begins with the element `first` of the part.
    #[must_use]
    pub fn from_element(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// The number drawn for the element `index` of the call. All its bits are equally good.
    pub fn draw(self, index: u64) -> u64 {
        mix(self.of.wrapping_add((self.first + index).wrapping_mul(GOLDEN)))
    }

    /// What a kernel of a device makes the draws of: the index of the first element, and the two words with which each index is mixed.
    #[cfg(feature = "cuda")]
    pub(crate) fn words(self) -> [u32; 3] {
        let Draws { first, low, high } = self.draws();
        [first, low, high]
    }

    /// Cheaper draws, for codecs that draw for each element.
    pub(super) fn draws(self) -> Draws {
        let Draws { low, high, .. } = Draws::of(self.of);
        Draws { first: self.first as u32, low, high: high ^ (self.first >> 32) as u32 }
    }
}

/// Numbers of 32 bits that look random and depend on what a [`Seed`] depends on. They are made of 32-bit operations alone, of which vectors
/// do many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    /// The index in the part of the first element.
    first: u32,
    low: u32,
    high: u32,
}

impl Draws {
    /// The draws of a seed that travels as a number.
    pub(super) fn of(seed: u64) -> Self {
        Self { first: 0, low: seed as u32, high: (seed >> 32) as u32 }
    }

    /// The number drawn for the element `index`. All its bits are equally good.
    ///
    /// The multipliers and shifts are those of a hash of 32 bits that Chris Wellons found by search.
    #[inline(always)]
    pub(super) fn draw(self, index: u32) -> u32 {
        let word = self.first.wrapping_add(index) ^ self.low;
        let word = (word ^ (word >> 16)).wrapping_mul(0x21f0_aaad) ^ self.high;
        let word = (word ^ (word >> 15)).wrapping_mul(0x735a_2d97);
        word ^ (word >> 15)
    }
}

/// Scratch memory of encoders. It grows to what the largest call needs, and stays so.
#[derive(Default, Debug)]
pub struct Workspace {
    /// Elements.
    pub(super) bytes: Vec<u8>,
    /// Elements with their place, or places.
    pub(super) words: Vec<u64>,
    /// Elements with their residual, what their body brings of them, and their velocity.
    pub(super) feedback: [Vec<u8>; 3],
    /// Bytes of elements in planes.
    pub(super) planes: Vec<u8>,
    /// What makes streams of planes, once there was one.
    pub(super) deflater: Option<Deflater>,
}

/// The operation with which the kernels divide elements by `divisor` on their way into a body; with 1 they leave them as they are.
pub(super) fn dividing(divisor: f64) -> Op {
    if divisor == 1.0 { Op::Sum } else { Op::Mean }
}

/// Whether the kernels divide with this operation.
pub(super) fn divides(op: Op) -> bool {
    matches!(op, Op::Mean | Op::WeightedMean)
}

/// Elements of f32, divided as `op` says: where nothing is divided, these themselves, else in `scratch`.
pub(super) fn divided<'a>(
    kernels: Kernels,
    op: Op,
    divisor: f64,
    floats: &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> &'a [u8] {
    if !divides(op) {
        return floats;
    }
    scratch.resize(floats.len(), 0);
    kernels.finish(op, DType::F32, divisor, floats, scratch);
    scratch
}

/// The bits of the largest magnitude of these f32. Magnitudes are ordered as their bits are, and those of NaN and infinities come last.
pub(super) struct Largest<'a>(pub(super) &'a [[u8; 4]]);

impl Loops for Largest<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        self.0.iter().fold(0, |largest, float| largest.max(u32::from_le_bytes(*float) & !SIGN))
    }
}

/// Sums that are made beside each other, one for each lane of a warp of a device.
pub(super) const LANES: usize = 32;
/// Elements of which each lane adds some. Each block has sums of its own, so that several warps of a device can add a part.
pub(super) const BLOCK: usize = 2048;

/// Adds the sums of the lanes: the latter half to the former, then half of these to the others, down to one.
#[inline(always)]
pub(super) fn by_halves(mut sums: [f64; LANES]) -> f64 {
    for half in [16, 8, 4, 2, 1] {
        let (former, latter) = sums.split_at_mut(half);
        former.iter_mut().zip(latter).for_each(|(sum, more)| *sum += *more);
    }
    sums[0]
}

/// A number of this size has steps of 1, so adding and subtracting it rounds to a whole number.
const WHOLE: f32 = 12_582_912.0;

/// The whole number nearest to `value`, whose magnitude is small.
#[inline(always)]
pub(super) fn whole(value: f32) -> i32 {
    (value + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()).cast_signed()
}

/// A number between -1/2 and 1/2, all equally likely, and neither of these two.
#[inline(always)]
pub(super) fn offset(draw: u32) -> f32 {
    // A whole number of 16 bits, and a half.
    ((draw >> 16) as f32 + 0.5) * (1.0 / 65536.0) - 0.5
}

/// Rounds f64 to f32.
pub(super) fn narrow_doubles(doubles: &[[u8; 8]], floats: &mut [[u8; 4]]) {
    for (float, double) in floats.iter_mut().zip(doubles) {
        *float = (f64::from_le_bytes(*double) as f32).to_le_bytes();
    }
}

/// Writes f32 as f64.
pub(super) fn widen_floats(floats: &[[u8; 4]], doubles: &mut [[u8; 8]]) {
    for (double, float) in doubles.iter_mut().zip(floats) {
        *double = f64::from(f32::from_le_bytes(*float)).to_le_bytes();
    }
}

/// How many of `len` elements are `millionths` of them, at least one.
pub(super) fn share_of(len: u64, millionths: u64) -> u64 {
    (len * millionths).div_ceil(1_000_000).max(1).min(len)
}

/// Writes elements of f32 that are zero but for these entries.
pub(super) fn scatter(entries: impl Iterator<Item = (usize, f32)>, elements: &mut [u8]) {
    elements.fill(0);
    let (floats, _) = elements.as_chunks_mut();
    entries.for_each(|(at, value)| floats[at] = value.to_le_bytes());
}

/// Adds `weight` times each of these entries to a sum of f32.
pub(super) fn scatter_add(entries: impl Iterator<Item = (usize, f32)>, weight: f64, sum: &mut [u8]) {
    let (floats, _) = sum.as_chunks_mut();
    entries.for_each(|(at, value)| add_at(&mut floats[at], weight, value));
}

/// Adds `weight` times a value to an element of a sum of f32.
pub(super) fn add_at(element: &mut [u8; F32_BYTES], weight: f64, value: f32) {
    *element = (f32::from_le_bytes(*element) + weight as f32 * value).to_le_bytes();
}

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;

    #[test]
    fn a_draw_depends_on_part_round_and_element_and_not_on_the_call() {
        let part = PartId { key: TensorKey(7), index: 1 };
        let seed = Seed::of(part, Round(3));
        assert_eq!(Seed::of(part, Round(3)).from_element(40).draw(2), seed.draw(42));
        let others = [
            seed.draw(0),
            seed.draw(1),
            Seed::of(part, Round(4)).draw(0),
            Seed::of(PartId { index: 2, ..part }, Round(3)).draw(0),
            Seed::of(PartId { key: TensorKey(8), ..part }, Round(3)).draw(0),
        ];
        for (at, one) in others.iter().enumerate() {
            assert!(!others[at + 1..].contains(one), "{others:x?}");
        }
    }

    #[test]
    fn draws_are_spread_evenly() {
        let seed = Seed::of(PartId { key: TensorKey(7), index: 1 }, Round(3));
        let mut counts = [0_u32; 16];
        (0..16_000).for_each(|element| counts[(seed.draw(element) >> 60) as usize] += 1);
        // Five standard deviations of a count of 1,000.
        assert!(counts.iter().all(|count| count.abs_diff(1_000) < 155), "{counts:?}");
        for shift in [0, 12, 28] {
            let mut counts = [0_u32; 16];
            (0..16_000).for_each(|element| counts[(seed.draws().draw(element) >> shift) as usize % 16] += 1);
            assert!(counts.iter().all(|count| count.abs_diff(1_000) < 155), "bits from {shift}: {counts:?}");
        }
    }

    #[test]
    fn a_cheap_draw_depends_on_part_round_and_element_and_not_on_the_call() {
        let part = PartId { key: TensorKey(7), index: 1 };
        let of = |part, round, first, index| Seed::of(part, Round(round)).from_element(first).draws().draw(index);
        assert_eq!(of(part, 3, 40, 2), of(part, 3, 0, 42));
        // Each of them differs from the first in one thing. Neighbours in the part agree in half of the bits.
        let others =
            [of(part, 4, 0, 0), of(PartId { index: 2, ..part }, 3, 0, 0), of(part, 3, 1 << 32, 0), of(part, 3, 0, 1)];
        for other in others {
            let bits = (of(part, 3, 0, 0) ^ other).count_ones();
            assert!((6..=26).contains(&bits), "{bits} bits differ");
        }
    }
}
