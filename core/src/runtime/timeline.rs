//! Writes a timeline in Chrome's trace format, on a thread of its own.
//!
//! Viewers read times as doubles of microseconds. Since 1970 those have steps of 0.25 µs, so spans would seem to leave those around them.
//! So the times of a file count from the origin of the engine's clock, and the first line says when that was: `gradlane_timeline`. Further
//! lines, `gradlane_clock`, say what the wall clock and the coordinator's clock show, every [`READINGS`] and at the end: somebody may set the
//! first one meanwhile, and the second one drifts.
//!
//! The file is an array of events, a line each, that is closed at the end; viewers read one that is not. Whole lines are written whenever
//! nothing more waits, so a process that is killed leaves a file that can be read. Memory is bounded by a channel, the file by a number of
//! bytes; what finds no room is counted, and the last line says how much that was.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::runtime::{Clock, JobClock, JobTime, WallReading, process};
use crate::types::{PartId, ServerId, Time, WorkerId};

mod event;
mod window;

pub use event::{Event, Group, Of, Span, Subject, Thread};
pub use window::{Gate, Window};

/// The version of the files. A reader that knows another one refuses them.
const VERSION: u32 = 1;

/// The clocks of a file.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// That of its times.
    pub own: Clock,
    /// That of the job, which is the coordinator's. Absent if there is none.
    pub job: Option<JobClock>,
}

/// The process whose timeline it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A worker, by its rank.
    Worker(WorkerId),
    /// A server, by its index.
    Server(ServerId),
}

impl Owner {
    /// Where its timeline is written. `place` is a file name that ends in `.json`, before which the rank or `server-INDEX` is put, or else a
    /// folder, in which it is `RANK/comm.json` or `server-INDEX/comm.json`.
    pub fn path(self, place: &Path) -> PathBuf {
        let name = match self {
            Self::Worker(WorkerId(rank)) => rank.to_string(),
            Self::Server(ServerId(index)) => format!("server-{index}"),
        };
        match place.extension() {
            Some(extension) if extension == "json" => place.with_extension(format!("{name}.json")),
            Some(_) | None => place.join(name).join("comm.json"),
        }
    }

    /// Chrome's number for a group of rows; distinct for all members, so that files can be merged.
    fn pid(self, group: Group) -> u32 {
        match self {
            Self::Worker(WorkerId(rank)) => 2 * rank + u32::from(group == Group::Parts),
            Self::Server(ServerId(index)) => FIRST_SERVER + index,
        }
    }

    /// Its groups of rows, with their names.
    fn groups(self) -> Vec<(Group, String)> {
        match self {
            Self::Worker(_) => vec![(Group::Script, self.to_string()), (Group::Parts, format!("{self}: gradients"))],
            Self::Server(_) => vec![(Group::Parts, self.to_string())],
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(rank) => rank.fmt(f),
            Self::Server(index) => index.fmt(f),
        }
    }
}

/// Above the numbers of workers and of processes.
const FIRST_SERVER: u32 = 1 << 23;

/// An open file. Dropping it completes the file.
#[derive(Debug)]
pub struct Writer {
    /// Taken when it is dropped.
    sender: Option<Sender<Event>>,
    lost: Arc<AtomicU64>,
    threads: Mutex<BTreeSet<u64>>,
    thread: OwnThread,
}

