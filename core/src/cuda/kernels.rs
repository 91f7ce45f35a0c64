//! Kernels that work on device memory element by element: scale floats, cast between f32 and 16-bit floats, divide integers, and copy.
//!
//! Each launch works on many runs of memory. A launch takes some microseconds, and the tensors of a fused part take less than that each.
//! [`CodecKernels`] are those of the codecs that are more than a cast, and [`PartKernels`], [`TopKKernels`] and [`DitheringKernels`] those of
//! codecs whose unit is a whole part. [`FiniteKernel`] looks for NaN and infinities.
//!
//! The sources are CUDA C in the folder `kernels`. NVRTC compiles them to PTX (`make ptx`), which is built in. The driver compiles the PTX
//! for its device when it is loaded. This takes tens of milliseconds the first time; then the driver finds it in its cache in `~/.nv`.
#![expect(unsafe_code, reason = "kernels are given addresses")]

mod codecs;
mod dithering;
mod finite;
mod module;
mod parts;
mod topk;

pub(crate) use codecs::CodecKernels;
pub(crate) use dithering::DitheringKernels;
pub(crate) use finite::FiniteKernel;
pub(crate) use parts::PartKernels;
pub(crate) use topk::TopKKernels;

use std::ffi::c_uint;
use std::sync::Arc;

use super::context::Context;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::mem::DeviceRegion;
use crate::types::DType;
use module::{BLOCKS_MAX, Module, THREADS};

/// The PTX of `elementwise.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("kernels/elementwise.ptx"), "\0");

/// What a kernel does to every element.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Reads the first type, multiplies, and writes the second.
    Scale(DType, DType),
    /// Divides.
    Divide(DType),
    /// Copies bytes.
    Copy,
}

const KERNELS: [(Work, &str); 13] = [
    (Work::Scale(DType::F32, DType::F32), "gradlane_scale_f32\0"),
    (Work::Scale(DType::F64, DType::F64), "gradlane_scale_f64\0"),
    (Work::Scale(DType::F16, DType::F16), "gradlane_scale_f16\0"),
    (Work::Scale(DType::BF16, DType::BF16), "gradlane_scale_bf16\0"),
    (Work::Scale(DType::F32, DType::F16), "gradlane_f32_to_f16\0"),
    (Work::Scale(DType::F32, DType::BF16), "gradlane_f32_to_bf16\0"),
    (Work::Scale(DType::F16, DType::F32), "gradlane_f16_to_f32\0"),
    (Work::Scale(DType::BF16, DType::F32), "gradlane_bf16_to_f32\0"),
    (Work::Divide(DType::I8), "gradlane_divide_i8\0"),
    (Work::Divide(DType::U8), "gradlane_divide_u8\0"),
    (Work::Divide(DType::I32), "gradlane_divide_i32\0"),
    (Work::Divide(DType::I64), "gradlane_divide_i64\0"),
    (Work::Copy, "gradlane_copy\0"),
];

/// A run of memory for a kernel; `elementwise.cu` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Run {
    /// The address that is read.
    from: u64,
    /// The address that is written.
    to: u64,
    /// In elements.
    len: u64,
}

/// The parameter of every kernel; `elementwise.cu` has the same structure.
#[repr(C)]
struct Runs {
    /// The bits of the factor or the divisor.
    number: u64,
    count: u64,
    runs: [Run; RUNS_MAX],
}

/// The runs of one launch: as many as fit the parameters of a kernel, which end at 4 KiB (CUDA C++ programming guide, "Function
/// Parameters"; 32 KiB from CUDA 12.1 on).
const RUNS_MAX: usize = 170;
const _: () = assert!(size_of::<Runs>() == 4096);

/// All runs of a launch get the same number of blocks. So a run that is longer than this share of all elements is cut.
const SHARES: u64 = 64;
/// A run of this many elements is not cut: a block takes sixteen for each of its threads.
const WHOLE_LEN_MAX: u64 = 4096;

/// The kernels of one device, loaded once.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// In the order of [`KERNELS`].
    module: Module,
}

