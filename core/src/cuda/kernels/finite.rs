//! The kernel that looks for NaN and infinities in device memory.
//!
//! It has a text of its own, so that the driver compiles it only for a job that asks for it.
#![expect(unsafe_code, reason = "kernels are given addresses")]

use std::ffi::c_uint;
use std::iter;
use std::sync::Arc;

use super::module::{BLOCKS_MAX, Module, THREADS};
use crate::cuda::context::Context;
use crate::cuda::stream::Stream;
use crate::error::{Error, Result};
use crate::mem::DeviceRegion;
use crate::types::DType;

/// The PTX of `finite.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("finite.ptx"), "\0");

const NAME: &str = "gradlane_finite\0";

/// A run of memory for the kernel; `finite.cu` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Run {
    /// The address that is read.
    from: u64,
    bytes: u64,
}

/// The parameter of the kernel; `finite.cu` has the same structure.
#[repr(C)]
struct Runs {
    exponents: Exponents,
    /// The address that is written if an element is not finite.
    found: u64,
    /// What is written there.
    number: u64,
    count: u64,
    runs: [Run; RUNS_MAX],
}

/// The runs of one launch: as many as fit the parameters of a kernel, which end at 4 KiB.
const RUNS_MAX: usize = 253;
const _: () = assert!(size_of::<Runs>() == 4088);

/// All runs of a launch get the same number of blocks. So a run that is longer than this share of all bytes is cut.
const SHARES: u64 = 64;
/// A run of this many bytes is not cut: a block takes sixteen words for each of its threads.
const WHOLE_BYTES_MAX: u64 = 32 << 10;

/// The unit of loads.
const WORD_BYTES: u64 = 8;

/// Where the exponents of floats are in a word.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Exponents {
    /// The bits of all of them.
    bits: u64,
    /// The lowest bit of each.
    lowest: u64,
}

/// The kernel of one device, loaded once.
#[derive(Debug)]
pub(crate) struct FiniteKernel {
    module: Module,
}

impl FiniteKernel {
    /// Lets the driver compile the kernel for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// As for [`Kernels::load`](super::Kernels::load).
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, iter::once(NAME))? })
    }

    /// Submits a look at runs of elements of type `dtype` to `stream`. If any of them is a NaN or an infinity, `number` is written to
    /// `found`, as a word of the device. Otherwise nothing is written.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for elements that do not lie at multiples of their size, [`Error::Device`] if the device refuses.
    ///
    /// # Panics
    /// If a run holds no whole elements, or `found` is no word.
    pub(crate) fn look(
        &self,
        stream: &Stream,
        dtype: DType,
        runs: &[DeviceRegion],
        (found, number): (&DeviceRegion, u64),
    ) -> Result<()> {
        let Some(exponents) = Exponents::of(dtype) else { return Ok(()) };
        assert!(found.len() as u64 == WORD_BYTES && found.address().is_multiple_of(WORD_BYTES), "a word is written");
        let runs = runs.iter().map(|run| Run::of(dtype, run)).collect::<Result<Vec<_>>>()?;
        let mut parameter =
            Runs { exponents, found: found.address(), number, count: 0, runs: [Run::default(); RUNS_MAX] };
        for some in cut(&runs).chunks(RUNS_MAX) {
            parameter.count = some.len() as u64;
            parameter.runs[..some.len()].copy_from_slice(some);
            // SAFETY: the kernel has this structure. Whoever made the regions promises that the memory is the device's and lent until the
            // operation ends.
            unsafe { self.module.launch(0, stream, blocks(some), &parameter)? };
        }
        Ok(())
    }
}

impl Exponents {
    /// Those of a type of floats; integers have none.
    const fn of(dtype: DType) -> Option<Self> {
        const HALVES: u64 = 0x0001_0001_0001_0001;
        const SINGLES: u64 = 0x0000_0001_0000_0001;
        let (bits, lowest) = match dtype {
            DType::F16 => (0x7c00 * HALVES, 0x0400 * HALVES),
            DType::BF16 => (0x7f80 * HALVES, 0x0080 * HALVES),
            DType::F32 => (0x7f80_0000 * SINGLES, 0x0080_0000 * SINGLES),
            DType::F64 => (0x7ff0 << 48, 0x0010 << 48),
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => return None,
        };
        Some(Self { bits, lowest })
    }
}

impl Run {
    fn of(dtype: DType, run: &DeviceRegion) -> Result<Self> {
        let (from, bytes) = (run.address(), run.len() as u64);
        assert_eq!(bytes % dtype.bytes(), 0, "whole elements");
        if from.is_multiple_of(dtype.bytes()) {
            return Ok(Self { from, bytes });
        }
        Err(Error::InvalidArgument {
            what: format!("a tensor of {dtype} at {from:#x}, which is no multiple of {}", dtype.bytes()),
            hint: "give a tensor that its device can read element by element, or set nan_check=off".to_owned(),
        })
    }
}

/// Cuts runs that are much longer than the others where words begin, because all of a launch get the same number of blocks. Empty runs are
/// left out.
fn cut(runs: &[Run]) -> Vec<Run> {
    let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
    let each = bytes.div_ceil(SHARES).max(WHOLE_BYTES_MAX).next_multiple_of(WORD_BYTES);
    let cut_one = move |run: &Run| {
        let (begin, end) = (run.from, run.from + run.bytes);
        let first = begin / WORD_BYTES * WORD_BYTES;
        (first..end).step_by(usize::try_from(each).expect("a share of memory")).map(move |at| {
            let from = at.max(begin);
            Run { from, bytes: end.min(at + each) - from }
        })
    };
    runs.iter().filter(|run| run.bytes > 0).flat_map(cut_one).collect()
}

/// The blocks of a grid: a multiple of the number of runs. Each thread has a word of the longest run.
fn blocks(runs: &[Run]) -> c_uint {
    let longest = runs.iter().map(|run| run.bytes.div_ceil(WORD_BYTES)).max().unwrap_or_default();
    let count = runs.len() as u64;
    (count * longest.div_ceil(THREADS).min(BLOCKS_MAX / count)) as c_uint
}

#[cfg(test)]
mod tests;
