//! Parts whose codec has error feedback.

use super::*;
use crate::codec::feedback::Start;
use crate::types::{InCopies, Participants, ResidualUse, WorkerSet};
use crate::wire::{AnswerResidual, Hold, ResidualAction, Target};

#[test]
fn a_body_goes_on_with_what_the_one_before_lost_once_its_sum_has_come() {
    let mut world = World::joined();
    assert_eq!([round(&mut world), round(&mut world)], [Start::Zero, Start::Kept]);
    assert_eq!(round(&mut world), Start::Kept);
}

#[test]
fn a_repeat_sends_the_same_body_and_encodes_nothing() {
    let mut world = World::joined();
    round(&mut world);
    let (task, start) = encode(&mut world);
    assert_eq!(start, Start::Kept);
    for landed in [0, 4] {
        world.worker.take(world.now, Stage::Push).unwrap();
        world.worker.end_push(world.now, task);
        let error = Error::Unavailable { what: "the exchange".to_owned(), cause: "stream reset".to_owned() };
        world.worker.handle_pulled(world.now, task, Exchanged::Torn { error, landed });
        world.now = world.now + SECOND;
        world.worker.handle_timeout(world.now);
        world.commands();
        assert_eq!(world.worker.take(world.now, Stage::Compress), None);
    }
    finish(&mut world, task, Contributors::Due);
    assert_eq!(round(&mut world), Start::Kept, "the body before was one body");
}

#[test]
fn a_sum_of_other_workers_than_the_one_before_makes_the_next_body_begin_at_zero() {
    let mut world = World::joined();
    round(&mut world);
    let (task, _) = encode(&mut world);
    let alone = |ranks: &[u32]| Contributors::Only(ranks.iter().copied().map(WorkerId).collect());
    finish(&mut world, task, alone(&[0]));
    let (task, start) = encode(&mut world);
    assert_eq!(start, Start::Zero);
    finish(&mut world, task, alone(&[0]));
    let (task, start) = encode(&mut world);
    assert_eq!(start, Start::Kept);
    finish(&mut world, task, Contributors::Due);
    let (task, start) = encode(&mut world);
    assert_eq!(start, Start::Zero);
    // The workers that are due, named.
    finish(&mut world, task, alone(&[0, 1]));
    assert_eq!(round(&mut world), Start::Kept);
}

#[test]
fn the_workers_due_are_those_of_the_view_in_which_the_round_was_pushed() {
    let mut world = World::joined();
    round(&mut world);
    let (task, _) = encode(&mut world);
    let mut next = view();
    next.epoch.number += 1;
    next.members.retain(|member| member.process.role == Role::Server || member.index == 0);
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.end_push(world.now, task);
    world.worker.handle_view(world.now, next);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: body(), divisor: 1.0, contributors: Contributors::Due },
    );
    world.worker.take(world.now, Stage::Decompress).unwrap();
    world.worker.handle_decoded(world.now, task, Ok(()));
    world.commands();
    assert_eq!(round(&mut world), Start::Kept, "both were in it");
    assert_eq!(round(&mut world), Start::Zero, "the other one was not");
}

#[test]
fn a_round_that_is_given_up_after_it_was_encoded_makes_the_next_one_begin_at_zero() {
    let mut world = World::joined();
    round(&mut world);
    let (task, _) = encode(&mut world);
    let submission = world.worker.submissions_of(task)[0];
    world.worker.cancel(world.now, submission);
    world.commands();
    let withdrawal = world.worker.take(world.now, Stage::Push).unwrap().task.id;
    world.worker.end_push(world.now, withdrawal);
    world.worker.handle_pulled(world.now, withdrawal, Exchanged::Rejected(Error::Cancelled));
    world.commands();
    assert_eq!(round(&mut world), Start::Zero);
}

#[test]
fn a_contribution_says_that_the_sum_before_was_taken_back() {
    let mut world = World::joined();
    let part = PartId { key: fed_back().key(), index: 0 };
    let held = |world: &mut World| {
        let (task, _) = encode(world);
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
        world.worker.end_push(world.now, task);
        world.worker.handle_pulled(
            world.now,
            task,
            Exchanged::Sum { body: body(), divisor: 1.0, contributors: Contributors::Due },
        );
        world.worker.take(world.now, Stage::Decompress).unwrap();
        world.worker.handle_decoded(world.now, task, Ok(()));
        world.commands();
        header.hold
    };
    assert_eq!(held(&mut world), Hold::No);
    world.worker.handle_held(part);
    assert_eq!(held(&mut world), Hold::Before);
    world.worker.handle_taken_back(part, "w");
    assert_eq!([held(&mut world), held(&mut world)], [Hold::TakenBack, Hold::Before]);
}