impl Writer {
    /// Creates the file and the folders above it, and starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn open(path: &Path, owner: Owner, bytes_max: u64, clocks: Clocks) -> Result<Self> {
        let failed = |error: std::io::Error| Error::Io {
            what: format!("writing the timeline {}", path.display()),
            cause: error.to_string(),
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = File::create(path).map_err(failed)?;
        let (sender, receiver) = bounded(EVENTS_WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let mut timeline = TimelineFile {
            file,
            owner,
            clocks,
            text: String::new(),
            room: bytes_max,
            full: false,
            lost: Arc::clone(&lost),
            next_reading: Time::ZERO,
        };
        timeline.head().map_err(failed)?;
        let thread = OwnThread::start("gl-timeline", move || timeline.fill(&receiver))?;
        Ok(Self { sender: Some(sender), lost, threads: Mutex::default(), thread })
    }

    /// Has an event written, unless so many wait that there is no room; whether there was. Never waits.
    pub fn send(&self, event: Event) -> bool {
        let sender = self.sender.as_ref().expect("taken by the drop only");
        let sent = sender.try_send(event).is_ok();
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Names the row of a thread, once.
    pub fn thread(&self, thread: Thread<'_>) {
        let mut known = self.threads.lock().expect("nobody panics while holding it");
        if !known.contains(&thread.id) && self.send(Event::Thread { row: thread.id, name: thread.name.to_owned() }) {
            known.insert(thread.id);
        }
    }
}

impl Writer {
    /// Completes the file on a thread of its own, because the caller must not wait.
    pub fn end_apart(self) {
        let completed = std::thread::Builder::new().name("gl-timeline-end".to_owned()).spawn(move || drop(self));
        if let Err(error) = completed {
            // The closure is dropped, and with it the file is completed here.
            tracing::warn!(%error, "the end of a timeline had to be waited for");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.sender = None;
        self.thread.join(WRITING);
    }
}

/// How long the end of a timeline waits for its file to be written. After that the rest is written in the background.
const WRITING: Duration = Duration::from_secs(10);
/// So many events wait at most: some 10 MiB.
const EVENTS_WAITING_MAX: usize = 64 << 10;
/// How often the file says what other clocks show.
const READINGS: Duration = Duration::from_secs(5);
/// How soon after a reading without the coordinator's clock, which is known when the coordinator has answered a heartbeat.
const UNKNOWN: Duration = Duration::from_millis(500);
/// The line of a reading is shorter.
const READING_BYTES: u64 = 256;
/// Written at once at most, more or less.
const TEXT_BYTES: usize = 64 << 10;

/// The file as its thread sees it.
struct TimelineFile {
    file: File,
    owner: Owner,
    clocks: Clocks,
    /// Whole lines that are not written yet.
    text: String,
    /// Bytes that may still be written, the last line aside.
    room: u64,
    /// Whether something did not fit: nothing more is written, because a timeline with holes would mislead.
    full: bool,
    lost: Arc<AtomicU64>,
    /// When other clocks are to be read again.
    next_reading: Time,
}

impl TimelineFile {
    fn head(&mut self) -> std::io::Result<()> {
        let owner = self.owner;
        self.text.push_str("[\n");
        let base = self.clocks.own.read_wall().origin_unix_ns();
        let monotonic_ns = self.clocks.own.origin_monotonic_ns();
        let monotonic = serde_json::Value::from(process::monotonic_clock());
        let (member, host) = (text(&owner.to_string()), text(&process::host()));
        let (pid, process) = (self.own_pid(), std::process::id());
        self.line(format_args!(
            r#""ph":"M","pid":{pid},"name":"gradlane_timeline","args":{{"version":{VERSION},"base_unix_ns":{base},"member":{member},"host":{host},"process":{process},"monotonic":{monotonic},"monotonic_ns":{monotonic_ns}}}"#
        ));
        for (group, name) in owner.groups() {
            let (pid, name) = (owner.pid(group), text(&name));
            self.line(format_args!(r#""ph":"M","pid":{pid},"name":"process_name","args":{{"name":{name}}}"#));
            self.line(format_args!(
                r#""ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{pid}}}"#
            ));
        }
        self.reading();
        self.flush()
    }

    fn fill(mut self, events: &Receiver<Event>) {
        loop {
            match events.recv_deadline(self.clocks.own.instant(self.next_reading)) {
                Ok(event) => self.event(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while self.text.len() < TEXT_BYTES
                && let Ok(event) = events.try_recv()
            {
                self.event(event);
            }
            if self.next_reading <= self.clocks.own.now() {
                self.reading();
            }
            if let Err(error) = self.flush() {
                tracing::warn!(%error, "the timeline cannot be written any more");
                self.full = true;
            }
        }
        self.tail();
    }

    /// Says what other clocks show, if there is room: nobody misses that in a file that is full.
    fn reading(&mut self) {
        let WallReading { at, unix_ns } = self.clocks.own.read_wall();
        let job = self.clocks.job.as_ref().map(|job| job.at(at));
        self.next_reading = at + if job == Some(None) { UNKNOWN } else { READINGS };
        if self.full || self.room < READING_BYTES {
            return;
        }
        let (pid, at_ns, mut job_time) = (self.own_pid(), at.0, String::new());
        if let Some(JobTime { unix_ns, error }) = job.flatten() {
            let error_ns = error.as_nanos();
            write!(job_time, r#","job_ns":{unix_ns},"error_ns":{error_ns}"#).expect("a string takes everything");
        }
        self.line(format_args!(
            r#""ph":"M","pid":{pid},"name":"gradlane_clock","args":{{"at_ns":{at_ns},"unix_ns":{unix_ns}{job_time}}}"#
        ));
    }

    fn tail(&mut self) {
        self.reading();
        let lost = self.lost.load(Ordering::Relaxed);
        let pid = self.own_pid();
        // It has no comma after it, which the end of an array demands.
        writeln!(self.text, r#"{{"ph":"M","pid":{pid},"name":"events_lost","args":{{"count":{lost}}}}}"#)
            .expect("a string takes everything");
        self.text.push_str("]\n");
        let _ = self.flush();
    }

    fn event(&mut self, event: Event) {
        let pid = self.owner.pid(Group::Parts);
        match event {
            Event::Row { row, subject, tensors } => {
                let (name, order) = (text(&label(&subject, &tensors)), -i64::from(subject.priority.0));
                let (part, tensors) = (Part(subject.part), serde_json::Value::from(tensors.to_vec()));
                self.line(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{name},{part},"tensors":{tensors}}}"#
                ));
                self.line(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_sort_index","args":{{"sort_index":{order}}}"#
                ));
            }
            Event::SumRow { row, part, what } => {
                let (name, part) = (text(&format!("{} [{}]{what}", part.key, part.index)), Part(part));
                self.line(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{name},{part},"what":"{what}"}}"#
                ));
            }
            Event::Thread { row, name } => {
                let (pid, name) = (self.owner.pid(Group::Script), text(&name));
                self.line(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{name}}}"#
                ));
            }
            Event::Span(span) => self.span(&span),
            Event::Moment { row, name, at_ns, part, round, worker } => {
                let (at, part, round, worker) = (Micros(at_ns), Part(part), round.0, worker.0);
                self.line(format_args!(
                    r#""ph":"i","s":"t","pid":{pid},"tid":{row},"name":"{name}","ts":{at},"cat":"sum","args":{{{part},"round":{round},"worker":{worker}}}"#
                ));
            }
        }
    }

    fn span(&mut self, span: &Span) {
        let pid = self.owner.pid(span.group);
        let (name, row) = (text(&span.name), span.row);
        let (start, length) = (Micros(span.start_ns), Micros(span.end_ns.saturating_sub(span.start_ns).max(0)));
        let details = span.of.as_ref().map(details).unwrap_or_default();
        self.line(format_args!(
            r#""ph":"X","pid":{pid},"tid":{row},"name":{name},"ts":{start},"dur":{length}{details}"#
        ));
    }

    /// Adds an event, if there is room for it and was for all before it.
    fn line(&mut self, inner: fmt::Arguments<'_>) {
        let before = self.text.len();
        writeln!(self.text, "{{{inner}}},").expect("a string takes everything");
        let bytes = (self.text.len() - before) as u64;
        if self.full || bytes > self.room {
            self.full = true;
            self.text.truncate(before);
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.room -= bytes;
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let written = self.file.write_all(self.text.as_bytes());
        self.text.clear();
        written
    }

    /// The group that stands for the whole process.
    fn own_pid(&self) -> u32 {
        self.owner.pid(Group::Script)
    }
}

