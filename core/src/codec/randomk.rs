//! Elements of a part at places that are drawn: a few bytes for each element that is sent, and none for its place.
//!
//! A part is cut into as many runs as elements are sent, which differ in length by at most one. Of each run one element is sent, at a place
//! that is drawn from the part and the round. So all workers of a round send the elements at the same places, and their sum is exact
//! there. The others count as zero.
//!
//! ```text
//!  ┌──────┬────────┐
//!  │ seed │ values │
//!  └──────┴────────┘
//! ```
//! The places follow from the seed, of 64 bits. Values are f32 in little-endian order.
//!
//! # Values
//! Without error feedback an element is sent times the length of its run, so that the sum is right on average over the rounds. With error
//! feedback it is sent as it is, and what is not sent comes later. If any element of a part is a NaN or an infinity, all values are NaN:
//! else it would depend on the places whether anybody notices.

use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{Draws, F32_BYTES, Tools, dividing, scatter, scatter_add, share_of};
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op};

/// Some elements of parts of f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RandomK {
    spec: CodecSpec,
    /// How many of a million elements are sent.
    millionths: u64,
}

const SEED_BYTES: usize = 8;

impl RandomK {
    /// The codec `spec`, which has the millionths of the elements as its only parameter.
    ///
    /// # Panics
    /// Unless `elements` is f32.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert_eq!(elements, DType::F32, "randomk is for float32");
        let [millionths] = spec.parameters() else { unreachable!("its row has one parameter") };
        Self { spec, millionths: u64::from(*millionths) }
    }

    /// How many elements of a part of `len` are sent.
    pub(crate) fn count(self, len: u64) -> u64 {
        share_of(len, self.millionths)
    }

    /// The runs of a part of `len` elements with these draws.
    fn places(self, len: usize, draws: Draws) -> impl Iterator<Item = Place> {
        let (len, count) = (len as u64, self.count(len as u64));
        (0..count).map(move |run| {
            let [first, end] = [run, run + 1].map(|run| run * len / count);
            let drawn = (u64::from(draws.draw(run as u32)) * (end - first)) >> 32;
            Place { at: (first + drawn) as usize, run_len: (end - first) as f32 }
        })
    }

    /// The places of a body and its values.
    fn entries(self, body: &[u8], len: usize) -> impl Iterator<Item = (usize, f32)> {
        let (seed, values) = body.split_first_chunk::<SEED_BYTES>().unwrap_or((&[0; SEED_BYTES], &[]));
        let places = self.places(len, Draws::of(u64::from_le_bytes(*seed)));
        places.zip(values.as_chunks().0).map(|(place, value)| (place.at, f32::from_le_bytes(*value)))
    }
}

/// Which element of a run is sent.
struct Place {
    at: usize,
    run_len: f32,
}

impl Codec for RandomK {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::Exact(SEED_BYTES as u64 + self.count(len) * DType::F32.bytes())
    }

    fn unit(&self, len: u64) -> Unit {
        Unit { len, bytes: self.body_bytes(len).max() }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let is_scaled = !self.spec.has_feedback();
        self.write(tools, dividing(divisor), divisor, is_scaled, elements, body)
    }

    fn check(&self, _body: &[u8], _len: u64) -> Result<(), Malformed> {
        // Any seed has places, and any bits are a number, an infinity or a NaN.
        Ok(())
    }

    fn decode(&self, _kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        scatter(self.entries(body, elements.len() / F32_BYTES), elements);
        Ok(())
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        sum.fill(0);
        self.add(kernels, op, weight, body, sum)
    }

    fn add(&self, _kernels: Kernels, _op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        scatter_add(self.entries(body, sum.len() / F32_BYTES), weight, sum);
        Ok(())
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        self.write(tools, op, divisor, false, sum, body)
    }
}

impl RandomK {
    /// Writes the values at the places of this part and round, divided as `op` says.
    fn write(
        &self,
        tools: Tools<'_>,
        op: Op,
        divisor: f64,
        is_scaled: bool,
        elements: &[u8],
        body: &mut [u8],
    ) -> Result<usize, Refusal> {
        let (floats, _) = elements.as_chunks::<F32_BYTES>();
        let is_finite = floats.iter().fold(true, |all, float| all & f32::from_le_bytes(*float).is_finite());
        let seed = tools.seed.draw(0);
        let (head, values) = body.split_first_chunk_mut::<SEED_BYTES>().expect("a body begins with its seed");
        *head = seed.to_le_bytes();
        for (value, place) in values.as_chunks_mut().0.iter_mut().zip(self.places(floats.len(), Draws::of(seed))) {
            let element = f32::from_le_bytes(floats[place.at]);
            let sent = if is_scaled { element * place.run_len } else { element };
            *value = if is_finite { sent } else { f32::NAN }.to_le_bytes();
        }
        tools.kernels.finish_in_place(op, DType::F32, divisor, values);
        Ok(body.len())
    }
}

#[cfg(test)]
mod tests;