#[test]
fn a_contribution_says_that_its_answer_begins_with_what_was_given() {
    let mut world = World::joined();
    round(&mut world);
    world.worker.handle_given("w");
    let is_given = |world: &mut World| {
        let (task, _) = encode(world);
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        let Action::Push { header: Request::Contribute(header), .. } = step.action else { panic!("{step:?}") };
        world.worker.end_push(world.now, task);
        let contributors = Contributors::Due;
        world.worker.handle_pulled(world.now, task, Exchanged::Sum { body: body(), divisor: 1.0, contributors });
        world.worker.take(world.now, Stage::Decompress).unwrap();
        world.worker.handle_decoded(world.now, task, Ok(()));
        world.commands();
        header.is_given
    };
    assert_eq!([is_given(&mut world), is_given(&mut world)], [true, false]);
}

#[test]
fn a_use_of_the_residual_of_the_answers_is_of_the_next_round_and_is_none() {
    let mut world = World::joined();
    round(&mut world);
    for (of, action, landing) in [
        (ResidualUse::Read, ResidualAction::Read(Hold::No), Landing::InPlace),
        (ResidualUse::Give, ResidualAction::Give { checksum: 0 }, Landing::Nowhere),
    ] {
        let spec = fed_back();
        let terms = Terms { demand: Demand::AnswerResidual(of), timeout: None };
        world.worker.submit_all(world.now, std::slice::from_ref(&spec), |_| tensor(&spec, None), terms).unwrap();
        world.commands();
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        let Action::Push { header: Request::AnswerResidual(header), landing: found, .. } = step.action else {
            panic!("{step:?}")
        };
        let AnswerResidual { target: Target { round, .. }, codec, part_bytes, action: said, .. } = header;
        assert_eq!((round, codec, part_bytes), (Round(1), spec.kind.codec(), 16));
        assert_eq!((said, found), (action, landing));
        world.worker.end_push(world.now, step.task.id);
        let (body, contributors) = (Body::plain(16), Contributors::Due);
        world.worker.handle_pulled(world.now, step.task.id, Exchanged::Sum { body, divisor: 1.0, contributors });
        let is_end = |command: &Command| matches!(command, Command::Resolve { outcome: Ok(()), .. });
        assert!(world.commands().iter().any(is_end));
    }
    assert_eq!(world.worker.next_round(fed_back().key()), Some(Round(1)));
    assert_eq!(round(&mut world), Start::Kept, "this worker's own goes on");
}

#[test]
fn a_residual_of_the_answers_is_not_used_while_the_tensor_is_reduced() {
    let mut world = World::joined();
    round(&mut world);
    let (spec, terms) = (fed_back(), Terms { demand: Demand::AnswerResidual(ResidualUse::Read), timeout: None });
    let (task, _) = encode(&mut world);
    let refused = world.worker.submit_all(world.now, std::slice::from_ref(&spec), |_| tensor(&spec, None), terms);
    assert!(matches!(refused, Err(Error::FailedPrecondition { .. })), "{refused:?}");
    finish(&mut world, task, Contributors::Due);
    assert!(world.worker.submit_all(world.now, std::slice::from_ref(&spec), |_| tensor(&spec, None), terms).is_ok());
}

#[test]
fn a_residual_ends_with_its_name_and_with_the_job() {
    let mut world = World::joined();
    round(&mut world);
    let part = PartId { key: fed_back().key(), index: 0 };
    let request = world.worker.undeclare(&["w".to_owned()]).unwrap();
    let names = vec!["w".to_owned()];
    assert_eq!(world.commands(), [Command::DropResidual(part), Command::Undeclare { request, names }]);
    world.worker.handle_undeclared(request);
    assert_eq!(round(&mut world), Start::Zero);
    world.worker.handle_failed(world.now, Error::Cancelled);
    assert!(world.commands().contains(&Command::DropResidual(part)));
}

