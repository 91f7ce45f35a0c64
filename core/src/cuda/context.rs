//! A device's primary context, shared with the frameworks of the process, and its events.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::ffi::c_uint;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUevent, CUevent_flags, CUstream, CUstreamCaptureMode,
};

use super::api::Api;
use super::codes::{self, Code, checked, fault, name};
use crate::error::{Error, Result};
use crate::mem::Ordinal;

/// A generation of devices. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Capability {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The primary context of a device. Everything that belongs to the device holds it.
pub(crate) struct Context {
    api: Arc<Api>,
    device: Ordinal,
    raw_device: CUdevice,
    raw: CUcontext,
    /// Unused events. There are as many as were ever in use at once.
    events: Mutex<Vec<Spare>>,
}

/// An unused event.
struct Spare(CUevent);

// SAFETY: contexts and events of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Spare {}
// SAFETY: as above; `api` and the rest are plain data and locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn retain(api: &Arc<Api>, device: Ordinal, raw_device: CUdevice) -> Result<Arc<Self>> {
        let mut raw = ptr::null_mut();
        // SAFETY: it writes one handle, which is given back in `drop`.
        checked(unsafe { (api.primary_retain)(&raw mut raw, raw_device) })
            .map_err(|code| fault(device, "taking its primary context", code))?;
        Ok(Arc::new(Self { api: Arc::clone(api), device, raw_device, raw, events: Mutex::default() }))
    }

    /// The device.
    pub(crate) fn device(&self) -> Ordinal {
        self.device
    }

    /// The compute capability of the device, such as 9.0; 0.0 if the driver does not tell.
    pub(crate) fn capability(&self) -> Capability {
        let attribute = |attribute: CUdevice_attribute| {
            let mut value = 0;
            // SAFETY: it writes one number.
            let code = unsafe { (self.api.device_attribute)(&raw mut value, attribute as c_uint, self.raw_device) };
            checked(code).map_or(0, |()| value.unsigned_abs())
        };
        Capability {
            major: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            minor: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        }
    }

    /// The driver's functions.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// Makes this the context of the calling thread permanently. Called once on every engine thread that works with the device, never on a
    /// thread of the caller.
    ///
    /// Also sets the thread's capture mode to thread-local. Otherwise the first event that is queried here would break a graph that PyTorch
    /// captures on another thread.
    ///
    /// # Errors
    /// [`Error::Device`] if the driver refuses.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: `raw` is retained as long as `self` lives, and the holder of `self` ends every thread that binds it.
        self.checked("binding its context", unsafe { (self.api.context_set)(self.raw) })?;
        self.exchange_capture_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32).map(drop)
    }

    /// Does `work` in this context on a thread that may have another one, and restores that one. Costs about half a microsecond.
    ///
    /// # Errors
    /// The error of `work`, or [`Error::Device`] if the driver refuses.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // SAFETY: `raw` is retained as long as `self` lives; it is taken off again below.
        self.checked("entering its context", unsafe { (self.api.context_push)(self.raw) })?;
        let pop = PopOnDrop(self);
        let mode = self.exchange_capture_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32)?;
        let result = work();
        let restored = self.exchange_capture_mode(mode);
        drop(pop);
        restored.and(result)
    }

    /// # Errors
    /// [`Error::FailedPrecondition`] if `stream` is being captured, or if `stream` is the default stream and another stream is being
    /// captured.
    pub(super) fn refuse_capture(&self, stream: CUstream) -> Result<()> {
        let mut status: c_uint = 0;
        // SAFETY: it writes one number; the stream is one of the framework's, which the caller's arguments name as such.
        let code = unsafe { (self.api.stream_is_capturing)(stream, &raw mut status) };
        if status != 0 || codes::is_capture(code) {
            return Err(self.captured());
        }
        if code == codes::INVALID_HANDLE {
            return Err(Error::InvalidArgument {
                what: format!("stream {stream:p} does not exist on {}", name(self.device)),
                hint: "keep a stream until the handles of its tensors have been waited for".to_owned(),
            });
        }
        self.checked("asking whether its stream is captured", code)
    }

    fn captured(&self) -> Error {
        Error::FailedPrecondition {
            what: format!(
                "a stream of {} is captured into a CUDA graph, and its replays would leave out what the workers agree on in every step",
                name(self.device)
            ),
            hint: "submit tensors and wait for their handles outside of the capture, before or after the graph is replayed".to_owned(),
        }
    }

    /// # Errors
    /// `code` as the error of `what`.
    pub(crate) fn checked(&self, what: &str, code: Code) -> Result<()> {
        checked(code)
            .map_err(|code| if codes::is_capture(code) { self.captured() } else { fault(self.device, what, code) })
    }

    /// Sets the calling thread's capture mode and returns the old one.
    fn exchange_capture_mode(&self, mode: c_uint) -> Result<c_uint> {
        let mut mode = mode;
        // SAFETY: it reads and writes one number, and changes nothing but the calling thread.
        self.checked("setting a thread's capture mode", unsafe { (self.api.capture_mode)(&raw mut mode) })?;
        Ok(mode)
    }

    /// An unused event, for a thread that has the context.
    pub(super) fn take_event(&self) -> Result<CUevent> {
        if let Some(Spare(event)) = self.spare().pop() {
            return Ok(event);
        }
        // Without timing, because nobody needs the time at which an event was reached.
        const FLAGS: c_uint =
            CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint | CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let mut event = ptr::null_mut();
        // SAFETY: it writes one handle, which is destroyed when the context is given back.
        self.checked("creating an event", unsafe { (self.api.event_create)(&raw mut event, FLAGS) })?;
        Ok(event)
    }

    pub(super) fn give_event(&self, event: CUevent) {
        self.spare().push(Spare(event));
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Spare>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.api.is_ours() {
            return;
        }
        for Spare(event) in std::mem::take(&mut *self.spare()) {
            // SAFETY: it is unused, and its context is still retained.
            Api::released("an event", unsafe { (self.api.event_destroy)(event) });
        }
        // SAFETY: retained once, in `retain`; every user of the context holds `self`.
        Api::released("a context", unsafe { (self.api.primary_release)(self.raw_device) });
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", name(self.device))
    }
}

/// Removes a pushed context.
struct PopOnDrop<'a>(&'a Context);

impl Drop for PopOnDrop<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: it writes one handle; this thread pushed it.
        Api::released("a thread's context", unsafe { (self.0.api.context_pop)(&raw mut popped) });
    }
}
