//! Kernels that make bodies of f32 on a device, and read them: those of codecs that are more than a cast. They make the bytes that
//! [`codec`](crate::codec) makes on the host. What lies behind a body is not touched.
//!
//! A body that no encoder makes is decoded to numbers without meaning, because a kernel reports nothing.
#![expect(unsafe_code, reason = "kernels are given addresses")]

use std::ffi::c_uint;
use std::sync::Arc;

use super::module::{BLOCKS_MAX, Module, THREADS};
use crate::codec::{Coding, Seed, Unit};
use crate::cuda::context::Context;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::mem::DeviceRegion;
use crate::types::{CodecSpec, DType, Encoding};

/// The PTX of `codecs.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("codecs.ptx"), "\0");

/// What a kernel does with bodies of an encoding.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Makes them. Of bf16 those that are rounded by chance, because the others are casts.
    Encode(Encoding),
    /// Reads them.
    Decode(Encoding),
}

const KERNELS: [(Work, &str); 9] = [
    (Work::Encode(Encoding::Int8), "gradlane_encode_int8\0"),
    (Work::Encode(Encoding::Int4), "gradlane_encode_int4\0"),
    (Work::Encode(Encoding::Fp8E4M3), "gradlane_encode_fp8_e4m3\0"),
    (Work::Encode(Encoding::Fp8E5M2), "gradlane_encode_fp8_e5m2\0"),
    (Work::Encode(Encoding::BF16), "gradlane_encode_bf16_by_chance\0"),
    (Work::Decode(Encoding::Int8), "gradlane_decode_int8\0"),
    (Work::Decode(Encoding::Int4), "gradlane_decode_int4\0"),
    (Work::Decode(Encoding::Fp8E4M3), "gradlane_decode_fp8_e4m3\0"),
    (Work::Decode(Encoding::Fp8E5M2), "gradlane_decode_fp8_e5m2\0"),
];

/// A run of memory for a kernel; `codecs.cu` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Run {
    /// The address that is read.
    from: u64,
    /// The address that is written.
    to: u64,
    /// In elements.
    len: u32,
    /// The index of the first element in its part.
    first: u32,
}

/// The parameter of every kernel; `codecs.cu` has the same structure.
#[repr(C)]
struct Runs {
    /// Elements are multiplied by it before they are encoded.
    factor: f32,
    /// Elements of a block.
    block: u32,
    /// Whether elements are rounded by chance.
    by_chance: u32,
    /// The seed of the draws.
    low: u32,
    high: u32,
    count: u32,
    runs: [Run; RUNS_MAX],
}

/// The runs of one launch: as many as fit the parameters of a kernel, which end at 4 KiB.
const RUNS_MAX: usize = 169;
const _: () = assert!(size_of::<Runs>() == 4080);

/// All runs of a launch get the same number of thread blocks. So a run that is longer than this share of all elements is cut.
const SHARES: u64 = 64;
/// A run of about this many elements is not cut.
const WHOLE_LEN_MAX: u64 = 4096;

/// Threads that encode a block together.
const WARP: u64 = 32;

/// These kernels of one device, loaded once.
#[derive(Debug)]
pub(crate) struct CodecKernels {
    /// In the order of [`KERNELS`].
    module: Module,
}

/// Elements on a device, and the place of their body.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stretch {
    elements: u64,
    body: u64,
    len: u64,
    /// The index in the part of the first element.
    first: u64,
}

