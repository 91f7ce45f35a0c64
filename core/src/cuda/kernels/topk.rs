//! Kernels of `topk`, whose bodies vary in length: they make the bytes that [`codec`](crate::codec) makes on the host, and tell how many
//! these are, or that the codec refuses the elements.
//!
//! A body that no encoder makes is decoded to numbers without meaning, because a kernel reports nothing. No entry of it leads outside of its
//! part.
#![expect(unsafe_code, reason = "kernels are given addresses")]

use std::ffi::c_uint;
use std::sync::Arc;

use super::module::{Module, grid};
use crate::codec::{AnyCodec, Coding, TopK};
use crate::cuda::context::Context;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::mem::DeviceRegion;
use crate::types::{CodecSpec, DType, Encoding, Round};

/// The PTX of `topk.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("topk.ptx"), "\0");

/// What a kernel does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Forgets all counts.
    Begin,
    /// Counts the elements with each value of a digit.
    Count,
    /// Notes how many elements of a block are larger than the last one that is sent, and how many as large.
    Compare,
    /// Lists the indices of the entries.
    List,
    /// Notes how many bytes the gaps of some entries have.
    Measure,
    /// Writes the body, and tells its length.
    Write,
    /// Makes all elements zero, and notes how far gaps lead.
    Clear,
    /// Reads the entries of a body.
    Scatter,
}

const KERNELS: [(Work, &str); 8] = [
    (Work::Begin, "gradlane_topk_begin\0"),
    (Work::Count, "gradlane_topk_count\0"),
    (Work::Compare, "gradlane_topk_compare\0"),
    (Work::List, "gradlane_topk_list\0"),
    (Work::Measure, "gradlane_topk_measure\0"),
    (Work::Write, "gradlane_topk_write\0"),
    (Work::Clear, "gradlane_topk_clear\0"),
    (Work::Scatter, "gradlane_topk_scatter\0"),
];

/// What encodes, with the digit that is counted, and what decodes.
const ENCODE: [(Work, u32); 9] = [
    (Work::Begin, 0),
    (Work::Count, 0),
    (Work::Count, 1),
    (Work::Count, 2),
    (Work::Count, 3),
    (Work::Compare, 0),
    (Work::List, 0),
    (Work::Measure, 0),
    (Work::Write, 0),
];
const DECODE: [(Work, u32); 2] = [(Work::Clear, 0), (Work::Scatter, 0)];

/// The parameter of every kernel; `topk.cu` has the same structure.
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
    /// How many elements are sent, unless more of them are zero.
    count: u32,
    /// The most entries of a body.
    entries_max: u32,
    /// Bytes of the longest body, or of the one that is decoded.
    bytes: u32,
    /// Which digit is counted.
    digit: u32,
    /// Elements are multiplied by it before they are encoded.
    factor: f32,
}

/// Elements for which there is a note.
const BLOCK: u64 = 2048;
/// Entries for which there is a note of their gaps.
const ENTRIES: u64 = 256;
/// Bytes of gaps for which there is a note.
const RUN: u64 = 1024;
/// Bytes of a note.
const NOTE_BYTES: u64 = 8;
/// Bytes of all counts, and of the number of entries.
const HEAD_BYTES: u64 = 4 * 256 * 4 + 8;
/// Bytes of an index.
const PLACE_BYTES: u64 = 4;
/// Threads that look at a block together.
const WARP: u64 = 32;

/// These kernels of one device, loaded once.
#[derive(Debug)]
pub(crate) struct TopKKernels {
    /// In the order of [`KERNELS`].
    module: Module,
}

