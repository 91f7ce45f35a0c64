//! Levels of a part's scale, drawn by chance and written in as few bits as they need: an element is right on average.
//!
//! An element becomes `level / levels` of the scale, with its sign. Its level is one of the two beside `|element| / scale * levels`, the
//! nearer of which is the likelier.
//!
//! | parameter | | |
//! |---|---|---|
//! | `natural` | 0: the levels are 0, 1, 2, … `s`; `levels` is `s` | 1: they are 0, 1, 2, 4, … 2^(`s`-1); `levels` is the largest |
//! | `norm` | 0: the scale is the largest magnitude of the part | 1: it is the root of the sum of the squares of the part |
//!
//! With `norm=1` nearly all levels of a long part are 0 or 1 (QSGD: Alistarh and others, "Communication-Efficient SGD via Gradient
//! Quantization and Encoding"). Powers of two fit elements of very different size (Horváth and others, "Natural Compression").
//!
//! ```text
//!  ┌───────┬────────────────┬───────┐
//!  │ words │ number of bits │ scale │
//!  └───────┴────────────────┴───────┘
//! ```
//! Each element whose level is not 0 has three codes: its distance from the element before it that has them (the first: from the place
//! before the part), a bit that is 1 if it is below zero, and its level. Distance and level are written in Elias' delta code: of a number of
//! n bits, ⌊log2 n⌋ zeros, then n, then the number without its highest bit. Words have 32 bits, the first one in the highest place. Places behind
//! the last bit are 0. All words and the scale (f32) are in little-endian order. This is the form of BytePS.
//!
//! Squares are added in f64 and in one order, so that vectors of any length and the warps of a device find the same root: by blocks and lanes,
//! as [`OneBit`](super::OneBit) adds magnitudes.
//!
//! A part is one unit. It travels plain if it has a NaN or an infinity, if its scale is no f32, or if its wire form would not be shorter.

use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{
    BLOCK, Draws, F32_BYTES, LANES, Largest, SIGN, Tools, add_at, by_halves, divided, dividing, offset, whole,
};
use crate::reduce::{Kernels, Loops};
use crate::types::{CodecSpec, DType, Op, Round};

mod bits;

use bits::{Reader, Writer};

/// Levels of elements of parts of f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dithering {
    spec: CodecSpec,
    /// The largest level.
    levels: u32,
    /// Whether all levels but 0 are powers of two.
    natural: bool,
    norm: Norm,
}

/// What the scale of a part is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Norm {
    /// The largest magnitude.
    Largest,
    /// The root of the sum of the squares.
    Euclid,
}

/// Elements whose levels are drawn at a time.
const RUN: usize = 1024;

impl Dithering {
    /// The codec `spec`, whose parameters are the number that gives the levels, whether these are natural, and the norm.
    ///
    /// # Panics
    /// Unless `elements` is f32.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert_eq!(elements, DType::F32, "dithering is for float32");
        let [s, natural, norm] = *spec.parameters() else { unreachable!("its row has three parameters") };
        let natural = natural == 1;
        let levels = if natural { 1 << (s - 1) } else { s };
        Self { spec, levels, natural, norm: if norm == 1 { Norm::Euclid } else { Norm::Largest } }
    }

    /// The largest level.
    #[cfg(feature = "cuda")]
    pub(crate) fn levels(self) -> u32 {
        self.levels
    }

    /// Whether all levels but 0 are powers of two.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_natural(self) -> bool {
        self.natural
    }

    /// Whether the scale is the root of the sum of the squares.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_euclid(self) -> bool {
        self.norm == Norm::Euclid
    }

    /// The scale of these elements.
    ///
    /// # Errors
    /// [`Refusal::NotFinite`] if it is no number.
    fn scale(self, kernels: Kernels, floats: &[[u8; F32_BYTES]]) -> Result<f32, Refusal> {
        let scale = match self.norm {
            Norm::Largest => f32::from_bits(kernels.vectorise(Largest(floats))),
            Norm::Euclid => kernels.vectorise(Squares(floats)).sqrt() as f32,
        };
        if scale.is_finite() { Ok(scale) } else { Err(Refusal::NotFinite) }
    }

    /// Writes f32 that are divided as `op` says.
    fn write(
        &self,
        tools: Tools<'_>,
        op: Op,
        divisor: f64,
        elements: &[u8],
        body: &mut [u8],
    ) -> Result<usize, Refusal> {
        let Tools { kernels, seed, workspace } = tools;
        let (floats, _) = divided(kernels, op, divisor, elements, &mut workspace.bytes).as_chunks();
        let scale = self.scale(kernels, floats)?;
        let mut writer = Writer::new(body, floats.len() * F32_BYTES);
        // The levels of zeros are 0.
        let floats = if scale > 0.0 { floats } else { &[] };
        let (draws, mut row, mut distance) = (seed.draws(), [0; RUN], 0);
        for (run, floats) in floats.chunks(RUN).enumerate() {
            let row = &mut row[..floats.len()];
            // A part has fewer elements than 2^32.
            let first = (run * RUN) as u32;
            self.draw(kernels, Levels { draws, first, floats, scale, levels: self.levels as f32, row });
            for word in row {
                distance += 1;
                if *word & !SIGN > 0 {
                    writer.element(std::mem::take(&mut distance), *word & SIGN > 0, *word & !SIGN)?;
                }
            }
        }
        writer.finish(scale)
    }

    fn draw(self, kernels: Kernels, levels: Levels<'_>) {
        if self.natural { kernels.vectorise(Natural(levels)) } else { kernels.vectorise(Linear(levels)) }
    }

    /// Calls `act` with each element of a body of `len` elements that is not 0, and its place.
    ///
    /// # Errors
    /// [`Malformed`] as soon as something is found that no encoder writes.
    fn each(self, body: &[u8], len: usize, mut act: impl FnMut(usize, f32)) -> Result<(), Malformed> {
        let (mut reader, scale) = Reader::new(body)?;
        if !(scale.is_sign_positive() && scale.is_finite()) {
            return Err(Malformed { problem: format!("has the scale {scale}") });
        }
        let mut next = 0;
        while !reader.is_at_end() {
            let (distance, is_negative, level) = reader.element()?;
            next += u64::from(distance);
            if next > len as u64 {
                return Err(Malformed { problem: format!("has a level for the element {} of {len}", next - 1) });
            }
            if level > self.levels || self.natural && !level.is_power_of_two() {
                return Err(Malformed { problem: format!("has the level {level}") });
            }
            // First the quotient, which is 1 at most, so that no product is beyond f32.
            let magnitude = level as f32 / self.levels as f32 * scale;
            act((next - 1) as usize, if is_negative { -magnitude } else { magnitude });
        }
        if next > 0 && scale == 0.0 {
            return Err(Malformed { problem: "has levels of the scale 0".to_owned() });
        }
        Ok(())
    }
}

