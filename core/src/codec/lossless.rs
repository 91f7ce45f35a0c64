//! All bits of the elements in fewer bytes: for parts with many zeros, and for the exponents of floats.
//!
//! A part is cut into runs of 32,768 elements, the last of which may be shorter. The bytes of a run are put in planes: the first bytes of
//! all of its elements, their second bytes, and so on. So bytes that are alike stand together. A float is turned before by one bit to the
//! left, so that its sign is behind the fraction and the last plane has nothing but bits of exponents (f16: and three of fractions).
//!
//! ```text
//!  of each run:  ┌───────────────────────────┬─────────────┬──────────────┬───
//!                │ lengths, one of each plane │ first plane │ second plane │ …
//!                └───────────────────────────┴─────────────┴──────────────┴───
//! ```
//! A length has 16 bits, in little-endian order. A plane that has as many bytes as the run has elements is there as it is. A shorter one is a
//! DEFLATE stream (RFC 1951) of its own, which ends with its last byte. A plane whose bytes look random is not tried.
//!
//! Nothing changes: NaNs keep their payload, and zeros their sign. The sum is that of plain elements, in the same type, bit for bit.
//!
//! A part is one unit. It travels plain unless a twentieth of its bytes is saved: then the time would be lost.
//!
//! A decoder takes memory for one run, whatever a body says.

use super::cast::folding;
use super::deflate::{Deflater, Inflater};
use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{Tools, divides, dividing};
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op};

mod planes;

use planes::{Merge, Split};

/// Elements of any type, in fewer bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lossless {
    elements: DType,
}

/// The most elements of a run: as many bytes as a stream can look back.
const RUN: usize = 1 << 15;
/// Bytes of the length of a plane.
const LENGTH_BYTES: usize = 2;
/// What must be saved of the bytes of a part, as the divisor of them.
const GAIN: usize = 20;

impl Lossless {
    /// The codec of elements of type `elements`.
    pub fn new(elements: DType) -> Self {
        Self { elements }
    }

    /// Bytes of an element, which is how many planes there are.
    fn width(self) -> usize {
        usize::try_from(self.elements.bytes()).expect("a few")
    }

    /// Writes elements.
    fn write(
        self,
        kernels: Kernels,
        deflater: &mut Deflater,
        planes: &mut Vec<u8>,
        elements: &[u8],
        body: &mut [u8],
    ) -> Result<usize, Refusal> {
        let most = elements.len() - elements.len().div_ceil(GAIN);
        let room = most.min(body.len());
        let body = &mut body[..room];
        let mut used = 0;
        planes.resize(elements.len().min(RUN * self.width()), 0);
        for elements in elements.chunks(RUN * self.width()) {
            let len = elements.len() / self.width();
            let planes = &mut planes[..elements.len()];
            kernels.vectorise(Split { dtype: self.elements, elements, planes: &mut *planes });
            let lengths = used;
            used += LENGTH_BYTES * self.width();
            for (at, plane) in planes.chunks_exact(len).enumerate() {
                let free = body.get_mut(used..).ok_or(Refusal::NotShorter)?;
                let shorter = free.len().min(len - 1);
                let streamed = repeats(plane).then(|| deflater.deflate(plane, &mut free[..shorter])).flatten();
                let bytes = match streamed {
                    Some(bytes) => bytes,
                    None => {
                        free.get_mut(..len).ok_or(Refusal::NotShorter)?.copy_from_slice(plane);
                        len
                    }
                };
                used += bytes;
                let length = u16::try_from(bytes).expect("at most a run");
                body[lengths + at * LENGTH_BYTES..][..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            }
        }
        // Of no elements nothing is saved.
        if used > 0 { Ok(used) } else { Err(Refusal::NotShorter) }
    }

    /// Calls `act` with the planes of each run of a body of `len` elements, and the index of its first element.
    ///
    /// # Errors
    /// [`Malformed`] as soon as something is found that no encoder writes.
    fn each_run(self, body: &[u8], len: usize, mut act: impl FnMut(usize, &[u8])) -> Result<(), Malformed> {
        let mut rest = body;
        let mut inflater = Inflater::default();
        let mut planes = vec![0; len.min(RUN) * self.width()];
        for first in (0..len).step_by(RUN) {
            let len = RUN.min(len - first);
            let planes = &mut planes[..len * self.width()];
            let lengths = take(&mut rest, LENGTH_BYTES * self.width())?;
            for (plane, length) in planes.chunks_exact_mut(len).zip(lengths.as_chunks().0) {
                let bytes = usize::from(u16::from_le_bytes(*length));
                let there = take(&mut rest, bytes)?;
                if bytes == len {
                    plane.copy_from_slice(there);
                } else if bytes > len || !inflater.inflate(there, plane) {
                    return Err(malformed(format!("has a plane of {bytes} bytes, which do not bring {len}")));
                }
            }
            act(first, planes);
        }
        if rest.is_empty() { Ok(()) } else { Err(malformed(format!("has {} bytes behind its last run", rest.len()))) }
    }

    /// Calls `act` with the elements of each run of a body, and their place in a sum.
    fn each_row(
        self,
        kernels: Kernels,
        body: &[u8],
        sum: &mut [u8],
        mut act: impl FnMut(&[u8], &mut [u8]),
    ) -> Result<(), Malformed> {
        let grown = usize::try_from(self.elements.accumulator().bytes()).expect("a few");
        let len = sum.len() / grown;
        let mut row = vec![0; len.min(RUN) * self.width()];
        self.each_run(body, len, |first, planes| {
            let row = &mut row[..planes.len()];
            kernels.vectorise(Merge { dtype: self.elements, planes, elements: &mut *row });
            act(row, &mut sum[first * grown..][..row.len() / self.width() * grown]);
        })
    }
}

impl Codec for Lossless {
    fn spec(&self) -> CodecSpec {
        CodecSpec::LOSSLESS
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::AtMost(len * self.elements.bytes())
    }

