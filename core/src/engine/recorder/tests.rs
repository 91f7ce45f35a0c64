use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::allocation::allocations_of;
use crate::error::Error;
use crate::runtime::recording::Recorded;
use crate::types::{DType, WorkerId};

#[test]
fn a_dump_says_which_operations_are_open_and_how_far_they_are() {
    let recorder = recorder();
    let subject = subject("w", 7, &[3]);
    recorder.name(&[TensorSpec::new("w", DType::F32, vec![4])]);
    submit(&recorder, 10, 3, "w", Some(7));
    recorder.queued(Time(11), subject);
    recorder.queued(Time(11), subject);
    recorder.taken(Time(12), Stage::Push, subject);
    recorder.finished(Time(13), Stage::Push, &Outcome::Done, subject);
    let dump = dump(&recorder);
    assert_eq!(
        dump["open"],
        json!([{
            "id": 3, "tensor": "w", "round": 7, "submitted_ns": 10, "moved_ns": 13, "operation": "reduce",
            "last": "finished", "stage": "PUSH",
            "server": 2, "parts": 2, "handed_over": 1, "answered": 0,
        }])
    );
    assert_eq!(dump["tensors"], json!(["w"]));
    assert_eq!(dump["events"][0], json!([10, "submitted", 0, 7, 3, null, null, 0, 16, "reduce"]));
    assert_eq!(dump["events"][4], json!([13, "finished", 0, 7, 0, "PUSH", "done", 2, 16, "reduce"]));
}

#[test]
fn a_part_of_a_residual_is_told_from_the_part_of_the_sum_in_the_same_round() {
    let recorder = recorder();
    let residual = Subject { operation: Operation::Residual, ..subject("w", 7, &[3]) };
    recorder.submitted(Time(10), 3, (TensorKey::of("w"), Some(Round(7))), (Operation::Residual, 16), true);
    recorder.finished(Time(11), Stage::Push, &Outcome::Done, residual);
    recorder.finished(Time(12), Stage::Push, &Outcome::Done, subject("w", 7, &[4]));
    let dump = dump(&recorder);
    assert_eq!(dump["events"][1], json!([11, "finished", 0, 7, 0, "PUSH", "done", 2, 16, "residual"]));
    assert_eq!(dump["events"][2], json!([12, "finished", 0, 7, 0, "PUSH", "done", 2, 16, "reduce"]));
    assert_eq!((&dump["open"][0]["operation"], &dump["open"][0]["moved_ns"]), (&"residual".into(), &11.into()));
}

#[test]
fn an_exchange_that_is_repeated_is_not_handed_over_any_more() {
    let recorder = recorder();
    let subject = subject("w", 0, &[1]);
    submit(&recorder, 1, 1, "w", None);
    recorder.queued(Time(2), subject);
    recorder.finished(Time(3), Stage::Push, &Outcome::Done, subject);
    let again = Outcome::Retry { error: Error::Cancelled, landed: 0 };
    recorder.finished(Time(4), Stage::Pull, &again, subject);
    let open = dump(&recorder)["open"][0].clone();
    assert_eq!((&open["handed_over"], &open["answered"]), (&0.into(), &0.into()));
    assert_eq!(open["round"], 0, "it is known once the part is there");
}

#[test]
fn an_operation_that_has_ended_is_not_open_and_its_error_is_told() {
    let recorder = recorder();
    submit(&recorder, 1, 1, "a", Some(0));
    submit(&recorder, 2, 2, "b", Some(0));
    recorder.resolved(Time(3), 1, 1, &Ok(()));
    recorder.failed(Time(4), 2, &Error::Cancelled);
    recorder.resolved(Time(4), 2, 1, &Err(Error::Cancelled));
    let dump = dump(&recorder);
    assert_eq!(dump["open"], json!([]));
    let text = Error::Cancelled.to_string();
    assert_eq!(dump["errors"], json!([{ "at_ns": 4, "id": 2, "kind": "Cancelled", "late": false, "error": text }]));
    assert_eq!(dump["events"][3], json!([4, "resolved", null, null, 2, null, "failed", 0, 1, null]));
}

