//! Blocks of small numbers with a common scale: a quarter or an eighth of the bytes of f32.
//!
//! A block is its scale and a code for each element: element / scale, rounded to a number of the [`grid`]. The scale is the largest
//! magnitude of the block divided by the largest number of the grid. The last block of a part may be shorter.
//!
//! | codec | code | scale | numbers | an element is off by at most |
//! |---|---|---|---|---|
//! | `int8` | a byte | f32 | whole, -127 to 127 | 1/254 of the largest magnitude of its block |
//! | `int4` | half a byte, the low half first | bf16, rounded up | whole, -7 to 7 | 1/13.8 of it |
//! | `fp8_e4m3` | a byte | f32 | floats with 4 bits of exponent and 3 of fraction, up to 448 | 1/16 of itself, or 2^-18 of the largest |
//! | `fp8_e5m2` | a byte | f32 | floats with 5 bits of exponent and 2 of fraction, up to 57,344 | 1/8 of itself, or 2^-32 of the largest |
//!
//! That is for rounding to the nearest number, of two equally near ones to the even. With `stochastic=1` an element becomes one of its two
//! neighbours, by a chance that makes it right on average; then it may be off by twice as much.
//!
//! # Values
//! | block | body |
//! |---|---|
//! | all zeros | scale 0; in `int8` and `int4` a zero has no sign |
//! | with a NaN or an infinity | scale NaN: all its elements become NaN, so that nobody takes them for numbers |
//! | so small that its scale is a subnormal number | less precise |
//!
//! f64 is rounded to f32 first. Sums are f32.

mod grid;

use std::marker::PhantomData;

use self::grid::{Block, E4m3, E5m2, Grid, Int4, Int8};
use super::cast::folding;
use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{Draws, Largest, Tools, divides, dividing, narrow_doubles, widen_floats};
use crate::reduce::{Kernels, Loops};
use crate::types::{CodecSpec, DType, Encoding, Op};

/// Elements of f32 or f64 that travel as codes of a grid, block by block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    spec: CodecSpec,
    elements: DType,
    /// Elements of a block.
    block: usize,
}

/// The most elements of a block: as floats they fit on the stack and into the nearest cache.
const BLOCK_MAX: usize = 4096;

impl Blocks {
    /// The codec `spec`, which has the elements of a block as its only parameter, of elements of type `elements`.
    ///
    /// # Panics
    /// Unless `elements` is f32 or f64.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert!(matches!(elements, DType::F32 | DType::F64), "{spec} is for f32 and f64, not {elements}");
        let [block] = spec.parameters() else { unreachable!("its row has one parameter") };
        let block = usize::try_from(*block).expect("its row bounds it");
        assert!((1..=BLOCK_MAX).contains(&block), "its row bounds it");
        Self { spec, elements, block }
    }

    /// Bytes of a block of `len` elements.
    fn bytes_of(&self, len: usize) -> usize {
        self.with_grid(Bytes(len))
    }

    /// Runs `job` with the grid of this codec.
    fn with_grid<J: GridJob>(&self, job: J) -> J::Output {
        match self.spec.encoding() {
            Encoding::Int8 => job.run::<Int8>(),
            Encoding::Int4 => job.run::<Int4>(),
            Encoding::Fp8E4M3 => job.run::<E4m3>(),
            Encoding::Fp8E5M2 => job.run::<E5m2>(),
            other => unreachable!("bodies of {other} have no blocks"),
        }
    }

    /// Divides f32 elements as `op` says, and writes their blocks. `first` is the index in the call of the first of them.
    fn quantise_all(&self, tools: &Tools<'_>, op: Op, divisor: f64, first: usize, floats: &[u8], body: &mut [u8]) {
        let mut row = [0; 4 * BLOCK_MAX];
        let draws = self.spec.is_stochastic().then(|| tools.seed.draws());
        let blocks = body.chunks_mut(self.bytes_of(self.block));
        for (at, (floats, block)) in floats.chunks(4 * self.block).zip(blocks).enumerate() {
            let row = if divides(op) {
                let row = &mut row[..floats.len()];
                tools.kernels.finish(op, DType::F32, divisor, floats, row);
                &*row
            } else {
                floats
            };
            // A part has fewer elements than 2^32.
            let first = (first + at * self.block) as u32;
            self.with_grid(Quantise { kernels: tools.kernels, draws, first, row, block });
        }
    }

    /// Calls `act` for each block of a body: with its elements as f32, and with its place in `others`, which has `bytes` for each element.
    fn each_block(
        &self,
        kernels: Kernels,
        body: &[u8],
        others: &mut [u8],
        bytes: usize,
        mut act: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<(), Malformed> {
        let mut row = [0; 4 * BLOCK_MAX];
        let blocks = body.chunks(self.bytes_of(self.block));
        assert_eq!(blocks.len(), others.len().div_ceil(self.block * bytes), "as many blocks");
        for (block, others) in blocks.zip(others.chunks_mut(self.block * bytes)) {
            let row = &mut row[..others.len() / bytes * 4];
            self.with_grid(Dequantise { kernels, block, row: &mut *row })?;
            act(row, others);
        }
        Ok(())
    }
}