#[test]
fn a_residual_ends_where_another_rank_owns_the_part() {
    // Of a machine of three workers, and another worker.
    let places = [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "")];
    let of = |places: &[(u64, &'static str)]| {
        let mut all = View::of_workers(places);
        let server = all.members.last_mut().unwrap();
        (server.process.role, server.index) = (Role::Server, ServerId(0).0);
        server.process.addresses = vec![Address::new(Scheme::Quic, "there:1")];
        all
    };
    let before = of(&places);
    let mut residuals = super::super::residuals::Residuals::default();
    let owns = |view: &View, part| crate::types::Machines::of(view).owner(part, DType::F32, WorkerId(0)) == WorkerId(0);
    let parts = (0..64).map(|index| PartId { key: fed_back().key(), index });
    let mine: Vec<PartId> = parts.filter(|part| owns(&before, *part)).collect();
    for part in &mine {
        residuals.encode(*part, Round(0), true);
    }
    let mut after = before.clone();
    after.members.retain(|member| member.process.role == Role::Server || member.index != 2);
    let moved = residuals.follow(|part| owns(&after, part));
    let due: Vec<PartId> = mine.into_iter().filter(|part| !owns(&after, *part)).collect();
    assert!(!due.is_empty() && moved == due, "{moved:?}, {due:?}");
}

#[test]
fn the_host_encodes_with_feedback_whatever_a_device_can_encode() {
    let mut world = World::joined();
    let spec = fed_back();
    world.submit_spec(&spec, Tensor { in_copies: InCopies::EncodeAndDecode, ..tensor(&spec, Some(Ordinal(1))) });
    declare(&mut world);
    let step = world.worker.take(world.now, Stage::CopyD2H).unwrap();
    assert!(matches!(step.action, Action::CopyToHost { bytes: 16, coding: None, .. }), "{step:?}");
    world.worker.handle_copied(world.now, step.task.id, Ok(()));
    assert!(world.worker.take(world.now, Stage::Compress).is_some());
}

#[test]
fn what_is_neither_a_sum_nor_a_mean_uses_no_residual() {
    let mut world = World::joined();
    let spec = fed_back();
    let terms = Terms { demand: Demand::Reduce { op: Op::Max, weight: 1.0 }, timeout: None };
    world.worker.submit(world.now, &spec, tensor(&spec, None), terms);
    declare(&mut world);
    let step = world.worker.take(world.now, Stage::Compress).unwrap();
    let Action::Encode { coding, residual: None, .. } = step.action else { panic!("{step:?}") };
    assert_eq!(coding.codec, CodecSpec::BF16);
}

#[test]
fn the_participants_that_have_begun_are_due() {
    let mut view = view();
    view.members[1].first_round = Round(2);
    let formation = Formation::of(WorkerId(0), view, DeviceKind::Host);
    let due = |participants: &Participants, round| formation.due_workers(participants, Round(round));
    let set = |ranks: &[u32]| ranks.iter().copied().map(WorkerId).collect::<WorkerSet>();
    assert_eq!([due(&Participants::ALL, 1), due(&Participants::ALL, 2)], [set(&[0]), set(&[0, 1])]);
    assert_eq!(due(&Participants::of(set(&[1])), 2), set(&[1]));
}

/// A round of the part, from its submission to its result. Returns how its body used the residual.
fn round(world: &mut World) -> Start {
    let (task, start) = encode(world);
    finish(world, task, Contributors::Due);
    start
}

/// The first half of a round.
fn encode(world: &mut World) -> (TaskId, Start) {
    let spec = fed_back();
    world.submit_spec(&spec, tensor(&spec, None));
    declare(world);
    let step = world.worker.take(world.now, Stage::Compress).unwrap();
    let Action::Encode { residual: Some(start), .. } = step.action else { panic!("{step:?}") };
    world.worker.handle_encoded(world.now, step.task.id, body());
    world.commands();
    (step.task.id, start)
}

/// The second half.
fn finish(world: &mut World, task: TaskId, contributors: Contributors) {
    world.worker.take(world.now, Stage::Push).unwrap();
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(world.now, task, Exchanged::Sum { body: body(), divisor: 1.0, contributors });
    world.worker.take(world.now, Stage::Decompress).unwrap();
    world.worker.handle_decoded(world.now, task, Ok(()));
    world.commands();
}

/// Answers a declaration, if there is one.
fn declare(world: &mut World) {
    if let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() {
        world.declared(request, &tensors);
    }
}

/// A body of the part, whose length means nothing here.
fn body() -> Body {
    Body { bytes: 8, codec: fed_back().kind.codec(), refused: false }
}

fn fed_back() -> TensorSpec {
    spec("w").with_codec("bf16:feedback=1".parse().unwrap())
}
