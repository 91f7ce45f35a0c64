//! `gradlane._core.Stacks`: brings the stacks of Python's threads into the dumps of the flight recorder, and has all members that this process
//! has dump at a signal: its worker, and the coordinator and servers that it embeds. A worker without a flight recorder has its stacks written
//! alone: it has not joined yet, is alone in its job, or records nothing.
//!
//! There are two ways, and both go through a pipe, because no thread of the engine attaches to Python:
//!
//! * The engine asks, when it dumps: a Python thread reads a byte of the pipe of requests and answers. It holds the interpreter lock, so the
//!   stacks cannot change meanwhile. It does not answer while other code keeps that lock.
//! * A signal asks: the handler of `faulthandler`, which needs no lock, writes the stack of its own thread into the pipe of signals. That is
//!   the main thread, unless it blocks the signal. A thread of this file reads the stack, and has the members dump. The worker asks for the others.
//!   The handler leaves the others out, because it would read their frames while they run, and that may end the process.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::engine::Flight;
use gradlane_core::local::OwnThread;
use gradlane_core::runtime::recording::{Stacks as Tells, write_stacks_alone};
use gradlane_session::{Embedded, config};
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::embedded::Embedded as PyEmbedded;
use crate::errors;
use crate::own_process::Own;
use crate::session::Session;

/// What brings the stacks of this process into the dumps of one session, and dumps at a signal.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Stacks(Own<Parts>);

struct Parts {
    asker: Arc<Asker>,
    /// Where the Python thread reads requests.
    requests: PipeReader,
    /// Where the handler of the signal writes; `None` if a signal is to dump nothing.
    signals: Option<PipeWriter>,
}

/// The members of this process that a signal dumps.
struct Members {
    worker: Option<Worker>,
    embedded: Vec<Weak<Embedded>>,
}

/// The worker of this process.
enum Worker {
    Records(Arc<Flight>),
    TellsStacks(Alone),
}

/// A worker without a flight recorder, for which a setting says where dumps go.
struct Alone {
    dump_dir: PathBuf,
    job: String,
    /// Why it has no recorder.
    why: &'static str,
    /// That of the last file.
    writing: Option<OwnThread>,
}

#[pymethods]
impl Stacks {
    /// Brings stacks into the dumps of `session`, and has it and what is `embedded` dump at a signal. `settings` are those given as arguments
    /// for the job that this process is in or joins. `None` if there is nothing to do.
    #[staticmethod]
    fn of(
        py: Python<'_>,
        settings: Option<BTreeMap<String, String>>,
        session: Option<PyRef<'_, Session>>,
        embedded: Vec<PyRef<'_, PyEmbedded>>,
    ) -> PyResult<Option<Self>> {
        let flight = match &session {
            Some(session) => session.0.get(py)?.inner.flight(),
            None => None,
        };
        let why = match (&session, flight) {
            (None, _) => "it has not joined its job yet",
            (Some(_), None) => "it is alone in its job",
            (Some(_), Some(_)) => "recorder_events is 0",
        };
        let worker = match flight.filter(|flight| flight.is_on()) {
            Some(flight) => Some(Worker::Records(Arc::clone(flight))),
            None => settings.and_then(|settings| Alone::of(&settings, why)).map(Worker::TellsStacks),
        };
        let embedded = embedded.iter().map(|embedded| embedded.inner.get(py)).collect::<PyResult<Vec<_>>>()?;
        let is_dumped = worker.as_ref().is_some_and(Worker::is_dumped_by_signal)
            || embedded.iter().any(|embedded| embedded.is_dumped_by_signal());
        if worker.is_none() && !is_dumped {
            return Ok(None);
        }
        let embedded = embedded.into_iter().map(Arc::downgrade).collect();
        let parts = Parts::new(Members { worker, embedded }, is_dumped).map_err(|error| errors::raise(py, &error))?;
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

    /// Ends both ways. The handler of the signal must not write any more; what it has written before is not lost.
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
    fn new(members: Members, is_dumped: bool) -> gradlane_core::Result<Self> {
        let failed = |error: std::io::Error| Error::Io { what: "making a pipe".to_owned(), cause: error.to_string() };
        let (requests, ask) = pipe().map_err(failed)?;
        let asker = Arc::new(Asker { requests: ask, state: Mutex::default(), changed: Condvar::new() });
        let flight = match &members.worker {
            Some(Worker::Records(flight)) => Some(Arc::clone(flight)),
            Some(Worker::TellsStacks(_)) | None => None,
        };
        let signals = if is_dumped {
            let (reader, writer) = pipe().map_err(failed)?;
            let (mut members, asker) = (members, Arc::clone(&asker));
            OwnThread::start("gl-stacks", move || read_signals(reader, |stack| members.signalled(&asker, stack)))?;
            Some(writer)
        } else {
            None
        };
        // Last, because nobody answers if this fails.
        if let Some(flight) = flight {
            flight.ask_for_stacks(Arc::clone(&asker) as _);
        }
        Ok(Self { asker, requests, signals })
    }
}

impl Members {
    /// A signal asks for dumps, and its handler has told this stack.
    fn signalled(&mut self, asker: &Arc<Asker>, stack: &[u8]) {
        let stack = [WHEN, stack].concat();
        match &mut self.worker {
            Some(Worker::Records(flight)) => flight.signalled(Some(stack)),
            Some(Worker::TellsStacks(alone)) => alone.write(Arc::clone(asker), stack),
            None => {}
        }
        self.embedded.iter().filter_map(Weak::upgrade).for_each(|embedded| embedded.dump_by_signal());
    }
}

impl Worker {
    fn is_dumped_by_signal(&self) -> bool {
        match self {
            Self::Records(flight) => flight.is_kept(),
            Self::TellsStacks(_) => true,
        }
    }
}

impl Alone {
    /// `None` if no setting says where dumps go. If the settings are wrong, the join says so.
    fn of(settings: &BTreeMap<String, String>, why: &'static str) -> Option<Self> {
        let config = config(settings).ok()?;
        Some(Self { dump_dir: config.dump_dir?, job: config.job, why, writing: None })
    }

