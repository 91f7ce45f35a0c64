use std::iter;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::runtime::recording::Recorded;
use gradlane_core::types::{
    Access, CodecSpec, DType, Effect, Epoch, NodeId, Op, Participants, Phase, Round, RowAction, Shards, TensorKey,
    Update, Version,
};
use gradlane_core::wire::frame::Stall;
use gradlane_core::wire::{About, AnswerResidual, Body, Request, ResidualAction, Rows, Service, Use};
use serde_json::{Value, json};

use super::*;
use crate::allocation::allocations_of;
use crate::node::aggregate::tests::view;
use crate::node::command::{AskedRows, Missing, Order, RowsStep, Served, Upload, ValueStep, ValueUpload};
use crate::node::event::Waits;
use crate::node::parameter::tests as parameters;

#[test]
fn an_open_sum_tells_how_far_each_worker_is() {
    let recorder = Recorder::new(256);
    begin(&recorder, 100, slot(4), 5);
    (1..4).for_each(|rank| step(&recorder, 110, slot(4), receive(rank)));
    (2..4).for_each(|rank| whole(&recorder, 120, slot(4), rank));
    recorder.taken(Time(130), slot(4), WorkerId(3), ExchangeId(3));
    let dump = dump(&recorder);
    assert_eq!(
        dump["open"],
        json!([{
            "tensor": "0000000000000007", "part": 2, "round": 4, "began_ns": 100,
            "due": [0, 4], "begun": [1], "whole": [2], "taken": [3],
        }])
    );
    assert_eq!(dump["tensors"], json!(["0000000000000007"]));
    assert_eq!(dump["events"][0], json!([100, "begun", 0, 2, 4, null, 0, null, 40]));
    assert_eq!(dump["events"][1], json!([110, "came", 0, 2, 4, 1, 1, null, 40]));
    assert_eq!(dump["events"][4], json!([120, "whole", 0, 2, 4, 2, 2, null, 0]));
    assert_eq!(dump["events"][6], json!([130, "taken", 0, 2, 4, 3, 3, null, 0]));
}

#[test]
fn a_sum_is_not_open_any_more_when_all_have_taken_it_or_its_memory_is_free() {
    let recorder = Recorder::new(256);
    for round in [1, 2] {
        begin(&recorder, 1, slot(round), 2);
        (0..2).for_each(|rank| whole(&recorder, 2, slot(round), rank));
    }
    (0..2).for_each(|rank| recorder.taken(Time(3), slot(1), WorkerId(rank), ExchangeId(9)));
    let rounds = |recorder: &Recorder| -> Vec<Value> {
        dump(recorder)["open"].as_array().unwrap().iter().map(|open| open["round"].clone()).collect()
    };
    assert_eq!(rounds(&recorder), [json!(2)]);
    step(&recorder, 4, slot(2), Step::Drop);
    assert!(rounds(&recorder).is_empty());
}

#[test]
fn a_sum_that_begins_again_has_lost_what_came() {
    let recorder = Recorder::new(256);
    begin(&recorder, 1, slot(1), 3);
    whole(&recorder, 2, slot(1), 0);
    begin(&recorder, 5, slot(1), 2);
    let open = dump(&recorder)["open"].clone();
    assert_eq!((open.as_array().unwrap().len(), &open[0]["due"], &open[0]["whole"]), (1, &json!([0, 1]), &json!([])));
    assert_eq!(open[0]["began_ns"], 5);
}

#[test]
fn a_sum_of_many_workers_is_one_in_the_dump() {
    let recorder = Recorder::new(256);
    begin(&recorder, 1, slot(1), 200);
    [0, 63, 64, 199].into_iter().for_each(|rank| whole(&recorder, 2, slot(1), rank));
    let open = dump(&recorder)["open"].clone();
    assert_eq!(open.as_array().unwrap().len(), 1);
    assert_eq!((open[0]["due"].as_array().unwrap().len(), &open[0]["whole"]), (196, &json!([0, 63, 64, 199])));
    step(&recorder, 4, slot(1), Step::Drop);
    assert_eq!(dump(&recorder)["open"], json!([]));
}

#[test]
fn a_sum_that_waits_for_long_is_there_when_its_events_have_been_overwritten() {
    let recorder = Recorder::new(64);
    begin(&recorder, 1, slot(1), 2);
    for round in 2..5_000 {
        begin(&recorder, round, slot(round), 2);
        step(&recorder, round, slot(round), Step::Drop);
    }
    let dump = dump(&recorder);
    assert_eq!((dump["open"].as_array().unwrap().len(), &dump["open"][0]["round"]), (1, &1.into()));
    assert_eq!((&dump["events_written"], &dump["open_left_out"]), (&(1 + 2 * 4_998).into(), &0.into()));
}

