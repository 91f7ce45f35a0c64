//! The machine as its driver sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::codec::{Coding, Malformed};
use crate::config::Bounds;
use crate::error::{Error, Result};
use crate::mem::Ordinal;
use crate::pipeline::{LayoutConfig, Layouter, Stage};
use crate::sched::{SchedulerConfig, TaskId};
use crate::types::{
    Address, CodecSpec, DType, Demand, DeviceKind, Goal, InCopies, LinkId, Op, PartId, Participants, Phase, Priority,
    Role, Round, Scheme, ServerId, Slot, TensorSpec, Time, View, WorkerId,
};
use crate::wire::{Body, Contribution, Contributors, Request};

mod ending;
mod keeping;
mod liveness;
mod lost_neighbours;
mod parameters;
mod patience;
mod residuals;
mod restoring;
mod teams;
mod unreachable;

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(60);

#[test]
fn a_tensor_is_declared_pushed_pulled_and_resolved() {
    let mut world = World::joined();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, fuse: false }) = world.commands().pop() else { panic!("unknown") };
    assert_eq!(tensors, [spec("w")]);
    world.declared(request, &tensors);
    assert_eq!(world.carried.len(), 1);
    let pieces: Vec<Piece> = world.worker.pieces(world.carried[0]).collect();
    let span = crate::types::Span { offset: 0, bytes: 16 };
    assert_eq!(pieces, [Piece { submission: id, tensor: 0, span, into: span }]);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let Action::Push { link: LinkId(7), header: Request::Contribute(header), .. } = &step.action else {
        panic!("{step:?}")
    };
    assert!(matches!(header.contribution, Contribution::First { checksum: None, .. }));
    world.worker.end_push(world.now, step.task.id);
    assert_eq!(world.commands(), [], "nothing is to be done until the sum comes");
    world.worker.handle_pulled(
        world.now,
        step.task.id,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
    assert_eq!(world.commands(), [Command::Release(step.task.id), resolved(id, Ok(()))]);
    assert!(world.worker.is_idle());
}

#[test]
fn an_answer_may_be_reported_before_the_end_of_the_push() {
    let mut world = World::joined();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let (task, Action::Push { exchange, .. }) = (step.task.id, step.action) else { panic!("it is pushed") };
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
    assert_eq!(world.commands()[..2], [Command::Release(task), resolved(id, Ok(()))]);
    world.worker.handle_pushed(world.now, task, exchange);
    assert!(world.worker.is_idle());
}

#[test]
fn the_late_end_of_a_push_does_not_end_its_repeat() {
    let mut world = World::joined();
    world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let (task, Action::Push { exchange, .. }) = (step.task.id, step.action) else { panic!("it is pushed") };
    let error = Error::Unavailable { what: "the exchange".to_owned(), cause: "stream reset".to_owned() };
    world.worker.handle_pulled(world.now, task, Exchanged::Torn { error, landed: 0 });
    world.now = world.now + SECOND;
    world.worker.handle_timeout(world.now);
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.handle_pushed(world.now, task, exchange);
    assert_eq!(world.worker.scheduler.stage(task), Some(Stage::Push));
    world.worker.end_push(world.now, task);
    assert_eq!(world.worker.scheduler.stage(task), Some(Stage::Pull));
}

/// The body of [`spec`] in 16 bits an element.
const HALVED: Body = Body { bytes: 8, codec: CodecSpec::F16, refused: false };

#[test]
fn a_repeat_offers_the_whole_contribution_unless_the_sum_has_landed_on_it() {
    let coded = spec("w").with_codec(CodecSpec::F16);
    for (spec, in_place, is_overwritten) in [(spec("w"), true, true), (spec("w"), false, false), (coded, false, true)] {
        let mut world = World::joined();
        world.submit_spec(&spec, Tensor { in_place, ..tensor(&spec, None) });
        let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
        world.declared(request, &tensors);
        if let Some(step) = world.worker.take(world.now, Stage::Compress) {
            world.worker.handle_encoded(world.now, step.task.id, HALVED);
        }
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        world.worker.end_push(world.now, step.task.id);
        let error = Error::Unavailable { what: "the exchange".to_owned(), cause: "stream reset".to_owned() };
        world.worker.handle_pulled(world.now, step.task.id, Exchanged::Torn { error, landed: 4 });
        world.now = world.now + SECOND;
        world.worker.handle_timeout(world.now);
        world.commands();
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
        match header.contribution {
            Contribution::Resumed { landed, .. } => assert_eq!((is_overwritten, landed), (true, 4)),
            Contribution::First { .. } => assert!(!is_overwritten, "{spec:?}"),
            Contribution::Nothing => panic!("it contributes"),
        }
    }
}