impl CodecKernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// As for [`Kernels::load`](super::Kernels::load).
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, KERNELS.into_iter().map(|(_, name)| name))? })
    }

    /// Whether they encode f32 with `codec` and decode it; casts do not need them.
    pub(crate) fn know(codec: CodecSpec) -> bool {
        let is_cast = matches!(codec.encoding(), Encoding::F16 | Encoding::BF16) && !codec.is_stochastic();
        !is_cast && KERNELS.iter().any(|(work, _)| *work == Work::Encode(codec.encoding()))
    }

    /// Submits the encoding of runs of f32 to `stream`: of each pair, the first is encoded into the second. `seed` begins with the first
    /// element of the first run, and the runs follow each other in their part.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses.
    ///
    /// # Panics
    /// If a body has another length than its elements make, or no kernel [knows](Self::know) the codec.
    pub(crate) fn encode<'a>(
        &self,
        stream: &Stream,
        coding: &Coding,
        seed: Seed,
        runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>,
    ) -> Result<()> {
        let work = Work::Encode(coding.codec.encoding());
        self.launch(stream, work, coding, seed.words(), &stretches(coding, runs))
    }

    /// Submits the decoding of bodies to runs of f32 to `stream`: of each pair, the first is decoded into the second.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    ///
    /// # Panics
    /// As for [`encode`](Self::encode).
    pub(crate) fn decode<'a>(
        &self,
        stream: &Stream,
        coding: &Coding,
        runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>,
    ) -> Result<()> {
        let work = Work::Decode(coding.codec.encoding());
        let stretches = stretches(coding, runs.map(|(body, elements)| (elements, body)));
        // Nothing is drawn.
        self.launch(stream, work, coding, [0; 3], &stretches)
    }

    /// Submits a kernel to `stream`, in as many launches as the runs need.
    fn launch(
        &self,
        stream: &Stream,
        work: Work,
        coding: &Coding,
        seed: [u32; 3],
        stretches: &[Stretch],
    ) -> Result<()> {
        let kernel = KERNELS.iter().position(|(known, _)| *known == work).expect("a codec that `know` knows");
        let unit = unit_of(coding);
        for some in cut(stretches, unit).chunks(RUNS_MAX) {
            let parameter = Runs::of(work, coding, seed, some);
            // SAFETY: each kernel here has this structure. Whoever made the regions promises that the memory is the device's and lent until
            // the operation ends.
            unsafe { self.module.launch(kernel, stream, blocks(unit, some), &parameter)? };
        }
        Ok(())
    }
}

impl Runs {
    fn of(work: Work, coding: &Coding, [first, low, high]: [u32; 3], stretches: &[Stretch]) -> Self {
        let mut runs = [Run::default(); RUNS_MAX];
        for (run, stretch) in runs.iter_mut().zip(stretches) {
            let (from, to) = match work {
                Work::Encode(_) => (stretch.elements, stretch.body),
                Work::Decode(_) => (stretch.body, stretch.elements),
            };
            // A part has fewer elements than 2^32.
            *run = Run { from, to, len: stretch.len as u32, first: first.wrapping_add(stretch.first as u32) };
        }
        Self {
            // A power of two, so that the product is the quotient.
            factor: coding.divisor.recip() as f32,
            block: unit_of(coding).len as u32,
            by_chance: coding.codec.is_stochastic().into(),
            low,
            high,
            count: stretches.len() as u32,
            runs,
        }
    }
}

/// Pairs of elements and bodies, one behind the other in their part.
fn stretches<'a>(coding: &Coding, runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>) -> Vec<Stretch> {
    assert_eq!(coding.dtype, DType::F32, "kernels encode nothing else");
    let (codec, mut first) = (coding.codec(), 0);
    let stretch = |(elements, body): (&DeviceRegion, &DeviceRegion)| {
        let len = elements.len() as u64 / DType::F32.bytes();
        assert_eq!(elements.len() as u64, len * DType::F32.bytes(), "whole elements");
        assert_eq!(body.len() as u64, codec.body_bytes(len).max(), "the body of {len} elements");
        first += len;
        Stretch { elements: elements.address(), body: body.address(), len, first: first - len }
    };
    runs.map(stretch).collect()
}

/// A block, or an element.
fn unit_of(coding: &Coding) -> Unit {
    coding.codec().unit(u64::MAX)
}

/// Cuts stretches that are much longer than the others between units, because all of a launch get the same number of thread blocks. Empty
/// ones are left out.
fn cut(stretches: &[Stretch], unit: Unit) -> Vec<Stretch> {
    let len: u64 = stretches.iter().map(|stretch| stretch.len).sum();
    let each = len.div_ceil(SHARES).max(WHOLE_LEN_MAX).next_multiple_of(unit.len);
    let cut_one = move |stretch: &Stretch| {
        let Stretch { elements, body, len, first } = *stretch;
        (0..len).step_by(usize::try_from(each).expect("a share of memory")).map(move |at| Stretch {
            elements: elements + at * DType::F32.bytes(),
            body: body + at / unit.len * unit.bytes,
            len: each.min(len - at),
            first: first + at,
        })
    };
    stretches.iter().flat_map(cut_one).collect()
}

/// The thread blocks of a grid: a multiple of the number of runs. Each unit of the longest run has a warp, or a thread where it is one
/// element.
fn blocks(unit: Unit, stretches: &[Stretch]) -> c_uint {
    let longest = stretches.iter().map(|stretch| stretch.len).max().unwrap_or_default();
    let threads = longest.div_ceil(unit.len) * if unit.len == 1 { 1 } else { WARP };
    let count = stretches.len() as u64;
    (count * threads.div_ceil(THREADS).min(BLOCKS_MAX / count)) as c_uint
}

#[cfg(test)]
mod tests;
