//! The flight recorder of one process, and the files into which it is dumped.
//!
//! A file is written by the order of an operator, by a signal, and by a failure. A failure and a signal write only if the setting `dump_dir`
//! says where, because nobody has named a place; they write on a thread of its own, so that whoever waits for what has failed hears of it at
//! once. The recorder is copied before that, because the operations that are open now end by the failure.
//!
//! If the program can tell its stacks ([`Stacks`]), they are written beside each dump.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::dump::{About, Copied, Known, Members, Recorder};
use crate::config::Config;
use crate::error::{Code, Error, Result};
use crate::local::{OwnThread, confined, private_file, process_id};
use crate::metrics::TraceCounts;
use crate::runtime::process::host;
use crate::runtime::{Clock, JobClock};
use crate::types::{Role, Time, View};

/// Tells what the program of this process does: the stacks of its threads in its own language.
pub trait Stacks: fmt::Debug + Send + Sync {
    /// The stacks as text, with the main thread last. `None` if the program does not tell them in time. The caller may wait a second or so.
    fn text(&self) -> Option<Vec<u8>>;
}

/// A recorder, and where it is dumped.
#[derive(Debug)]
pub struct Flight<R> {
    /// What is recorded.
    pub recorder: R,
    job: String,
    role: Role,
    clock: Clock,
    /// By it the dumps of several members are compared.
    job_clock: OnceLock<JobClock>,
    /// The rank of a worker or the index of a server, once it has one.
    index: OnceLock<u32>,
    /// Below it are the files, if the setting says where.
    dump_dir: Option<PathBuf>,
    /// Whom to ask for the stacks of the program.
    stacks: Mutex<Option<Arc<dyn Stacks>>>,
    /// Held for a moment only: it is free while the process is stuck.
    known: Mutex<Known>,
    writing: Mutex<Writing>,
}

/// The dumps that failures make.
#[derive(Default, Debug)]
struct Writing {
    thread: Option<OwnThread>,
    last: Option<Time>,
    /// The failure that was dumped last, and what there was to dump.
    failure: Option<(Error, Moment)>,
}

