//! `gradlane._core.Stacks`: brings the stacks of Python's threads into the dumps of the flight recorder.
//!
//! There are two ways, and both go through a pipe, because no thread of the engine attaches to Python:
//!
//! * The engine asks, when it dumps: a Python thread reads a byte of the pipe of requests and answers. It holds the interpreter lock, so the
//!   stacks cannot change meanwhile. It does not answer while other code keeps that lock.
//! * A signal asks: the handler of `faulthandler`, which needs no lock, writes the stack of its own thread into the pipe of signals. That is
//!   the main thread, unless it blocks the signal. A thread of this file reads the stack, and has the engine dump, which asks for the others.
//!   The handler leaves the others out, because it would read their frames while they run, and that may end the process.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::engine::{Flight, Stacks as Tells};
use gradlane_core::local::OwnThread;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::errors;
use crate::own_process::Own;
use crate::session::Session;

/// What brings the stacks of this process into the dumps of one session.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Stacks(Own<Parts>);

struct Parts {
    asker: Arc<Asker>,
    /// Where the Python thread reads requests.
    requests: PipeReader,
    /// Where the handler of the signal writes; `None` if a signal is to dump nothing.
    signals: Option<PipeWriter>,
}

#[pymethods]
impl Stacks {
    /// Brings stacks into the dumps of `session`; `None` if it records nothing.
    #[staticmethod]
    fn of(py: Python<'_>, session: PyRef<'_, Session>) -> PyResult<Option<Self>> {
        let Some(flight) = session.0.get(py)?.inner.flight().filter(|flight| flight.is_on()) else { return Ok(None) };
        let parts = Parts::new(flight).map_err(|error| errors::raise(py, &error))?;
        Ok(Some(Self(Own::new(parts))))
    }

    /// The file descriptor from which the Python thread reads: a byte for each request, and no other byte than that after `close`.
    #[getter]
    fn requests(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.0.get(py)?.requests.as_raw_fd())
    }

    /// The file descriptor to which the handler of the signal writes; `None` if no setting says where a dump goes that nobody ordered.
    #[getter]
    fn signals(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        Ok(self.0.get(py)?.signals.as_ref().map(AsRawFd::as_raw_fd))
    }

    /// Answers a request.
    fn answer(&self, py: Python<'_>, text: Vec<u8>) -> PyResult<()> {
        self.0.get(py)?.asker.answer(text);
        Ok(())
    }

    /// Writes to the log that the signal dumps nothing, and why.
    #[staticmethod]
    fn warn(why: &str) {
        tracing::warn!(why, "SIGUSR1 does not dump the flight recorder of this process");
    }

    /// Ends both ways. The handler of the signal must not write any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let parts = self.0.get(py)?;
        parts.asker.close();
        if let Some(mut signals) = parts.signals.as_ref() {
            // If the reader is gone, there is nothing to end.
            let _ = signals.write_all(&[END]);
        }
        Ok(())
    }
}

impl Parts {
    fn new(flight: &Arc<Flight>) -> gradlane_core::Result<Self> {
        let failed = |error: std::io::Error| Error::Io { what: "making a pipe".to_owned(), cause: error.to_string() };
        let (requests, ask) = pipe().map_err(failed)?;
        let asker = Arc::new(Asker { requests: ask, state: Mutex::default(), changed: Condvar::new() });
        flight.ask_for_stacks(Arc::clone(&asker) as _);
        let signals = if flight.is_kept() {
            let (reader, writer) = pipe().map_err(failed)?;
            let flight = Arc::clone(flight);
            OwnThread::start("gl-stacks", move || read_signals(reader, &flight))?;
            Some(writer)
        } else {
            None
        };
        Ok(Self { asker, requests, signals })
    }
}

/// Asks the Python thread.
#[derive(Debug)]
struct Asker {
    requests: PipeWriter,
    state: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default, Debug)]
struct Asked {
    /// A request was written and not answered. There is one at most, so the pipe is never full.
    is_open: bool,
    is_closed: bool,
    /// The last answer.
    text: Option<Vec<u8>>,
}

impl Tells for Asker {
    fn text(&self) -> Option<Vec<u8>> {
        let mut asked = self.asked();
        if asked.is_closed {
            return None;
        }
        if !asked.is_open {
            (&self.requests).write_all(&[ASK]).ok()?;
            *asked = Asked { is_open: true, ..Asked::default() };
        }
        let answered = self.changed.wait_timeout_while(asked, PATIENCE, |asked| asked.is_open && !asked.is_closed);
        answered.unwrap_or_else(PoisonError::into_inner).0.text.clone()
    }
}

impl Asker {
    fn answer(&self, text: Vec<u8>) {
        let mut asked = self.asked();
        (asked.is_open, asked.text) = (false, Some(text));
        drop(asked);
        self.changed.notify_all();
    }

    fn close(&self) {
        let mut asked = self.asked();
        if !std::mem::replace(&mut asked.is_closed, true) {
            // If the Python thread is gone, there is nothing to end.
            let _ = (&self.requests).write_all(&[END]);
        }
        drop(asked);
        self.changed.notify_all();
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the engine dump with each text that comes, until the end is told.
///
/// The text has no end of its own, so a pause ends it. Nothing here waits for anything else, because a handler that finds the pipe full stops
/// its thread.
fn read_signals(mut signals: PipeReader, flight: &Arc<Flight>) {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if !text.is_empty() && !comes(&signals) {
            flight.signalled([WHEN, &text].concat());
            text.clear();
        }
        match signals.read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => {
                let chunk = &chunk[..bytes];
                if chunk.contains(&END) {
                    return;
                }
                // Only signals without a pause make it so long.
                let over = (text.len() + bytes).saturating_sub(TEXT_BYTES_MAX);
                text.drain(..over.min(text.len()));
                text.extend_from_slice(chunk);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Whether more of a text comes.
fn comes(signals: &PipeReader) -> bool {
    let mut sources = [PollFd::new(signals, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut sources, Some(&PAUSE)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ready) => return ready > 0,
            Err(_) => return false,
        }
    }
}

/// What stands before the stack that a signal told.
const WHEN: &[u8] = b"\nWhen the signal came:\n";
/// A request of the engine.
const ASK: u8 = b'?';
/// The end of a pipe. No text of `faulthandler` has it.
const END: u8 = 0;
/// How long a dump waits for the Python thread, which may have to wait for the interpreter lock.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long after its last byte a text has ended. The handler writes it without a pause, unless the system gives it no time.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
/// The longest text: `faulthandler` writes at most 100 functions, with names of at most 500 characters.
const TEXT_BYTES_MAX: usize = 1 << 20;
