use std::time::Duration;

use serde_json::{Value, json};

use super::*;
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
    assert_eq!((&dump["form"], &dump["index"], &dump["now_ns"]), (&FORM.into(), &5.into(), &100.into()));
    assert_eq!(dump["unix_ns"], 1_100);
    assert_eq!(dump["tensors"], json!(["w"]));
    assert_eq!(dump["events"][0], json!([10, "submitted", 0, 7, 3, null, "reduce", 0, 16]));
    assert_eq!(dump["events"][4], json!([13, "finished", 0, 7, 0, "PUSH", "done", 2, 16]));
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
    recorder.resolved(Time(4), 2, 1, &Err(Error::Cancelled));
    let dump = dump(&recorder);
    assert_eq!(dump["open"], json!([]));
    let text = Error::Cancelled.to_string();
    assert_eq!(dump["errors"], json!([{ "at_ns": 4, "id": 2, "kind": "Cancelled", "late": false, "error": text }]));
    assert_eq!(dump["events"][3], json!([4, "resolved", null, null, 2, null, "failed", 0, 1]));
    assert_eq!(dump["end"], Value::Null);
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
fn the_end_the_notices_and_the_waits_are_in_the_dump() {
    let recorder = recorder();
    let part = PartId { key: TensorKey(1), index: 0 };
    let stall = Stall { part, round: Round(3), missing: vec![WorkerId(1)], waited: Duration::from_secs(9) };
    recorder.told(Time(1), "w", &stall, "rank 1 submitted v");
    recorder.waits(Time(2), 9);
    recorder.waited(Time(5), 9, Time(2));
    assert!(recorder.ended(Time(6), &Error::Internal { what: "it broke".to_owned() }));
    let dump = dump(&recorder);
    let notice = json!([{ "at_ns": 1, "tensor": "w", "round": 3, "missing": [1], "detail": "rank 1 submitted v" }]);
    assert_eq!(dump["notices"], notice);
    assert_eq!(dump["events"][1], json!([5, "waited", null, null, 9, null, null, 0, 3]));
    assert_eq!((&dump["end"]["at_ns"], &dump["end"]["kind"]), (&6.into(), &"Internal".into()));
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
    recorder.name(&[TensorSpec::new("w", DType::F32, vec![4])]);
    submit(&recorder, 1, 1, "w", Some(0));
    recorder.queued(Time(2), subject("w", 0, &[1]));
    recorder.resolved(Time(3), 1, 1, &Err(Error::Cancelled));
    let dump = dump(&recorder);
    assert_eq!((&dump["events"], &dump["open"], &dump["errors"]), (&json!([]), &json!([]), &json!([])));
    assert_eq!((&dump["events_written"], &dump["open_left_out"]), (&0.into(), &0.into()));
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
    Subject { part, round: Round(round), bytes: 16, server: ServerId(2), submissions }
}

fn dump(recorder: &Recorder) -> Value {
    let about = About {
        job: "night".to_owned(),
        rank: Some(5),
        pid: 77,
        host: "n5".to_owned(),
        reason: "a test".to_owned(),
        origin_unix_ns: 1_000,
    };
    serde_json::from_str(&recorder.dump(Time(100), &about)).unwrap()
}
