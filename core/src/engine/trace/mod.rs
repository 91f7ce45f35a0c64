//! The timeline: what each task did and when, beside what the training script did, as a file for Perfetto or `chrome://tracing`.
//!
//! A row a part, in the order of priority, and a row a thread of the script. All times of a file are those of one monotonic clock, which
//! nobody sets, so rows cannot be parted. Now and then the file says what the coordinator's clock and the wall clock show, so that the files of
//! several workers, and those of other profilers, can be put on one axis. How the file is written is the business of
//! [`runtime::timeline`](crate::runtime::timeline).

pub(super) use crate::runtime::timeline::Subject;
pub use crate::runtime::timeline::{Thread, Window};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use crate::error::{Error, Result};
use crate::metrics::TraceCounts;
use crate::pipeline::stage::Stage;
use crate::runtime::timeline::{Clocks, Event, Gate, Note, Owner, Times, Writer};
use crate::runtime::{Clock, JobClock};
use crate::sched::{Outcome, Task, TaskId};
use crate::types::{PartId, Round, Time, WorkerId};

/// Where spans go while a file is open; nowhere else.
#[derive(Debug)]
pub struct Timeline {
    clocks: Clocks,
    bytes_max: u64,
    counts: TraceCounts,
    writer: RwLock<Option<Writer>>,
    /// Whether the file waits for its first step: the script's own spans are not shown before.
    waits: AtomicBool,
}

impl Timeline {
    /// No file yet; one takes at most `bytes_max` bytes. `clock` is that of the tasks, and `job` that of their job, if there is one.
    pub fn new(clock: Clock, job: Option<JobClock>, bytes_max: u64) -> Self {
        Self {
            clocks: Clocks { own: clock, job },
            bytes_max,
            counts: TraceCounts::default(),
            writer: RwLock::new(None),
            waits: AtomicBool::new(false),
        }
    }

    /// The same, whose events are counted in `counts`.
    #[must_use]
    pub fn counted_in(self, counts: TraceCounts) -> Self {
        Self { counts, ..self }
    }

    /// Opens the file of worker `rank`, and says which it is: see [`Owner::path`] for `place`.
    ///
    /// # Errors
    /// The file cannot be written, or one is open already.
    pub fn start(&self, place: &Path, rank: WorkerId) -> Result<PathBuf> {
        self.start_within(place, rank, Window::default())
    }

    /// As [`start`](Self::start), for the steps of a window.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(super) fn start_within(&self, place: &Path, rank: WorkerId, window: Window) -> Result<PathBuf> {
        let mut writer = self.writer.write().expect(LOCK);
        if writer.is_some() {
            return Err(Error::FailedPrecondition {
                what: "a timeline is being recorded already".to_owned(),
                hint: "stop it before another one is started".to_owned(),
            });
        }
        let owner = Owner::Worker(rank);
        let path = owner.path(place);
        *writer = Some(Writer::open(&path, owner, self.bytes_max, self.clocks.clone(), self.counts.clone())?);
        self.waits.store(!Gate::new(window).is_open(), Ordering::Relaxed);
        Ok(path)
    }

    /// Completes the file. Does nothing if none is open.
    pub fn stop(&self) {
        let writer = self.writer.write().expect(LOCK).take();
        drop(writer);
    }

    /// Completes the file without a wait.
    fn stop_apart(&self) {
        if let Some(writer) = self.writer.write().expect(LOCK).take() {
            writer.end_apart();
        }
    }

    /// Records what the training script did from `start_ns` to `end_ns`, in nanoseconds of the system's monotonic clock.
    pub fn record(&self, thread: Thread<'_>, name: &str, start_ns: i64, end_ns: i64) {
        if let Some(writer) = &*self.writer.read().expect(LOCK)
            && !self.waits.load(Ordering::Relaxed)
        {
            writer.thread(thread);
            let [start_ns, end_ns] = [start_ns, end_ns].map(|at| self.clocks.own.since_origin_ns(at));
            writer.send(Event::Script { row: thread.id, name: name.to_owned(), times: Times { start_ns, end_ns } });
        }
    }

    fn send(&self, event: Event) -> bool {
        self.writer.read().expect(LOCK).as_ref().is_some_and(|writer| writer.send(event))
    }
}

/// The tasks under way, while a timeline is recorded.
#[derive(Debug)]
pub(super) struct TaskTrace {
    timeline: Arc<Timeline>,
    gate: Gate,
    rows: BTreeMap<PartId, Row>,
    courses: BTreeMap<TaskId, Course>,
}