impl Codec for Blocks {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        let block = self.block as u64;
        // Less than a block has fewer elements than 2^32.
        let last = (len % block) as usize;
        let last = if last == 0 { 0 } else { self.bytes_of(last) };
        BodyBytes::Exact(len / block * self.bytes_of(self.block) as u64 + last as u64)
    }

    fn unit(&self, len: u64) -> Unit {
        let len = len.min(self.block as u64);
        Unit { len, bytes: self.bytes_of(len as usize) as u64 }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let op = dividing(divisor);
        if self.elements == DType::F32 {
            self.quantise_all(&tools, op, divisor, 0, elements, body);
            return Ok(body.len());
        }
        let mut floats = [[0; 4]; BLOCK_MAX];
        // As many whole blocks as fit.
        let run = BLOCK_MAX / self.block * self.block;
        let bodies = body.chunks_mut(run / self.block * self.bytes_of(self.block));
        for (at, (doubles, body)) in elements.as_chunks::<8>().0.chunks(run).zip(bodies).enumerate() {
            let floats = &mut floats[..doubles.len()];
            narrow_doubles(doubles, floats);
            self.quantise_all(&tools, op, divisor, at * run, floats.as_flattened(), body);
        }
        Ok(body.len())
    }

    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed> {
        let mut left = usize::try_from(len).expect("within a part");
        body.chunks(self.bytes_of(self.block)).try_for_each(|block| {
            let len = left.min(self.block);
            left -= len;
            self.with_grid(Check { block, len })
        })
    }

    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        if self.elements == DType::F64 {
            return self.each_block(kernels, body, elements, 8, |row, elements| {
                widen_floats(row.as_chunks().0, elements.as_chunks_mut().0);
            });
        }
        let blocks = body.chunks(self.bytes_of(self.block));
        assert_eq!(blocks.len(), elements.len().div_ceil(self.block * 4), "as many blocks");
        let rows = elements.chunks_mut(self.block * 4);
        blocks.zip(rows).try_for_each(|(block, row)| self.with_grid(Dequantise { kernels, block, row }))
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        self.each_block(kernels, body, sum, 4, |row, sum| kernels.start(op, DType::F32, weight, row, sum))
    }

    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        self.each_block(kernels, body, sum, 4, |row, sum| kernels.add(op, DType::F32, weight, row, sum))
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        self.quantise_all(&tools, op, divisor, 0, sum, body);
        Ok(body.len())
    }
}

/// What is done with a block of any grid.
trait GridJob {
    type Output;

    fn run<G: Grid>(self) -> Self::Output;
}

/// Bytes of a block of so many elements.
struct Bytes(usize);

impl GridJob for Bytes {
    type Output = usize;

    fn run<G: Grid>(self) -> usize {
        G::bytes(self.0)
    }
}

/// Writes a block of the elements in `row`, which are f32.
struct Quantise<'a> {
    kernels: Kernels,
    /// Rounds by chance if there are draws.
    draws: Option<Draws>,
    /// The index of the first element among those that are drawn for.
    first: u32,
    row: &'a [u8],
    block: &'a mut [u8],
}

impl GridJob for Quantise<'_> {
    type Output = ();

    fn run<G: Grid>(self) {
        let Self { kernels, draws, first, row, block } = self;
        let floats = row.as_chunks().0;
        let largest = kernels.vectorise(Largest(floats));
        let scale = if largest < f32::INFINITY.to_bits() { G::scale(f32::from_bits(largest)) } else { f32::NAN };
        let codes = Block::<G>::begin(block, floats.len(), scale);
        if scale > 0.0 {
            kernels.vectorise(Codes::<G> { draws, first, floats, scale, codes, grid: PhantomData });
        } else {
            codes.fill(0);
        }
    }
}

/// Rounds f32 to codes.
struct Codes<'a, G> {
    draws: Option<Draws>,
    first: u32,
    floats: &'a [[u8; 4]],
    scale: f32,
    codes: &'a mut [u8],
    grid: PhantomData<G>,
}

impl<G: Grid> Loops for Codes<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { draws, first, floats, scale, codes, grid: _ } = self;
        let scaled = |float: &[u8; 4]| (f32::from_le_bytes(*float) / scale).clamp(-G::LARGEST, G::LARGEST);
        match draws {
            None => G::write(codes, floats, |_, float| G::nearest(scaled(float))),
            Some(draws) => G::write(codes, floats, |at, float| {
                G::by_chance(scaled(float), draws.draw(first.wrapping_add(at as u32)))
            }),
        }
    }
}

/// Reads the elements of a block into `row`, as f32.
struct Dequantise<'a> {
    kernels: Kernels,
    block: &'a [u8],
    row: &'a mut [u8],
}

impl GridJob for Dequantise<'_> {
    type Output = Result<(), Malformed>;

    fn run<G: Grid>(self) -> Self::Output {
        let floats = self.row.as_chunks_mut().0;
        let block = Block::<G>::read(self.block, floats.len())?;
        if self.kernels.vectorise(Values { block, floats }) { Ok(()) } else { Err(no_number()) }
    }
}

/// Turns codes into f32. Says whether they are such as an encoder makes.
struct Values<'a, G> {
    block: Block<'a, G>,
    floats: &'a mut [[u8; 4]],
}

impl<G: Grid> Loops for Values<'_, G> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { block, floats } = self;
        let are_codes = G::are_codes(block.codes, floats.len());
        G::read(block.codes, floats, |code| (G::number(code) * block.scale).to_le_bytes());
        are_codes
    }
}

/// Whether an encoder makes such a block of `len` elements.
struct Check<'a> {
    block: &'a [u8],
    len: usize,
}

impl GridJob for Check<'_> {
    type Output = Result<(), Malformed>;

    fn run<G: Grid>(self) -> Self::Output {
        let block = Block::<G>::read(self.block, self.len)?;
        if G::are_codes(block.codes, self.len) { Ok(()) } else { Err(no_number()) }
    }
}

fn no_number() -> Malformed {
    Malformed { problem: "has a block with a code that stands for no number".to_owned() }
}

#[cfg(test)]
mod tests;
