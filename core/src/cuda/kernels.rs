//! Kernels that work on device memory element by element: scale floats, cast between f32 and 16-bit floats, and divide integers.
//!
//! The sources are CUDA C in the folder `kernels`. NVRTC compiles them to PTX (`make ptx`), which is built in. The driver compiles the PTX
//! for its device when it is loaded. This takes tens of milliseconds the first time; then the driver finds it in its cache in `~/.nv`.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::api::Api;
use super::codes;
use super::codes::name;
use super::context::Context;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::mem::DeviceRegion;
use crate::types::DType;

/// The PTX of `elementwise.cu`, with a terminating zero for the driver.
const PTX: &str = concat!(include_str!("kernels/elementwise.ptx"), "\0");

/// What a kernel does to every element.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    /// Reads the first type, multiplies, and writes the second.
    Scale(DType, DType),
    /// Divides.
    Divide(DType),
}

const KERNELS: [(Work, &str); 12] = [
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
];

/// Threads of a block.
const THREADS: u64 = 256;
/// The most blocks of a grid; beyond that, each thread takes more elements. Eight blocks fill a multiprocessor, and no device has many more
/// than 128 of them.
const BLOCKS_MAX: u64 = 1024;

/// The kernels of one device, loaded once.
pub(crate) struct Kernels {
    module: CUmodule,
    /// In the order of [`KERNELS`].
    functions: [CUfunction; KERNELS.len()],
    context: Arc<Context>,
}

// SAFETY: modules and functions of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Lets the driver compile the kernels for the device of `context`. May be called on any thread.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the driver cannot compile them because it is too old or lacks its compiler. [`Error::Device`] if
    /// the device failed.
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self> {
        context.within(|| {
            let mut module = ptr::null_mut();
            // SAFETY: the text ends with a zero, and one handle is written, which is unloaded in `drop`.
            let code = unsafe { (context.api().module_load)(&raw mut module, PTX.as_ptr().cast()) };
            if codes::is_compilation(code) {
                return Err(Error::FailedPrecondition {
                    what: format!("the driver cannot compile for {}: {}", name(context.device()), codes::describe(code)),
                    hint: "update NVIDIA's driver to 525 or later; in a container, give it libnvidia-ptxjitcompiler.so.1 too"
                        .to_owned(),
                });
            }
            context.checked("loading the kernels", code)?;
            // Owned before the kernels are looked up, so that a failure unloads the module.
            let mut kernels = Self { module, functions: [ptr::null_mut(); KERNELS.len()], context: Arc::clone(context) };
            for (function, (_, name)) in kernels.functions.iter_mut().zip(KERNELS) {
                // SAFETY: the name ends with a zero, and one handle is written, which is valid as long as its module.
                let code = unsafe { (context.api().module_function)(function, module, name.as_ptr().cast()) };
                context.checked("looking for a kernel", code)?;
            }
            Ok(kernels)
        })
    }

    /// Submits `to[i] = from[i] * factor` to `stream`. Both hold the same number of elements, of types `read` and `written`. They may be
    /// the same memory if the types are equal.
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
    pub(crate) fn scale(
        &self,
        stream: &Stream,
        factor: f64,
        (read, from): (DType, &DeviceRegion),
        (written, to): (DType, &DeviceRegion),
    ) -> Result<()> {
        let len = from.len() as u64 / read.bytes();
        assert_eq!(
            (from.len() as u64, to.len() as u64),
            (len * read.bytes(), len * written.bytes()),
            "as many elements"
        );
        self.launch(Work::Scale(read, written), stream, [from.address(), to.address(), len, factor.to_bits()])
    }

    /// Submits `data[i] /= divisor` for integers of type `dtype` to `stream`.
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
    pub(crate) fn divide(&self, stream: &Stream, divisor: u32, dtype: DType, data: &DeviceRegion) -> Result<()> {
        assert_ne!(divisor, 0, "a device would make anything of it");
        let len = data.len() as u64 / dtype.bytes();
        assert_eq!(data.len() as u64, len * dtype.bytes(), "whole elements");
        self.launch(Work::Divide(dtype), stream, [data.address(), data.address(), len, u64::from(divisor)])
    }

    /// Submits a kernel. Every kernel here has the same arguments: source, destination, number of elements, and the bits of a number.
    fn launch(&self, work: Work, stream: &Stream, mut arguments: [u64; 4]) -> Result<()> {
        let kernel = KERNELS.iter().position(|(known, _)| *known == work).ok_or_else(|| no_kernel(work))?;
        let [_, _, len, _] = arguments;
        if len == 0 {
            // The driver refuses an empty grid.
            return Ok(());
        }
        let blocks = len.div_ceil(THREADS).min(BLOCKS_MAX) as c_uint;
        let mut places = arguments.each_mut().map(|argument| ptr::from_mut(argument).cast::<c_void>());
        // SAFETY: each kernel here has four arguments of eight bytes, which are read before the call returns. Whoever made the regions
        // promises that the memory is the device's and lent until the operation ends.
        let code = unsafe {
            (self.context.api().launch)(
                self.functions[kernel],
                blocks,
                1,
                1,
                THREADS as c_uint,
                1,
                1,
                0,
                stream.raw(),
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.context.checked("launching a kernel", code)
    }
}

fn no_kernel(work: Work) -> Error {
    Error::InvalidArgument {
        what: match work {
            Work::Scale(read, written) => format!("a device cannot cast {read} to {written}"),
            Work::Divide(dtype) => format!("a device cannot divide {dtype}"),
        },
        hint: "scale floats, cast between float32 and float16 or bfloat16, or divide integers".to_owned(),
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let api = self.context.api();
        if api.is_ours() {
            let unload = || {
                // SAFETY: nobody has its functions any more. The driver waits for running kernels.
                Api::released("the kernels", unsafe { (api.module_unload)(self.module) });
                Ok(())
            };
            // A device that failed has lost its modules anyway.
            let _ = self.context.within(unload);
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({:?})", self.context)
    }
}

#[cfg(test)]
mod tests;