#[test]
fn refusals_withdrawals_links_epochs_and_orders_are_told() {
    let recorder = Recorder::new(64);
    let (part, error) = (slot(3).part, Error::Cancelled);
    let about = About { service: Service::DenseSum, epoch: Epoch { term: 1, number: 2 }, part };
    let exchange = ExchangeId(5);
    recorder.commanded(Time(1), &Command::Reject { exchange, about, error: error.clone() });
    recorder.commanded(Time(2), &Command::Disconnect { link: LinkId(6), reason: error });
    let stall = Stall { part, round: Round(3), missing: vec![WorkerId(1)], waited: Duration::from_nanos(9) };
    recorder.commanded(Time(3), &Command::Stalled { stall });
    let target = Target { epoch: about.epoch, part, round: Round(3) };
    recorder.withdrew(Time(4), Some(WorkerId(1)), exchange, &target);
    recorder.torn(Time(5), exchange);
    recorder.linked(Time(6), LinkId(8), Some(WorkerId(1)));
    recorder.unlinked(Time(7), LinkId(8), None);
    recorder.formed(Time(8), &view(3, 2, Phase::Running));
    recorder.ordered(Time(9), 11, &ControlCommand::Drain);
    recorder.ordered(Time(10), 12, &ControlCommand::Stats);
    let term = view(3, 2, Phase::Running).epoch.term;
    assert_eq!(
        dump(&recorder)["events"],
        json!([
            [1, "refused", 0, 2, null, null, 5, "Cancelled", 0],
            [2, "disconnected", null, null, null, null, 6, "Cancelled", 0],
            [3, "stalled", 0, 2, 3, null, 1, null, 9],
            [4, "withdrew", 0, 2, 3, 1, 5, null, 0],
            [5, "torn", null, null, null, null, 5, null, 0],
            [6, "linked", null, null, null, 1, 8, null, 0],
            [7, "unlinked", null, null, null, null, 8, null, 0],
            [8, "formed", null, null, 2, null, term, null, 3],
            [9, "ordered", null, null, null, null, 11, "drain", 0],
        ])
    );
}

#[test]
fn a_recorder_that_is_off_records_nothing() {
    let recorder = Recorder::new(0);
    begin(&recorder, 1, slot(1), 2);
    whole(&recorder, 2, slot(1), 0);
    let dump = dump(&recorder);
    assert_eq!((&dump["open"], &dump["events"], &dump["open_left_out"]), (&json!([]), &json!([]), &0.into()));
}

#[test]
fn a_sum_is_recorded_without_an_allocation() {
    let (recorder, commands) = (Recorder::new(64), [1, 2].map(|round| commands(slot(round), 3)));
    let allocated = allocations_of(|| {
        for (slot, commands) in [1, 2].map(slot).into_iter().zip(&commands) {
            commands.iter().for_each(|command| recorder.commanded(Time(1), command));
            (0..3).for_each(|rank| whole(&recorder, 2, slot, rank));
            (0..3).for_each(|rank| recorder.taken(Time(3), slot, WorkerId(rank), ExchangeId(rank.into())));
        }
    });
    assert_eq!(allocated, 0);
    let dump = dump(&recorder);
    assert_eq!((&dump["open"], &dump["events_written"]), (&json!([]), &(2 * (1 + 3 + 3 + 3 + 1)).into()));
}

