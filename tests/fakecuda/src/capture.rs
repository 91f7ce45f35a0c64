//! Streams under capture: what is submitted becomes part of a graph instead of being done, and calls that a graph cannot hold break it.
//!
//! A thread in the mode *global*, the one that every thread begins in, breaks captures of any thread that were begun in that mode
//! (reference manual, `cuThreadExchangeStreamCaptureMode`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::codes::{Code, Outcome};

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const THREAD_LOCAL: u32 = 1;
pub(crate) const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// The captures under way.
#[derive(Default)]
pub(crate) struct Captures(Mutex<Table>);

#[derive(Default)]
struct Table {
    begun: u64,
    running: BTreeMap<u64, Capture>,
    /// Which stream, by handle, is part of which.
    streams: BTreeMap<usize, u64>,
}

struct Capture {
    origin: usize,
    mode: u32,
    thread: ThreadId,
    is_broken: bool,
}

impl Captures {
    pub(crate) fn begin(&self, stream: usize, mode: u32) -> Outcome {
        let mut table = self.lock();
        if mode > RELAXED || table.streams.contains_key(&stream) {
            return Err(Code::INVALID_VALUE);
        }
        table.begun += 1;
        let id = table.begun;
        let thread = std::thread::current().id();
        table.running.insert(id, Capture { origin: stream, mode, thread, is_broken: false });
        table.streams.insert(stream, id);
        Ok(())
    }

    /// Ends it; an error if it was broken meanwhile.
    pub(crate) fn end(&self, stream: usize) -> Outcome {
        let mut table = self.lock();
        let id = *table.streams.get(&stream).ok_or(Code::INVALID_VALUE)?;
        if table.running.get(&id).is_none_or(|capture| capture.origin != stream) {
            return Err(Code::CAPTURE_UNMATCHED);
        }
        table.streams.retain(|_, of| *of != id);
        let capture = table.running.remove(&id).ok_or(Code::INVALID_VALUE)?;
        if capture.is_broken { Err(Code::CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    /// The capture that the stream is part of, and whether it is broken.
    pub(crate) fn of(&self, stream: usize) -> Option<(u64, bool)> {
        let table = self.lock();
        let id = *table.streams.get(&stream)?;
        Some((id, table.running.get(&id)?.is_broken))
    }

    /// The stream waits for an event of the capture, and becomes part of it.
    pub(crate) fn join(&self, stream: usize, capture: u64) -> Outcome {
        let mut table = self.lock();
        if !table.running.contains_key(&capture) {
            return Err(Code::CAPTURED_EVENT);
        }
        table.streams.insert(stream, capture);
        Ok(())
    }

    /// A stream under capture was asked for something that has no meaning there.
    pub(crate) fn refuse(&self, stream: usize) -> Outcome {
        let mut table = self.lock();
        let Some(id) = table.streams.get(&stream).copied() else { return Ok(()) };
        if let Some(capture) = table.running.get_mut(&id) {
            capture.is_broken = true;
        }
        Err(Code::CAPTURE_UNSUPPORTED)
    }

    /// A call that is not allowed while something is captured: it breaks what it touches, and fails.
    pub(crate) fn forbid(&self) -> Outcome {
        let mode = MODE.with(Cell::get);
        let thread = std::thread::current().id();
        let mut broken = false;
        for capture in self.lock().running.values_mut() {
            let touches = match mode {
                GLOBAL => capture.mode == GLOBAL || (capture.thread == thread && capture.mode != RELAXED),
                THREAD_LOCAL => capture.thread == thread && capture.mode != RELAXED,
                _ => false,
            };
            capture.is_broken |= touches;
            broken |= touches;
        }
        if broken { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the mode of the calling thread; the one before.
pub(crate) fn exchange(mode: u32) -> Outcome<u32> {
    if mode > RELAXED { Err(Code::INVALID_VALUE) } else { Ok(MODE.with(|own| own.replace(mode))) }
}
