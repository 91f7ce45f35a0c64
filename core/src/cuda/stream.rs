//! Streams of the engine's own.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags};

use super::api::Api;
use super::context::Context;
use super::event::Event;
use super::mark::Mark;
use crate::error::Result;

impl Context {
    /// A stream of the engine's own, which waits for no other unless it is told to, and whose kernels go before those of others.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the driver gives none.
    pub(crate) fn stream(self: &Arc<Self>) -> Result<Stream> {
        self.within(|| Stream::create(self))
    }

    /// Marks where the framework's `stream` stands now; 0 is the device's default stream. For the caller's thread: a few microseconds, and
    /// nothing is waited for.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) while the stream is captured into a graph, [`Error::Device`](crate::Error::Device) if the device failed.
    pub(crate) fn mark(self: &Arc<Self>, stream: u64) -> Result<Mark> {
        let raw = ptr::without_provenance_mut(usize::try_from(stream).expect("a handle is a pointer"));
        self.within(|| {
            self.refuse_capture(raw)?;
            Ok(Mark::Event(Event::record(self, raw)?))
        })
    }
}

/// A stream of the engine's own. It synchronises with no other stream, the default stream neither: whatever it shall wait for it is told.
///
/// The thread that uses it has bound the stream's context ([`Context::bind`]).
pub(crate) struct Stream {
    raw: CUstream,
    context: Arc<Context>,
}

// SAFETY: streams of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// For a thread that has the context.
    pub(super) fn create(context: &Arc<Context>) -> Result<Self> {
        // A smaller number goes first, and the driver takes what is beyond its range for the end of its range. It ranks kernels, not copies:
        // a few blocks of a sum that a whole machine waits for go before those of the model.
        const FIRST: c_int = -1000;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: it writes one handle, which is destroyed in `drop`.
        let code = unsafe { (context.api().stream_create)(&raw mut raw, flags, FIRST) };
        context.checked("creating a stream", code)?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// The driver's handle, valid as long as `self`.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whose it is.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Lets what is submitted from now on wait for `mark`. Returns at once.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub(crate) fn wait(&self, mark: &Mark) -> Result<()> {
        match mark {
            Mark::Reached => Ok(()),
            Mark::Event(event) => {
                // SAFETY: both handles are alive; the event was recorded when it was made, and its next use does not change this wait.
                let code = unsafe { (self.context.api().stream_wait)(self.raw, event.raw(), 0) };
                self.context.checked("letting a stream wait", code)
            }
        }
    }

    /// Marks where this stream stands now.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub(crate) fn record(&self) -> Result<Arc<Event>> {
        Event::record(&self.context, self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let api = self.context.api();
        if api.is_ours() {
            // SAFETY: nobody has the handle any more. The driver lets what was submitted end by itself.
            Api::released("a stream", unsafe { (api.stream_destroy)(self.raw) });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.raw, self.context)
    }
}
