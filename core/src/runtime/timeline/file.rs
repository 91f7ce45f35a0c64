//! The file of a timeline, as its thread sees it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::event::{Event, Note, Subject, Times};
use super::lines::{Lines, escaped, micros, number, part, text};
use super::owner::{Clocks, Owner};
use super::waiting::Waiting;
use crate::metrics::{Sink, TraceCounts};
use crate::runtime::{JobTime, WallReading, process};
use crate::types::Time;

/// The version of the files. A reader that knows another one refuses them.
const VERSION: u32 = 2;
/// How often the thread takes what waits.
const TAKES: Duration = Duration::from_millis(20);
/// How often the file says what other clocks show.
const READINGS: Duration = Duration::from_secs(5);
/// How soon after a reading without the coordinator's clock, which is known when the coordinator has answered a heartbeat.
const UNKNOWN: Duration = Duration::from_millis(500);
/// The line of a reading is shorter.
const READING_BYTES: u64 = 256;
/// So many older timelines of the same name are kept. Each has at most the bytes that its setting allowed.
const OLDER_MAX: u32 = 9;
/// Written at once at most, more or less.
const TEXT_BYTES: usize = 64 << 10;

/// An open file.
pub(super) struct TimelineFile {
    file: File,
    owner: Owner,
    clocks: Clocks,
    /// Those that are not written yet.
    lines: Lines,
    /// The rows of parts that have their names, and of workers' rows what their first task was. A row says that for all of its spans.
    rows: BTreeMap<u64, Option<Subject>>,
    /// When other clocks are to be read again.
    next_reading: Time,
}

