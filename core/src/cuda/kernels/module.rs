//! Kernels of one PTX text, loaded once for a device.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::cuda::api::Api;
use crate::cuda::codes::{self, Code, name};
use crate::cuda::context::{Capability, Context};
use crate::cuda::stream::Stream;
use crate::error::{Error, Result};

/// The first devices for which the driver can compile the texts: the `.target` that they name.
const NEEDED: Capability = Capability { major: 6, minor: 0 };

/// Threads of a block.
pub(super) const THREADS: u64 = 256;
/// The most blocks of a grid; beyond that, each thread takes more elements. Eight blocks fill a multiprocessor, and no device has many more
/// than 128 of them.
pub(super) const BLOCKS_MAX: u64 = 1024;

/// The blocks of a grid of at least one thread.
pub(super) fn grid(threads: u64) -> c_uint {
    threads.div_ceil(THREADS).clamp(1, BLOCKS_MAX) as c_uint
}

/// See the module.
pub(super) struct Module {
    raw: CUmodule,
    /// In the order of the names.
    functions: Vec<CUfunction>,
    context: Arc<Context>,
}

// SAFETY: modules and functions of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Lets the driver compile `text` for the device of `context`, and looks up the kernels called `names`. The text and the names end with
    /// a zero. May be called on any thread.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the driver cannot compile it because it is too old or lacks its compiler. [`Error::Device`] if the
    /// device failed.
    ///
    /// # Panics
    /// If a text does not end with a zero.
    pub(super) fn load(
        context: &Arc<Context>,
        text: &'static str,
        names: impl Iterator<Item = &'static str>,
    ) -> Result<Self> {
        assert!(text.ends_with('\0'), "the driver looks for the end");
        context.within(|| {
            let mut raw = ptr::null_mut();
            // SAFETY: the text ends with a zero, and one handle is written, which is unloaded in `drop`.
            let code = unsafe { (context.api().module_load)(&raw mut raw, text.as_ptr().cast()) };
            if codes::is_compilation(code) {
                return Err(cannot_compile(context, code));
            }
            context.checked("loading the kernels", code)?;
            // Owned before the kernels are looked up, so that a failure unloads the module.
            let mut module = Self { raw, functions: Vec::new(), context: Arc::clone(context) };
            for name in names {
                assert!(name.ends_with('\0'), "the driver looks for the end");
                let mut function = ptr::null_mut();
                // SAFETY: the name ends with a zero, and one handle is written, which is valid as long as its module.
                let code = unsafe { (context.api().module_function)(&raw mut function, raw, name.as_ptr().cast()) };
                context.checked("looking for a kernel", code)?;
                module.functions.push(function);
            }
            Ok(module)
        })
    }

    /// Submits the kernel of that index among the names to `stream`, with so many blocks of [`THREADS`].
    ///
    /// The calling thread must have the context.
    ///
    /// # Safety
    /// `parameter` is the structure that the kernel's source has as its only parameter. The memory that it names is the device's and lent
    /// until the operation ends.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses.
    pub(super) unsafe fn launch<P>(&self, kernel: usize, stream: &Stream, blocks: c_uint, parameter: &P) -> Result<()> {
        let mut place = ptr::from_ref(parameter).cast_mut().cast::<c_void>();
        // SAFETY: by the caller's promise; the parameter is read before the call returns.
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
                &raw mut place,
                ptr::null_mut(),
            )
        };
        self.context.checked("launching a kernel", code)
    }
}

fn cannot_compile(context: &Context, code: Code) -> Error {
    let capability = context.capability();
    let hint = if capability < NEEDED {
        format!("use a device of compute capability {NEEDED} or later, or keep these tensors in host memory")
    } else {
        "update NVIDIA's driver to 525 or later; in a container, give it libnvidia-ptxjitcompiler.so.1 too".to_owned()
    };
    Error::FailedPrecondition {
        what: format!(
            "the driver cannot compile for {}, a device of compute capability {capability}: {}",
            name(context.device()),
            codes::describe(code)
        ),
        hint,
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let api = self.context.api();
        if api.is_ours() {
            let unload = || {
                // SAFETY: nobody has its functions any more. The driver waits for running kernels.
                Api::released("the kernels", unsafe { (api.module_unload)(self.raw) });
                Ok(())
            };
            // A device that failed has lost its modules anyway.
            let _ = self.context.within(unload);
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.context)
    }
}