#[test]
fn a_tensor_with_a_codec_is_encoded_pushed_in_its_wire_form_and_decoded() {
    let mut world = World::joined();
    let spec = spec("w").with_codec(CodecSpec::F16);
    let id = world.submit_spec(&spec, tensor(&spec, None));
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Compress).unwrap();
    let coding = Coding { dtype: DType::F32, codec: CodecSpec::F16, divisor: 1.0 };
    assert_eq!(step.action, Action::Encode { coding, residual: None, link: Some(LinkId(7)) });
    assert_eq!((step.task.bytes, world.worker.credit_in_flight()), (8, 8), "the credit counts what travels");
    world.worker.handle_encoded(world.now, step.task.id, HALVED);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
    assert_eq!((header.part_bytes, header.body()), (16, Some(HALVED)));
    world.worker.end_push(world.now, step.task.id);
    world.worker.handle_pulled(
        world.now,
        step.task.id,
        Exchanged::Sum { body: HALVED, divisor: 1.0, contributors: Contributors::Due },
    );
    let decode = world.worker.take(world.now, Stage::Decompress).unwrap();
    assert_eq!(decode.action, Action::Decode { coding, body: HALVED });
    world.commands();
    world.worker.handle_decoded(world.now, step.task.id, Ok(()));
    assert_eq!(world.commands(), [Command::Release(step.task.id), resolved(id, Ok(()))]);
}

#[test]
fn a_push_has_the_length_that_was_encoded_also_again_and_a_sum_is_decoded_as_it_came() {
    let topk: CodecSpec = "topk".parse().unwrap();
    let body = |bytes, refused| Body { bytes, codec: topk, refused };
    for (sent, came, landed, resumed) in [
        (body(7, false), body(12, false), 12, 7),
        (body(7, false), body(16, true), 0, 0),
        (body(16, true), body(12, false), 5, 5),
    ] {
        let mut world = World::joined();
        let spec = spec("w").with_codec(topk);
        world.submit_spec(&spec, tensor(&spec, None));
        let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
        world.declared(request, &tensors);
        let task = world.worker.take(world.now, Stage::Compress).unwrap().task;
        assert_eq!((task.bytes, world.worker.credit_in_flight()), (16, 16), "the credit counts the longest body");
        world.worker.handle_encoded(world.now, task.id, sent);
        for attempt in 0..2 {
            let step = world.worker.take(world.now, Stage::Push).unwrap();
            let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
            match header.contribution {
                Contribution::First { body, .. } => assert!(body == sent && (attempt == 0 || landed == 0)),
                Contribution::Resumed { body, landed } => assert_eq!((attempt, body, landed), (1, sent, resumed)),
                Contribution::Nothing => panic!("it contributes"),
            }
            world.worker.end_push(world.now, task.id);
            if attempt == 0 {
                let error = Error::Unavailable { what: "the exchange".to_owned(), cause: "stream reset".to_owned() };
                world.worker.handle_pulled(world.now, task.id, Exchanged::Torn { error, landed });
                world.now = world.now + SECOND;
                world.worker.handle_timeout(world.now);
                world.commands();
            }
        }
        world.worker.handle_pulled(
            world.now,
            task.id,
            Exchanged::Sum { body: came, divisor: 1.0, contributors: Contributors::Due },
        );
        let decode = world.worker.take(world.now, Stage::Decompress).unwrap();
        assert!(matches!(decode.action, Action::Decode { body, .. } if body == came), "{decode:?}");
    }
}

#[test]
fn a_body_that_is_no_wire_form_fails_the_submission_and_names_the_server() {
    let mut world = World::joined();
    let spec = spec("w").with_codec(CodecSpec::BF16);
    world.submit_spec(&spec, tensor(&spec, None));
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let task = world.worker.take(world.now, Stage::Compress).unwrap().task.id;
    world.worker.handle_encoded(world.now, task, HALVED);
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
    world.worker.take(world.now, Stage::Decompress).unwrap();
    world.worker.handle_decoded(world.now, task, Err(Malformed { problem: "has no scale".to_owned() }));
    let commands = world.commands();
    let error = commands.iter().find_map(|command| match command {
        Command::Resolve { outcome: Err(error), .. } => Some(error.to_string()),
        _ => None,
    });
    let error = error.unwrap();
    assert!(error.contains("server 0") && error.contains("has no scale"), "{error}");
}

