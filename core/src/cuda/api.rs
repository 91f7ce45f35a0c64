//! The functions of the driver that Gradlane calls, as one table. They are called through this table only.
//!
//! Types and constants are cudarc's. The functions are bound here for two reasons: cudarc's functions panic if a symbol is missing, and
//! they return a Rust enum, for which an unlisted code is undefined behaviour. Its loader would also take the stub for linking.
#![expect(unsafe_code, reason = "symbols of a library have the types that its header says")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use libloading::os::unix::Library;

use super::codes::{self, Code};
use crate::local::process_id;

macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)+) => {
        /// The driver's functions, each under the name that it has there.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Code,)+
            /// The process that loaded them. The child of a fork has the addresses, but cannot use the driver.
            process: u32,
        }

        impl Api {
            /// Finds every function in `library`, which must never be closed.
            ///
            /// # Errors
            /// The name of the first function that it lacks.
            pub(super) fn bind(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of the function of this name in cuda.h of CUDA 13, which earlier versions share;
                        // `CUresult` is an unsigned number there.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Code>($name.as_bytes())
                        };
                        *symbol.map_err(|_| $name)?
                    },)+
                    process: process_id(),
                })
            }
        }
    };
}

calls! {
    init = "cuInit": fn(c_uint);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device = "cuDeviceGet": fn(*mut CUdevice, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice);
    device_memory = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, CUdevice);
    device_pci_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice);
    device_reaches = "cuDeviceCanAccessPeer": fn(*mut c_int, CUdevice, CUdevice);
    primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice);
    primary_release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice);
    context_set = "cuCtxSetCurrent": fn(CUcontext);
    context_push = "cuCtxPushCurrent_v2": fn(CUcontext);
    context_pop = "cuCtxPopCurrent_v2": fn(*mut CUcontext);
    capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_uint);
    stream_create = "cuStreamCreateWithPriority": fn(*mut CUstream, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2": fn(CUstream);
    stream_wait = "cuStreamWaitEvent": fn(CUstream, CUevent, c_uint);
    stream_is_capturing = "cuStreamIsCapturing": fn(CUstream, *mut c_uint);
    event_create = "cuEventCreate": fn(*mut CUevent, c_uint);
    event_destroy = "cuEventDestroy_v2": fn(CUevent);
    event_record = "cuEventRecord": fn(CUevent, CUstream);
    event_query = "cuEventQuery": fn(CUevent);
    host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    host_register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister": fn(*mut c_void);
    device_alloc = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize);
    device_free = "cuMemFree_v2": fn(CUdeviceptr);
    copy_out = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, CUdeviceptr, usize, CUstream);
    copy_in = "cuMemcpyHtoDAsync_v2": fn(CUdeviceptr, *const c_void, usize, CUstream);
    copy_within = "cuMemcpyDtoDAsync_v2": fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
    module_load = "cuModuleLoadData": fn(*mut CUmodule, *const c_void);
    module_unload = "cuModuleUnload": fn(CUmodule);
    module_function = "cuModuleGetFunction": fn(*mut CUfunction, CUmodule, *const c_char);
    launch = "cuLaunchKernel": fn(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
}

impl Api {
    /// Whether this process may call the driver; the child of a fork may not.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process_id()
    }

    /// Logs a failed release of a resource. A driver that shuts down with the process has released everything already.
    pub(crate) fn released(what: &str, code: Code) {
        if code != codes::SUCCESS && code != codes::DEINITIALIZED {
            tracing::debug!(what, cause = codes::describe(code), "the driver did not take something back");
        }
    }
}
