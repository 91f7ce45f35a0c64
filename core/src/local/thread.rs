//! A thread on which a driver does its work.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::error::{Error, Result};

/// A thread that its own process can wait for with a deadline. Other processes cannot wait for it.
#[derive(Debug)]
pub(crate) struct OwnThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Receiver<()>,
    /// The process that has the thread. The child of a fork inherits this value, but no threads.
    process: u32,
}

impl OwnThread {
    /// Runs `body` on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (ending, ended) = bounded::<()>(0);
        let body = move || {
            // Dropped when the thread ends, also when it panics.
            let _ending = ending;
            body();
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() })?;
        Ok(Self { thread: Mutex::new(Some(thread)), ended, process: std::process::id() })
    }

    /// Whether the thread belongs to this process. It does not in the child of a fork.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Waits for the thread, which was told to end within `patience`. If it does not end in time, logs a warning and leaves it running.
    /// Does not wait on the thread itself, for example when a callback drops its driver.
    pub(crate) fn join(&self, patience: Duration) {
        if !self.is_ours() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else { return };
        // The channel carries nothing: it is disconnected when the thread ends.
        match self.ended.recv_timeout(patience + LATE) {
            Err(RecvTimeoutError::Timeout) | Ok(()) => {
                tracing::warn!(?patience, thread = thread.thread().name(), "a thread did not end in time");
            }
            Err(RecvTimeoutError::Disconnected) => drop(thread.join()),
        }
    }
}

/// How much later than its own deadline a thread may end before that is worth a warning.
const LATE: Duration = Duration::from_millis(500);