#[test]
fn a_device_that_knows_the_codec_encodes_in_its_copies() {
    let mut world = World::joined();
    for (name, in_copies) in [("known", InCopies::Encode), ("unknown", InCopies::Nothing)] {
        let device_encodes = in_copies == InCopies::Encode;
        let spec = spec(name).with_codec(CodecSpec::BF16);
        world.submit_spec(&spec, Tensor { in_copies, ..tensor(&spec, Some(Ordinal(1))) });
        let declares = |command| match command {
            Command::Declare { request, tensors, .. } => Some((request, tensors)),
            _ => None,
        };
        let (request, tensors) = world.commands().into_iter().find_map(declares).expect("unknown");
        world.declared(request, &tensors);
        let step = world.worker.take(world.now, Stage::CopyD2H).unwrap();
        let Action::CopyToHost { bytes, coding, contributes: true, .. } = step.action else { panic!("{step:?}") };
        assert_eq!((bytes, coding.is_some()), if device_encodes { (8, true) } else { (16, false) }, "{name}");
        world.worker.handle_copied(world.now, step.task.id, Ok(()));
        let next = if device_encodes { Stage::Push } else { Stage::Compress };
        assert_eq!(world.worker.take(world.now, next).unwrap().task.id, step.task.id);
    }
}

#[test]
fn of_a_body_that_varies_a_device_says_the_length_and_its_sum_is_copied_back_as_it_landed() {
    let mut world = World::joined();
    let spec = spec("w").with_codec("topk".parse().unwrap());
    world.submit_spec(&spec, Tensor { in_copies: InCopies::EncodeAndDecode, ..tensor(&spec, Some(Ordinal(1))) });
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::CopyD2H).unwrap();
    let Action::CopyToHost { bytes, coding: Some(coding), .. } = step.action else { panic!("{step:?}") };
    assert_eq!(bytes, 16, "memory for the longest");
    let task = step.task.id;
    let [sent, sum] = [6, 11].map(|bytes| Body { bytes, codec: coding.codec, refused: false });
    world.worker.handle_encoded(world.now, task, sent);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
    assert_eq!(header.body(), Some(sent));
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: sum, divisor: 1.0, contributors: Contributors::Due },
    );
    let step = world.worker.take(world.now, Stage::CopyH2D).unwrap();
    assert_eq!(step.action, Action::CopyToDevice { coding: Some((coding, sum)) });
}

#[test]
fn a_device_that_only_encodes_gets_a_sum_that_the_host_has_decoded() {
    let mut world = World::joined();
    let spec = spec("w").with_codec(CodecSpec::F16);
    world.submit_spec(&spec, Tensor { in_copies: InCopies::Encode, ..tensor(&spec, Some(Ordinal(1))) });
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let task = world.worker.take(world.now, Stage::CopyD2H).unwrap().task.id;
    world.worker.handle_copied(world.now, task, Ok(()));
    assert!(world.worker.take(world.now, Stage::Compress).is_none());
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: HALVED, divisor: 1.0, contributors: Contributors::Due },
    );
    let step = world.worker.take(world.now, Stage::Decompress).unwrap();
    assert!(matches!(step.action, Action::Decode { body: HALVED, .. }), "{step:?}");
    world.worker.handle_decoded(world.now, task, Ok(()));
    let step = world.worker.take(world.now, Stage::CopyH2D).unwrap();
    assert_eq!(step.action, Action::CopyToDevice { coding: None });
}

#[test]
fn a_submission_is_issued_when_the_last_copies_of_all_its_parts_are_on_the_device() {
    let mut world = World::joined();
    let id = world.submit_with("w", Some(Ordinal(1)), None);
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let out = world.worker.take(world.now, Stage::CopyD2H).unwrap();
    let task = out.task.id;
    assert!(!out.is_last, "nothing has landed then");
    world.worker.handle_copied(world.now, task, Ok(()));
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
    world.commands();
    assert!(world.worker.take(world.now, Stage::CopyH2D).unwrap().is_last);
    assert_eq!(world.worker.submissions_of(task), [id]);
    world.worker.handle_issued(task);
    assert_eq!(world.commands(), [Command::Issued { submission: id }]);
    world.worker.handle_copied(world.now, task, Ok(()));
    assert_eq!(world.commands(), [Command::Release(task), resolved(id, Ok(()))]);
    world.worker.handle_issued(task);
    assert_eq!(world.commands(), [], "a notice that came too late");
}

