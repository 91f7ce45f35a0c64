//! What a server has recorded, as a dump tells it.

use std::collections::BTreeMap;

use gradlane_core::runtime::recording::{Newest, Recorded, Tensors, known_round, lines};
use gradlane_core::types::{PartId, TensorKey};
use serde_json::{Value, json};

use super::event::Event;
use super::open::Open;
use super::sum::{OpenSum, Standing};
use super::used::{Of, OpenUse, Progress};
use crate::node::command::{Missing, SlotId};

/// What the places of an event in a dump mean.
const EVENT_FIELDS: [&str; 9] = ["at_ns", "what", "tensor", "part", "round", "worker", "id", "how", "amount"];

/// It in a dump. A tensor of an event is its position in `tensors`, which has the keys.
pub(super) fn recorded(newest: &Newest, (open, left_out): &(Vec<Open>, u64)) -> Recorded {
    let mut tensors = Tensors::default();
    let events = newest.events.iter().filter_map(|(_, words)| Event::of_words(*words));
    let events = lines(events.map(|event| line(&event, &mut tensors)));
    let (mut sums, mut uses, mut tables) = (Vec::new(), Vec::new(), BTreeMap::new());
    for open in open {
        match open {
            Open::Sum(sum) => sums.push(*sum),
            Open::Use(used) => uses.push(used),
            Open::Table(waits) => drop(tables.insert(waits.part, waits.missing)),
        }
    }
    let uses: Vec<Value> = uses.into_iter().map(|used| use_described(used, &tables)).collect();
    let sums: Value = sums.chunk_by(|one, next| one.slot == next.slot).map(sum_described).collect();
    let others =
        [("open", sums), ("uses", uses.into()), ("open_left_out", (*left_out).into()), ("tensors", tensors.names())];
    Recorded::of(newest, &EVENT_FIELDS, events, others)
}

fn line(event: &Event, tensors: &mut Tensors) -> Value {
    let Event { at, head, key, part, round, id, amount } = *event;
    let is_of_part = head.kind.is_of_part();
    let tensor = is_of_part.then(|| tensors.position(key, || TensorKey(key).to_string()));
    let part = Some(part).filter(|_| is_of_part);
    let (round, worker) = (known_round(round), head.worker.map(|worker| worker.0));
    json!([at.0, head.kind.word(), tensor, part, round, worker, id, head.how(), amount])
}

/// A sum, from all that is known of it.
fn sum_described(sum: &[OpenSum]) -> Value {
    let OpenSum { slot: SlotId { part: PartId { key, index }, round }, began, .. } = sum[0];
    let all: Vec<(u32, Standing)> =
        sum.iter().flat_map(OpenSum::workers).map(|(worker, standing)| (worker.0, standing)).collect();
    let of = |wanted: Standing| -> Vec<u32> {
        all.iter().filter(|(_, standing)| *standing == wanted).map(|(rank, _)| *rank).collect()
    };
    json!({
        "tensor": key.to_string(),
        "part": index,
        "round": round.0,
        "began_ns": began.0,
        "due": of(Standing::Due),
        "begun": of(Standing::Begun),
        "whole": of(Standing::Whole),
        "taken": of(Standing::Taken),
    })
}

/// A use. One that waits for workers is told with those of `tables` for which all of its part wait.
fn use_described(used: &OpenUse, tables: &BTreeMap<PartId, Missing>) -> Value {
    let OpenUse { worker, slot: SlotId { part: PartId { key, index }, round }, action, progress, began, of, .. } =
        *used;
    let clock_at = match of {
        Of::Parameter { clock_at } => Some(clock_at),
        Of::Table | Of::Residual => None,
    };
    let missing = tables.get(&used.slot.part).filter(|_| progress == Progress::Held).copied().unwrap_or_default();
    json!({
        "tensor": key.to_string(),
        "part": index,
        "round": round.0,
        "worker": worker.0,
        "of": used.kept().word(),
        "action": action.word(),
        "progress": progress.word(),
        "began_ns": began.0,
        "clock_at": clock_at,
        "missing": missing.ranks().collect::<Vec<u32>>(),
        "missing_others": missing.others(),
    })
}