    fn unit(&self, len: u64) -> Unit {
        Unit { len, bytes: len * self.elements.bytes() }
    }

    fn sum_type(&self) -> DType {
        self.elements.accumulator()
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        assert_eq!(dividing(divisor), Op::Sum, "its divisor is 1");
        let Tools { kernels, workspace, .. } = tools;
        let deflater = workspace.deflater.get_or_insert_default();
        self.write(kernels, deflater, &mut workspace.planes, elements, body)
    }

    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed> {
        self.each_run(body, usize::try_from(len).expect("within a part"), |_, _| {})
    }

    fn decode(&self, kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        let width = self.width();
        self.each_run(body, elements.len() / width, |first, planes| {
            let elements = &mut elements[first * width..][..planes.len()];
            kernels.vectorise(Merge { dtype: self.elements, planes, elements });
        })
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        self.each_row(kernels, body, sum, |row, sum| kernels.start(op, self.elements, weight, row, sum))
    }

    fn add(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let op = folding(op, weight);
        self.each_row(kernels, body, sum, |row, sum| kernels.add(op, self.elements, weight, row, sum))
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let Tools { kernels, workspace, .. } = tools;
        let deflater = workspace.deflater.get_or_insert_default();
        if self.sum_type() == self.elements && !divides(op) {
            return self.write(kernels, deflater, &mut workspace.planes, sum, body);
        }
        let grown = usize::try_from(self.sum_type().bytes()).expect("a few");
        workspace.bytes.resize(sum.len() / grown * self.width(), 0);
        kernels.finish(op, self.elements, divisor, sum, &mut workspace.bytes);
        self.write(kernels, deflater, &mut workspace.planes, &workspace.bytes, body)
    }
}

/// Whether some bytes of a plane are so frequent that a stream of it may be shorter.
///
/// Some of its bytes are counted. The sum of the squares of the counts says how often two bytes are equal: of random bytes one pair in 256.
/// Here it must be twice as many.
fn repeats(plane: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    let step = (plane.len() / SAMPLE).max(1);
    plane.iter().step_by(step).for_each(|byte| counts[usize::from(*byte)] += 1);
    let sampled = plane.len().div_ceil(step) as u64;
    let squares: u64 = counts.iter().map(|count| u64::from(*count).pow(2)).sum();
    squares > 2 * (sampled + sampled * sampled / 256)
}

/// Bytes of a plane that are counted, and fewer than twice as many.
const SAMPLE: usize = 2048;

/// Takes the first `bytes` bytes of `rest`.
fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], Malformed> {
    let Some((taken, behind)) = rest.split_at_checked(bytes) else {
        return Err(malformed(format!("ends where {bytes} bytes are due and {} are left", rest.len())));
    };
    *rest = behind;
    Ok(taken)
}

fn malformed(problem: String) -> Malformed {
    Malformed { problem }
}

#[cfg(test)]
mod tests;