impl TopKKernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// As for [`Kernels::load`](super::Kernels::load).
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, KERNELS.into_iter().map(|(_, name)| name))? })
    }

    /// Whether they encode f32 with `codec` and decode it.
    pub(crate) fn know(codec: CodecSpec) -> bool {
        codec.encoding() == Encoding::TopK
    }

    /// Bytes of the notes that an encoder of `len` elements keeps, beside elements and body.
    pub(crate) fn encoder_notes_bytes(coding: &Coding, round: Round, len: u64) -> u64 {
        let entries_max = entries(coding, round, len).1;
        let notes = len.div_ceil(BLOCK) + entries_max.div_ceil(ENTRIES);
        HEAD_BYTES + notes * NOTE_BYTES + entries_max * PLACE_BYTES
    }

    /// Bytes of the notes that a decoder of a body of so many bytes keeps.
    pub(crate) const fn decoder_notes_bytes(body_bytes: u64) -> u64 {
        body_bytes.div_ceil(RUN) * NOTE_BYTES
    }

    /// Submits the encoding of a part of f32 to `stream`, to the room of a body that [varies](crate::device::Varying). `notes` has
    /// [`encoder_notes_bytes`](Self::encoder_notes_bytes) of any content. Room and notes begin at multiples of 8.
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
        round: Round,
        (elements, room): (&DeviceRegion, &DeviceRegion),
        notes: &DeviceRegion,
    ) -> Result<()> {
        let part = Part::of(coding, elements, notes);
        let len = u64::from(part.len);
        let (count, entries_max) = entries(coding, round, len);
        let bytes = coding.codec().encoded_bytes_max(len, round);
        assert!(bytes <= room.len() as u64, "the room of a body of {len} elements");
        assert!(Self::encoder_notes_bytes(coding, round, len) <= notes.len() as u64, "notes of {len} elements");
        let (from, to) = (elements.address(), room.address());
        let [count, entries_max, bytes] = [count, entries_max, bytes].map(|number| number as u32);
        self.launch(stream, &ENCODE, Part { from, to, count, entries_max, bytes, ..part })
    }

    /// Submits the decoding of the body of a part to `stream`. `notes` has [`decoder_notes_bytes`](Self::decoder_notes_bytes) of any
    /// content, from a multiple of 8 on.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    ///
    /// # Panics
    /// If the notes are too short, or no kernel [knows](Self::know) the codec.
    pub(crate) fn decode(
        &self,
        stream: &Stream,
        coding: &Coding,
        (body, elements): (&DeviceRegion, &DeviceRegion),
        notes: &DeviceRegion,
    ) -> Result<()> {
        let part = Part::of(coding, elements, notes);
        let bytes = body.len() as u64;
        assert!(Self::decoder_notes_bytes(bytes) <= notes.len() as u64, "notes of a body of {bytes} bytes");
        let (from, to, bytes) = (body.address(), elements.address(), bytes as u32);
        self.launch(stream, &DECODE, Part { from, to, bytes, ..part })
    }

    /// Submits kernels that follow each other.
    fn launch(&self, stream: &Stream, passes: &[(Work, u32)], part: Part) -> Result<()> {
        passes.iter().try_for_each(|(work, digit)| {
            let kernel = KERNELS.iter().position(|(listed, _)| listed == work).expect("all are listed");
            let part = Part { digit: *digit, ..part };
            // SAFETY: each kernel here has this structure. Whoever made the regions promises that the memory is the device's and lent until
            // the operation ends.
            unsafe { self.module.launch(kernel, stream, blocks(*work, &part), &part) }
        })
    }
}

impl Part {
    /// What is the same for encoding and decoding.
    fn of(coding: &Coding, elements: &DeviceRegion, notes: &DeviceRegion) -> Self {
        assert_eq!(coding.dtype, DType::F32, "kernels encode nothing else");
        let len = elements.len() as u64 / DType::F32.bytes();
        assert_eq!(elements.len() as u64, len * DType::F32.bytes(), "whole elements");
        // A part has fewer elements than 2^26. A power of two as divisor, so that the product is the quotient.
        Self { notes: notes.address(), len: len as u32, factor: coding.divisor.recip() as f32, ..Self::default() }
    }
}

/// How many of `len` elements are sent in a round, and the most entries of a body that is shorter than they are.
fn entries(coding: &Coding, round: Round, len: u64) -> (u64, u64) {
    let AnyCodec::TopK(codec) = coding.codec() else { unreachable!("a codec that `know` knows, not {}", coding.codec) };
    let count = codec.count(usize::try_from(len).expect("within a part"), round) as u64;
    (count, count.min(TopK::entries_max(len)))
}

/// The thread blocks of a grid.
fn blocks(work: Work, part: &Part) -> c_uint {
    let [len, entries, bytes] = [part.len, part.entries_max, part.bytes].map(u64::from);
    let threads = match work {
        Work::Begin => 1,
        Work::Count | Work::Compare | Work::List => len.div_ceil(BLOCK) * WARP,
        Work::Measure | Work::Write => entries.div_ceil(ENTRIES) * WARP,
        Work::Clear => len.max(bytes.div_ceil(RUN) * WARP),
        Work::Scatter => bytes.div_ceil(RUN) * WARP,
    };
    grid(threads)
}

#[cfg(test)]
mod tests;
