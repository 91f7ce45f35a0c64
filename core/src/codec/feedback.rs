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
//! # Momentum
//! A [`Momentum`] acts on the elements before: the [velocity](Momentum) of each element is kept beside its residual. With the correction of
//! deep gradient compression it is forgotten where the body brings the element. Only workers have one.
//!
//! An element whose loss is not finite leaves no residual: NaN and infinities reach the sum of their round, and no later one.

use std::ops::Range;

use super::interface::{Codec, Refusal};
use super::tools::{F32_BYTES, Tools};
use crate::types::Momentum;

/// What the bodies of a part have lost so far: an f32 for each element.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Residual {
    /// Little-endian, as elements are.
    bytes: Vec<u8>,
    momentum: Option<Momentum>,
    /// The average of the elements over the rounds, as long as `bytes`; empty without momentum.
    velocity: Vec<u8>,
    /// Both before the latest body, if it may be taken back.
    before: Option<[Vec<u8>; 2]>,
}

/// How a body uses the residual of its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It begins at zero, whatever was there.
    Zero,
    /// It goes on with what the body before it lost.
    Kept,
    /// The body before it is taken back: it goes on with what was lost before that one. If that was not [held](Residual::hold), it is as
    /// [`Kept`](Self::Kept).
    Before,
}

impl Residual {
    /// Prepares it for the next body of a part of `len` elements, with this momentum. It begins at zero if it has another length.
    pub fn start(&mut self, start: Start, len: usize, momentum: Option<Momentum>) {
        self.momentum = momentum;
        let bytes = len * F32_BYTES;
        if start == Start::Before {
            self.take_back(0..self.bytes.len());
        }
        let due = [bytes, if momentum.is_some() { bytes } else { 0 }];
        for (state, bytes) in [&mut self.bytes, &mut self.velocity].into_iter().zip(due) {
            if state.len() != bytes {
                *state = vec![0; bytes];
            } else if start == Start::Zero {
                state.fill(0);
            }
        }
        if let Some([bytes, velocity]) = &mut self.before {
            bytes.clone_from(&self.bytes);
            velocity.clone_from(&self.velocity);
        }
    }

    /// Keeps, from the next body on, also what was there before each. That takes as much memory again.
    pub fn hold(&mut self) {
        self.before.get_or_insert_default();
    }

    /// Keeps no more than the residual itself, and frees the rest.
    pub fn let_go(&mut self) {
        self.before = None;
    }

    /// Takes back what the latest body has changed in `range` of the part's bytes, if what was there before was kept.
    pub fn take_back(&mut self, range: Range<usize>) {
        let before = self.before.iter().flatten();
        for (state, before) in [&mut self.bytes, &mut self.velocity].into_iter().zip(before) {
            if let (Some(state), Some(before)) = (state.get_mut(range.clone()), before.get(range.clone())) {
                state.copy_from_slice(before);
            }
        }
    }

    /// Reads the residual and the velocity of the bytes from `offset` on, as far as they exist.
    pub fn read(&self, offset: usize, residual: &mut [u8], velocity: &mut [u8]) {
        for (state, to) in [(&self.bytes, residual), (&self.velocity, velocity)] {
            if let Some(from) = state.get(offset..offset + to.len()) {
                to.copy_from_slice(from);
            }
        }
    }

    /// A residual of these little-endian f32, without momentum.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Reads what the next body would begin with, if it used the residual so. Does nothing where there is none of this length.
    pub fn show(&self, start: Start, residual: &mut [u8]) {
        let held = self.before.as_ref().map(|[bytes, _]| bytes).filter(|bytes| bytes.len() == self.bytes.len());
        let shown = match (start, held) {
            (Start::Zero, _) => return residual.fill(0),
            (Start::Before, Some(before)) => before,
            (Start::Before, None) | (Start::Kept, _) => &self.bytes,
        };
        if shown.len() == residual.len() {
            residual.copy_from_slice(shown);
        }
    }