#[test]
fn a_broadcast_travels_as_it_is_whatever_the_codec() {
    let mut world = World::joined();
    let spec = spec("w").with_codec(CodecSpec::F16);
    let terms =
        Terms { demand: Demand::Reduce { op: Op::Broadcast { root: WorkerId(0) }, weight: 1.0 }, timeout: None };
    world.worker.submit(world.now, &spec, tensor(&spec, None), terms);
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
    assert_eq!(header.body(), Some(Body::plain(16)));
}

#[test]
fn a_parked_submission_that_is_cancelled_keeps_its_round_and_the_server_is_told() {
    let mut world = World::joined();
    let first = world.submit("w");
    let second = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.worker.cancel(world.now, first);
    assert_eq!(world.commands(), [resolved(first, Err(Error::Cancelled))]);
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
    assert_eq!(step.task.round.0, 0);
    assert_eq!(world.worker.take(world.now, Stage::Push), None, "round 1 waits for its turn");
    world.worker.end_push(world.now, step.task.id);
    world.worker.handle_pulled(world.now, step.task.id, Exchanged::Rejected(Error::Cancelled));
    world.commands();
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert_eq!((step.task.round.0, world.worker.part(step.task.id).tickets.as_slice()), (1, [second].as_slice()));
}

#[test]
fn a_submission_whose_declaration_is_not_answered_in_time_fails() {
    let mut world = World::joined();
    let id = world.submit_with("w", None, Some(SECOND));
    world.commands();
    assert_eq!(world.worker.poll_timeout(), Some(world.now + SECOND));
    world.now = world.now + SECOND;
    world.worker.handle_timeout(world.now);
    let what = "tensor w: waiting for its declaration (a name that was undeclared comes again once every worker has undeclared it)".to_owned();
    assert_eq!(world.commands(), [resolved(id, Err(Error::Timeout { what, waited: SECOND }))]);
}