impl Kernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the driver cannot compile them because it is too old or lacks its compiler. [`Error::Device`] if
    /// the device failed.
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { module: Module::load(context, PTX, KERNELS.into_iter().map(|(_, name)| name))? })
    }

    /// Submits `to[i] = from[i] * factor` to `stream`, for each pair of runs `(from, to)`. Both hold the same number of elements, of types
    /// `read` and `written`. They may be the same memory if the types are equal.
    ///
    /// The result equals that of a weight on the host ([`reduce`](crate::reduce)). The product is computed in f64 for f64, and in f32 for
    /// the other types; the factor is rounded to that type first, and the product is rounded to nearest even. A factor of zero makes zeros
    /// of all elements, also of NaN.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no kernel for these types, [`Error::Device`] if the device refuses.
    ///
    /// # Panics
    /// If `from` and `to` differ in the number of elements.
    pub(crate) fn scale<'a>(
        &self,
        stream: &Stream,
        factor: f64,
        (read, written): (DType, DType),
        runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>,
    ) -> Result<()> {
        self.launch(Work::Scale(read, written), stream, factor.to_bits(), runs)
    }

    /// Submits `data[i] /= divisor` for integers of type `dtype` to `stream`, for each run of them.
    ///
    /// The result is rounded down, as for a mean on the host ([`reduce`](crate::reduce)).
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no kernel for this type, [`Error::Device`] if the device refuses.
    ///
    /// # Panics
    /// If the divisor is zero, or the memory is no whole number of elements.
    pub(crate) fn divide(&self, stream: &Stream, divisor: u32, dtype: DType, data: &[DeviceRegion]) -> Result<()> {
        assert_ne!(divisor, 0, "a device would make anything of it");
        self.launch(Work::Divide(dtype), stream, u64::from(divisor), data.iter().zip(data))
    }

    /// Submits copies to `stream`, for each pair of runs `(from, to)`. They are equally long, at any addresses, and are the same memory or
    /// do not overlap.
    ///
    /// The calling thread must have the context.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses.
    ///
    /// # Panics
    /// If `from` and `to` differ in length.
    pub(crate) fn copy<'a>(
        &self,
        stream: &Stream,
        runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>,
    ) -> Result<()> {
        self.launch(Work::Copy, stream, 0, runs.filter(|(from, to)| from != to))
    }

    /// Submits a kernel to `stream`, in as many launches as the runs need.
    fn launch<'a>(
        &self,
        work: Work,
        stream: &Stream,
        number: u64,
        runs: impl Iterator<Item = (&'a DeviceRegion, &'a DeviceRegion)>,
    ) -> Result<()> {
        let kernel = KERNELS.iter().position(|(known, _)| *known == work).ok_or_else(|| no_kernel(work))?;
        let mut parameter = Runs { number, count: 0, runs: [Run::default(); RUNS_MAX] };
        let runs: Vec<Run> = runs.map(|(from, to)| Run::of(work, from, to)).collect();
        for some in cut(&runs, work.bytes()).chunks(RUNS_MAX) {
            parameter.count = some.len() as u64;
            parameter.runs[..some.len()].copy_from_slice(some);
            // SAFETY: each kernel here has this structure. Whoever made the regions promises that the memory is the device's and lent until
            // the operation ends.
            unsafe { self.module.launch(kernel, stream, blocks(work, some), &parameter)? };
        }
        Ok(())
    }
}

impl Work {
    /// Bytes of an element that is read, and of one that is written.
    const fn bytes(self) -> (u64, u64) {
        match self {
            Self::Scale(read, written) => (read.bytes(), written.bytes()),
            Self::Divide(dtype) => (dtype.bytes(), dtype.bytes()),
            Self::Copy => (1, 1),
        }
    }
}

impl Run {
    fn of(work: Work, from: &DeviceRegion, to: &DeviceRegion) -> Self {
        let (read, written) = work.bytes();
        let len = from.len() as u64 / read;
        assert_eq!((from.len() as u64, to.len() as u64), (len * read, len * written), "as many whole elements");
        Self { from: from.address(), to: to.address(), len }
    }
}

/// Cuts runs that are much longer than the others, because all of a launch get the same number of blocks. Empty runs are left out.
fn cut(runs: &[Run], (read, written): (u64, u64)) -> Vec<Run> {
    let len: u64 = runs.iter().map(|run| run.len).sum();
    // A multiple of eight, so that copies keep the widest words.
    let each = len.div_ceil(SHARES).max(WHOLE_LEN_MAX).next_multiple_of(8);
    let cut_one = move |run: &Run| {
        let Run { from, to, len } = *run;
        (0..len).step_by(usize::try_from(each).expect("a share of memory")).map(move |at| Run {
            from: from + at * read,
            to: to + at * written,
            len: each.min(len - at),
        })
    };
    runs.iter().flat_map(cut_one).collect()
}

/// The blocks of a grid: a multiple of the number of runs. Each thread has an element of the longest run, or the bytes of one.
fn blocks(work: Work, runs: &[Run]) -> c_uint {
    const WORD_BYTES: u64 = 4;
    let longest = runs.iter().map(|run| run.len).max().unwrap_or_default();
    let threads = if work == Work::Copy { longest.div_ceil(WORD_BYTES) } else { longest };
    let count = runs.len() as u64;
    (count * threads.div_ceil(THREADS).min(BLOCKS_MAX / count)) as c_uint
}

fn no_kernel(work: Work) -> Error {
    Error::InvalidArgument {
        what: match work {
            Work::Scale(read, written) => format!("a device cannot cast {read} to {written}"),
            Work::Divide(dtype) => format!("a device cannot divide {dtype}"),
            Work::Copy => unreachable!("bytes are of no type"),
        },
        hint: "scale floats, cast between float32 and float16 or bfloat16, or divide integers".to_owned(),
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
