//! A dump of the recorder as text: JSON that people and `gradlane explain` read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::event::{Event, Head, Kind, UNKNOWN};
use super::open::{Open, Parts};
use super::ring::Newest;
use super::texts::{Failure, Notice, Told};
use crate::error::{Code, Error};
use crate::types::{TensorKey, Time};

/// What a dump says of its worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::engine) struct About {
    pub(in crate::engine) job: String,
    /// Its rank; `None` if it has none yet.
    pub(in crate::engine) rank: Option<u32>,
    pub(in crate::engine) pid: u32,
    pub(in crate::engine) host: String,
    /// Why the dump is made.
    pub(in crate::engine) reason: String,
    /// When the engine's clock began, by what the wall clock shows now, in nanoseconds since 1970.
    pub(in crate::engine) origin_unix_ns: u64,
}

/// The form of a dump. A reader refuses another one.
pub const FORM: &str = "gradlane flight 1";

/// What the places of an event in a dump mean.
const EVENT_FIELDS: [&str; 9] = ["at_ns", "what", "tensor", "round", "id", "stage", "how", "server", "amount"];

/// Characters of an error's text.
const TEXT_MAX: usize = 2_000;

impl About {
    /// The dump.
    ///
    /// All times are nanoseconds of the engine's clock; `unix_ns` and `now_ns` are the same moment. A tensor of an event is its position in
    /// `tensors`. An event stands in one line, so that the text can be searched line by line.
    pub(super) fn text(&self, now: Time, newest: &Newest, (open, left_out): &(Vec<Open>, u64), told: &Told) -> String {
        let mut tensors = Tensors { told, positions: BTreeMap::new(), names: Vec::new() };
        let mut events = String::new();
        for event in newest.events.iter().filter_map(|(_, words)| Event::of_words(*words)) {
            let comma = if events.is_empty() { "" } else { ",\n" };
            let _ = write!(events, "{comma}{}", line(&event, &mut tensors));
        }
        let open: Vec<Value> = open.iter().map(|open| described(open, told)).collect();
        let end = told.end.as_ref().map(|(at, error)| failure(*at, None, error));
        let errors = told.first_errors.iter().chain(&told.last_error);
        let errors: Vec<Value> = errors.map(|Failure { at, id, error }| failure(*at, Some(*id), error)).collect();
        let notices: Vec<Value> = told.notices.iter().map(notice).collect();
        let (epoch, workers) = told.epoch.clone().unzip();
        let head = json!({
            "form": FORM,
            "version": env!("CARGO_PKG_VERSION"),
            "job": self.job,
            "role": "worker",
            "index": self.rank,
            "pid": self.pid,
            "host": self.host,
            "epoch": epoch,
            "workers": workers,
            "reason": self.reason,
            "unix_ns": self.origin_unix_ns.saturating_add(now.0),
            "now_ns": now.0,
            "end": end,
            "errors": errors,
            "notices": notices,
            "open": open,
            "open_left_out": left_out,
            "events_written": newest.written,
            "events_lost": newest.lost,
            "tensors": tensors.names,
            "event_fields": EVENT_FIELDS,
        });
        let head = format!("{head:#}");
        let head = head.trim_end().strip_suffix('}').expect("an object ends so").trim_end();
        format!("{head},\n  \"events\": [\n{events}\n]\n}}\n")
    }
}

/// The tensors that occur in events.
struct Tensors<'a> {
    told: &'a Told,
    positions: BTreeMap<u64, usize>,
    names: Vec<String>,
}

impl Tensors<'_> {
    fn position(&mut self, key: u64) -> usize {
        *self.positions.entry(key).or_insert_with(|| {
            self.names.push(name(key, self.told));
            self.names.len() - 1
        })
    }
}

fn name(key: u64, told: &Told) -> String {
    told.names.get(&key).map_or_else(|| TensorKey(key).to_string(), |name| (**name).to_owned())
}

fn line(event: &Event, tensors: &mut Tensors<'_>) -> Value {
    let Event { at, head: Head { kind, operation, stage, ended, server }, key, round, id, amount } = *event;
    let has_tensor = match kind {
        Kind::Submitted | Kind::Queued | Kind::Taken | Kind::Finished | Kind::Stalled => true,
        Kind::Resolved | Kind::Formed | Kind::Waits | Kind::Waited => false,
    };
    let tensor = has_tensor.then(|| tensors.position(key));
    let round = known(round);
    let how = match kind {
        Kind::Submitted => Some(operation.word()),
        Kind::Finished | Kind::Resolved => Some(ended.word()),
        Kind::Queued | Kind::Taken | Kind::Formed | Kind::Stalled | Kind::Waits | Kind::Waited => None,
    };
    json!([at.0, kind.word(), tensor, round, id, stage.map(|stage| stage.name()), how, server, amount])
}

fn described(open: &Open, told: &Told) -> Value {
    let Open { id, key, round, submitted, moved, last, parts: Parts { queued, handed_over, answered } } = *open;
    let last = Head::of_word(last);
    json!({
        "id": id,
        "tensor": name(key, told),
        "round": known(round),
        "submitted_ns": submitted,
        "moved_ns": moved,
        "operation": last.map(|last| last.operation.word()),
        "last": last.map(|last| last.kind.word()),
        "stage": last.and_then(|last| last.stage).map(|stage| stage.name()),
        "server": last.map(|last| last.server),
        "parts": queued,
        "handed_over": handed_over,
        "answered": answered,
    })
}

fn known(round: u64) -> Option<u64> {
    if round == UNKNOWN { None } else { Some(round) }
}

fn failure(at: Time, id: Option<u64>, error: &Error) -> Value {
    let text: String = error.to_string().chars().take(TEXT_MAX).collect();
    let late = error.code() == Code::DeadlineExceeded;
    json!({ "at_ns": at.0, "id": id, "kind": error.kind().variant, "late": late, "error": text })
}

fn notice(notice: &Notice) -> Value {
    let Notice { at, tensor, round, missing, detail } = notice;
    let detail: String = detail.chars().take(TEXT_MAX).collect();
    json!({ "at_ns": at.0, "tensor": tensor, "round": round, "missing": missing, "detail": detail })
}