#[test]
fn an_open_use_tells_whose_it_is_how_far_it_is_and_for_what_it_waits() {
    let recorder = Recorder::new(256);
    let (pull, push) = (pull_of_parameter(7), push_of_rows(3));
    recorder.opened(Time(1), ExchangeId(1), &pull, || Some(WorkerId(0)));
    recorder.opened(Time(2), ExchangeId(2), &push, || Some(WorkerId(4)));
    recorder.opened(Time(3), ExchangeId(3), &push, || None);
    recorder.commanded(Time(3), &serve(ExchangeId(2), &push));
    let uses = || dump(&recorder)["uses"].clone();
    let of_parameter = json!({
        "tensor": "0000000000000007", "part": 2, "round": 7, "worker": 0, "of": "parameter", "action": "pull", "progress": "waits",
        "began_ns": 1, "clock_at": 9, "missing": [], "missing_others": 0,
    });
    let of_rows = json!({
        "tensor": "0000000000000007", "part": 2, "round": 3, "worker": 4, "of": "table", "action": "push", "progress": "begun",
        "began_ns": 2, "clock_at": null, "missing": [], "missing_others": 0,
    });
    assert_eq!(uses(), json!([of_parameter, of_rows]), "the third one is of no worker");
    recorder.waits(Time(5), &held(2, 1, &[1, 2]));
    recorder.waits(Time(6), &waits(2, &[2]));
    assert_eq!((&uses()[1]["progress"], &uses()[1]["missing"]), (&"held".into(), &json!([2])));
    recorder.commanded(Time(7), &answer(ExchangeId(1)));
    recorder.served(Time(8), &served(ExchangeId(2)));
    assert_eq!((&uses()[0]["progress"], &uses()[1]["progress"]), (&"to-answer".into(), &"answered".into()));
    recorder.waits(Time(8), &waits(3, &[]));
    recorder.use_taken(Time(9), ExchangeId(1));
    recorder.torn(Time(10), ExchangeId(2));
    let dump = dump(&recorder);
    assert_eq!((&dump["uses"], &dump["open"]), (&json!([]), &json!([])));
    assert_eq!(
        dump["events"],
        json!([
            [1, "came", 0, 2, 7, 0, 1, "pull", 0],
            [2, "came", 0, 2, 3, 4, 2, "push", 16],
            [5, "waits", 0, 2, 3, 4, 2, "push", 2],
            [7, "to-answer", 0, 2, 7, 0, 1, "pull", 16],
            [8, "answered", 0, 2, 3, 4, 2, "push", 0],
            [9, "taken", 0, 2, 7, 0, 1, "pull", 0],
            [10, "torn", null, null, null, null, 2, null, 0],
        ])
    );
}

#[test]
fn the_body_of_a_change_is_told_and_a_use_that_is_refused_is_over() {
    let recorder = Recorder::new(256);
    let change = to_do(Access::Push(Update::Add), 5);
    recorder.opened(Time(1), ExchangeId(1), &Request::Use(change), || Some(WorkerId(0)));
    recorder.commanded(Time(1), &receive_change(ExchangeId(1)));
    let progress = || dump(&recorder)["uses"][0]["progress"].clone();
    assert_eq!(progress(), "begun");
    recorder.use_received(Time(2), ExchangeId(1), Receipt::Whole);
    assert_eq!(progress(), "waits");
    let error = Error::Cancelled;
    recorder.commanded(Time(3), &Command::Reject { exchange: ExchangeId(1), about: change.about(), error });
    let dump = dump(&recorder);
    assert_eq!(dump["uses"], json!([]));
    assert_eq!(dump["events"][1], json!([2, "whole", 0, 2, 5, 0, 1, "push", 0]));
    assert_eq!(dump["events"][2], json!([3, "refused", 0, 2, null, null, 1, "Cancelled", 0]));
}

#[test]
fn a_residual_that_is_read_or_given_is_a_use() {
    let recorder = Recorder::new(256);
    let (part, checksum) = (slot(4).part, 0);
    let give = AnswerResidual {
        target: target(4),
        participants: Participants::ALL,
        codec: CodecSpec::PLAIN,
        part_bytes: 16,
        action: ResidualAction::Give { checksum },
    };
    recorder.opened(Time(1), ExchangeId(1), &Request::AnswerResidual(give), || Some(WorkerId(0)));
    step(&recorder, 1, slot(4), Step::TakeGift { exchange: ExchangeId(1), bytes: 16, checksum });
    let told = dump(&recorder)["uses"][0].clone();
    assert_eq!(
        (&told["of"], &told["action"], &told["progress"]),
        (&"residual".into(), &"give".into(), &"begun".into())
    );
    assert_eq!((&told["tensor"], &told["round"]), (&part.key.to_string().into(), &4.into()));
}

#[test]
fn a_use_that_waits_for_long_is_there_when_its_events_have_been_overwritten() {
    let recorder = Recorder::new(64);
    let push = push_of_rows(3);
    for exchange in (1..5_000).map(ExchangeId) {
        recorder.opened(Time(exchange.0), exchange, &push, || Some(WorkerId(0)));
        if exchange.0 > 1 {
            recorder.served(Time(exchange.0), &served(exchange));
            recorder.use_taken(Time(exchange.0), exchange);
        }
    }
    let dump = dump(&recorder);
    assert_eq!((dump["uses"].as_array().unwrap().len(), &dump["uses"][0]["began_ns"]), (1, &1.into()));
    assert_eq!((&dump["events_written"], &dump["open_left_out"]), (&(1 + 3 * 4_998).into(), &0.into()));
}