#[test]
fn open_operations_are_there_when_their_events_have_been_overwritten() {
    let recorder = recorder();
    submit(&recorder, 1, 1, "stuck", Some(4));
    for id in 2..5_000 {
        submit(&recorder, id, id, "other", Some(id));
        recorder.resolved(Time(id), id, 1, &Ok(()));
    }
    let dump = dump(&recorder);
    assert_eq!((dump["open"].as_array().unwrap().len(), &dump["open"][0]["round"]), (1, &4.into()));
    assert_eq!(dump["events"].as_array().unwrap().len(), 64);
    assert_eq!(dump["events_written"], 2 * 4_998 + 1);
}

#[test]
fn the_notices_and_the_waits_are_in_the_dump() {
    let recorder = recorder();
    let part = PartId { key: TensorKey(1), index: 0 };
    let stall = Stall { part, round: Round(3), missing: vec![WorkerId(1)], waited: Duration::from_secs(9) };
    recorder.told(Time(1), "w", &stall, "rank 1 submitted v");
    recorder.waits(Time(2), 9);
    recorder.waited(Time(5), 9, Time(2));
    let dump = dump(&recorder);
    let notice = json!([{ "at_ns": 1, "tensor": "w", "round": 3, "missing": [1], "detail": "rank 1 submitted v" }]);
    assert_eq!(dump["notices"], notice);
    assert_eq!(dump["events"][1], json!([5, "waited", null, null, 9, null, null, 0, 3, null]));
}

#[test]
fn names_with_any_characters_and_unknown_names_make_a_dump_that_can_be_read() {
    let recorder = recorder();
    recorder.name(&[TensorSpec::new("a\"\n\u{1b}[2J", DType::F32, vec![4])]);
    submit(&recorder, 1, 1, "a\"\n\u{1b}[2J", Some(0));
    submit(&recorder, 2, 2, "nobody named it", Some(0));
    let unknown = TensorKey::of("nobody named it").to_string();
    assert_eq!(dump(&recorder)["tensors"], json!(["a\"\n\u{1b}[2J", unknown]));
}

#[test]
fn a_recorder_that_is_off_records_nothing() {
    let recorder = Recorder::new(0);
    let names = [TensorSpec::new("w", DType::F32, vec![4])];
    let allocated = allocations_of(|| {
        recorder.name(&names);
        submit(&recorder, 1, 1, "w", Some(0));
        recorder.queued(Time(2), subject("w", 0, &[1]));
        recorder.failed(Time(3), 1, &Error::Cancelled);
        recorder.resolved(Time(3), 1, 1, &Err(Error::Cancelled));
    });
    assert_eq!(allocated, 0);
    let dump = dump(&recorder);
    assert_eq!((&dump["events"], &dump["open"], &dump["errors"]), (&json!([]), &json!([]), &json!([])));
    assert_eq!((&dump["events_written"], &dump["open_left_out"]), (&0.into(), &0.into()));
}

#[test]
fn a_sum_is_recorded_without_an_allocation() {
    let recorder = recorder();
    let allocated = allocations_of(|| {
        for id in 1..100 {
            let submissions = [id];
            let subject = subject("w", id, &submissions);
            submit(&recorder, 1, id, "w", Some(id));
            recorder.queued(Time(2), subject);
            for stage in [Stage::Push, Stage::Pull] {
                recorder.taken(Time(3), stage, subject);
                recorder.finished(Time(4), stage, &Outcome::Done, subject);
            }
            recorder.waits(Time(5), id);
            recorder.resolved(Time(6), id, 1, &Ok(()));
            recorder.waited(Time(7), id, Time(5));
        }
    });
    assert_eq!(allocated, 0);
    assert_eq!(dump(&recorder)["events_written"], 99 * 9);
}

/// Of 64 events and 16 open operations.
fn recorder() -> Recorder {
    Recorder::new(64)
}

fn submit(recorder: &Recorder, at: u64, id: u64, name: &str, round: Option<u64>) {
    let tensor = (TensorKey::of(name), round.map(Round));
    recorder.submitted(Time(at), id, tensor, (Operation::Reduce, 16), true);
}

fn subject<'a>(name: &str, round: u64, submissions: &'a [u64]) -> Subject<'a> {
    let part = PartId { key: TensorKey::of(name), index: 0 };
    Subject { part, round: Round(round), bytes: 16, server: ServerId(2), operation: Operation::Reduce, submissions }
}

fn dump(recorder: &Recorder) -> Value {
    let Recorded { events, written, others, .. } = recorder.read();
    let mut dump = Value::Object(others);
    dump["events"] = serde_json::from_str(&format!("[{events}]")).unwrap();
    dump["events_written"] = written.into();
    dump
}