impl TimelineFile {
    /// Creates the file and the folders above it, and writes its first lines. An older file of that name gets another one.
    pub(super) fn create(path: &Path, owner: Owner, bytes_max: u64, clocks: Clocks) -> std::io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        keep_older(path)?;
        let file = File::create(path)?;
        let lines = Lines::new(bytes_max);
        let mut timeline = Self { file, owner, clocks, lines, rows: BTreeMap::new(), next_reading: Time::ZERO };
        timeline.head();
        timeline.flush()?;
        Ok(timeline)
    }

    /// Writes what waits until the other end of `ends` is gone, and then completes the file. Counts what it takes, and what finds no room.
    pub(super) fn fill(mut self, waiting: &Waiting, counts: &TraceCounts, ends: &Receiver<()>) {
        let (mut events, mut counted) = (Vec::new(), 0);
        loop {
            let is_over = ends.recv_timeout(TAKES) == Err(RecvTimeoutError::Disconnected);
            events = waiting.take(events);
            counts.events.add(Sink::Timeline, events.len() as u64);
            for event in events.drain(..) {
                self.event(event);
                if self.lines.text.len() >= TEXT_BYTES {
                    self.write();
                }
            }
            if self.next_reading <= self.clocks.own.now() {
                self.reading();
            }
            self.write();
            counts.lost.add(Sink::Timeline, self.lines.lost - counted);
            counted = self.lines.lost;
            if is_over {
                break;
            }
        }
        self.tail(waiting.lost());
    }

    fn head(&mut self) {
        let Self { owner, lines, .. } = self;
        lines.text.push_str("[\n");
        let base = self.clocks.own.read_wall().origin_unix_ns();
        let monotonic_ns = self.clocks.own.origin_monotonic_ns();
        let monotonic = serde_json::Value::from(process::monotonic_clock());
        let (member, host) = (text(&owner.to_string()), text(&process::host()));
        let (pid, process) = (owner.process(), std::process::id());
        lines.add(format_args!(
            r#""ph":"M","pid":{pid},"name":"gradlane_timeline","args":{{"version":{VERSION},"base_unix_ns":{base},"member":{member},"host":{host},"process":{process},"monotonic":{monotonic},"monotonic_ns":{monotonic_ns}}}"#
        ));
        for (pid, name) in owner.groups() {
            let name = text(&name);
            lines.add(format_args!(r#""ph":"M","pid":{pid},"name":"process_name","args":{{"name":{name}}}"#));
            lines
                .add(format_args!(r#""ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{pid}}}"#));
        }
        self.reading();
    }

    /// Says what other clocks show, if there is room: nobody misses that in a file that is full.
    fn reading(&mut self) {
        let WallReading { at, unix_ns } = self.clocks.own.read_wall();
        let job = self.clocks.job.as_ref().map(|job| job.at(at));
        self.next_reading = at + if job == Some(None) { UNKNOWN } else { READINGS };
        if !self.lines.has_room(READING_BYTES) {
            return;
        }
        let (pid, at_ns, mut job_time) = (self.owner.process(), at.0, String::new());
        if let Some(JobTime { unix_ns, error }) = job.flatten() {
            let error_ns = error.as_nanos();
            write!(job_time, r#","job_ns":{unix_ns},"error_ns":{error_ns}"#).expect("a string takes everything");
        }
        self.lines.add(format_args!(
            r#""ph":"M","pid":{pid},"name":"gradlane_clock","args":{{"at_ns":{at_ns},"unix_ns":{unix_ns}{job_time}}}"#
        ));
    }

    fn tail(mut self, lost: u64) {
        self.reading();
        let (lost, pid) = (lost + self.lines.lost, self.owner.process());
        // It has no comma after it, which the end of an array demands.
        writeln!(self.lines.text, r#"{{"ph":"M","pid":{pid},"name":"events_lost","args":{{"count":{lost}}}}}"#)
            .expect("a string takes everything");
        self.lines.text.push_str("]\n");
        let _ = self.flush();
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Row { row, subject, tensors } => self.row(row, &subject, &tensors),
            Event::SumRow { row, part: of, what } => {
                let (name, pid) = (text(&format!("{} [{}]{what}", of.key, of.index)), self.owner.parts());
                let of = part(of);
                self.lines.add(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{name},{of},"what":"{what}"}}"#
                ));
                self.rows.insert(row, None);
            }
            Event::Thread { row, name } => {
                let (pid, name) = (self.owner.process(), text(&name));
                self.lines.add(format_args!(
                    r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{name}}}"#
                ));
            }
            Event::Script { row, name, times } => {
                let (pid, name) = (self.owner.process(), escaped(&name));
                self.lines.add_with(|line| span(line, (pid, row), &name, times));
            }
            Event::Task { row, name, times, subject, note } => self.on(row, |line, pid, first| {
                span(line, (pid, row), name, times);
                number(line, r#","args":{"round":"#, subject.round.0);
                if let Some(first) = first {
                    differs(line, &subject, first);
                }
                residual(line, subject.is_residual);
                line.push_str(match note {
                    Note::For(_) => r#","for":""#,
                    Note::Outcome(_) => r#","outcome":""#,
                });
                match note {
                    Note::For(word) | Note::Outcome(Cow::Borrowed(word)) => line.push_str(word),
                    Note::Outcome(Cow::Owned(error)) => line.push_str(&escaped(&error)),
                }
                line.push_str(r#""}"#);
            }),
            Event::Sum { row, name, times, round, bytes, workers, is_residual, outcome } => {
                self.on(row, |line, pid, _| {
                    span(line, (pid, row), name, times);
                    number(line, r#","args":{"round":"#, round.0);
                    number(line, r#","bytes":"#, bytes);
                    line.push_str(r#","workers":["#);
                    for (place, worker) in workers.iter().enumerate() {
                        number(line, if place == 0 { "" } else { "," }, worker.0);
                    }
                    line.push(']');
                    residual(line, is_residual);
                    line.push_str(r#","outcome":""#);
                    line.push_str(outcome);
                    line.push_str(r#""}"#);
                })
            }
            Event::Moment { row, name, at_ns, round, worker } => self.on(row, |line, pid, _| {
                number(line, r#""ph":"i","s":"t","pid":"#, pid);
                number(line, r#","tid":"#, row);
                line.push_str(r#","name":""#);
                line.push_str(name);
                micros(line, r#"","ts":"#, at_ns);
                number(line, r#","args":{"round":"#, round.0);
                number(line, r#","worker":"#, worker.0);
                line.push('}');
            }),
        }
    }

    /// What a part's row is called, and what everything on it is about, but for what its spans say themselves.
    fn row(&mut self, row: u64, subject: &Subject, tensors: &[String]) {
        let all = match tensors {
            [] => String::new(),
            [one] => one.clone(),
            [first, others @ ..] => format!("{first} + {} more", others.len()),
        };
        let label = if tensors.len() == 1 { format!("{all} [{}]", subject.part.index) } else { all.clone() };
        let (pid, label, order) = (self.owner.parts(), text(&label), -i64::from(subject.priority.0));
        let (of, tensor, tensors) = (part(subject.part), text(&all), serde_json::Value::from(tensors.to_vec()));
        let Subject { bytes, priority, server, .. } = subject;
        let (priority, server) = (priority.0, server.0);
        self.lines.add(format_args!(
            r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_name","args":{{"name":{label},"tensor":{tensor},{of},"tensors":{tensors},"bytes":{bytes},"priority":{priority},"server":{server}}}"#
        ));
        self.lines.add(format_args!(
            r#""ph":"M","pid":{pid},"tid":{row},"name":"thread_sort_index","args":{{"sort_index":{order}}}"#
        ));
        self.rows.insert(row, Some(*subject));
    }

    /// Adds a line of a row, with the number of its group and the row's first task. On a row without a name it would say nothing.
    fn on(&mut self, row: u64, write: impl FnOnce(&mut String, u32, Option<&Subject>)) {
        match self.rows.get(&row) {
            Some(first) => self.lines.add_with(|line| write(line, self.owner.parts(), first.as_ref())),
            None => self.lines.lost += 1,
        }
    }

    fn write(&mut self) {
        if let Err(error) = self.flush() {
            tracing::warn!(%error, "the timeline cannot be written any more");
            self.lines.fill_up();
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let written = self.file.write_all(self.lines.text.as_bytes());
        self.lines.text.clear();
        written
    }
}

/// Renames `comm.json` to `comm-1.json`, `comm-1.json` to `comm-2.json` and so on, up to [`OLDER_MAX`], so that the newest timeline has the
/// name that users know. A process that still writes an older one goes on with it.
fn keep_older(path: &Path) -> std::io::Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let aged = |age: u32| match age {
        0 => path.to_owned(),
        age => path.with_file_name(format!("{name}-{age}.json")),
    };
    // A name that is free ends the chain. What is no plain file, such as a pipe, is written as it is.
    let is_taken = |age: &u32| aged(*age).symlink_metadata().is_ok_and(|about| about.is_file());
    let free = (0..OLDER_MAX).find(|age| !is_taken(age)).unwrap_or(OLDER_MAX);
    (0..free).rev().try_for_each(|age| std::fs::rename(aged(age), aged(age + 1)))
}

/// The members of JSON that every span has. In `name` there is nothing to escape.
fn span(line: &mut String, (pid, row): (u32, u64), name: &str, Times { start_ns, end_ns }: Times) {
    number(line, r#""ph":"X","pid":"#, pid);
    number(line, r#","tid":"#, row);
    line.push_str(r#","name":""#);
    line.push_str(name);
    micros(line, r#"","ts":"#, start_ns);
    micros(line, r#","dur":"#, end_ns.saturating_sub(start_ns).max(0));
}

/// Tells a use of a residual from the sum of the same round.
fn residual(line: &mut String, is_residual: bool) {
    if is_residual {
        line.push_str(r#","use":"residual""#);
    }
}

/// What of a task is not as it was in the first task of its row.
fn differs(line: &mut String, Subject { bytes, priority, server, .. }: &Subject, first: &Subject) {
    if *bytes != first.bytes {
        number(line, r#","bytes":"#, *bytes);
    }
    if *priority != first.priority {
        number(line, r#","priority":"#, priority.0);
    }
    if *server != first.server {
        number(line, r#","server":"#, server.0);
    }
}