    /// Replaces them, also in what [`take_back`](Self::take_back) puts back. An empty `velocity` leaves that as it is.
    ///
    /// # Panics
    /// If they do not lie within the part.
    pub fn write(&mut self, offset: usize, residual: &[u8], velocity: &[u8]) {
        let states = [&mut self.bytes, &mut self.velocity].into_iter().chain(self.before.iter_mut().flatten());
        for (state, from) in states.zip([residual, velocity].into_iter().cycle()) {
            if !from.is_empty() {
                state[offset..offset + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        let before = self.before.iter().flatten().map(Vec::len).sum::<usize>();
        self.bytes.len() + self.velocity.len() + before
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
        let place = first * F32_BYTES..first * F32_BYTES + elements.len();
        let residual = &mut self.bytes[place.clone()];
        // Without momentum there is no velocity, and each run has an empty part of it.
        let velocity = if self.momentum.is_some() { &mut self.velocity[place] } else { &mut [] };
        let momentum = self.momentum;
        let unit = codec.unit((elements.len() / F32_BYTES) as u64).len;
        let run = usize::try_from((RUN_LEN / unit.max(1)).max(1) * unit.max(1)).expect("within a part") * F32_BYTES;
        // Out of the workspace, because the codec uses the rest of it.
        let [mut wanted, mut decoded, mut next] = std::mem::take(&mut workspace.feedback);
        for buffer in [&mut wanted, &mut decoded, &mut next] {
            buffer.resize(run.min(elements.len()).max(buffer.len()), 0);
        }
        let firsts = (first as u64..).step_by(run / F32_BYTES);
        let mut velocities = velocity.chunks_mut(run);
        let mut runs = firsts.zip(elements.chunks(run).zip(residual.chunks_mut(run)));
        let used = runs.try_fold(0, |used, (first, (elements, residual))| {
            let [wanted, decoded, next] =
                [&mut wanted, &mut decoded, &mut next].map(|buffer| &mut buffer[..elements.len()]);
            let velocity = velocities.next().unwrap_or_default();
            match momentum {
                None => add(residual, elements, wanted),
                Some(momentum) => accelerate(momentum, velocity, elements, residual, next, wanted),
            }
            let room = codec.body_bytes((elements.len() / F32_BYTES) as u64).max();
            let body = &mut body[used..][..usize::try_from(room).expect("a few times a part")];
            let tools = Tools { kernels, seed: seed.from_element(first), workspace: &mut *workspace };
            let bytes = codec.encode(tools, divisor, wanted, body).inspect_err(|refusal| {
                // Only a codec whose unit is the whole part refuses.
                let plain = match refusal {
                    Refusal::NotFinite => elements,
                    Refusal::NotShorter => {
                        residual.fill(0);
                        if let Some(momentum) = momentum {
                            settle(momentum, velocity, next, wanted);
                        }
                        &*wanted
                    }
                };
                body[..plain.len()].copy_from_slice(plain);
            })?;
            codec.decode(kernels, &body[..bytes], decoded).expect("a codec decodes what it encoded");
            keep_lost(residual, wanted, decoded, divisor as f32);
            if let Some(momentum) = momentum {
                settle(momentum, velocity, next, decoded);
            }
            Ok(used + bytes)
        });
        workspace.feedback = [wanted, decoded, next];
        used
    }
}

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

/// Writes the next velocity of elements, and what is to be encoded of them: what is left of those before, and what moves now.
fn accelerate(
    momentum: Momentum,
    velocity: &[u8],
    elements: &[u8],
    residual: &[u8],
    next: &mut [u8],
    wanted: &mut [u8],
) {
    let (factor, is_nesterov) = (momentum.factor(), momentum.is_nesterov());
    let terms = velocity.as_chunks().0.iter().zip(elements.as_chunks().0).zip(residual.as_chunks().0);
    let places = next.as_chunks_mut().0.iter_mut().zip(wanted.as_chunks_mut().0);
    for ((next, wanted), ((velocity, element), residual)) in places.zip(terms) {
        let [velocity, element, residual] = [velocity, element, residual].map(|bytes| f32::from_le_bytes(*bytes));
        let moved = factor * velocity + element;
        let given = if is_nesterov { element + factor * moved } else { moved };
        *next = moved.to_le_bytes();
        *wanted = (residual + given).to_le_bytes();
    }
}

/// Keeps the next velocity of elements. The correction forgets that of elements that were sent, which `sent` has as other numbers than zero.
fn settle(momentum: Momentum, velocity: &mut [u8], next: &[u8], sent: &[u8]) {
    let terms = next.as_chunks().0.iter().zip(sent.as_chunks().0);
    for (velocity, (next, sent)) in velocity.as_chunks_mut().0.iter_mut().zip(terms) {
        let next = f32::from_le_bytes(*next);
        let is_forgotten = !momentum.is_nesterov() && f32::from_le_bytes(*sent) != 0.0;
        *velocity = if is_forgotten || !next.is_finite() { 0.0 } else { next }.to_le_bytes();
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
