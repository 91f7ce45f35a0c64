//! The CUDA driver, found at run time. A missing driver is an error value, never a panic.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdevice;

use super::api::Api;
use super::codes::{self, Code, checked, fault, name};
use super::context::Context;
use super::loader::{Place, find};
use crate::error::{Error, Result};
use crate::mem::Ordinal;

/// Why CUDA is not available. This is no failure: most machines have no GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Absent {
    /// No library.
    NoLibrary {
        /// The places that were searched, each with the loader's message.
        searched: Vec<String>,
    },
    /// The library is no driver, or a driver that is too old.
    MissingSymbol {
        /// The library.
        library: String,
        /// The missing symbol.
        name: &'static str,
    },
    /// The driver cannot be used.
    Refused {
        /// The library.
        library: String,
        /// The function that failed.
        call: &'static str,
        /// Its result code.
        code: Code,
    },
    /// A driver without devices.
    NoDevice {
        /// The library.
        library: String,
    },
}

impl Absent {
    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        match self {
            Self::NoLibrary { .. } => "install NVIDIA's driver, start the container with the NVIDIA runtime (`--gpus all`), or name the library with cuda_lib".to_owned(),
            Self::MissingSymbol { .. } => "update NVIDIA's driver to 525 or later, or let cuda_lib name the driver's libcuda.so.1".to_owned(),
            Self::Refused { code, .. } => codes::advice(*code).to_owned(),
            Self::NoDevice { .. } => codes::advice(100).to_owned(),
        }
    }

    /// The error for an operation that needs a device.
    pub(crate) fn error(&self) -> Error {
        Error::Unavailable { what: "CUDA".to_owned(), cause: format!("{self}; {}", self.advice()) }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary { searched } => write!(f, "no CUDA driver: looked for {}", searched.join("; ")),
            Self::MissingSymbol { library, name } => {
                write!(f, "{library} is no usable CUDA driver: it has no {name}")
            }
            Self::Refused { library, call, code } => write!(f, "{call} of {library}: {}", codes::describe(*code)),
            Self::NoDevice { library } => write!(f, "{library} was loaded, but it has no device"),
        }
    }
}

/// The driver and the devices that it shows to this process.
///
/// [`load`](Self::load) finds all functions before it calls one. The library stays mapped for ever, because its threads and handlers
/// outlive all its users.
pub(crate) struct Driver {
    api: Arc<Api>,
    library: String,
    version: u32,
    devices: Vec<CUdevice>,
    /// The context of each device that was used.
    contexts: Mutex<Vec<Option<Arc<Context>>>>,
}

impl Driver {
    /// Looks for the driver: at `path` if it is given; else the one that this process has mapped; else under its usual names on the loader's
    /// path. Stops at the first library that exists.
    ///
    /// # Errors
    /// Why there is no driver, or no device.
    pub(crate) fn load(path: Option<&Path>) -> std::result::Result<Arc<Self>, Absent> {
        let (library, place) = find(&Place::list(path, &NAMES)).map_err(|searched| Absent::NoLibrary { searched })?;
        let name = place.to_string();
        let api =
            Api::bind(library).map_err(|missing| Absent::MissingSymbol { library: name.clone(), name: missing })?;
        let refused = |call| {
            let library = name.clone();
            move |code| Absent::Refused { library, call, code }
        };
        // SAFETY: no argument but the flags, which must be 0.
        checked(unsafe { (api.init)(0) }).map_err(refused("cuInit"))?;
        let mut version = 0;
        // SAFETY: it writes one number.
        checked(unsafe { (api.driver_version)(&raw mut version) }).map_err(refused("cuDriverGetVersion"))?;
        let mut count = 0;
        // SAFETY: it writes one number.
        checked(unsafe { (api.device_count)(&raw mut count) }).map_err(refused("cuDeviceGetCount"))?;
        let mut devices = Vec::new();
        for index in 0..count {
            let mut device = 0;
            // SAFETY: it writes one number.
            checked(unsafe { (api.device)(&raw mut device, index) }).map_err(refused("cuDeviceGet"))?;
            devices.push(device);
        }
        if devices.is_empty() {
            return Err(Absent::NoDevice { library: name });
        }
        let contexts = Mutex::new(devices.iter().map(|_| None).collect());
        Ok(Arc::new(Self { api: Arc::new(api), library: name, version: version.unsigned_abs(), devices, contexts }))
    }

    /// The path or name of the library.
    pub(crate) fn library(&self) -> &str {
        &self.library
    }

    /// The newest CUDA version that it supports, such as `13.0`.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// The devices, from 0.
    pub(crate) fn ordinals(&self) -> impl Iterator<Item = Ordinal> + use<> {
        (0..self.devices.len()).map(|index| Ordinal(u16::try_from(index).expect("a machine has few devices")))
    }