    /// Writes the stacks on a thread of its own, because an answer of `asker` takes time.
    fn write(&mut self, asker: Arc<Asker>, told: Vec<u8>) {
        let (dump_dir, job, why, former) = (self.dump_dir.clone(), self.job.clone(), self.why, self.writing.take());
        let write = move || {
            // Both write the same file.
            if let Some(former) = former {
                former.join(WRITING);
            }
            let stacks = [asker.text().unwrap_or_default(), told].concat();
            match write_stacks_alone(&dump_dir, &job, &stacks) {
                Ok(path) => {
                    tracing::warn!(path = %path.display(), why, "stacks were written without a flight recorder")
                }
                Err(error) => tracing::warn!(%error, "no stacks were written"),
            }
        };
        match OwnThread::start("gl-stacks-file", write) {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => tracing::warn!(%error, "no stacks were written"),
        }
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

/// Calls `signalled` with each text that comes, until the end is told.
///
/// The text has no end of its own, so a pause ends it. Nothing here waits for anything else, because a handler that finds the pipe full stops
/// its thread.
fn read_signals(mut signals: PipeReader, mut signalled: impl FnMut(&[u8])) {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if !text.is_empty() && !comes(&signals) {
            signalled(&text);
            text.clear();
        }
        let (told, is_over) = match signals.read(&mut chunk) {
            Ok(0) => (&[][..], true),
            Ok(bytes) => {
                let chunk = &chunk[..bytes];
                let end = chunk.iter().position(|byte| *byte == END);
                (&chunk[..end.unwrap_or(bytes)], end.is_some())
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => (&[][..], true),
        };
        // Only signals without a pause make it so long.
        let over = (text.len() + told.len()).saturating_sub(TEXT_BYTES_MAX);
        text.drain(..over.min(text.len()));
        text.extend_from_slice(told);
        if is_over {
            if !text.is_empty() {
                signalled(&text);
            }
            return;
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
/// How long a file of stacks waits for the one before it.
const WRITING: Duration = Duration::from_secs(5);
/// How long a dump waits for the Python thread, which may have to wait for the interpreter lock.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long after its last byte a text has ended. The handler writes it without a pause, unless the system gives it no time.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
/// The longest text: `faulthandler` writes at most 100 functions, with names of at most 500 characters.
const TEXT_BYTES_MAX: usize = 1 << 20;
