//! Kernels that encode with `dithering`, whose bodies vary in length: they make the bytes that [`codec`](crate::codec) makes on the host, and
//! tell how many these are, or that the codec refuses the elements. The host decodes.
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

/// The PTX of `dithering.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("dithering.ptx"), "\0");

/// What a kernel does, in the order in which they follow each other.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Notes the largest magnitudes of elements, or the sums of their squares, and makes the body zero.
    Look,
    /// Makes a scale of these notes.
    Scale,
    /// Notes how many bits the codes of a block have.
    Measure,
    /// Says where the codes of each block begin, and tells the length of the body.
    Order,
    /// Writes the codes.
    Write,
}

const KERNELS: [(Work, &str); 5] = [
    (Work::Look, "gradlane_dithering_look\0"),
    (Work::Scale, "gradlane_dithering_scale\0"),
    (Work::Measure, "gradlane_dithering_measure\0"),
    (Work::Order, "gradlane_dithering_order\0"),
    (Work::Write, "gradlane_dithering_write\0"),
];

/// The parameter of every kernel; `dithering.cu` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Part {
    /// The address that is read.
    from: u64,
    /// The address that is written.
    to: u64,
    /// The address of the notes.
    notes: u64,
    /// In elements.
    len: u32,
    /// Bytes of the longest body.
    bytes: u32,
    /// The largest level.
    levels: f32,
    /// Whether all levels but 0 are powers of two.
    is_natural: u32,
    /// Whether the scale is the root of the sum of the squares.
    is_euclid: u32,
    /// The seed of the draws.
    low: u32,
    high: u32,
    /// Elements are multiplied by it before they are encoded.
    factor: f32,
}

/// Elements for which there are two notes.
const BLOCK: u64 = 2048;
/// Bytes of a note, and of what lies before all of them.
const NOTE_BYTES: u64 = 8;
/// Threads that look at a block together.
const WARP: u64 = 32;

/// These kernels of one device, loaded once.
#[derive(Debug)]
pub(crate) struct DitheringKernels {
    /// In the order of [`KERNELS`].
    module: Module,
}

impl DitheringKernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// As for [`Kernels::load`](super::Kernels::load).
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, KERNELS.into_iter().map(|(_, name)| name))? })
    }

    /// Whether they encode f32 with `codec`.
    pub(crate) fn know(codec: CodecSpec) -> bool {
        codec.encoding() == Encoding::Dithering
    }

    /// Bytes of the notes that an encoder of `len` elements keeps, beside elements and body.
    pub(crate) const fn notes_bytes(len: u64) -> u64 {
        NOTE_BYTES + 2 * len.div_ceil(BLOCK) * NOTE_BYTES
    }

    /// Submits the encoding of a part of f32 to `stream`, to the room of a body that [varies](crate::device::Varying). `seed` is that of its
    /// first element. `notes` has [`notes_bytes`](Self::notes_bytes) of any content. Room and notes begin at multiples of 8.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses.
    ///
    /// # Panics
    /// If the room or the notes are too short, or no kernel [knows](Self::know) the codec.
    pub(crate) fn encode(
        &self,
        stream: &Stream,
        coding: &Coding,
        seed: Seed,
        (elements, room): (&DeviceRegion, &DeviceRegion),
        notes: &DeviceRegion,
    ) -> Result<()> {
        let part = Part::of(coding, seed, (elements, room), notes);
        KERNELS.iter().enumerate().try_for_each(|(kernel, (work, _))| {
            // SAFETY: each kernel here has this structure. Whoever made the regions promises that the memory is the device's and lent until
            // the operation ends.
            unsafe { self.module.launch(kernel, stream, blocks(*work, &part), &part) }
        })
    }
}

impl Part {
    fn of(coding: &Coding, seed: Seed, (elements, room): (&DeviceRegion, &DeviceRegion), notes: &DeviceRegion) -> Self {
        assert_eq!(coding.dtype, DType::F32, "kernels encode nothing else");
        let AnyCodec::Dithering(codec) = coding.codec() else {
            unreachable!("a codec that `know` knows, not {}", coding.codec)
        };
        let len = elements.len() as u64 / DType::F32.bytes();
        assert_eq!(elements.len() as u64, len * DType::F32.bytes(), "whole elements");
        let bytes = coding.codec().encoded_bytes_max(len, seed.round());
        assert!(bytes <= room.len() as u64, "the room of a body of {len} elements");
        assert!(DitheringKernels::notes_bytes(len) <= notes.len() as u64, "notes of {len} elements");
        let [_, low, high] = seed.words();
        Self {
            from: elements.address(),
            to: room.address(),
            notes: notes.address(),
            // A part has fewer elements than 2^25.
            len: len as u32,
            bytes: bytes as u32,
            levels: codec.levels() as f32,
            is_natural: codec.is_natural().into(),
            is_euclid: codec.is_euclid().into(),
            low,
            high,
            // A power of two, so that the product is the quotient.
            factor: coding.divisor.recip() as f32,
        }
    }
}

/// The thread blocks of a grid.
fn blocks(work: Work, part: &Part) -> c_uint {
    let threads = match work {
        Work::Look | Work::Measure | Work::Write => u64::from(part.len).div_ceil(BLOCK) * WARP,
        Work::Scale | Work::Order => 1,
    };
    grid(threads)
}

#[cfg(test)]
mod tests;