/// What a span is about, as the rest of its event.
fn details(of: &Of) -> String {
    match of {
        Of::Task { subject, tensors, note: (word, note) } => {
            let Subject { part, round, bytes, priority, server } = subject;
            let (tensor, note, part) = (text(&gathered(tensors)), text(note), Part(*part));
            format!(
                r#","cat":"task","args":{{"tensor":{tensor},{part},"round":{},"bytes":{bytes},"priority":{},"server":{},"{word}":{note}}}"#,
                round.0, priority.0, server.0
            )
        }
        Of::Sum { part, round, bytes, workers, outcome } => {
            let (part, workers) = (Part(*part), workers.iter().map(|worker| worker.0).collect::<Vec<_>>());
            let workers = serde_json::Value::from(workers);
            format!(
                r#","cat":"sum","args":{{{part},"round":{},"bytes":{bytes},"workers":{workers},"outcome":"{outcome}"}}"#,
                round.0
            )
        }
    }
}

/// A part, by which the events of workers and servers about one sum find each other.
struct Part(PartId);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#""key":"{}","part":{}"#, self.0.key, self.0.index)
    }
}

/// What a part's row is called.
fn label(subject: &Subject, tensors: &[String]) -> String {
    match tensors {
        [one] => format!("{one} [{}]", subject.part.index),
        several => gathered(several),
    }
}

fn gathered(tensors: &[String]) -> String {
    match tensors {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} + {} more", others.len()),
    }
}

/// A text as JSON has it.
fn text(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

/// Nanoseconds, written in microseconds.
struct Micros(i64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, ns) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        write!(f, "{sign}{}.{:03}", ns / 1000, ns % 1000)
    }
}
