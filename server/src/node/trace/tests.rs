use std::path::Path;
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::{Access, CodecSpec, DType, Epoch, Op, Participants, Round, TensorKey, Update};
use gradlane_core::wire::{AnswerResidual, Body, Contributors, Hold, ResidualAction, Sum, Target};
use serde_json::{Value, json};

use super::*;
use crate::node::command::{Order, SumSpec, Upload};
use crate::node::parameter::tests as parameters;

#[test]
fn a_sum_shows_its_first_byte_its_last_bytes_and_who_has_taken_it() {
    let events = record(|trace| {
        begin(trace, at(100), slot(4));
        receive(trace, at(110), slot(4), 0);
        receive(trace, at(150), slot(4), 1);
        trace.step(at(151), slot(4), &Step::Publish { divisor: 2.0, residual: None });
        (0..2).for_each(|worker| answer(trace, at(152), slot(4), worker));
        trace.received(at(180), slot(4), WorkerId(0));
        trace.received(at(250), slot(4), WorkerId(1));
        trace.step(at(251), slot(4), &Step::Seal);
        trace.taken(at(300), ExchangeId(1));
        trace.taken(at(310), ExchangeId(0));
        trace.step(at(900), slot(4), &Step::Drop);
    });
    let spans = told(&events, "X");
    assert_eq!(spans, [("SUM", 110.0, Some(141.0)), ("SEND", 151.0, Some(159.0))]);
    let moments = told(&events, "i");
    let expected = [("FIRST BYTE", 110.0), ("FIRST BYTE", 150.0), ("LAST BYTE", 180.0), ("LAST BYTE", 250.0)];
    assert_eq!(moments[..4], expected.map(|(name, at)| (name, at, None)));
    assert_eq!(moments[4..], [("TAKEN", 300.0, None), ("TAKEN", 310.0, None)]);
    let args = |name: &str| &events.iter().find(|event| event["name"] == name).unwrap()["args"];
    assert_eq!(args("SUM"), &json!({"round": 4, "bytes": 40, "workers": [0, 1], "outcome": "published"}));
    assert_eq!((&args("SEND")["workers"], &args("SEND")["outcome"]), (&json!([1, 0]), &"taken".into()));
    assert_eq!(args("TAKEN"), &json!({"round": 4, "worker": 1}));
    let rows: Vec<&Value> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    let about = json!({"name": "0000000000000007 [2]", "key": "0000000000000007", "part": 2, "what": ""});
    assert_eq!(rows[0]["args"], about);
    assert_eq!(rows[1]["args"]["name"], "0000000000000007 [2] to workers");
    assert_eq!(rows.len(), 2, "once a part");
}

#[test]
fn spans_of_a_row_do_not_overlap_when_a_quick_worker_is_a_round_ahead() {
    let events = record(|trace| {
        for round in [1, 2] {
            begin(trace, at(100 * round), slot(round));
            receive(trace, at(100 * round), slot(round), 0);
            trace.step(at(100 * round + 10), slot(round), &Step::Publish { divisor: 1.0, residual: None });
            trace.step(at(100 * round + 20), slot(round), &Step::Seal);
        }
        answer(trace, at(221), slot(1), 0);
        trace.taken(at(230), ExchangeId(0));
        answer(trace, at(231), slot(2), 0);
        trace.taken(at(240), ExchangeId(0));
    });
    let sends: Vec<_> = told(&events, "X").into_iter().filter(|(name, ..)| *name == "SEND").collect();
    assert_eq!(sends, [("SEND", 110.0, Some(120.0)), ("SEND", 230.0, Some(10.0))]);
}

#[test]
fn what_a_round_leaves_that_fails_or_begins_again_is_shown() {
    let events = record(|trace| {
        begin(trace, at(10), slot(1));
        receive(trace, at(10), slot(1), 0);
        // The view lacks a worker.
        begin(trace, at(30), slot(1));
        receive(trace, at(40), slot(1), 0);
        trace.step(at(45), slot(1), &Step::Publish { divisor: 1.0, residual: None });
        answer(trace, at(45), slot(1), 0);
        trace.step(at(50), slot(1), &Step::Seal);
        trace.step(at(90), slot(1), &Step::Drop);
        trace.taken(at(95), ExchangeId(0));
    });
    let outcomes: Vec<_> =
        events.iter().filter(|event| event["ph"] == "X").map(|event| &event["args"]["outcome"]).collect();
    assert_eq!(outcomes, ["given up", "published", "not taken by all"]);
}

#[test]
fn the_end_of_a_file_shows_sums_as_far_as_they_have_come() {
    let events = record(|trace| {
        begin(trace, at(10), slot(1));
        receive(trace, at(10), slot(1), 0);
        begin(trace, at(20), slot(2));
        trace.step(at(30), slot(2), &Step::Publish { divisor: 1.0, residual: None });
        trace.step(at(40), slot(2), &Step::Seal);
    });
    let spans = told(&events, "X");
    assert_eq!(spans, [("SUM", 40.0, Some(0.0)), ("SUM", 40.0, Some(960.0))]);
}