#[test]
fn a_use_is_recorded_without_an_allocation() {
    let recorder = Recorder::new(64);
    let (pull, push, change) =
        (pull_of_parameter(7), push_of_rows(3), Request::Use(to_do(Access::Push(Update::Add), 5)));
    let exchanges = [1, 2, 3].map(ExchangeId);
    let [of_pull, of_push, of_change] = exchanges;
    let (waits, over) = ([held(2, 1, &[1]), waits(2, &[])], served(of_push));
    let commands = [answer(of_pull), serve(of_push, &push), receive_change(of_change), answer(of_change)];
    let allocated = allocations_of(|| {
        for (exchange, request) in exchanges.iter().zip([&pull, &push, &change]) {
            recorder.opened(Time(1), *exchange, request, || Some(WorkerId(0)));
        }
        commands.iter().for_each(|command| recorder.commanded(Time(2), command));
        waits.iter().for_each(|waits| recorder.waits(Time(3), waits));
        recorder.use_received(Time(3), of_change, Receipt::Whole);
        recorder.served(Time(4), &over);
        exchanges.iter().for_each(|exchange| recorder.use_taken(Time(5), *exchange));
    });
    assert_eq!(allocated, 0);
    let dump = dump(&recorder);
    assert_eq!((&dump["uses"], &dump["events_written"]), (&json!([]), &(3 + 2 + 1 + 1 + 1 + 3).into()));
}

#[test]
fn all_uses_that_wait_at_a_part_wait_for_the_workers_that_were_told_last() {
    let recorder = Recorder::new(256);
    (1..=3).for_each(|exchange| {
        recorder.opened(Time(exchange), ExchangeId(exchange), &push_of_rows(3), || Some(WorkerId(7)));
    });
    let told = || -> Vec<Value> {
        let dump = dump(&recorder);
        let uses = dump["uses"].as_array().unwrap().iter();
        uses.map(|used| json!([used["progress"], used["missing"], used["missing_others"]])).collect()
    };
    let many: Vec<u32> = (1..66).collect();
    recorder.waits(Time(4), &held(1, 1, &many));
    let first = json!(["held", many[..64], 1]);
    assert_eq!(told(), [first, json!(["waits", [], 0]), json!(["waits", [], 0])]);
    recorder.waits(Time(5), &held(2, 3, &[2]));
    recorder.waits(Time(6), &waits(2, &[1, 2]));
    let second = json!(["held", [2], 0]);
    assert_eq!(told(), [second.clone(), second, json!(["waits", [], 0])], "the older one came too late");
    recorder.waits(Time(7), &waits(5, &[]));
    assert_eq!(told()[..2], [json!(["held", [], 0]), json!(["held", [], 0])]);
    recorder.served(Time(8), &served(ExchangeId(2)));
    recorder.waits(Time(8), &held(2, 4, &[9]));
    assert_eq!(told()[1], json!(["answered", [], 0]), "another thread was quicker to tell its end");
    recorder.waits(Time(9), &held(3, 6, &[5]));
    assert_eq!(told()[2], json!(["held", [5], 0]));
}

#[test]
fn a_use_that_a_lane_refuses_is_over_and_its_event_has_the_error() {
    let recorder = Recorder::new(256);
    let pull = to_do(Access::Pull, 7);
    recorder.opened(Time(1), ExchangeId(1), &Request::Use(pull), || Some(WorkerId(0)));
    recorder.commanded(Time(2), &answer(ExchangeId(1)));
    recorder.refused(Time(3), ExchangeId(1), &pull.about(), &Error::Cancelled);
    recorder.use_taken(Time(4), ExchangeId(1));
    let dump = dump(&recorder);
    let events = dump["events"].as_array().unwrap();
    assert_eq!((&dump["uses"], events.len()), (&json!([]), 3));
    assert_eq!(events[2], json!([3, "refused", 0, 2, null, null, 1, "Cancelled", 0]));
}

fn target(round: u64) -> Target {
    Target { epoch: Epoch { term: 1, number: 1 }, part: slot(0).part, round: Round(round) }
}

