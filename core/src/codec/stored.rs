//! Rows of tables as servers keep them: the values in their type, and behind them, as f32, what the rule keeps of the row.
//!
//! A row is a run of words of 4 bytes. With values of f32, the words are the numbers of the row, and nothing here is needed to read or to change
//! them. With values of half precision, a word has two of them: the first words have the first half of the values in their lower bits, and
//! the second half in their upper bits, so that loops over words need to move nothing between the lanes of a vector.
//!
//! # Rounding
//! A step is computed in f32 from the values as they are kept, and then they are rounded by chance: a value becomes one of its two neighbours,
//! and the nearer is the likelier, so that it is right on average. So steps that are smaller than half the distance of neighbours are not
//! lost, as they would be if each was rounded to the nearest.
//!
//! | value after a step | what is kept |
//! |---|---|
//! | can be kept | the same |
//! | between two neighbours | the upper one, by the chance (value - lower) / (upper - lower). It is exact, but for f16 below 2^-14: there within 2^-25 |
//! | magnitude above [`RowDType::largest`], also infinite | the largest, with the sign |
//! | NaN | NaN |
//!
//! The random bits of a value follow from the seed of the table, the id, the place of the value in the row, the step that the push has said,
//! and the bits of the row's score before the push, and from nothing else. The score grows with each push, so the bits differ also where
//! the step stays the same. So a table has the same bits for any number of servers, and whichever vectors they compute with.

use std::marker::PhantomData;

use super::cast::bf16_by_chance;
use super::tools::{Draws, SIGN};
use crate::reduce::{Kernels, Loops, RowStep, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::types::{RowDType, TableSpec};

/// Reads and changes rows of a table where they are kept.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows {
    dtype: RowDType,
    dim: usize,
    /// Words of a row, and those of them that have its values.
    words: usize,
    of_values: usize,
    /// What random bits begin with.
    rounding: u64,
    kernels: Kernels,
}

/// What decides how the values of a row are rounded after a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rounding {
    /// The id of the row.
    pub id: u64,
    /// The step of the training that the push has said, by its lowest 32 bits.
    pub step: u64,
    /// The score of the row before the push.
    pub score: f32,
}

impl StoredRows {
    /// Rows of this table.
    pub fn of(spec: &TableSpec, kernels: Kernels) -> Self {
        let [dim, words, of_values] = [spec.dim, spec.row_words(), spec.dtype.words(spec.dim)]
            .map(|number| usize::try_from(number).expect("DIM_MAX"));
        Self { dtype: spec.dtype, dim, words, of_values, rounding: spec.rounding(), kernels }
    }

    /// Words of a row.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Reads the first numbers of a row: its values, and as much of what is kept beside them as there is room for.
    ///
    /// # Panics
    /// If there is no room for the values.
    pub fn read(&self, row: &[f32], numbers: &mut [f32]) {
        let (values, kept) = numbers.split_at_mut(self.dim);
        let (words, of_rule) = row.split_at(self.of_values);
        self.widen(words, values);
        kept.copy_from_slice(&of_rule[..kept.len()]);
    }

    /// What [`read`](Self::read) would write to `room`: where the row lies, if it has its numbers there, and otherwise in `room`.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn numbers<'a>(&self, row: &'a [f32], room: &'a mut [f32]) -> &'a [f32] {
        if self.is_plain() {
            return &row[..room.len()];
        }
        self.read(row, room);
        room
    }

    /// Has `begin` write all numbers of a row that is new. Values become the nearest that can be kept.
    pub fn begin(&self, row: &mut [f32], begin: impl FnOnce(&mut [f32])) {
        if self.is_plain() {
            return begin(row);
        }
        let mut numbers = vec![0.0; self.dim + self.words - self.of_values];
        begin(&mut numbers);
        self.write(&numbers, row);
    }

    /// Writes a row with all of its numbers. Values become the nearest that can be kept.
    ///
    /// # Panics
    /// If the numbers are not those of a row.
    pub fn write(&self, numbers: &[f32], row: &mut [f32]) {
        let (values, kept) = numbers.split_at(self.dim);
        let (words, of_rule) = row.split_at_mut(self.of_values);
        of_rule.copy_from_slice(kept);
        self.pack(words, values, ToNearest);
    }

    /// Changes a row by a gradient, which says nothing afterwards, and rounds its values by chance if they are not kept as they are computed.
    /// `values` is room for them.
    ///
    /// # Panics
    /// If one of the three is not as long as it should be.
    #[inline]
    pub fn change(
        &self,
        step: &RowStep,
        rounding: Rounding,
        row: &mut [f32],
        values: &mut [f32],
        gradient: &mut [f32],
    ) {
        if self.is_plain() {
            return step.change(row, gradient);
        }
        let (words, kept) = row.split_at_mut(self.of_values);
        self.widen(words, values);
        step.change_parts(values, kept, gradient);
        self.pack(words, values, ByChance(self.draws(rounding)));
    }

    /// Whether the words of a row are its numbers.
    fn is_plain(&self) -> bool {
        self.dtype == RowDType::F32
    }

    fn draws(&self, rounding: Rounding) -> Draws {
        let Rounding { id, step, score } = rounding;
        let of_row = TableSpec::hash_of(self.rounding ^ id);
        Draws::of(TableSpec::hash_of(of_row ^ (step << 32 | u64::from(score.to_bits()))))
    }

    fn pack(&self, words: &mut [f32], values: &[f32], round: impl Round) {
        match self.dtype {
            RowDType::F32 => words.copy_from_slice(values),
            RowDType::BF16 => self.kernels.vectorise(Pack::<Bf16, _>::new(words, values, round)),
            RowDType::F16 => self.kernels.vectorise(Pack::<F16, _>::new(words, values, round)),
        }
    }

    fn widen(&self, words: &[f32], values: &mut [f32]) {
        match self.dtype {
            RowDType::F32 => values.copy_from_slice(words),
            RowDType::BF16 => self.kernels.vectorise(Unpack { words, values, half: PhantomData::<Bf16> }),
            RowDType::F16 => self.kernels.vectorise(Unpack { words, values, half: PhantomData::<F16> }),
        }
    }
}

