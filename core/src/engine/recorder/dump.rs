//! What a worker has recorded, as a dump tells it.

use serde_json::{Value, json};

use super::event::{Event, Head, Kind};
use super::open::{Open, Parts};
use super::texts::{Failure, Notice, Told};
use crate::runtime::recording::{Newest, Recorded, TEXT_MAX, Tensors, failure, known_round, lines};
use crate::types::TensorKey;

/// What the places of an event in a dump mean.
const EVENT_FIELDS: [&str; 10] =
    ["at_ns", "what", "tensor", "round", "id", "stage", "how", "server", "amount", "operation"];

/// It in a dump. A tensor of an event is its position in `tensors`.
pub(super) fn recorded(newest: &Newest, (open, left_out): &(Vec<Open>, u64), told: &Told) -> Recorded {
    let mut tensors = Tensors::default();
    let events = newest.events.iter().filter_map(|(_, words)| Event::of_words(*words));
    let events = lines(events.map(|event| line(&event, &mut tensors, told)));
    let errors = told.first_errors.iter().chain(&told.last_error);
    let errors: Value = errors.map(|Failure { at, id, error }| failure(*at, Some(*id), error)).collect();
    let others = [
        ("errors", errors),
        ("notices", told.notices.iter().map(notice).collect()),
        ("open", open.iter().map(|open| described(open, told)).collect()),
        ("open_left_out", (*left_out).into()),
        ("tensors", tensors.names()),
    ];
    Recorded::of(newest, &EVENT_FIELDS, events, others)
}

fn name(key: u64, told: &Told) -> String {
    told.names.get(&key).map_or_else(|| TensorKey(key).to_string(), |name| (**name).to_owned())
}

fn line(event: &Event, tensors: &mut Tensors, told: &Told) -> Value {
    let Event { at, head: Head { kind, operation, stage, ended, server }, key, round, id, amount } = *event;
    let has_tensor = match kind {
        Kind::Submitted | Kind::Queued | Kind::Taken | Kind::Finished | Kind::Stalled => true,
        Kind::Resolved | Kind::Formed | Kind::Waits | Kind::Waited => false,
    };
    let tensor = has_tensor.then(|| tensors.position(key, || name(key, told)));
    let round = known_round(round);
    let (how, operation) = match kind {
        Kind::Submitted | Kind::Queued | Kind::Taken => (None, Some(operation.word())),
        Kind::Finished => (Some(ended.word()), Some(operation.word())),
        Kind::Resolved => (Some(ended.word()), None),
        Kind::Formed | Kind::Stalled | Kind::Waits | Kind::Waited => (None, None),
    };
    json!([at.0, kind.word(), tensor, round, id, stage.map(|stage| stage.name()), how, server, amount, operation])
}

fn described(open: &Open, told: &Told) -> Value {
    let Open { id, key, round, submitted, moved, last, parts: Parts { queued, handed_over, answered } } = *open;
    let last = Head::of_word(last);
    json!({
        "id": id,
        "tensor": name(key, told),
        "round": known_round(round),
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

fn notice(notice: &Notice) -> Value {
    let Notice { at, tensor, round, missing, detail } = notice;
    let detail: String = detail.chars().take(TEXT_MAX).collect();
    json!({ "at_ns": at.0, "tensor": tensor, "round": round, "missing": missing, "detail": detail })
}
