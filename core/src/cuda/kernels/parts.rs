//! Kernels that make bodies of whole parts of f32 on a device, and read them: those of codecs that encode all elements of a part together
//! and whose bodies have an exact length. They make the bytes that [`codec`](crate::codec) makes on the host. What lies behind a body is
//! not touched.
//!
//! A body that no encoder makes is decoded to numbers without meaning, because a kernel reports nothing.
#![expect(unsafe_code, reason = "kernels are given addresses")]

use std::ffi::c_uint;
use std::sync::Arc;

use super::module::{Module, grid};
use crate::codec::{AnyCodec, Coding, Seed};
use crate::cuda::context::Context;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::mem::DeviceRegion;
use crate::types::{CodecSpec, DType, Encoding};

/// The PTX of `parts.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("parts.ptx"), "\0");

/// What a kernel does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Writes the signs of elements, and notes sums of their magnitudes.
    Signs,
    /// Makes a scale of these notes.
    Scale,
    /// Reads signs and their scale.
    Values,
    /// Notes the largest magnitudes of elements.
    Look,
    /// Writes elements at drawn places. If these notes have one that is no number, none of the elements is sent.
    Gather,
    /// Makes all elements zero.
    Clear,
    /// Reads elements at drawn places.
    Scatter,
}

const KERNELS: [(Work, &str); 7] = [
    (Work::Signs, "gradlane_onebit_signs\0"),
    (Work::Scale, "gradlane_onebit_scale\0"),
    (Work::Values, "gradlane_onebit_values\0"),
    (Work::Look, "gradlane_randomk_look\0"),
    (Work::Gather, "gradlane_randomk_gather\0"),
    (Work::Clear, "gradlane_randomk_clear\0"),
    (Work::Scatter, "gradlane_randomk_scatter\0"),
];

/// The parameter of every kernel; `parts.cu` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Part {
    /// The address that is read.
    from: u64,
    /// The address that is written.
    to: u64,
    /// The address of the notes.
    notes: u64,
    /// The seed of drawn places, for an encoder.
    seed: u64,
    /// In elements.
    len: u32,
    /// How many elements are drawn.
    count: u32,
    /// Elements are multiplied by it before they are encoded.
    factor: f32,
    /// Whether the scale of signs is the mean of the magnitudes, not 1.
    has_mean: u32,
}

/// Elements for which there is a note.
const BLOCK: u64 = 2048;
/// Bytes of a note.
const NOTE_BYTES: u64 = 8;
/// Threads that look at a block together.
const WARP: u64 = 32;

/// These kernels of one device, loaded once.
#[derive(Debug)]
pub(crate) struct PartKernels {
    /// In the order of [`KERNELS`].
    module: Module,
}

impl PartKernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// As for [`Kernels::load`](super::Kernels::load).
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, KERNELS.into_iter().map(|(_, name)| name))? })
    }

    /// Whether they encode f32 with `codec` and decode it.
    pub(crate) fn know(codec: CodecSpec) -> bool {
        kernels_of(codec).is_some()
    }

    /// Bytes of the notes that an encoder of `len` elements keeps, beside elements and body.
    pub(crate) const fn notes_bytes(len: u64) -> u64 {
        len.div_ceil(BLOCK) * NOTE_BYTES
    }

    /// Submits the encoding of a part of f32 to `stream`. `seed` is that of its first element. `notes` has
    /// [`notes_bytes`](Self::notes_bytes) of any content, from a multiple of 8 on.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses.
    ///
    /// # Panics
    /// If the body has another length than its elements make, the notes are too short, or no kernel [knows](Self::know) the codec.
    pub(crate) fn encode(
        &self,
        stream: &Stream,
        coding: &Coding,
        seed: Seed,
        (elements, body): (&DeviceRegion, &DeviceRegion),
        notes: &DeviceRegion,
    ) -> Result<()> {
        let ((encode, _), part) = (known(coding, body), Part::of(coding, elements, body));
        assert!(notes.len() as u64 >= Self::notes_bytes(part.len.into()), "notes of {} elements", part.len);
        let (from, to, notes, seed) = (elements.address(), body.address(), notes.address(), seed.draw(0));
        self.launch(stream, encode, &Part { from, to, notes, seed, ..part })
    }

    /// Submits the decoding of the body of a part to `stream`.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    ///
    /// # Panics
    /// As for [`encode`](Self::encode).
    pub(crate) fn decode(
        &self,
        stream: &Stream,
        coding: &Coding,
        (body, elements): (&DeviceRegion, &DeviceRegion),
    ) -> Result<()> {
        let ((_, decode), part) = (known(coding, body), Part::of(coding, elements, body));
        self.launch(stream, decode, &Part { from: body.address(), to: elements.address(), ..part })
    }

    /// Submits kernels that follow each other.
    fn launch(&self, stream: &Stream, passes: &[Work], part: &Part) -> Result<()> {
        passes.iter().try_for_each(|work| {
            let kernel = KERNELS.iter().position(|(listed, _)| listed == work).expect("all are listed");
            // SAFETY: each kernel here has this structure. Whoever made the regions promises that the memory is the device's and lent until
            // the operation ends.
            unsafe { self.module.launch(kernel, stream, blocks(*work, part), part) }
        })
    }
}

impl Part {
    /// What is the same for encoding and decoding.
    fn of(coding: &Coding, elements: &DeviceRegion, body: &DeviceRegion) -> Self {
        assert_eq!(coding.dtype, DType::F32, "kernels encode nothing else");
        let len = elements.len() as u64 / DType::F32.bytes();
        assert_eq!(elements.len() as u64, len * DType::F32.bytes(), "whole elements");
        assert_eq!(body.len() as u64, coding.codec().body_bytes(len).max(), "the body of {len} elements");
        let (count, has_mean) = match coding.codec() {
            AnyCodec::OneBit(codec) => (0, codec.has_mean()),
            AnyCodec::RandomK(codec) => (codec.count(len), false),
            other => unreachable!("a codec that `know` knows, not {other:?}"),
        };
        Self {
            from: 0,
            to: 0,
            notes: 0,
            seed: 0,
            // A part has fewer elements than 2^32.
            len: len as u32,
            count: count as u32,
            // A power of two, so that the product is the quotient.
            factor: coding.divisor.recip() as f32,
            has_mean: has_mean.into(),
        }
    }
}

/// What encodes and what decodes, one kernel after the other. `None` if there are no kernels for a codec.
fn kernels_of(codec: CodecSpec) -> Option<(&'static [Work], &'static [Work])> {
    match codec.encoding() {
        Encoding::OneBit => Some((&[Work::Signs, Work::Scale], &[Work::Values])),
        Encoding::RandomK => Some((&[Work::Look, Work::Gather], &[Work::Clear, Work::Scatter])),
        _ => None,
    }
}

/// Those for this body. One without bytes, of no signs, has no scale to write or to read.
fn known(coding: &Coding, body: &DeviceRegion) -> (&'static [Work], &'static [Work]) {
    let kernels = kernels_of(coding.codec).expect("a codec that `know` knows");
    if body.is_empty() { (&[], &[]) } else { kernels }
}

/// The thread blocks of a grid.
fn blocks(work: Work, part: &Part) -> c_uint {
    let len = u64::from(part.len);
    let threads = match work {
        Work::Signs | Work::Look => len.div_ceil(BLOCK) * WARP,
        Work::Scale => 1,
        Work::Values | Work::Clear => len,
        Work::Gather | Work::Scatter => part.count.into(),
    };
    grid(threads)
}

#[cfg(test)]
mod tests;
