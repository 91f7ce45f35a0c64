//! Streams that the engine owns.
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
    /// Makes a stream that waits for no other stream by itself, and whose kernels go before those of other streams.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the driver cannot make one.
    pub(crate) fn stream(self: &Arc<Self>) -> Result<Stream> {
        self.within(|| Stream::create(self))
    }

    /// Marks the current end of the framework's `stream`; 0 is the device's default stream. May be called on the caller's thread: it takes
    /// a few microseconds and does not wait.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) while the stream is captured into a graph, [`Error::Device`](crate::Error::Device) if the device failed.
    pub(crate) fn mark(self: &Arc<Self>, stream: u64) -> Result<Mark> {
        let raw = raw_stream(stream);
        self.within(|| {
            self.refuse_capture(raw)?;
            Ok(Mark::Event(Event::record(self, raw)?))
        })
    }

    /// Makes later work of the framework's `stream` wait for `event`. Like [`mark`](Self::mark), it does not wait itself.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub(super) fn let_wait(&self, stream: u64, event: &Event) -> Result<()> {
        let raw = raw_stream(stream);
        self.within(|| {
            // First, because a wait for what is outside of a graph would break the capture.
            self.refuse_capture(raw)?;
            // SAFETY: the driver knows the stream, as was just asked; the event is alive and recorded, and its next use does not change
            // this wait.
            let code = unsafe { (self.api().stream_wait)(raw, event.raw(), 0) };
            self.checked("letting the caller's stream wait", code)
        })
    }
}

/// The driver's handle of a stream of the framework.
fn raw_stream(stream: u64) -> CUstream {
    ptr::without_provenance_mut(usize::try_from(stream).expect("a handle is a pointer"))
}

/// A stream that the engine owns. It synchronises with no other stream, not even the default stream, except through [`wait`](Self::wait).
///
/// The thread that uses it must have bound the stream's context ([`Context::bind`]).
pub(crate) struct Stream {
    raw: CUstream,
    context: Arc<Context>,
}

// SAFETY: streams of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The calling thread must have the context.
    pub(super) fn create(context: &Arc<Context>) -> Result<Self> {
        // A smaller number goes first; the driver clamps numbers to its range. Priority orders kernels, not copies: the few blocks of a sum
        // for which a whole machine waits go before those of the model.
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

    /// Its device.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes later work of this stream wait for `mark`. Returns at once.
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

    /// Marks the current end of this stream.
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
            // SAFETY: nobody has the handle any more. The driver finishes submitted work by itself.
            Api::released("a stream", unsafe { (api.stream_destroy)(self.raw) });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} of {:?})", self.raw, self.context)
    }
}
