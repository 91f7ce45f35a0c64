//! Error feedback: what one body of a part loses is added to the part before its next body is made.
//!
//! ```text
//!  p = elements + residual        body = encode(p)        residual = p - decode(body)
//! ```
//! So over any number of rounds, what the bodies brought differs from what was given by one residual alone, which does not grow. Without
//! feedback the losses of all rounds add up.
//!
//! This works around any codec of f32 elements, and changes no body's form. It is the arithmetic only. A [`Residual`] belongs to one part on
//! one worker, or to the answers of one part on a server. The machines of both decide when it begins and ends.
//!
//! An element whose loss is not finite leaves no residual: NaN and infinities reach the sum of their round, and no later one.

use super::interface::{Codec, Refusal};
use super::tools::Tools;
use crate::types::DType;

/// What the bodies of a part have lost so far: an f32 for each element.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Residual {
    /// Little-endian, as elements are.
    bytes: Vec<u8>,
}

/// How a body uses the residual of its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It begins at zero, whatever was there.
    Zero,
    /// It goes on with what the body before it lost.
    Kept,
}

impl Residual {
    /// Prepares it for the next body of a part of `len` elements. It begins at zero if it has another length.
    pub fn start(&mut self, start: Start, len: usize) {
        let bytes = len * F32_BYTES;
        if self.bytes.len() != bytes {
            self.bytes = vec![0; bytes];
        } else if start == Start::Zero {
            self.bytes.fill(0);
        }
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Encodes elements and their residual, and keeps what the body loses of them. `first` is the place of the first element in the part;
    /// a caller that cuts a part cuts it into whole [units](Codec::unit), and gives the [`Seed`](super::Seed) of `first`. The elements are
    /// divided by `divisor` on their way, as in [`Codec::encode`]. Returns how many bytes of `body` it used.
    ///
    /// # Errors
    /// A [`Refusal`] of the codec. Then `body` begins with what is to be sent plain: the elements alone if they are not finite, and the residual
    /// stays as it was; else the elements with the residual, of which nothing is left.
    ///
    /// # Panics
    /// If the elements are not whole f32, do not lie within the part, or if the codec is of another type.
    pub fn encode(
        &mut self,
        codec: &dyn Codec,
        tools: Tools<'_>,
        divisor: f64,
        first: usize,
        elements: &[u8],
        body: &mut [u8],
    ) -> Result<usize, Refusal> {
        let Tools { kernels, seed, workspace } = tools;
        let residual = &mut self.bytes[first * F32_BYTES..][..elements.len()];
        let unit = codec.unit((elements.len() / F32_BYTES) as u64).len;
        let run = usize::try_from((RUN_LEN / unit.max(1)).max(1) * unit.max(1)).expect("within a part") * F32_BYTES;
        // Out of the workspace, because the codec uses the rest of it.
        let [mut wanted, mut decoded] = std::mem::take(&mut workspace.feedback);
        for buffer in [&mut wanted, &mut decoded] {
            buffer.resize(run.min(elements.len()).max(buffer.len()), 0);
        }
        let firsts = (first as u64..).step_by(run / F32_BYTES);
        let mut runs = firsts.zip(elements.chunks(run).zip(residual.chunks_mut(run)));
        let used = runs.try_fold(0, |used, (first, (elements, residual))| {
            let (wanted, decoded) = (&mut wanted[..elements.len()], &mut decoded[..elements.len()]);
            add(residual, elements, wanted);
            let room = codec.body_bytes((elements.len() / F32_BYTES) as u64).max();
            let body = &mut body[used..][..usize::try_from(room).expect("a few times a part")];
            let tools = Tools { kernels, seed: seed.from_element(first), workspace: &mut *workspace };
            let bytes = codec.encode(tools, divisor, wanted, body).inspect_err(|refusal| {
                // Only a codec whose unit is the whole part refuses.
                let plain = match refusal {
                    Refusal::NotFinite => elements,
                    Refusal::NotShorter => {
                        residual.fill(0);
                        &*wanted
                    }
                };
                body[..plain.len()].copy_from_slice(plain);
            })?;
            codec.decode(kernels, &body[..bytes], decoded).expect("a codec decodes what it encoded");
            keep_lost(residual, wanted, decoded, divisor as f32);
            Ok(used + bytes)
        });
        workspace.feedback = [wanted, decoded];
        used
    }
}

/// The type of a residual, and of the elements that have one.
const F32_BYTES: usize = DType::F32.bytes() as usize;

/// Elements that are encoded and decoded at once, if the codec's units are not larger: with their residual and their decoded form they fit
/// into the nearest caches.
const RUN_LEN: u64 = 4096;

/// Adds elements to what is left of those before.
fn add(residual: &[u8], elements: &[u8], sum: &mut [u8]) {
    let terms = residual.as_chunks().0.iter().zip(elements.as_chunks().0);
    for (sum, (residual, element)) in sum.as_chunks_mut().0.iter_mut().zip(terms) {
        *sum = (f32::from_le_bytes(*residual) + f32::from_le_bytes(*element)).to_le_bytes();
    }
}

/// Keeps what is lost of these elements: what a body brings, its decoded elements times the divisor with which it was encoded, is not.
fn keep_lost(residual: &mut [u8], elements: &[u8], decoded: &[u8], divisor: f32) {
    let terms = elements.as_chunks().0.iter().zip(decoded.as_chunks().0);
    for (residual, (element, decoded)) in residual.as_chunks_mut().0.iter_mut().zip(terms) {
        let lost = f32::from_le_bytes(*element) - f32::from_le_bytes(*decoded) * divisor;
        *residual = if lost.is_finite() { lost } else { 0.0 }.to_le_bytes();
    }
}

#[cfg(test)]
mod tests;
