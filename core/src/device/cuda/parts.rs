//! Copies of whole parts between a device and the host, encoded and decoded by kernels that need all elements of a part at once.
//!
//! The body of a part, and the notes that kernels leave each other, lie in device memory that grows to what the longest part needs. Kernels
//! and copies of one direction share a stream, so this memory serves one part after the other. Memory that was too short is kept: to free
//! it would wait for all work of the device. It doubles each time, so all of it together is less than twice the last.
//!
//! If the length of a body varies, all bytes that it can have are copied to the host, and behind them its length ([`Varying`]).

use std::cell::{OnceCell, RefCell};

use super::copies::{chunks, copy_in, copy_out};
use crate::codec::{Coding, Seed};
use crate::cuda::{DeviceMemory, DitheringKernels, PartKernels, Stream, TopKKernels};
use crate::device::{Transfer, Varying};
use crate::error::Result;
use crate::mem::{DeviceRegion, Region};
use crate::types::{CodecSpec, InCopies, Round, Span};

/// The kernels and the memory for parts of one direction.
#[derive(Default)]
pub(super) struct Parts {
    /// Of each family, loaded for the first part that needs them.
    exact: OnceCell<Result<PartKernels>>,
    topk: OnceCell<Result<TopKKernels>>,
    dithering: OnceCell<Result<DitheringKernels>>,
    /// The last one is the longest.
    memory: RefCell<Vec<DeviceMemory>>,
}

/// Whether there are kernels here for `codec`.
pub(super) fn know(codec: CodecSpec) -> bool {
    in_copies(codec) != InCopies::Nothing
}

/// What kernels here do with f32 and `codec`.
pub(super) fn in_copies(codec: CodecSpec) -> InCopies {
    match Family::of(codec) {
        Some(Family::Exact | Family::TopK) => InCopies::EncodeAndDecode,
        Some(Family::Dithering) => InCopies::Encode,
        None => InCopies::Nothing,
    }
}

/// Kernels that are loaded together.
#[derive(Clone, Copy)]
enum Family {
    Exact,
    TopK,
    Dithering,
}

impl Family {
    fn of(codec: CodecSpec) -> Option<Self> {
        let families = [
            (PartKernels::know(codec), Self::Exact),
            (TopKKernels::know(codec), Self::TopK),
            (DitheringKernels::know(codec), Self::Dithering),
        ];
        families.into_iter().find(|(knows, _)| *knows).map(|(_, family)| family)
    }

    fn of_known(coding: &Coding) -> Self {
        Self::of(coding.codec).expect("a codec that is known here")
    }
}

/// The least that is allocated: a body of a hundredth of 4 MiB of f32, with its notes.
const MEMORY_BYTES_MIN: u64 = 64 << 10;
/// The notes begin at a multiple of it.
const NOTES_ALIGN: u64 = 8;

/// Bytes of device memory that a run needs.
#[derive(Clone, Copy)]
struct Need {
    /// For its body. If its length varies: for the longest one and the length.
    body: u64,
    notes: u64,
}

impl Parts {
    /// Whether the kernels are loaded, and the memory is enough, for this transfer of a codec that is [known](know).
    pub(super) fn are_ready(&self, transfer: &Transfer) -> bool {
        let (coding, bytes) = match transfer {
            Transfer::Encode { coding, from, seed, .. } => {
                (coding, from.iter().map(|run| Need::to_encode(coding, seed.round(), run).bytes()).max())
            }
            Transfer::Decode { coding, from, to } => {
                (coding, to.iter().map(|run| Need::to_decode(coding, from, run).bytes()).max())
            }
            Transfer::Out { .. } | Transfer::In { .. } | Transfer::Within { .. } => return true,
        };
        let is_loaded = match Family::of_known(coding) {
            Family::Exact => self.exact.get().is_some(),
            Family::TopK => self.topk.get().is_some(),
            Family::Dithering => self.dithering.get().is_some(),
        };
        is_loaded && self.is_enough(bytes.unwrap_or_default())
    }

    /// Submits kernels that encode each run on its own, and copies of the bodies to `to`.
    pub(super) fn copy_out(
        &self,
        stream: &Stream,
        from: &[DeviceRegion],
        to: &Region,
        coding: &Coding,
        seed: Seed,
    ) -> Result<()> {
        let (mut at, mut elements) = (0, 0);
        for run in from {
            let (body, notes) = self.room(stream, Need::to_encode(coding, seed.round(), run))?;
            let (seed, regions) = (seed.from_element(elements), (run, &body));
            match Family::of_known(coding) {
                Family::Exact => self.exact(stream)?.encode(stream, coding, seed, regions, &notes)?,
                Family::TopK => self.topk(stream)?.encode(stream, coding, seed.round(), regions, &notes)?,
                Family::Dithering => self.dithering(stream)?.encode(stream, coding, seed, regions, &notes)?,
            }
            elements += run.len() as u64 / coding.dtype.bytes();
            for chunk in chunks(&body) {
                copy_out(stream, &chunk, take(to, &mut at, &chunk))?;
            }
        }
        Ok(())
    }

