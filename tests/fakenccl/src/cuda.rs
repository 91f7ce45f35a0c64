//! The driver: whatever is mapped as `libcuda.so`.

#![expect(unsafe_code, reason = "functions are looked up by name in a library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_NOW};

use crate::codes::{Failure, INVALID_USAGE, Outcome, SYSTEM_ERROR, UNHANDLED_CUDA_ERROR};

/// Not in libloading: finds a library only if it is mapped (`dlopen(3)`).
const RTLD_NOLOAD: c_int = 4;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)+) => {
        /// The functions that are used; each answers a code of the driver.
        pub(crate) struct Cuda { $($field: extern "C" fn($($argument),*) -> u32),+ }

        impl Cuda {
            /// Finds the driver.
            pub(crate) fn find() -> Outcome<Self> {
                // SAFETY: nothing is loaded, and so nothing is run.
                let library = unsafe { Library::open(Some("libcuda.so"), RTLD_NOW | RTLD_NOLOAD) };
                let library = library.map_err(|_| Failure::new(SYSTEM_ERROR, "no libcuda.so is mapped"))?;
                let missing = |name: &str| Failure::new(SYSTEM_ERROR, format!("the mapped libcuda.so has no {name}: it is no fakecuda"));
                Ok(Self {
                    $(
                        // SAFETY: the types are those of the driver's header and of fakecuda's `api::control`.
                        $field: *unsafe { library.get::<extern "C" fn($($argument),*) -> u32>($name) }.map_err(|_| missing($name))?,
                    )+
                })
            }
        }
    };
}

functions! {
    context_current = "cuCtxGetCurrent": fn(*mut usize);
    context_device = "cuCtxGetDevice": fn(*mut c_int);
    context_push = "cuCtxPushCurrent_v2": fn(usize);
    context_pop = "cuCtxPopCurrent_v2": fn(*mut usize);
    context_set = "cuCtxSetCurrent": fn(usize);
    context_synchronize = "cuCtxSynchronize": fn();
    primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut usize, c_int);
    pci_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, c_int);
    stream_context = "cuStreamGetCtx": fn(usize, *mut usize);
    stream_capturing = "cuStreamIsCapturing": fn(usize, *mut c_uint);
    launch_host = "cuLaunchHostFunc": fn(usize, extern "C" fn(*mut c_void), *mut c_void);
    host_address = "fakecuda_host_address": fn(u64, usize, *mut usize);
    fail_device = "fakecuda_fail_device": fn(c_int, u32);
}

/// Which device a communicator has.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Place {
    pub(crate) device: c_int,
    pub(crate) context: usize,
    pub(crate) pci_address: String,
}

impl Cuda {
    /// The device whose context is current.
    pub(crate) fn here(&self) -> Outcome<Place> {
        let (mut context, mut device) = (0, 0);
        checked("cuCtxGetCurrent", (self.context_current)(&raw mut context))?;
        if context == 0 {
            // NCCL would take device 0, which is seldom what was meant.
            return Err(Failure::new(UNHANDLED_CUDA_ERROR, "no context is current in this thread"));
        }
        checked("cuCtxGetDevice", (self.context_device)(&raw mut device))?;
        let mut name: [c_char; 32] = [0; 32];
        checked("cuDeviceGetPCIBusId", (self.pci_bus_id)(name.as_mut_ptr(), 31, device))?;
        // SAFETY: the last of the 32 is never written, so that the text ends.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Place { device, context, pci_address: name.to_string_lossy().into_owned() })
    }

    /// What CUDA's runtime does in a thread without a context: it makes one on the first device. Whether it did.
    pub(crate) fn enters_the_first_device(&self) -> bool {
        let mut context = 0;
        if (self.context_current)(&raw mut context) != 0 || context != 0 {
            return false;
        }
        (self.primary_retain)(&raw mut context, 0) == 0 && (self.context_set)(context) == 0
    }

    /// Whether operations of a communicator at `place` can go into the stream.
    pub(crate) fn check_stream(&self, stream: usize, place: &Place) -> Outcome {
        let (mut context, mut status) = (0, 0);
        self.within(place, || checked("cuStreamGetCtx", (self.stream_context)(stream, &raw mut context)))?;
        if context != place.context {
            return Err(Failure::argument("the stream is not of the communicator's device"));
        }
        self.within(place, || checked("cuStreamIsCapturing", (self.stream_capturing)(stream, &raw mut status)))?;
        if status != 0 {
            return Err(Failure::new(
                INVALID_USAGE,
                "the stream is under capture, which this library does not support",
            ));
        }
        Ok(())
    }

    /// Has `function` called with `argument` when the stream has come so far.
    pub(crate) fn launch(
        &self,
        place: &Place,
        stream: usize,
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Outcome {
        self.within(place, || checked("cuLaunchHostFunc", (self.launch_host)(stream, function, argument)))
    }

    /// Where the host sees memory of a device.
    pub(crate) fn memory(&self, address: usize, bytes: usize) -> Outcome<usize> {
        let mut host = 0;
        match (self.host_address)(address as u64, bytes, &raw mut host) {
            0 => Ok(host),
            _ => Err(Failure::argument(format!("{bytes} bytes at {address:#x} are not memory of a device"))),
        }
    }

    /// Frees memory of the device, as NCCL does at an abort: the driver waits for all work of the device before.
    pub(crate) fn free_something(&self, place: &Place) {
        // A device that has failed waits for nothing.
        let _ = self.within(place, || checked("cuCtxSynchronize", (self.context_synchronize)()));
    }

    /// A kernel touched memory that is none: the device is lost.
    pub(crate) fn illegal_address(&self, place: &Place) {
        (self.fail_device)(place.device, 700);
    }

    fn within(&self, place: &Place, call: impl FnOnce() -> Outcome) -> Outcome {
        checked("cuCtxPushCurrent", (self.context_push)(place.context))?;
        let outcome = call();
        let mut popped = 0;
        checked("cuCtxPopCurrent", (self.context_pop)(&raw mut popped))?;
        outcome
    }
}

fn checked(name: &str, code: u32) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(Failure::new(UNHANDLED_CUDA_ERROR, format!("{name} answers {code}"))),
    }
}