fn to_do(access: Access, round: u64) -> Use {
    Use { target: target(round), clock_at: 9, ..parameters::to_do(access, round) }
}

fn pull_of_parameter(round: u64) -> Request {
    Request::Use(to_do(Access::Pull, round))
}

/// A push of a row of two elements.
fn push_of_rows(round: u64) -> Request {
    Request::Rows(Rows {
        target: target(round),
        action: RowAction::Push,
        urgency: 0,
        spec: "sgd:lr=1;dim=2,mode=sync".parse().unwrap(),
        shards: Shards::ALL,
        step: round,
        ids: 1,
        checksum: None,
    })
}

fn receive_change(exchange: ExchangeId) -> Command {
    let upload = ValueUpload { bytes: 16, block_bytes: 16, checksum: None };
    Command::Step(Work::Parameter { part: slot(0).part, step: ValueStep::Receive { exchange, upload } })
}

fn answer(exchange: ExchangeId) -> Command {
    let effect = Effect::accepted(Version(1));
    let header = gradlane_core::wire::Value { target: target(7), effect, part_bytes: 16, checksum: false };
    let step = ValueStep::Answer { exchange, average: None, key: None, header };
    Command::Step(Work::Parameter { part: slot(0).part, step })
}

fn serve(exchange: ExchangeId, request: &Request) -> Command {
    let Request::Rows(header) = request else { panic!("it is a use of rows") };
    let asked = AskedRows {
        node: NodeId([0; 32]),
        header: *header,
        epoch: header.target.epoch,
        workers: [].into(),
        block_bytes: 16,
        refusal: None,
    };
    Command::Step(Work::Table { part: slot(0).part, step: RowsStep::Serve { exchange, asked: Box::new(asked) } })
}

/// The use on this exchange begins to wait, as the uses of its part do, for these workers.
fn held(exchange: u64, change: u64, missing: &[u32]) -> Waits {
    Waits { held: Some(ExchangeId(exchange)), ..waits(change, missing) }
}

/// The uses of a part wait for these workers.
fn waits(change: u64, missing: &[u32]) -> Waits {
    let workers: Vec<_> = missing.iter().map(|rank| (WorkerId(*rank), NodeId([0; 32]))).collect();
    Waits { part: slot(0).part, held: None, missing: Missing::among(&workers, workers.len(), |_| true), change }
}

fn served(exchange: ExchangeId) -> Served {
    Served { part: slot(0).part, exchange: Some(exchange), bytes: 0, scan_bytes: 0, refusal: None }
}

fn slot(round: u64) -> SlotId {
    SlotId { part: PartId { key: TensorKey(7), index: 2 }, round: Round(round) }
}

fn begin(recorder: &Recorder, at: u64, slot: SlotId, workers: u32) {
    step(recorder, at, slot, begun(workers));
}

fn begun(workers: u32) -> Step {
    let (dtype, codec, op, order) = (DType::F32, CodecSpec::PLAIN, Op::Sum, Order::Arrival);
    let senders = (0..workers).map(WorkerId).collect();
    Step::Begin(SumSpec { bytes: 40, dtype, codec, op, senders, order, block_bytes: 64 })
}

/// The commands of a sum of so many workers, from its beginning to its end.
fn commands(slot: SlotId, workers: u32) -> Vec<Command> {
    let steps = iter::once(begun(workers)).chain((0..workers).map(receive)).chain([Step::Drop]);
    steps.map(|step| Command::Step(Work::Sum { slot, step })).collect()
}

fn receive(rank: u32) -> Step {
    let upload = Upload { body: Body::plain(40), weight: 1.0, checksum: None, landed: 0 };
    Step::Receive { worker: WorkerId(rank), exchange: ExchangeId(rank.into()), upload }
}

fn whole(recorder: &Recorder, at: u64, slot: SlotId, rank: u32) {
    recorder.received(Time(at), slot, WorkerId(rank), ExchangeId(rank.into()), Receipt::Whole);
}

fn step(recorder: &Recorder, at: u64, slot: SlotId, step: Step) {
    recorder.commanded(Time(at), &Command::Step(Work::Sum { slot, step }));
}

fn dump(recorder: &Recorder) -> Value {
    let Recorded { events, written, others, .. } = recorder.read();
    let mut dump = Value::Object(others);
    dump["events"] = serde_json::from_str(&format!("[{events}]")).unwrap();
    dump["events_written"] = written.into();
    dump
}
