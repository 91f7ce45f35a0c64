//! The flight recorder of this worker, and the files into which it is dumped.
//!
//! A file is written by the order of an operator, by the program, and by a failure. A failure writes only if the setting `dump_dir` says
//! where, because nobody has asked for the file; it writes on a thread of its own, so that whoever waits for the failing operation hears of it
//! at once.
//!
//! If the program can tell its stacks ([`Stacks`]), they are written beside each dump.

use std::fmt;
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

/// Tells what the program of this process does: the stacks of its threads in its own language.
pub trait Stacks: fmt::Debug + Send + Sync {
    /// The stacks as text, with the main thread last. `None` if the program does not tell them in time. The caller may wait a second or so.
    fn text(&self) -> Option<Vec<u8>>;
}

/// The recorder, and where it is dumped.
#[derive(Debug)]
pub struct Flight {
    pub(super) recorder: Recorder,
    job: String,
    clock: Clock,
    /// The rank of this worker, once it has one.
    rank: OnceLock<u32>,
    /// Where a failure is dumped, if it is.
    directory: Option<PathBuf>,
    /// Whom to ask for the stacks of the program.
    stacks: OnceLock<Arc<dyn Stacks>>,
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
            stacks: OnceLock::new(),
            writing: Mutex::default(),
        }
    }

    /// This worker has a rank.
    pub(super) fn joined(&self, rank: u32) {
        // It has one rank for its whole life.
        let _ = self.rank.set(rank);
    }

    /// Whether failures are dumped, and what [`signalled`](Self::signalled) tells.
    pub fn is_kept(&self) -> bool {
        self.directory.is_some() && self.recorder.is_on()
    }

    /// Whether anything is recorded, so that it can be dumped.
    pub fn is_on(&self) -> bool {
        self.recorder.is_on()
    }

    /// From now on each dump has the stacks of the program beside it. The first caller counts.
    pub fn ask_for_stacks(&self, stacks: Arc<dyn Stacks>) {
        let _ = self.stacks.set(stacks);
    }

    /// A signal asks for a dump, and the program's handler of that signal has told `stacks`, maybe of its own thread only. Does not wait for
    /// the files.
    pub fn signalled(self: &Arc<Self>, stacks: Vec<u8>) {
        self.dump_apart("a signal asked for it".to_owned(), Some(stacks));
    }

    /// The file of this worker in `directory`. It tells jobs and workers apart, so that those of several may lie in one directory.
    pub(super) fn file(&self, directory: &Path) -> PathBuf {
        let who = match self.rank.get() {
            Some(rank) => format!("worker-{rank}"),
            None => format!("worker-of-pid-{}", process_id()),
        };
        directory.join(format!("{}-{who}{SUFFIX}", self.job))
    }

    /// Writes what the recorder has into the file of this worker in `directory`, and the stacks beside it, in place of what was there.
    /// Those in `told` come last: they are what the main thread did when somebody asked.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FailedPrecondition`] if nothing is recorded.
    pub(super) fn dump(&self, directory: &Path, reason: &str, told: Option<Vec<u8>>) -> Result<PathBuf> {
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
        let of_all = self.stacks.get().and_then(|stacks| stacks.text());
        let stacks = match (of_all, told) {
            (Some(mut text), Some(told)) => {
                text.extend(told);
                Some(text)
            }
            (of_all, told) => of_all.or(told),
        };
        // The dump comes last, so that its presence says that the stacks are whole, and no stacks are older than their dump.
        write_stacks(&path, stacks)?;
        private_file::write(&path, self.recorder.dump(self.clock.now(), &about))?;
        Ok(path)
    }

    /// The work of this worker has ended by `error`. The first such error is dumped.
    pub(super) fn ended(self: &Arc<Self>, error: &Error) {
        if self.recorder.ended(self.clock.now(), error) {
            self.dump_apart(format!("the work of this worker ended: {error}"), None);
        }
    }

    /// An operation has failed because something did not come in time. It is dumped unless a failure was dumped a short time ago.
    pub(super) fn timed_out(self: &Arc<Self>, error: &Error) {
        if !self.is_kept() {
            return;
        }
        let (now, mut writing) = (self.clock.now(), self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        if writing.last.is_none_or(|last| now.since(last) >= PAUSE) {
            self.dump_after(&mut writing, format!("an operation failed: {error}"), None);
        }
    }

    /// Waits for the file of a failure that is being written, at most for `patience`.
    pub(super) fn settle(&self, patience: Duration) {
        let thread = self.writing.lock().unwrap_or_else(PoisonError::into_inner).thread.take();
        if let Some(thread) = thread {
            thread.join(patience);
        }
    }

    /// Dumps on a thread of its own.
    fn dump_apart(self: &Arc<Self>, reason: String, stacks: Option<Vec<u8>>) {
        self.dump_after(&mut self.writing.lock().unwrap_or_else(PoisonError::into_inner), reason, stacks);
    }

    fn dump_after(self: &Arc<Self>, writing: &mut Writing, reason: String, stacks: Option<Vec<u8>>) {
        let Some(directory) = self.directory.clone().filter(|_| self.recorder.is_on()) else { return };
        writing.last = Some(self.clock.now());
        let (flight, former) = (Arc::clone(self), writing.thread.take());
        let write = move || {
            // Both write the same file.
            if let Some(former) = former {
                former.join(PATIENCE);
            }
            match flight.dump(&directory, &reason, stacks) {
                Ok(path) => {
                    tracing::warn!(path = %path.display(), %reason, "the flight recorder was dumped: see gradlane explain")
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

/// Writes the stacks beside a dump; removes older ones if there are none.
fn write_stacks(dump: &Path, stacks: Option<Vec<u8>>) -> Result<()> {
    let name = dump.file_name().unwrap_or_default().to_string_lossy().replace(SUFFIX, STACKS_SUFFIX);
    let path = dump.with_file_name(name);
    match stacks {
        Some(stacks) => private_file::write(&path, stacks),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { what: format!("removing {}", path.display()), cause: error.to_string() })
            }
            Ok(()) | Err(_) => Ok(()),
        },
    }
}

/// How the name of a dump ends.
pub const SUFFIX: &str = ".flight.json";
/// How the name of the file with the program's stacks ends, in its place.
pub const STACKS_SUFFIX: &str = ".stacks.txt";

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
        let refused = flight.dump(dir.path(), "a test", None);
        assert!(matches!(&refused, Err(Error::FailedPrecondition { .. })), "{refused:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_dump_has_the_stacks_of_the_program_beside_it_and_never_older_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (flight, answers) = (
            flight(Some(dir.path())),
            Arc::new(Answers(Mutex::new(vec![Some("of all, "), None, Some("of the program")]))),
        );
        flight.joined(3);
        flight.ask_for_stacks(answers);
        let path = dir.path().join("night-worker-3.stacks.txt");
        for (told, expected) in
            [(None, Some("of the program")), (None, None), (Some("of a handler"), Some("of all, of a handler"))]
        {
            let told = told.map(|text: &str| text.as_bytes().to_vec());
            flight.dump(dir.path(), "a test", told).unwrap();
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), expected);
        }
        flight.signalled(b"of a signal".to_vec());
        flight.settle(Duration::from_secs(60));
        let there = dir.path().join(DIRECTORY);
        assert_eq!(std::fs::read_to_string(there.join("night-worker-3.stacks.txt")).unwrap(), "of a signal");
        assert!(
            std::fs::read_to_string(there.join("night-worker-3.flight.json"))
                .unwrap()
                .contains("a signal asked for it")
        );
    }

    /// What the program says each time it is asked, the last one first.
    #[derive(Debug)]
    struct Answers(Mutex<Vec<Option<&'static str>>>);

    impl Stacks for Answers {
        fn text(&self) -> Option<Vec<u8>> {
            self.0.lock().unwrap().pop().flatten().map(|text| text.as_bytes().to_vec())
        }
    }

    fn flight(directory: Option<&Path>) -> Arc<Flight> {
        let (job, dump_dir) = ("night".to_owned(), directory.map(Path::to_owned));
        Arc::new(Flight::new(&Config { job, dump_dir, recorder_events: 64, ..Config::default() }, Clock::start()))
    }
}
