//! A thread on which a driver does its work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::process_id;
use crate::error::{Error, Result};

/// A thread that its own process can wait for with a deadline. Other processes cannot wait for it.
#[derive(Debug)]
pub struct OwnThread {
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
    pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Self> {
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
        Ok(Self { thread: Mutex::new(Some(thread)), ended, process: process_id() })
    }

    /// As [`start`](Self::start). If `body` fails or panics, the thread ends without being told to, and `thread_end` reports the reason.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_watched(
        name: &'static str,
        thread_end: ThreadEnd,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        Self::start(name, move || match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => thread_end.ended(error),
            Err(panic) => thread_end.ended(Error::of_panic(&format!("thread {name}"), &*panic)),
        })
    }

    /// Whether the thread belongs to this process. It does not in the child of a fork.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process_id()
    }

    /// Stops waiting for the thread, which was told to end.
    pub(crate) fn leave(&self) {
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Waits for the thread, which was told to end within `patience`. If it does not end in time, logs a warning and leaves it running.
    /// Does not wait on the thread itself, for example when a callback drops its driver.
    pub fn join(&self, patience: Duration) {
        if !self.is_ours() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else { return };
        // The channel carries nothing: it is disconnected when the thread ends.
        match self.ended.recv_timeout(patience + LATE) {
            Err(RecvTimeoutError::Timeout) | Ok(()) => {
                tracing::warn!(
                    patience_s = patience.as_secs_f64(),
                    thread = thread.thread().name(),
                    "a thread did not end in time"
                );
            }
            Err(RecvTimeoutError::Disconnected) => drop(thread.join()),
        }
    }
}

/// Called with the reason why a thread ended without being told to.
pub type Ended = Arc<dyn Fn(Error) + Send + Sync>;

/// The reason why a driver's thread ended without being told to. The owner of the driver may ask for it before or after the end.
#[derive(Clone, Default)]
pub(crate) struct ThreadEnd(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    reason: Option<Error>,
    listener: Option<Ended>,
}

impl ThreadEnd {
    /// Calls `listener` when the thread ends without being told to. Calls it at once if the thread has ended so.
    pub(crate) fn watch(&self, listener: Ended) {
        let reason = {
            let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            record.listener = Some(Arc::clone(&listener));
            record.reason.clone()
        };
        if let Some(reason) = reason {
            listener(reason);
        }
    }

    /// The thread ends because of `reason`.
    fn ended(&self, reason: Error) {
        tracing::error!(%reason, "a thread ended");
        let listener = {
            let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            record.reason = Some(reason.clone());
            record.listener.clone()
        };
        if let Some(listener) = listener {
            listener(reason);
        }
    }
}

/// How much later than its own deadline a thread may end before that is worth a warning.
const LATE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;

    #[test]
    fn a_thread_that_nobody_told_to_end_says_why_it_did_to_whoever_asks_before_or_after() {
        let failure = Error::Io { what: "the socket".to_owned(), cause: "gone".to_owned() };
        for (fails, expected) in [
            (Some(failure.clone()), Some(failure.to_string())),
            (None, Some("internal error: thread test-thread panicked: planted; please report it".to_owned())),
        ] {
            let (thread_end, (early, heard)) = (ThreadEnd::default(), unbounded());
            thread_end.watch(Arc::new(move |reason| drop(early.send(reason.to_string()))));
            let body = move || fails.map_or_else(|| panic!("planted"), Err);
            let thread = OwnThread::start_watched("test-thread", thread_end.clone(), body).unwrap();
            assert_eq!(heard.recv().ok(), expected);
            thread.join(Duration::from_secs(10));
            let (late, heard) = unbounded();
            thread_end.watch(Arc::new(move |reason| drop(late.send(reason.to_string()))));
            assert_eq!(heard.try_recv().ok(), expected);
        }
    }

    #[test]
    fn a_thread_that_ends_in_order_says_nothing() {
        let (thread_end, (sender, heard)) = (ThreadEnd::default(), unbounded::<Error>());
        thread_end.watch(Arc::new(move |reason| drop(sender.send(reason))));
        OwnThread::start_watched("test-thread", thread_end, || Ok(())).unwrap().join(Duration::from_secs(10));
        assert!(heard.try_recv().is_err());
    }
}