#[test]
fn the_tensors_of_a_refused_list_are_declared_again_one_by_one() {
    let mut world = World::joined();
    let specs = ["good", "bad"].map(spec);
    let list = asked(world.worker.declare(specs.to_vec(), true));
    let [good, bad] = ["good", "bad"].map(|name| world.submit(name));
    world.commands();
    let refusal = Error::InvalidArgument { what: "bad".to_owned(), hint: String::new() };
    world.worker.handle_declared(world.now, list, Err(refusal.clone()));
    let asked: Vec<(u64, String)> = world
        .commands()
        .into_iter()
        .map(|command| match command {
            Command::Declare { request, mut tensors, fuse: false } => (request, tensors.remove(0).name),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked.iter().map(|(_, name)| name).collect::<Vec<_>>(), ["good", "bad"]);
    world.declared(asked[0].0, &specs[..1]);
    assert_eq!(world.carried.len(), 1, "submission {good} goes on its way");
    world.worker.handle_declared(world.now, asked[1].0, Err(refusal.clone()));
    assert_eq!(world.commands(), [resolved(bad, Err(refusal))]);
}

#[test]
fn a_refused_list_of_which_one_tensor_is_left_is_declared_again_as_well() {
    let mut world = World::joined();
    let specs = ["good", "bad"].map(spec);
    let list = asked(world.worker.declare(specs.to_vec(), true));
    world.commands();
    world.worker.handle_forget(world.now, specs[1].key(), &Error::Cancelled);
    world.worker.handle_declared(world.now, list, Err(Error::Cancelled));
    let [Command::Declare { tensors, .. }] = &world.commands()[..] else { panic!("not asked again") };
    assert_eq!(tensors, &specs[..1]);
}

#[test]
fn tensors_that_share_a_part_must_lie_on_one_device() {
    let mut world = World::sharing(&["a", "b"]);
    let a = world.submit_with("a", Some(Ordinal(1)), None);
    let b = world.submit_with("b", None, None);
    let commands = world.commands();
    let failed: Vec<u64> = commands.iter().filter_map(failed_with("one lies in memory of device 1")).collect();
    assert_eq!(failed, [a, b], "{commands:?}");
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
}

#[test]
fn a_tensor_that_waits_in_vain_for_those_it_shares_a_part_with_fails_and_the_server_is_told() {
    let mut world = World::sharing(&["a", "b"]);
    let first = world.submit("a");
    world.now = world.now + SECOND;
    let second = world.submit("a");
    let due = Time::ZERO + STEP;
    assert_eq!(world.worker.poll_timeout(), Some(due));
    for (id, round, now) in [(first, 0, due), (second, 1, due + SECOND)] {
        world.commands();
        world.now = now;
        world.worker.handle_timeout(now);
        let failed: Vec<u64> =
            world.commands().iter().filter_map(failed_with("a waited 60.0 s for b on worker 0")).collect();
        assert_eq!(failed, [id]);
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
        assert_eq!(step.task.round.0, round);
        world.worker.end_push(world.now, step.task.id);
        world.worker.handle_pulled(world.now, step.task.id, Exchanged::Rejected(Error::Cancelled));
    }
    world.commands();
    assert!(world.worker.is_idle());
    let late = world.submit("b");
    let failed: Vec<u64> = world.commands().iter().filter_map(failed_with("a waited 60.0 s for b")).collect();
    assert_eq!(failed, [late], "at once");
}

#[test]
fn a_round_whose_first_tensor_was_cancelled_is_withdrawn_from_when_the_others_do_not_come() {
    let mut world = World::sharing(&["a", "b"]);
    let id = world.submit("a");
    world.worker.cancel(world.now, id);
    assert_eq!(world.commands(), [resolved(id, Err(Error::Cancelled))]);
    world.now = world.now + STEP;
    world.worker.handle_timeout(world.now);
    world.commands();
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
}

#[test]
fn the_server_is_told_also_of_a_process_set_whose_devices_cannot_reduce_apart_on_their_machine() {
    let mut view = View::of_workers(&[(1, "/zero"), (1, "/one"), (2, ""), (3, "")]);
    let server = view.members.last_mut().unwrap();
    (server.process.role, server.index) = (Role::Server, ServerId(0).0);
    let mut world = World::linked_in(view);
    let participants = Participants::of(std::iter::once(WorkerId(0)).collect());
    let specs = ["a", "b"].map(|name| TensorSpec { participants: participants.clone(), ..spec(name) });
    let request = asked(world.worker.declare(specs.to_vec(), true));
    world.commands();
    world.declared(request, &specs);
    let first = world.submit_spec(&specs[0], tensor(&specs[0], Some(Ordinal(0))));
    world.worker.cancel(world.now, first);
    let second = world.submit_spec(&specs[1], tensor(&specs[1], Some(Ordinal(0))));
    let failed: Vec<u64> = world.commands().iter().filter_map(failed_with("was given up before")).collect();
    assert_eq!(failed, [second]);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
}

#[test]
fn a_batch_that_fills_a_part_is_one_submission() {
    let mut world = World::sharing(&["a", "b"]);
    let specs = ["a", "b"].map(spec);
    let terms = Terms { demand: Demand::Reduce { op: Op::Sum, weight: 1.0 }, timeout: None };
    let tensor = |member: usize| tensor(&specs[member], None);
    let accepted = world.worker.submit_all(world.now, &specs, tensor, terms).unwrap();
    assert_eq!(accepted.submissions, [Members::Whole(vec![0, 1])]);
    world.commands();
    let pieces: Vec<(u64, usize)> =
        world.worker.pieces(world.carried[0]).map(|piece| (piece.submission, piece.tensor)).collect();
    assert_eq!(pieces, [(accepted.first, 0), (accepted.first, 1)]);
}

#[test]
fn a_worker_that_leaves_withdraws_first_and_waits_for_the_servers_at_most_for_its_patience() {
    for answered in [true, false] {
        let mut world = World::joined();
        let id = world.submit("w");
        let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
        world.declared(request, &tensors);
        world.worker.handle_leave(world.now, SECOND);
        let commands = world.commands();
        assert!(!commands.contains(&Command::Leave), "{commands:?}");
        assert_eq!(commands.iter().filter_map(failed_with("shut down")).collect::<Vec<_>>(), [id]);
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        world.worker.end_push(world.now, step.task.id);
        if answered {
            world.worker.handle_pulled(world.now, step.task.id, Exchanged::Rejected(Error::Cancelled));
        } else {
            assert!(!world.commands().contains(&Command::Leave));
            world.now = world.now + SECOND;
            world.worker.handle_timeout(world.now);
        }
        assert!(world.commands().contains(&Command::Leave), "answered: {answered}");
    }
}

#[test]
fn what_is_given_up_before_its_layout_is_known_is_declined_on_the_machine_when_it_is() {
    let mut world = World::joined_in(on_one_machine());
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.worker.cancel(world.now, id);
    assert_eq!(world.commands(), [resolved(id, Err(Error::Cancelled))]);
    world.answer(request, &tensors);
    let declined = |command: &Command| match command {
        Command::Decline(declined) => Some(declined.slot),
        _ => None,
    };
    let declined: Vec<Slot> = world.commands().iter().filter_map(declined).collect();
    assert_eq!(declined, [Goal::AllReduce.slot(PartId { key: spec("w").key(), index: 0 }, Round(0))]);
}

#[test]
fn the_end_of_the_job_fails_what_is_under_way_and_what_comes_later() {
    let mut world = World::joined();
    let before = world.submit("w");
    world.commands();
    let mut view = view();
    view.phase = Phase::Aborted(Error::Cancelled);
    world.worker.handle_view(world.now, view);
    assert_eq!(world.commands(), [resolved(before, Err(Error::Cancelled)), Command::Abort(Error::Cancelled)]);
    let after = world.submit("w");
    assert_eq!(world.commands(), [resolved(after, Err(Error::Cancelled))]);
}

/// One worker of a job of two. Link 7 leads to its server 0.
struct World {
    worker: Worker,
    now: Time,
    /// Tasks in the order in which they came.
    carried: Vec<TaskId>,
    /// Whether it meets each new team at once.
    meets: bool,
}

impl Worker {
    /// The exchange that a task has opened was handed over.
    fn end_push(&mut self, now: Time, task: TaskId) {
        let Some(Held::Exchange { exchange, .. }) = self.record(task).held else { panic!("it was not pushed") };
        self.handle_pushed(now, task, exchange);
    }
}

impl World {
    fn joined() -> Self {
        Self::linked_in(view())
    }

    /// Has joined, and is linked to the server of `view`.
    fn linked_in(view: View) -> Self {
        let mut world = Self::joined_in(view);
        let Some(Command::Dial(Dial { server, attempt, .. })) = world.commands().pop() else { panic!("a server") };
        world.worker.handle_dialled(world.now, server, attempt, Ok(LinkId(7)));
        world.commands();
        world
    }

    fn joined_in(view: View) -> Self {
        Self::with(view, |_| {})
    }

    /// As [`joined`](Self::joined), in a job that goes on without lost workers.
    fn keeping() -> Self {
        let mut world = Self::joined();
        world.worker.settings.keeps = true;
        world
    }

    /// Has joined with settings that are changed by `change`.
    fn with(view: View, change: impl FnOnce(&mut WorkerSettings)) -> Self {
        let scheduler = SchedulerConfig { step_timeout: STEP, ..SchedulerConfig::default() };
        let bounds = Bounds { steady: STEP, ..Bounds::new(STEP, STEP / 2) };
        let (contact, device, stall_warn) = (None, DeviceKind::Cuda, Duration::ZERO);
        let mut settings =
            WorkerSettings { scheduler, stall_warn, bounds, contact, device, keeps: false, keeps_sums: false };
        change(&mut settings);
        let mut world =
            Self { worker: Worker::new(Time::ZERO, settings), now: Time::ZERO, carried: Vec::new(), meets: true };
        world.worker.handle_joined(world.now, WorkerId(0), view);
        world
    }

    /// Lets time pass until something is due, at most until `end`.
    fn pass_until(&mut self, end: Time) {
        self.now = self.worker.poll_timeout().map_or(end, |due| due.min(end)).max(self.now);
        self.worker.handle_timeout(self.now);
    }

    /// As `joined`. In addition, tensors of these names were declared together.
    fn sharing(names: &[&str]) -> Self {
        let mut world = Self::joined();
        let specs: Vec<TensorSpec> = names.iter().map(|name| spec(name)).collect();
        let request = asked(world.worker.declare(specs.clone(), true));
        world.commands();
        world.declared(request, &specs);
        world
    }

    /// The coordinator answers whatever was declared.
    fn declare_all(&mut self) {
        for command in self.commands() {
            if let Command::Declare { request, tensors, .. } = command {
                self.declared(request, &tensors);
            }
        }
    }

    fn submit(&mut self, name: &str) -> u64 {
        self.submit_with(name, None, None)
    }

    fn submit_with(&mut self, name: &str, device: Option<Ordinal>, timeout: Option<Duration>) -> u64 {
        let spec = spec(name);
        let terms = Terms { demand: Demand::Reduce { op: Op::Sum, weight: 1.0 }, timeout };
        self.worker.submit(self.now, &spec, tensor(&spec, device), terms)
    }

    fn submit_spec(&mut self, spec: &TensorSpec, tensor: Tensor) -> u64 {
        self.worker.submit(
            self.now,
            spec,
            tensor,
            Terms { demand: Demand::Reduce { op: Op::Sum, weight: 1.0 }, timeout: None },
        )
    }

    /// The coordinator answers a declaration.
    fn declared(&mut self, request: u64, tensors: &[TensorSpec]) {
        self.answer(request, tensors);
        self.commands();
    }

    fn answer(&mut self, request: u64, tensors: &[TensorSpec]) {
        let config =
            LayoutConfig { partition_bytes: 1024, fuse_bytes: 64, part_bytes_min: 1024, pipeline_bytes_min: 1024 };
        let layouts = Layouter::new(config, vec![1.0], 1).declare(tensors, true).unwrap();
        self.worker.handle_declared(self.now, request, Ok(layouts));
    }

    fn commands(&mut self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        while let Some(command) = self.worker.next_command(self.now) {
            match command {
                Command::Follow if self.meets => self.worker.handle_equipped(self.now, self.worker.team()),
                Command::Follow => {}
                command => commands.push(command),
            }
        }
        let carried = |command: &Command| match command {
            Command::Carry { task, .. } => Some(*task),
            _ => None,
        };
        self.carried.extend(commands.iter().filter_map(carried));
        commands
    }
}

/// Two workers on one machine.
fn on_one_machine() -> View {
    View::of_workers(&[(1, "/zero"), (1, "/one")])
}

/// Two workers on machines of their own, and a server.
fn view() -> View {
    let mut view = View::of_workers(&[(1, ""), (2, ""), (3, "")]);
    let server = view.members.last_mut().unwrap();
    (server.process.role, server.index) = (Role::Server, ServerId(0).0);
    server.process.addresses = vec![Address::new(Scheme::Quic, "there:1")];
    view
}

fn spec(name: &str) -> TensorSpec {
    TensorSpec::new(name, DType::F32, vec![4])
}

fn tensor(spec: &TensorSpec, device: Option<Ordinal>) -> Tensor {
    let (in_copies, priority) = (InCopies::Nothing, Priority(0));
    Tensor { key: spec.key(), bytes: 16, device, in_copies, in_place: true, priority, cuts: None }
}

fn resolved(submission: u64, outcome: Result<()>) -> Command {
    Command::Resolve { submission, tensors: 1, submitted: Time::ZERO, effect: None, outcome }
}

/// The submission that a command resolves with an error that contains `text`.
fn failed_with(text: &str) -> impl Fn(&Command) -> Option<u64> {
    move |command| match command {
        Command::Resolve { submission, outcome: Err(error), .. } if error.to_string().contains(text) => {
            Some(*submission)
        }
        _ => None,
    }
}

#[test]
fn who_declares_what_another_thread_has_asked_for_waits_for_the_same_answer() {
    let mut world = World::joined();
    let first = asked(world.worker.declare(vec![spec("w")], false));
    assert_eq!(world.worker.declare(vec![spec("w")], false), Ok(BTreeSet::from([first])));
    let both = world.worker.declare(vec![spec("w"), spec("v")], false).unwrap();
    assert!(both.len() == 2 && both.contains(&first), "{both:?}");
}

/// The only request of a declaration.
fn asked(requests: Result<BTreeSet<u64>>) -> u64 {
    let requests: Vec<u64> = requests.expect("it is declared").into_iter().collect();
    assert_eq!(requests.len(), 1, "asked once");
    requests[0]
}
