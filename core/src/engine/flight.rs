//! The flight recorder of this worker, and the files into which it is dumped.
//!
//! A file is written by the order of an operator, by the program, and by a failure. A failure writes only if the setting `dump_dir` says
//! where, because nobody has asked for the file; it writes on a thread of its own, so that whoever waits for the failing operation hears of it
//! at once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::recorder::{About, Recorder};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::local::{OwnThread, confined, private_file, process_id};
use crate::runtime::Clock;
use crate::runtime::process::host;
use crate::types::Time;

/// The recorder, and where it is dumped.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) recorder: Recorder,
    job: String,
    clock: Clock,
    /// The rank of this worker, once it has one.
    rank: OnceLock<u32>,
    /// Where a failure is dumped, if it is.
    directory: Option<PathBuf>,
    writing: Mutex<Writing>,
}

/// The dumps that failures make.
#[derive(Default, Debug)]
struct Writing {
    thread: Option<OwnThread>,
    last: Option<Time>,
}

impl Flight {
    /// An empty recorder.
    pub(super) fn new(config: &Config, clock: Clock) -> Self {
        Self {
            recorder: Recorder::new(config.recorder_events),
            job: config.job.clone(),
            clock,
            rank: OnceLock::new(),
            directory: config.dump_dir.as_ref().map(|root| root.join(DIRECTORY)),
            writing: Mutex::default(),
        }
    }

    /// This worker has a rank.
    pub(super) fn joined(&self, rank: u32) {
        // It has one rank for its whole life.
        let _ = self.rank.set(rank);
    }

    /// Whether failures are dumped.
    pub(super) fn is_kept(&self) -> bool {
        self.directory.is_some() && self.recorder.is_on()
    }

    /// The file of this worker in `directory`. It tells jobs and workers apart, so that those of several may lie in one directory.
    pub(super) fn file(&self, directory: &Path) -> PathBuf {
        let who = match self.rank.get() {
            Some(rank) => format!("worker-{rank}"),
            None => format!("worker-of-pid-{}", process_id()),
        };
        directory.join(format!("{}-{who}.flight.json", self.job))
    }

    /// Writes what the recorder has into the file of this worker in `directory`, in place of what was there.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FailedPrecondition`] if nothing is recorded.
    pub(super) fn dump(&self, directory: &Path, reason: &str) -> Result<PathBuf> {
        if !self.recorder.is_on() {
            return Err(Error::FailedPrecondition {
                what: "this worker records nothing".to_owned(),
                hint: "start it with recorder_events of more than 0".to_owned(),
            });
        }
        confined::make(directory, directory.display())?;
        let about = About {
            job: self.job.clone(),
            rank: self.rank.get().copied(),
            pid: process_id(),
            host: host(),
            reason: reason.to_owned(),
            origin_unix_ns: self.clock.read_wall().origin_unix_ns(),
        };
        let path = self.file(directory);
        private_file::write(&path, self.recorder.dump(self.clock.now(), &about))?;
        Ok(path)
    }

    /// The work of this worker has ended by `error`. The first such error is dumped.
    pub(super) fn ended(self: &Arc<Self>, error: &Error) {
        if self.recorder.ended(self.clock.now(), error) {
            self.dump_failure(format!("the work of this worker ended: {error}"), false);
        }
    }

    /// An operation has failed because something did not come in time. It is dumped unless a failure was dumped a short time ago.
    pub(super) fn timed_out(self: &Arc<Self>, error: &Error) {
        if self.is_kept() {
            self.dump_failure(format!("an operation failed: {error}"), true);
        }
    }

    /// Waits for the file of a failure that is being written, at most for `patience`.
    pub(super) fn settle(&self, patience: Duration) {
        let thread = self.writing.lock().unwrap_or_else(PoisonError::into_inner).thread.take();
        if let Some(thread) = thread {
            thread.join(patience);
        }
    }

    fn dump_failure(self: &Arc<Self>, reason: String, is_frequent: bool) {
        let Some(directory) = self.directory.clone().filter(|_| self.recorder.is_on()) else { return };
        let (now, mut writing) = (self.clock.now(), self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        if is_frequent && writing.last.is_some_and(|last| now.since(last) < PAUSE) {
            return;
        }
        writing.last = Some(now);
        let (flight, former) = (Arc::clone(self), writing.thread.take());
        let write = move || {
            // Both write the same file.
            if let Some(former) = former {
                former.join(PATIENCE);
            }
            match flight.dump(&directory, &reason) {
                Ok(path) => {
                    tracing::warn!(path = %path.display(), "what led to the failure is in a dump: see gradlane explain")
                }
                Err(error) => tracing::warn!(%error, "the flight recorder was not dumped"),
            }
        };
        match OwnThread::start("gl-flight", write) {
            Ok(thread) => writing.thread = Some(thread),
            Err(error) => tracing::warn!(%error, "the flight recorder was not dumped"),
        }
    }
}

/// The directory for dumps of recorders below `dump_dir`, if nobody names another one.
pub const DIRECTORY: &str = "flight";

/// Operations may fail one after the other. The time between two dumps of such failures.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a dump waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_of_a_worker_is_dumped_where_the_setting_says() {
        let dir = tempfile::tempdir().unwrap();
        let flight = flight(Some(dir.path()));
        flight.joined(3);
        flight.ended(&Error::Internal { what: "it broke".to_owned() });
        flight.ended(&Error::Cancelled);
        flight.settle(Duration::from_secs(60));
        let text = std::fs::read_to_string(dir.path().join("flight/night-worker-3.flight.json")).unwrap();
        let dump: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&dump["index"], &dump["end"]["kind"]), (&3.into(), &"Internal".into()));
        assert!(dump["reason"].as_str().unwrap().contains("it broke"), "{}", dump["reason"]);
    }

    #[test]
    fn failures_that_follow_each_other_are_dumped_once() {
        let dir = tempfile::tempdir().unwrap();
        let flight = flight(Some(dir.path()));
        flight.timed_out(&Error::Internal { what: "first".to_owned() });
        flight.timed_out(&Error::Internal { what: "second".to_owned() });
        flight.settle(Duration::from_secs(60));
        let text = std::fs::read_to_string(flight.file(&dir.path().join(DIRECTORY))).unwrap();
        assert!(text.contains("first") && !text.contains("second"), "{text}");
    }

    #[test]
    fn a_failure_is_not_dumped_if_no_setting_says_where() {
        let flight = flight(None);
        assert!(!flight.is_kept());
        flight.ended(&Error::Cancelled);
        assert!(flight.writing.lock().unwrap().thread.is_none());
    }

    #[test]
    fn a_recorder_that_is_off_is_not_dumped() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { recorder_events: 0, dump_dir: Some(dir.path().to_owned()), ..Config::default() };
        let flight = Arc::new(Flight::new(&config, Clock::start()));
        flight.ended(&Error::Cancelled);
        let refused = flight.dump(dir.path(), "a test");
        assert!(matches!(&refused, Err(Error::FailedPrecondition { .. })), "{refused:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    fn flight(directory: Option<&Path>) -> Arc<Flight> {
        let (job, dump_dir) = ("night".to_owned(), directory.map(Path::to_owned));
        Arc::new(Flight::new(&Config { job, dump_dir, recorder_events: 64, ..Config::default() }, Clock::start()))
    }
}