#[test]
fn an_exchange_that_takes_the_place_of_another_counts_alone() {
    let events = record(|trace| {
        begin(trace, at(10), slot(1));
        answer(trace, at(20), slot(1), 0);
        let header = header();
        trace.step(at(21), slot(1), &Step::Answer { worker: WorkerId(0), exchange: ExchangeId(9), header });
        trace.taken(at(22), ExchangeId(0));
        trace.taken(at(23), ExchangeId(9));
    });
    assert_eq!(told(&events, "i"), [("TAKEN", 23.0, None)]);
}

#[test]
fn a_use_shows_when_it_came_when_its_answer_began_and_when_that_was_taken() {
    let events = record(|trace| {
        open(trace, at(10), 1, 3, 4);
        open(trace, at(15), 2, 0, 9);
        trace.answered(at(40), ExchangeId(1));
        trace.answered(at(50), ExchangeId(2));
        trace.taken(at(60), ExchangeId(1));
        // Its worker is quicker than the news that it has the answer before.
        open(trace, at(55), 3, 0, 10);
        trace.taken(at(70), ExchangeId(2));
        trace.failed(at(90), ExchangeId(3), "refused");
        trace.failed(at(95), ExchangeId(3), "torn");
    });
    let expected = [("USE", 10.0, Some(30.0)), ("USE", 15.0, Some(35.0)), ("ANSWER", 40.0, Some(20.0))];
    let spans = told(&events, "X");
    assert_eq!(spans[..3], expected);
    assert_eq!(spans[3..], [("ANSWER", 50.0, Some(20.0)), ("USE", 70.0, Some(20.0))]);
    let args: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").map(|event| &event["args"]).collect();
    assert_eq!(args[0], &json!({"round": 4, "bytes": 16, "workers": [3], "outcome": "answered"}));
    assert_eq!((&args[2]["outcome"], &args[4]["outcome"]), (&"taken".into(), &"refused".into()));
    let rows: Vec<&Value> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    let names = rows.iter().map(|row| row["args"]["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["0000000000000007 [0] of worker 3", "0000000000000007 [0] of worker 0"]);
    let about = |word| &rows[0]["args"][word];
    assert_eq!(
        (about("what"), about("key"), about("part")),
        (&json!(" of worker 3"), &json!("0000000000000007"), &json!(0))
    );
}

#[test]
fn a_use_of_a_residual_is_told_from_the_sum_of_its_round() {
    let SlotId { part, round } = slot(4);
    let header = AnswerResidual {
        target: Target { epoch: Epoch { term: 1, number: 1 }, part, round },
        participants: Participants::ALL,
        codec: CodecSpec::PLAIN,
        part_bytes: 40,
        action: ResidualAction::Read(Hold::No),
    };
    let events = record(|trace| {
        trace.opened(at(10), ExchangeId(1), &Request::AnswerResidual(header), || Some(WorkerId(3)));
        trace.answered(at(40), ExchangeId(1));
        trace.taken(at(60), ExchangeId(1));
        begin(trace, at(100), slot(4));
        trace.step(at(130), slot(4), &Step::Seal);
    });
    let spans: Vec<Value> = events.into_iter().filter(|event| event["ph"] == "X").collect();
    let told: Vec<Value> = spans.iter().map(|span| json!([span["name"], span["args"]["use"]])).collect();
    assert_eq!(told, [json!(["USE", "residual"]), json!(["ANSWER", "residual"]), json!(["SUM", null])]);
}

#[test]
fn the_end_of_a_file_shows_uses_as_far_as_they_have_come() {
    let events = record(|trace| {
        open(trace, at(10), 1, 0, 4);
        begin(trace, at(20), slot(1));
    });
    let spans = told(&events, "X");
    assert_eq!(spans, [("SUM", 1_000.0, Some(0.0)), ("USE", 10.0, Some(990.0))]);
    let rows = events.iter().filter(|event| event["ph"] == "X").map(|event| &event["tid"]);
    assert_eq!(rows.collect::<Vec<_>>(), [1, 3], "a sum has two rows");
}

#[test]
fn sums_that_began_before_are_left_out() {
    let events = record(|trace| {
        receive(trace, at(10), slot(1), 0);
        trace.received(at(20), slot(1), WorkerId(0));
        trace.step(at(30), slot(1), &Step::Seal);
        trace.taken(at(40), ExchangeId(0));
    });
    assert_eq!((told(&events, "X"), told(&events, "i")), (vec![], vec![]));
}

#[test]
fn recording_begins_when_the_index_and_the_place_are_known_and_ends_with_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    for joins_first in [true, false] {
        let trace = Trace::default();
        trace.equip(means());
        assert!(!trace.is_on());
        if joins_first {
            trace.joined(ServerId(3));
            assert!(!trace.is_on());
        }
        trace.start(place(folder.path()));
        trace.joined(ServerId(3));
        assert!(trace.is_on());
        trace.stop(at(1_000));
        assert!(!trace.is_on());
        let events = read(&folder.path().join("server-3/comm.json"));
        assert_eq!(events[0]["args"]["member"], "server 3");
        assert_eq!(events[0]["pid"], (1 << 23) + 3);
    }
}

#[test]
fn a_place_that_cannot_be_written_leaves_the_server_without_a_timeline() {
    let trace = Trace::default();
    trace.equip(means());
    let nowhere = place(Path::new("/dev/null/timeline"));
    assert!(matches!(trace.start_now(&nowhere), Err(Error::FailedPrecondition { .. })), "it has not joined");
    trace.joined(ServerId(0));
    let refused = trace.start_now(&nowhere).unwrap_err();
    assert!(refused.to_string().contains("/dev/null/timeline/server-0/comm.json"), "{refused}");
    trace.start(nowhere);
    assert!(!trace.is_on());
    trace.stop(at(1_000));
}

#[test]
fn a_window_of_steps_is_recorded_and_its_last_sums_are_freed_before_the_file_ends() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::default();
    trace.equip(means());
    trace.joined(ServerId(0));
    let ordered = Place { place: folder.path().to_owned(), window: Window { from: 5, steps: Some(2) } };
    let path = trace.start_now(&ordered).unwrap();
    assert!(matches!(trace.start_now(&ordered), Err(Error::FailedPrecondition { .. })), "one at a time");
    for round in 3..9 {
        begin(&trace, at(100 * round), slot(round));
        receive(&trace, at(100 * round + 1), slot(round), 0);
        trace.step(at(100 * round + 2), slot(round), &Step::Seal);
        // The memory of a sum is free when the next but one begins.
        trace.step(at(100 * round + 3), slot(round - 1), &Step::Drop);
        assert_eq!(trace.is_on(), round < 7, "{round}");
    }
    let whole = || std::fs::read_to_string(&path).ok().filter(|text| text.ends_with("]\n"));
    while whole().is_none() {
        std::thread::yield_now();
    }
    let events = read(&path);
    let sums = events.iter().filter(|event| event["ph"] == "X");
    assert_eq!(sums.map(|event| event["args"]["round"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 6]);
    trace.start_now(&ordered).unwrap();
    trace.stop(at(1_000));
}

fn record(script: impl FnOnce(&Trace)) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let trace = Trace::default();
    trace.equip(means());
    trace.start(place(folder.path()));
    trace.joined(ServerId(0));
    script(&trace);
    trace.stop(at(1_000));
    read(&folder.path().join("server-0/comm.json"))
}

