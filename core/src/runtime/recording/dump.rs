//! A dump as text: JSON that people and `gradlane explain` read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::ring::Newest;
use crate::error::{Code, Error};
use crate::runtime::JobTime;
use crate::types::{Epoch, Role, Time, whole_ns};

/// Records what a process does, and tells it at any time.
pub trait Recorder: Send + Sync + 'static {
    /// Whether it records anything.
    fn is_on(&self) -> bool;

    /// A copy of what it has recorded until now. Waits for no thread that records.
    fn copy(&self) -> Copied;

    /// What it has recorded until now.
    fn read(&self) -> Recorded {
        self.copy()()
    }

    /// How many events it has recorded, and how many of them are lost, as [`Recorded`] says. Reads no event.
    fn counts(&self) -> (u64, u64);
}

/// A copy of what a recorder had. The call makes text of it, which takes much longer than the copy.
pub type Copied = Arc<dyn Fn() -> Recorded + Send + Sync>;

/// What a recorder has recorded.
#[derive(Default, Debug)]
pub struct Recorded {
    /// The events, as [`lines`] makes them.
    pub events: String,
    /// What the places of an event mean.
    pub event_fields: &'static [&'static str],
    /// How many events were ever written.
    pub written: u64,
    /// How many of them were lost because two threads met in one slot.
    pub lost: u64,
    /// What else there is, by name: operations that have not ended, errors.
    pub others: Map<String, Value>,
}

impl Recorded {
    /// What a ring had: its `events`, as [`lines`] makes them of those in `newest`. `others` says what else there is, by name.
    pub fn of(
        newest: &Newest,
        event_fields: &'static [&'static str],
        events: String,
        others: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let others = others.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { events, event_fields, written: newest.written, lost: newest.lost, others }
    }
}

/// A round that is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// A round, if it is known.
pub fn known_round(round: u64) -> Option<u64> {
    if round == UNKNOWN { None } else { Some(round) }
}

/// The tensors that occur in events. In an event, a tensor is its position among them.
#[derive(Default, Debug)]
pub struct Tensors {
    positions: BTreeMap<u64, usize>,
    names: Vec<String>,
}

impl Tensors {
    /// The position of the tensor with this key. `name` is what it is called.
    pub fn position(&mut self, key: u64, name: impl FnOnce() -> String) -> usize {
        *self.positions.entry(key).or_insert_with(|| {
            self.names.push(name());
            self.names.len() - 1
        })
    }

    /// What they are called, by position.
    pub fn names(self) -> Value {
        self.names.into()
    }
}

/// Events as text, one a line, so that a dump can be searched line by line.
pub fn lines(events: impl Iterator<Item = Value>) -> String {
    let mut text = String::new();
    for event in events {
        let comma = if text.is_empty() { "" } else { ",\n" };
        let _ = write!(text, "{comma}{event}");
    }
    text
}

/// What a dump says of its process.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct About {
    pub(super) job: String,
    pub(super) role: Role,
    /// Its rank, or the index of its server; `None` if it has none yet, and for a coordinator.
    pub(super) index: Option<u32>,
    pub(super) pid: u32,
    pub(super) host: String,
    /// Why the dump is made.
    pub(super) reason: String,
    /// When the clock of the process began, by what the wall clock shows now, in nanoseconds since 1970.
    pub(super) origin_unix_ns: u64,
}

/// What the whole job looked like to the process, and how its work ended.
#[derive(Clone, Default, Debug)]
pub(super) struct Known {
    /// The first error that ended its work.
    pub(super) end: Option<(Time, Error)>,
    pub(super) members: Option<Members>,
}

/// The members of the job in the latest epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Members {
    pub(super) epoch: Epoch,
    /// Their ranks.
    pub(super) workers: Vec<u32>,
    /// Their indexes.
    pub(super) servers: Vec<u32>,
}

/// The form of a dump. A reader refuses another one.
pub const FORM: &str = "gradlane flight 2";

/// Characters of a foreign text in a dump.
pub const TEXT_MAX: usize = 2_000;

impl About {
    /// The dump.
    ///
    /// All times are nanoseconds of the clock of the process. `now_ns`, `unix_ns` by the wall clock and `job_unix_ns` by the clock of the `job`
    /// are the same moment.
    pub(super) fn text(&self, (now, job): (Time, Option<JobTime>), known: Known, recorded: Recorded) -> String {
        let Recorded { events, event_fields, written, lost, others } = recorded;
        let Known { end, members } = known;
        let members = members.as_ref();
        let head = json!({
            "form": FORM,
            "version": env!("CARGO_PKG_VERSION"),
            "job": self.job,
            "role": self.role.to_string(),
            "index": self.index,
            "pid": self.pid,
            "host": self.host,
            "epoch": members.map(|members| members.epoch.to_string()),
            "workers": members.map(|members| &members.workers),
            "servers": members.map(|members| &members.servers),
            "reason": self.reason,
            "unix_ns": self.origin_unix_ns.saturating_add(now.0),
            "now_ns": now.0,
            "job_unix_ns": job.map(|job| job.unix_ns),
            "job_error_ns": job.map(|job| whole_ns(job.error)),
            "end": end.map(|(at, error)| failure(at, None, &error)),
            "events_written": written,
            "events_lost": lost,
            "event_fields": event_fields,
        });
        let Value::Object(mut head) = head else { unreachable!("written as one") };
        head.extend(others);
        let head = format!("{:#}", Value::Object(head));
        let head = head.trim_end().strip_suffix('}').expect("an object ends so").trim_end();
        format!("{head},\n  \"events\": [\n{events}\n]\n}}\n")
    }
}

/// An error in a dump, of the operation with this number.
pub(crate) fn failure(at: Time, id: Option<u64>, error: &Error) -> Value {
    let text: String = error.to_string().chars().take(TEXT_MAX).collect();
    let late = error.code() == Code::DeadlineExceeded;
    json!({ "at_ns": at.0, "id": id, "kind": error.kind().variant, "late": late, "error": text })
}