/// A type of half precision. Its bits are the lower half of a u32.
trait Half {
    /// The largest finite value.
    const LARGEST: f32;

    /// The value, exactly.
    fn widen(bits: u16) -> f32;

    /// The nearest to a value that is no larger than the largest, or is NaN.
    fn nearest(value: f32) -> u32;

    /// One of both neighbours of such a value.
    fn by_chance(value: f32, draw: u32) -> u32;
}

struct Bf16;
struct F16;

impl Half for Bf16 {
    const LARGEST: f32 = RowDType::BF16.largest();

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        bf16_to_f32(bits)
    }

    #[inline(always)]
    fn nearest(value: f32) -> u32 {
        f32_to_bf16(value).into()
    }

    #[inline(always)]
    fn by_chance(value: f32, draw: u32) -> u32 {
        bf16_by_chance(value.to_bits(), draw).into()
    }
}

impl Half for F16 {
    const LARGEST: f32 = RowDType::F16.largest();

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f16_to_f32(bits)
    }

    #[inline(always)]
    fn nearest(value: f32) -> u32 {
        f32_to_f16(value).into()
    }

    #[inline(always)]
    fn by_chance(value: f32, draw: u32) -> u32 {
        f16_by_chance(value, draw)
    }
}

/// How a value becomes one of half precision. `at` is its place in the row.
trait Round {
    fn round<H: Half>(&self, value: f32, at: u32) -> u32;
}

struct ToNearest;
struct ByChance(Draws);

impl Round for ToNearest {
    #[inline(always)]
    fn round<H: Half>(&self, value: f32, _at: u32) -> u32 {
        H::nearest(value)
    }
}

impl Round for ByChance {
    #[inline(always)]
    fn round<H: Half>(&self, value: f32, at: u32) -> u32 {
        H::by_chance(value, self.0.draw(at))
    }
}

/// Reads two values of each word.
struct Unpack<'a, H> {
    words: &'a [f32],
    values: &'a mut [f32],
    half: PhantomData<H>,
}

impl<H: Half> Loops for Unpack<'_, H> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (first, second) = self.values.split_at_mut(self.words.len());
        for (value, word) in first.iter_mut().zip(self.words) {
            *value = H::widen(word.to_bits() as u16);
        }
        for (value, word) in second.iter_mut().zip(self.words) {
            *value = H::widen((word.to_bits() >> 16) as u16);
        }
    }
}

/// Writes two values to each word.
struct Pack<'a, H, R> {
    words: &'a mut [f32],
    values: &'a [f32],
    round: R,
    half: PhantomData<H>,
}

impl<'a, H, R> Pack<'a, H, R> {
    fn new(words: &'a mut [f32], values: &'a [f32], round: R) -> Self {
        Self { words, values, round, half: PhantomData }
    }
}

impl<H: Half, R: Round> Loops for Pack<'_, H, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { words, values, round, .. } = self;
        let (first, second) = values.split_at(words.len());
        let of_first = words.len() as u32;
        for (at, (word, value)) in words.iter_mut().zip(first).enumerate() {
            let value = value.clamp(-H::LARGEST, H::LARGEST);
            *word = f32::from_bits(round.round::<H>(value, at as u32));
        }
        // Of an odd number of values, the upper bits of the last word stay 0.
        for (at, (word, value)) in words.iter_mut().zip(second).enumerate() {
            let value = value.clamp(-H::LARGEST, H::LARGEST);
            *word = f32::from_bits(word.to_bits() | round.round::<H>(value, of_first + at as u32) << 16);
        }
    }
}

/// The bits of the f16 above or below a value in magnitude: the nearer is the likelier. The value is no larger than the largest f16.
#[inline(always)]
fn f16_by_chance(value: f32, draw: u32) -> u32 {
    /// The smallest normal f16, as f32.
    const NORMAL: u32 = 113 << 23;
    /// The difference of the exponents' biases.
    const REBIAS: u32 = 112 << 23;
    const INFINITE: u32 = f32::INFINITY.to_bits();
    let (sign, magnitude) = (value.to_bits() & SIGN, value.to_bits() & !SIGN);
    // The chance to reach the next f16 is what is above the last one.
    let normal = magnitude.wrapping_add(draw >> 19).wrapping_sub(REBIAS) >> 13;
    // The subnormal ones are whole numbers of steps of 2^-24. Everything here is exact. (Through i32, as vector units convert signed integers.)
    let steps = f32::from_bits(magnitude) * 16_777_216.0;
    let whole = steps as i32;
    let above = (steps - whole as f32) * 16_777_216.0;
    let goes_up = ((draw >> 8) as i32 as f32) + 0.5 < above;
    let subnormal = whole as u32 + u32::from(goes_up);
    let rounded = if magnitude < NORMAL {
        subnormal
    } else if magnitude <= INFINITE {
        normal
    } else {
        0x7e00
    };
    sign >> 16 | rounded
}

#[cfg(test)]
mod tests;