    /// The primary context of `device`, which frameworks use too. It is kept after its first use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such device, [`Error::Device`] if it gives no context.
    pub(crate) fn device(&self, device: Ordinal) -> Result<Arc<Context>> {
        let raw = self.raw(device)?;
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let context = &mut contexts[usize::from(device.0)];
        if let Some(context) = context {
            return Ok(Arc::clone(context));
        }
        Ok(Arc::clone(context.insert(Context::retain(&self.api, device, raw)?)))
    }

    /// The first device that this process used, if any.
    ///
    /// A context takes some hundred megabytes of its device, so callers that can use any context use this one.
    pub(crate) fn in_use(&self) -> Option<Arc<Context>> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.iter().flatten().next().cloned()
    }

    /// Model, memory and PCI address of `device`. Needs no context.
    ///
    /// # Errors
    /// As [`device`](Self::device).
    pub(crate) fn facts(&self, device: Ordinal) -> Result<Facts> {
        let raw = self.raw(device)?;
        let fault = |what, code| fault(device, what, code);
        let model = self.text(|text, len| {
            // SAFETY: it writes a string of at most `len` bytes.
            unsafe { (self.api.device_name)(text, len, raw) }
        });
        let pci_bus_id = self.text(|text, len| {
            // SAFETY: as above.
            unsafe { (self.api.device_pci_bus_id)(text, len, raw) }
        });
        let mut bytes = 0;
        // SAFETY: it writes one number.
        let memory = checked(unsafe { (self.api.device_memory)(&raw mut bytes, raw) });
        Ok(Facts {
            model: model.map_err(|code| fault("its name", code))?,
            pci_bus_id: pci_bus_id.map_err(|code| fault("its place", code))?,
            bytes: memory.map(|()| bytes as u64).map_err(|code| fault("its memory", code))?,
        })
    }

    /// Whether `device` can access the memory of `other` without the host: over NVLink, or over PCIe if the machine permits it. Needs no
    /// context.
    ///
    /// # Errors
    /// As [`device`](Self::device).
    pub(crate) fn reaches(&self, device: Ordinal, other: Ordinal) -> Result<bool> {
        let (raw, raw_other) = (self.raw(device)?, self.raw(other)?);
        let mut reaches = 0;
        // SAFETY: it writes one number.
        checked(unsafe { (self.api.device_reaches)(&raw mut reaches, raw, raw_other) })
            .map_err(|code| fault(device, "which devices it reaches", code))?;
        Ok(reaches != 0)
    }

    fn raw(&self, device: Ordinal) -> Result<CUdevice> {
        self.devices.get(usize::from(device.0)).copied().ok_or_else(|| {
            let last = self.devices.len() - 1;
            Error::InvalidArgument {
                what: format!("{} does not exist", name(device)),
                hint: match last {
                    0 => "this process sees cuda:0 only; look at CUDA_VISIBLE_DEVICES".to_owned(),
                    _ => format!("this process sees cuda:0 to cuda:{last}; look at CUDA_VISIBLE_DEVICES"),
                },
            }
        })
    }

    fn text(&self, call: impl FnOnce(*mut c_char, c_int) -> Code) -> std::result::Result<String, Code> {
        let mut text = [0_u8; 128];
        checked(call(text.as_mut_ptr().cast(), 127))?;
        let text = CStr::from_bytes_until_nul(&text).expect("its last byte is 0");
        Ok(text.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, CUDA {}, {} devices)", self.library, self.version(), self.devices.len())
    }
}

/// Facts about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// Such as `NVIDIA H200`.
    pub(crate) model: String,
    /// Such as `0000:3b:00.0`.
    pub(crate) pci_bus_id: String,
    /// Its memory.
    pub(crate) bytes: u64,
}

/// The names of the driver's library, the best first. Programs are linked with a stub that has the last name, so a folder with stubs on the
/// loader's path hides the driver from who asks for that name.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_where_nothing_is_gives_an_error_that_names_it() {
        let absent = Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err();
        let Absent::NoLibrary { searched } = &absent else { panic!("{absent}") };
        assert_eq!(searched.len(), 1, "a configured path is the only one: {searched:?}");
        assert!(searched[0].starts_with("/nowhere/libcuda.so.1 (cannot open shared object file"), "{searched:?}");
        let error = absent.error();
        assert!(matches!(error, Error::Unavailable { .. }));
        assert!(
            error.to_string().contains("/nowhere/libcuda.so.1") && error.to_string().contains("cuda_lib"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_library_gives_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "not a library").unwrap();
        let absent = Driver::load(Some(file.path())).unwrap_err();
        assert!(matches!(absent, Absent::NoLibrary { .. }), "{absent}");
    }

    #[test]
    fn a_library_of_something_else_lacks_what_a_driver_has() {
        // Mapped in every process here; the loader knows it by name.
        let absent = Driver::load(Some(Path::new("libc.so.6"))).unwrap_err();
        assert_eq!(absent, Absent::MissingSymbol { library: "libc.so.6".to_owned(), name: "cuInit" });
    }
}
