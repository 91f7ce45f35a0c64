//! Copies of whole parts between a device and the host, encoded and decoded by kernels that need all elements of a part at once.
//!
//! The body of a part, and the notes that kernels leave each other, lie in device memory that grows to what the longest part needs. Kernels
//! and copies of one direction share a stream, so this memory serves one part after the other. Memory that was too short is kept: to free
//! it would wait for all work of the device. It doubles each time, so all of it together is less than twice the last.

use std::cell::{OnceCell, RefCell};

use super::copies::{chunks, copy_in, copy_out};
use crate::codec::{Coding, Seed};
use crate::cuda::{DeviceMemory, PartKernels, Stream};
use crate::error::Result;
use crate::mem::{DeviceRegion, Region};
use crate::types::Span;

/// The kernels and the memory for parts of one direction.
#[derive(Default)]
pub(super) struct Parts {
    /// Loaded for the first part.
    kernels: OnceCell<Result<PartKernels>>,
    /// The last one is the longest.
    memory: RefCell<Vec<DeviceMemory>>,
}

/// The least that is allocated: a body of a hundredth of 4 MiB of f32, with its notes.
const MEMORY_BYTES_MIN: u64 = 64 << 10;
/// The notes begin at a multiple of it.
const NOTES_ALIGN: u64 = 8;

impl Parts {
    /// Whether the kernels are loaded, and the memory is enough for these runs and their bodies.
    pub(super) fn are_ready(&self, coding: &Coding, runs: &[DeviceRegion]) -> bool {
        let bytes = runs.iter().map(|run| memory_bytes(coding, run)).max().unwrap_or_default();
        self.kernels.get().is_some() && self.is_enough(bytes)
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
            let (body, notes) = self.room(stream, coding, run)?;
            self.kernels(stream)?.encode(stream, coding, seed.from_element(elements), (run, &body), &notes)?;
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
            let (body, _) = self.room(stream, coding, run)?;
            for chunk in chunks(&body) {
                copy_in(stream, &take(from, &mut at, &chunk), &chunk)?;
            }
            self.kernels(stream)?.decode(stream, coding, (&body, run))?;
        }
        Ok(())
    }

    fn kernels(&self, stream: &Stream) -> Result<&PartKernels> {
        self.kernels.get_or_init(|| PartKernels::load(stream.context())).as_ref().map_err(Clone::clone)
    }

    /// Memory for the body of a run and for its notes.
    fn room(&self, stream: &Stream, coding: &Coding, run: &DeviceRegion) -> Result<(DeviceRegion, DeviceRegion)> {
        let bytes = memory_bytes(coding, run);
        if !self.is_enough(bytes) {
            let longer = bytes.next_power_of_two().max(MEMORY_BYTES_MIN);
            let longer = stream.context().memory(usize::try_from(longer).expect("less than twice a part"))?;
            self.memory.borrow_mut().push(longer);
        }
        let memory = self.memory.borrow();
        let whole = memory.last().expect("it is enough").region();
        let body = body_bytes(coding, run.len());
        let notes = body.next_multiple_of(NOTES_ALIGN);
        Ok((whole.part(Span { offset: 0, bytes: body }), whole.part(Span { offset: notes, bytes: bytes - notes })))
    }

    fn is_enough(&self, bytes: u64) -> bool {
        self.memory.borrow().last().is_some_and(|memory| bytes <= memory.region().len() as u64)
    }
}

/// Bytes of the body of a run of elements of so many bytes.
pub(super) fn body_bytes(coding: &Coding, elements_bytes: usize) -> u64 {
    coding.codec().body_bytes(elements_bytes as u64 / coding.dtype.bytes()).max()
}

/// Bytes of the body of a run, and of its notes.
fn memory_bytes(coding: &Coding, run: &DeviceRegion) -> u64 {
    let notes = PartKernels::notes_bytes(run.len() as u64 / coding.dtype.bytes());
    body_bytes(coding, run.len()).next_multiple_of(NOTES_ALIGN) + notes
}

/// The bytes of the host for a chunk, from `at` on, which moves behind them.
fn take(host: &Region, at: &mut u64, chunk: &DeviceRegion) -> Region {
    let bytes = chunk.len() as u64;
    *at += bytes;
    host.part(Span { offset: *at - bytes, bytes })
}
