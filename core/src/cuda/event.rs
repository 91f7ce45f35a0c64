//! Events: points in a stream's work that other streams and threads wait for.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use super::codes;
use super::context::Context;
use crate::error::Result;

/// A point in the work of a stream, recorded once. The driver's event returns to its context when the last holder drops it. Streams that
/// wait for it already wait for this point, not for a later one.
pub struct Event {
    raw: CUevent,
    /// The stream. Points of one stream are reached in order.
    stream: usize,
    context: Arc<Context>,
}

// SAFETY: events of the driver may be used on any thread (CUDA driver API, "Thread safety").
unsafe impl Send for Event {}
// SAFETY: as above; nobody records it again.
unsafe impl Sync for Event {}

impl Event {
    /// Records an event; the calling thread must have the context. `stream` may belong to the framework.
    pub(super) fn record(context: &Arc<Context>, stream: CUstream) -> Result<Arc<Self>> {
        // Owned before it is recorded, so that a failure returns it.
        let event = Self { raw: context.take_event()?, stream: stream.addr(), context: Arc::clone(context) };
        // SAFETY: the event is nobody else's, and the stream is one of this context.
        let code = unsafe { (context.api().event_record)(event.raw, stream) };
        context.checked("recording an event", code)?;
        Ok(Arc::new(event))
    }

    /// The driver's handle, valid as long as `self`.
    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Its device.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its stream.
    pub(crate) fn stream(&self) -> usize {
        self.stream
    }

    /// Whether it is reached. The calling thread must have the context. Takes about a microsecond.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for `what` if the device failed, so that no caller polls for ever.
    pub(crate) fn is_reached(&self, what: &str) -> Result<bool> {
        // SAFETY: the handle is alive and recorded.
        match unsafe { (self.context.api().event_query)(self.raw) } {
            codes::NOT_READY => Ok(false),
            code => self.context.checked(what, code).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.give_event(self.raw);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?} of {:?})", self.raw, self.context)
    }
}