impl Codec for Dithering {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::AtMost(len * DType::F32.bytes())
    }

    fn encoded_bytes_max(&self, len: u64, _round: Round) -> u64 {
        bits::bytes_max(len, self.levels).min(self.body_bytes(len).max())
    }

    fn unit(&self, len: u64) -> Unit {
        Unit { len, bytes: len * DType::F32.bytes() }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        self.write(tools, dividing(divisor), divisor, elements, body)
    }

    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed> {
        self.each(body, usize::try_from(len).expect("within a part"), |_, _| {})
    }

    fn decode(&self, _kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        elements.fill(0);
        let (floats, _) = elements.as_chunks_mut::<F32_BYTES>();
        self.each(body, floats.len(), |at, value| floats[at] = value.to_le_bytes())
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        sum.fill(0);
        self.add(kernels, op, weight, body, sum)
    }

    fn add(&self, _kernels: Kernels, _op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let (floats, _) = sum.as_chunks_mut::<F32_BYTES>();
        self.each(body, floats.len(), |at, value| add_at(&mut floats[at], weight, value))
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        self.write(tools, op, divisor, sum, body)
    }
}

/// The sum of the squares of f32.
struct Squares<'a>(&'a [[u8; F32_BYTES]]);

impl Loops for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        // Several sums, so that the order of the additions is the same whatever vectors there are, and on devices.
        let square = |float: &[u8; F32_BYTES]| {
            let value = f64::from(f32::from_le_bytes(*float));
            value * value
        };
        let mut totals = [0.0; LANES];
        for (block, floats) in self.0.chunks(BLOCK).enumerate() {
            let mut sums = [0.0; LANES];
            let (rows, rest) = floats.as_chunks::<LANES>();
            for row in rows {
                sums.iter_mut().zip(row).for_each(|(sum, float)| *sum += square(float));
            }
            sums.iter_mut().zip(rest).for_each(|(sum, float)| *sum += square(float));
            totals[block % LANES] += by_halves(sums);
        }
        by_halves(totals)
    }
}

/// What draws the levels of f32: into `row`, with the sign of the element as the highest bit.
struct Levels<'a> {
    draws: Draws,
    /// The index of the first element among those that are drawn for.
    first: u32,
    floats: &'a [[u8; F32_BYTES]],
    scale: f32,
    levels: f32,
    row: &'a mut [u32],
}

impl Levels<'_> {
    #[inline(always)]
    fn each(self, level: impl Fn(f32, u32) -> u32) {
        let Self { draws, first, floats, scale, levels, row } = self;
        for (at, (place, float)) in row.iter_mut().zip(floats).enumerate() {
            let float = f32::from_le_bytes(*float);
            // The quotient is 1 at most, also where the inverse of the scale would be infinite.
            let steps = float.abs() / scale * levels;
            *place = level(steps, draws.draw(first.wrapping_add(at as u32))) | float.to_bits() & SIGN;
        }
    }
}

/// Levels that are whole numbers.
struct Linear<'a>(Levels<'a>);

impl Loops for Linear<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.each(beside);
    }
}

/// Levels that are powers of two, and 0.
struct Natural<'a>(Levels<'a>);

impl Loops for Natural<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.each(|steps, draw| {
            // The chance to reach the next power of two is what is above the last one.
            let power = (steps.to_bits() + (draw & 0x7f_ffff)) & !0x7f_ffff;
            if steps < 1.0 { beside(steps, draw) } else { whole(f32::from_bits(power)).cast_unsigned() }
        });
    }
}

/// One of the two whole numbers beside `steps`, by chance.
#[inline(always)]
fn beside(steps: f32, draw: u32) -> u32 {
    whole(steps + offset(draw)).cast_unsigned()
}

#[cfg(test)]
mod tests;