#[derive(Debug)]
struct Row {
    number: u64,
    tensors: Arc<[String]>,
    /// Whether the file knows its name.
    named: bool,
    /// The end of its last span.
    until: Time,
}

#[derive(Debug)]
struct Course {
    subject: Subject,
    /// When it came where it is.
    since: Time,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Waits,
    Runs,
    /// It ran before anybody recorded it.
    Unknown,
}

impl TaskTrace {
    /// Records the steps of `window`.
    pub(super) fn new(timeline: Arc<Timeline>, window: Window) -> Self {
        Self { timeline, gate: Gate::new(window), rows: BTreeMap::new(), courses: BTreeMap::new() }
    }

    /// A round of a sum begins, whose tasks come next.
    pub(super) fn begins(&mut self, round: Round) {
        self.gate.begins(round);
        if self.gate.is_open() {
            self.timeline.waits.store(false, Ordering::Relaxed);
        }
    }

    /// Completes the file if the last step is over and all its tasks are gone; whether it did.
    pub(super) fn ends(&self) -> bool {
        let ends = self.gate.is_over() && self.courses.is_empty();
        if ends {
            self.timeline.stop_apart();
        }
        ends
    }

    /// A task waits for its first stage. `tensors` names those of its part.
    pub(super) fn submitted(&mut self, now: Time, id: TaskId, subject: Subject, tensors: impl FnOnce() -> Vec<String>) {
        self.follow(now, id, subject, tensors, Place::Waits);
    }

    /// A task was under way when recording began; it is recorded from its next stage on.
    pub(super) fn found(&mut self, now: Time, id: TaskId, subject: Subject, tensors: impl FnOnce() -> Vec<String>) {
        self.follow(now, id, subject, tensors, Place::Unknown);
    }

    /// Its stage begins.
    pub(super) fn taken(&mut self, now: Time, task: &Task, stage: Stage) {
        let Some(course) = self.courses.get_mut(&task.id) else { return };
        let since = std::mem::replace(&mut course.since, now);
        if let Place::Waits = std::mem::replace(&mut course.place, Place::Runs) {
            let subject = course.subject;
            self.write(since, now, "QUEUE", subject, Note::For(stage.name()));
        }
    }

    /// Its stage ended. PULL begins at the end of PUSH.
    pub(super) fn finished(&mut self, now: Time, id: TaskId, stage: Stage, outcome: &Outcome) {
        let Some(course) = self.courses.get_mut(&id) else { return };
        let since = std::mem::replace(&mut course.since, now);
        let is_pulled = stage == Stage::Push && *outcome == Outcome::Done;
        let next = if is_pulled { Place::Runs } else { Place::Waits };
        if let Place::Runs = std::mem::replace(&mut course.place, next) {
            let subject = course.subject;
            let how = match outcome {
                Outcome::Done => "done".into(),
                Outcome::Retry { error, .. } => format!("to be repeated: {error}").into(),
                Outcome::Failed(error) => error.to_string().into(),
            };
            self.write(since, now, stage.name(), subject, Note::Outcome(how));
        }
    }

    /// It is gone.
    pub(super) fn released(&mut self, id: TaskId) {
        self.courses.remove(&id);
    }

    fn follow(&mut self, now: Time, id: TaskId, subject: Subject, tensors: impl FnOnce() -> Vec<String>, place: Place) {
        if !self.gate.records() {
            return;
        }
        let number = self.rows.len() as u64 + 1;
        self.rows.entry(subject.part).or_insert_with(|| Row {
            number,
            tensors: tensors().into(),
            named: false,
            until: Time::ZERO,
        });
        self.courses.insert(id, Course { subject, since: now, place });
    }

    fn write(&mut self, since: Time, until: Time, name: &'static str, subject: Subject, note: Note) {
        let row = self.rows.get_mut(&subject.part).expect("a task comes with its row");
        let number = row.number;
        if !row.named {
            row.named = self.timeline.send(Event::Row { row: number, subject, tensors: Arc::clone(&row.tensors) });
        }
        // Spans of a row must not overlap. They would where a round is submitted before the one before it ended, for which it waits.
        let start = since.max(row.until);
        row.until = until;
        let times = Times { start_ns: start.signed_ns(), end_ns: until.signed_ns() };
        self.timeline.send(Event::Task { row: number, name, times, subject, note });
    }
}

const LOCK: &str = "nobody panics while holding the timeline";

#[cfg(test)]
mod tests;