fn place(place: &Path) -> Place {
    Place { place: place.to_owned(), window: Window::default() }
}

fn means() -> Means {
    Means { bytes_max: 1 << 20, clocks: Clocks { own: Clock::start(), job: None }, counts: TraceCounts::default() }
}

fn read(path: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Names, times and durations of the events of a kind, in microseconds.
fn told<'a>(events: &'a [Value], kind: &str) -> Vec<(&'a str, f64, Option<f64>)> {
    let of_kind = events.iter().filter(|event| event["ph"] == kind);
    of_kind
        .map(|event| (event["name"].as_str().unwrap(), event["ts"].as_f64().unwrap(), event["dur"].as_f64()))
        .collect()
}

/// A push of a worker to a parameter comes.
fn open(trace: &Trace, now: Time, exchange: u64, worker: u32, round: u64) {
    let request = Request::Use(parameters::to_do(Access::Push(Update::Add), round));
    trace.opened(now, ExchangeId(exchange), &request, || Some(WorkerId(worker)));
}

fn begin(trace: &Trace, now: Time, slot: SlotId) {
    let spec = SumSpec {
        bytes: 40,
        dtype: DType::F32,
        codec: CodecSpec::PLAIN,
        op: Op::Sum,
        senders: vec![WorkerId(0), WorkerId(1)],
        order: Order::Arrival,
        block_bytes: 16,
    };
    trace.step(now, slot, &Step::Begin(spec));
}

fn receive(trace: &Trace, now: Time, slot: SlotId, worker: u32) {
    let upload = Upload { body: Body::plain(40), weight: 1.0, checksum: None, landed: 0 };
    let exchange = ExchangeId(u64::from(worker));
    trace.step(now, slot, &Step::Receive { worker: WorkerId(worker), exchange, upload });
}

fn answer(trace: &Trace, now: Time, slot: SlotId, worker: u32) {
    let exchange = ExchangeId(u64::from(worker));
    trace.step(now, slot, &Step::Answer { worker: WorkerId(worker), exchange, header: header() });
}

fn header() -> Sum {
    let SlotId { part, round } = slot(1);
    Sum {
        target: Target { epoch: Epoch { term: 1, number: 1 }, part, round },
        attempt: 0,
        part_bytes: 40,
        body: Body::plain(40),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    }
}

fn slot(round: u64) -> SlotId {
    SlotId { part: PartId { key: TensorKey(7), index: 2 }, round: Round(round) }
}

fn at(micros: u64) -> Time {
    Time::ZERO + Duration::from_micros(micros)
}
