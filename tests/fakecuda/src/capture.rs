//! Streams under capture: what is submitted becomes part of a graph instead of being done, and calls that a graph cannot hold break it.
//! So does work of a stream that joined the capture, and for which its first stream does not wait in the end.
//!
//! A thread in the mode *global*, the one that every thread begins in, breaks captures of any thread that were begun in that mode
//! (reference manual, `cuThreadExchangeStreamCaptureMode`).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::codes::{Code, Outcome};
use crate::graph::Node;
use crate::stream::Work;

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
    /// Streams under capture, by handle.
    streams: BTreeMap<usize, Captured>,
}

/// A point in a stream under capture.
#[derive(Clone)]
pub(crate) struct Captured {
    capture: u64,
    /// The nodes that come before it.
    before: BTreeSet<usize>,
}

struct Capture {
    origin: usize,
    mode: u32,
    thread: ThreadId,
    is_broken: bool,
    /// In the order of submission.
    nodes: Vec<Node>,
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
        table.running.insert(id, Capture { origin: stream, mode, thread, is_broken: false, nodes: Vec::new() });
        table.streams.insert(stream, Captured { capture: id, before: BTreeSet::new() });
        Ok(())
    }

    /// Ends it: what was captured. An error if it was broken meanwhile.
    pub(crate) fn end(&self, stream: usize) -> Outcome<Vec<Node>> {
        let mut table = self.lock();
        let Captured { capture: id, before } = table.streams.get(&stream).cloned().ok_or(Code::INVALID_VALUE)?;
        if table.running.get(&id).is_none_or(|capture| capture.origin != stream) {
            return Err(Code::CAPTURE_UNMATCHED);
        }
        table.streams.retain(|_, captured| captured.capture != id);
        let capture = table.running.remove(&id).ok_or(Code::INVALID_VALUE)?;
        match capture {
            Capture { is_broken: true, .. } => Err(Code::CAPTURE_INVALIDATED),
            Capture { nodes, .. } if before.len() < nodes.len() => Err(Code::CAPTURE_UNJOINED),
            Capture { nodes, .. } => Ok(nodes),
        }
    }

    /// The capture that the stream is part of, and whether it is broken.
    pub(crate) fn of(&self, stream: usize) -> Option<(u64, bool)> {
        let table = self.lock();
        let id = table.streams.get(&stream)?.capture;
        Some((id, table.running.get(&id)?.is_broken))
    }

    /// Where the stream stands, if it is under capture.
    pub(crate) fn point(&self, stream: usize) -> Option<Captured> {
        self.lock().streams.get(&stream).cloned()
    }

    /// Adds work to the capture of its stream; gives it back if the stream is under none.
    pub(crate) fn add(&self, stream: usize, work: Work) -> Option<Work> {
        let mut table = self.lock();
        let Table { running, streams, .. } = &mut *table;
        let Some(captured) = streams.get_mut(&stream) else { return Some(work) };
        if let Some(capture) = running.get_mut(&captured.capture) {
            captured.before.insert(capture.nodes.len());
            capture.nodes.push(Node::of(work));
        }
        None
    }

    /// The stream waits for an event of a capture, and becomes part of it.
    pub(crate) fn join(&self, stream: usize, event: Captured) -> Outcome {
        let mut table = self.lock();
        if !table.running.contains_key(&event.capture) {
            return Err(Code::CAPTURED_EVENT);
        }
        match table.streams.get_mut(&stream) {
            Some(captured) if captured.capture == event.capture => captured.before.extend(event.before),
            // The driver would make one capture of two, and break both.
            Some(_) => return Err(Code::CAPTURE_UNSUPPORTED),
            None => drop(table.streams.insert(stream, event)),
        }
        Ok(())
    }

    /// A stream under capture was asked for something that has no meaning there.
    pub(crate) fn refuse(&self, stream: usize) -> Outcome {
        let mut table = self.lock();
        let Some(id) = table.streams.get(&stream).map(|captured| captured.capture) else { return Ok(()) };
        if let Some(capture) = table.running.get_mut(&id) {
            capture.is_broken = true;
        }
        Err(Code::CAPTURE_UNSUPPORTED)
    }

    /// The default stream was asked for something: it would wait for blocking streams, so none of them may be under capture.
    pub(crate) fn refuse_default(&self, is_blocking: impl Fn(usize) -> bool, breaks: bool) -> Outcome {
        let mut table = self.lock();
        let Table { running, streams, .. } = &mut *table;
        let mut touched = false;
        for (_, captured) in streams.iter().filter(|(stream, _)| is_blocking(**stream)) {
            touched = true;
            if let Some(capture) = running.get_mut(&captured.capture) {
                capture.is_broken |= breaks;
            }
        }
        if touched { Err(Code::CAPTURE_IMPLICIT) } else { Ok(()) }
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