/// What there is to dump at one moment.
#[derive(Clone)]
struct Moment {
    at: Time,
    recorded: Copied,
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<R: Recorder> Flight<R> {
    /// The recorder of a process of this role, whose times are those of `clock`.
    pub fn new(config: &Config, role: Role, clock: Clock, recorder: R) -> Self {
        Self {
            recorder,
            job: config.job.clone(),
            role,
            clock,
            job_clock: OnceLock::new(),
            index: OnceLock::new(),
            dump_dir: config.dump_dir.clone(),
            stacks: Mutex::default(),
            known: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// This process has a rank, or an index.
    pub fn joined(&self, index: u32) {
        // It has one for its whole life.
        let _ = self.index.set(index);
    }

    /// This process is a member of a job with this clock.
    pub fn follow_clock(&self, job_clock: JobClock) {
        // It has one membership.
        let _ = self.job_clock.set(job_clock);
    }

    /// The job has these members now.
    pub fn formed(&self, view: &View) {
        let workers = view.workers().map(|member| member.index).collect();
        let servers = view.servers().map(|member| member.index).collect();
        self.known().members = Some(Members { epoch: view.epoch, workers, servers });
    }

    /// Whether failures and signals are dumped.
    pub fn is_kept(&self) -> bool {
        self.dump_dir.is_some() && self.recorder.is_on()
    }

    /// Whether anything is recorded, so that it can be dumped.
    pub fn is_on(&self) -> bool {
        self.recorder.is_on()
    }

    /// Tells `counts` what was recorded.
    pub fn count_in(&self, counts: &TraceCounts) {
        let (events, lost) = self.recorder.counts();
        counts.recorded(events, lost);
    }

    /// From now on each dump has the stacks of the program beside it. The last caller counts.
    pub fn ask_for_stacks(&self, stacks: Arc<dyn Stacks>) {
        *self.stacks.lock().unwrap_or_else(PoisonError::into_inner) = Some(stacks);
    }

    /// A signal asks for a dump, and the program's handler of that signal may have told stacks, maybe of its own thread only. Does not wait for
    /// the files.
    pub fn signalled(self: &Arc<Self>, stacks: Option<Vec<u8>>) {
        if !self.is_kept() {
            tracing::warn!(role = %self.role, "a signal asks for a dump of the flight recorder: it needs dump_dir and recorder_events");
        }
        self.dump_after(&mut self.writing(), "a signal asked for it".to_owned(), stacks, None);
    }

    fn file(&self, directory: &Path) -> PathBuf {
        file(directory, &self.job, self.role, self.index.get().copied())
    }

    /// Dumps into a directory below `dump_dir`, because an operator asks for it.
    ///
    /// # Errors
    /// As [`dump`](Self::dump); [`Error::InvalidArgument`] for a directory that is not below it.
    pub fn dump_by_order(&self, directory: &str) -> Result<PathBuf> {
        let place = confined::below_dump_dir(self.dump_dir.as_deref(), directory)?;
        self.dump(&place, "an operator asked for it", None)
    }

    /// Writes what the recorder has into the file of this process in `directory`, and the stacks beside it, in place of what was there.
    /// Those in `told` come last: they are what the main thread did when somebody asked.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FailedPrecondition`] if nothing is recorded.
    pub fn dump(&self, directory: &Path, reason: &str, told: Option<Vec<u8>>) -> Result<PathBuf> {
        if !self.recorder.is_on() {
            return Err(Error::FailedPrecondition {
                what: format!("this {} records nothing", self.role),
                hint: "start it with recorder_events of more than 0".to_owned(),
            });
        }
        self.write(directory, reason, told, self.moment())
    }

    /// What there is to dump now.
    fn moment(&self) -> Moment {
        let recorded = self.recorder.copy();
        Moment { at: self.clock.now(), recorded }
    }

    fn write(
        &self,
        directory: &Path,
        reason: &str,
        told: Option<Vec<u8>>,
        Moment { at, recorded }: Moment,
    ) -> Result<PathBuf> {
        confined::make(directory, directory.display())?;
        let about = About {
            job: self.job.clone(),
            role: self.role,
            index: self.index.get().copied(),
            pid: process_id(),
            host: host(),
            reason: reason.to_owned(),
            origin_unix_ns: self.clock.read_wall().origin_unix_ns(),
        };
        let path = self.file(directory);
        // Without the lock, because an answer takes time.
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of_all = stacks.and_then(|stacks| stacks.text());
        let stacks = match (of_all, told) {
            (Some(mut text), Some(told)) => {
                text.extend(told);
                Some(text)
            }
            (of_all, told) => of_all.or(told),
        };
        // The dump comes last, so that its presence says that the stacks are whole, and no stacks are older than their dump.
        write_stacks(&path, stacks)?;
        let known = self.known().clone();
        let job = self.job_clock.get().and_then(|clock| clock.at(at));
        private_file::write(&path, about.text((at, job), known, recorded()))?;
        Ok(path)
    }

    /// The work of this process has ended by `error`. The first such error is dumped. Call it before the error ends operations, so that the dump has
    /// those that are open. If operations have failed by the same error just now, the dump has what was open then.
    pub fn ended(self: &Arc<Self>, error: &Error) {
        let (mut known, now) = (self.known(), self.clock.now());
        if known.end.is_some() {
            return;
        }
        known.end = Some((now, error.clone()));
        drop(known);
        let mut writing = self.writing();
        let begun = writing.failure.take().filter(|(by, moment)| by == error && now.since(moment.at) < PAUSE);
        let moment = begun.map(|(_, moment)| moment);
        self.dump_after(&mut writing, format!("the work of this {} ended: {error}", self.role), None, moment);
    }

    /// An operation of this process has failed. It is dumped unless a failure was dumped a short time ago. After the end of the work nothing is
    /// dumped: then every operation fails.
    pub fn failed(self: &Arc<Self>, error: &Error) {
        if let Some(mut writing) = self.writing_unless_lately() {
            let moment = self.moment();
            writing.failure = Some((error.clone(), moment.clone()));
            self.dump_after(&mut writing, format!("an operation failed: {error}"), None, Some(moment));
        }
    }

    /// A request of this process to the job has failed. That is dumped as a failed operation is, if the request was not done in time, or because of
    /// a loss. Other errors are answers.
    pub fn request_failed(self: &Arc<Self>, error: &Error) {
        if matches!(error.code(), Code::DeadlineExceeded | Code::Aborted | Code::Unavailable) {
            self.failed(error);
        }
    }

    /// The job goes on after a trouble, which is dumped as a failed operation is. `reason` says what the trouble is.
    pub fn troubled(self: &Arc<Self>, reason: impl FnOnce() -> String) {
        if let Some(mut writing) = self.writing_unless_lately() {
            self.dump_after(&mut writing, reason(), None, None);
        }
    }

    /// `None` if no failure is to be dumped now.
    fn writing_unless_lately(&self) -> Option<MutexGuard<'_, Writing>> {
        if !self.is_kept() || self.known().end.is_some() {
            return None;
        }
        let (now, writing) = (self.clock.now(), self.writing());
        let is_due = writing.last.is_none_or(|last| now.since(last) >= PAUSE);
        if is_due { Some(writing) } else { None }
    }

    /// Waits for the file of a failure that is being written, at most for `patience`.
    pub fn settle(&self, patience: Duration) {
        let thread = self.writing().thread.take();
        if let Some(thread) = thread {
            thread.join(patience);
        }
    }

    /// Dumps what there was at a moment, or else now, on a thread of its own.
    fn dump_after(
        self: &Arc<Self>,
        writing: &mut Writing,
        reason: String,
        stacks: Option<Vec<u8>>,
        moment: Option<Moment>,
    ) {
        let directory = self.dump_dir.as_ref().map(|root| root.join(DIRECTORY));
        let Some(directory) = directory.filter(|_| self.recorder.is_on()) else { return };
        writing.last = Some(self.clock.now());
        let moment = moment.unwrap_or_else(|| self.moment());
        let (flight, former) = (Arc::clone(self), writing.thread.take());
        let write = move || {
            // Both write the same file.
            if let Some(former) = former {
                former.join(PATIENCE);
            }
            match flight.write(&directory, &reason, stacks, moment) {
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

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the stacks of a worker that has no recorder: it has not joined its job yet, is alone in it, or records nothing. Returns the path.
///
/// # Errors
/// [`Error::Io`].
pub fn write_stacks_alone(dump_dir: &Path, job: &str, stacks: &[u8]) -> Result<PathBuf> {
    let directory = dump_dir.join(DIRECTORY);
    confined::make(&directory, directory.display())?;
    let path = stacks_beside(&file(&directory, job, Role::Worker, None));
    private_file::write(&path, stacks)?;
    Ok(path)
}

/// The dump of this process in `directory`. Its name tells jobs and members apart, so that those of several may lie in one directory.
fn file(directory: &Path, job: &str, role: Role, index: Option<u32>) -> PathBuf {
    let who = match (role, index) {
        (Role::Coordinator, _) => role.to_string(),
        (role, Some(index)) => format!("{role}-{index}"),
        (role, None) => format!("{role}-of-pid-{}", process_id()),
    };
    directory.join(format!("{job}-{who}{SUFFIX}"))
}

fn stacks_beside(dump: &Path) -> PathBuf {
    let name = dump.file_name().unwrap_or_default().to_string_lossy().replace(SUFFIX, STACKS_SUFFIX);
    dump.with_file_name(name)
}

/// Writes the stacks beside a dump; removes older ones if there are none.
fn write_stacks(dump: &Path, stacks: Option<Vec<u8>>) -> Result<()> {
    let path = stacks_beside(dump);
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
mod tests;