    /// Submits copies of the bodies `from`, and kernels that decode each of them to its run.
    pub(super) fn copy_in(&self, stream: &Stream, from: &Region, to: &[DeviceRegion], coding: &Coding) -> Result<()> {
        let mut at = 0;
        for run in to {
            let (body, notes) = self.room(stream, Need::to_decode(coding, from, run))?;
            for chunk in chunks(&body) {
                copy_in(stream, &take(from, &mut at, &chunk), &chunk)?;
            }
            match Family::of_known(coding) {
                Family::Exact => self.exact(stream)?.decode(stream, coding, (&body, run))?,
                Family::TopK => self.topk(stream)?.decode(stream, coding, (&body, run), &notes)?,
                Family::Dithering => unreachable!("the host decodes it"),
            }
        }
        Ok(())
    }

    fn exact(&self, stream: &Stream) -> Result<&PartKernels> {
        self.exact.get_or_init(|| PartKernels::load(stream.context())).as_ref().map_err(Clone::clone)
    }

    fn topk(&self, stream: &Stream) -> Result<&TopKKernels> {
        self.topk.get_or_init(|| TopKKernels::load(stream.context())).as_ref().map_err(Clone::clone)
    }

    fn dithering(&self, stream: &Stream) -> Result<&DitheringKernels> {
        self.dithering.get_or_init(|| DitheringKernels::load(stream.context())).as_ref().map_err(Clone::clone)
    }

    /// Memory for the body of a run and for its notes.
    fn room(&self, stream: &Stream, need: Need) -> Result<(DeviceRegion, DeviceRegion)> {
        if !self.is_enough(need.bytes()) {
            let longer = need.bytes().next_power_of_two().max(MEMORY_BYTES_MIN);
            let longer = stream.context().memory(usize::try_from(longer).expect("a few times a part"))?;
            self.memory.borrow_mut().push(longer);
        }
        let memory = self.memory.borrow();
        let whole = memory.last().expect("it is enough").region();
        let [body, notes] = need.places().map(|place| whole.part(place));
        Ok((body, notes))
    }

    fn is_enough(&self, bytes: u64) -> bool {
        self.memory.borrow().last().is_some_and(|memory| bytes <= memory.region().len() as u64)
    }
}

impl Need {
    fn to_encode(coding: &Coding, round: Round, run: &DeviceRegion) -> Self {
        let len = run.len() as u64 / coding.dtype.bytes();
        let body = Varying::of(coding, round, len).map_or_else(|| body_bytes(coding, run.len()), Varying::room);
        let notes = match Family::of_known(coding) {
            Family::Exact => PartKernels::notes_bytes(len),
            Family::TopK => TopKKernels::encoder_notes_bytes(coding, round, len),
            Family::Dithering => DitheringKernels::notes_bytes(len),
        };
        Self { body, notes }
    }

    /// If the length of a body varies, it is all that there is.
    fn to_decode(coding: &Coding, from: &Region, run: &DeviceRegion) -> Self {
        match coding.codec.varies() {
            true => {
                let body = from.len() as u64;
                Self { body, notes: TopKKernels::decoder_notes_bytes(body) }
            }
            false => Self { body: body_bytes(coding, run.len()), notes: 0 },
        }
    }

    fn bytes(self) -> u64 {
        let [_, notes] = self.places();
        notes.end()
    }

    fn places(self) -> [Span; 2] {
        let Self { body, notes } = self;
        [Span { offset: 0, bytes: body }, Span { offset: body.next_multiple_of(NOTES_ALIGN), bytes: notes }]
    }
}

/// Bytes of the body of a run of elements of so many bytes; the most, if its length varies.
pub(super) fn body_bytes(coding: &Coding, elements_bytes: usize) -> u64 {
    coding.codec().body_bytes(elements_bytes as u64 / coding.dtype.bytes()).max()
}

/// The bytes of the host for a chunk, from `at` on, which moves behind them.
fn take(host: &Region, at: &mut u64, chunk: &DeviceRegion) -> Region {
    let bytes = chunk.len() as u64;
    *at += bytes;
    host.part(Span { offset: *at - bytes, bytes })
}
