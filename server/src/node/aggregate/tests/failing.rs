//! What happens when there can be no sum.

use gradlane_core::wire::frame::Stall;

use super::*;
use crate::node::aggregate::aggregator::STALLS_PER_REPORT;

#[test]
fn a_disagreement_is_the_same_error_on_every_worker_also_on_those_who_come_later() {
    for (field, other) in [
        ("dtype", Contribute { dtype: DType::I32, ..header(0) }),
        ("length", sized(20, header(0))),
        ("op", Contribute { op: Op::Max, ..header(0) }),
        ("codec", halved(CodecSpec::BF16, header(0))),
        ("codec", sparse(None, header(0))),
    ] {
        let mut world = World::of(3);
        world.push(0, header(0));
        world.open(1, other);
        world.open(2, header(0));
        let commands = world.commands();
        let errors: Vec<String> = errors(&commands).map(Error::to_string).collect();
        assert_eq!(errors.len(), 3, "{commands:?}");
        assert!(errors.iter().all(|error| *error == errors[0]));
        assert!(errors[0].contains(field) && errors[0].contains("worker 0") && errors[0].contains("worker 1"));
        assert!(commands.contains(&drops(0)));
    }
}

#[test]
fn a_body_of_a_length_that_its_part_cannot_have_is_refused_before_memory_is_taken_for_it() {
    let refused = |length: &str, header: Contribute| {
        let mut world = World::of(2);
        world.open(0, header);
        let commands = world.commands();
        let is_told = |error: &Error| matches!(error, Error::Protocol { field, problem, .. } if field == "body length" && problem.contains(length));
        assert!(rejected(&commands).len() == 1 && errors(&commands).all(is_told), "{commands:?}");
        assert_eq!((received(&commands).len(), world.progress().bytes_in_flight), (0, 0));
    };
    refused("17 where 16 are the most", sparse(Some(17), header(0)));
    let long = Contribute { part_bytes: 12, ..sparse(None, header(0)) };
    refused("16 instead of 12", long);
    refused("16 instead of 12", Contribute { part_bytes: 12, ..header(0) });
    refused("10 instead of 8", Contribute { part_bytes: 16, ..halved(CodecSpec::BF16, sized(20, header(0))) });
}

#[test]
fn a_repeat_says_the_length_and_the_form_of_the_first_push() {
    for other in [Some(7), None] {
        let mut world = World::of(2);
        let torn = world.open(0, sparse(Some(6), header(0)));
        world.torn(torn);
        world.commands();
        world.open(0, sparse(other, header(0)));
        let commands = world.commands();
        let is_told = |error: &Error| matches!(error, Error::Protocol { field, problem, .. } if field == "body" && problem.contains("said 6 bytes as topk"));
        assert!(rejected(&commands).len() == 1 && errors(&commands).all(is_told), "{commands:?}");
        world.push(0, sparse(Some(6), header(0)));
        world.push(1, sparse(Some(9), header(0)));
        assert_eq!(answered(&world.commands()).len(), 2, "the round is not harmed");
    }
}

#[test]
fn a_broadcast_keeps_its_bits_so_it_is_not_encoded() {
    let mut world = World::of(2);
    world.open(0, halved(CodecSpec::F16, broadcast(0)));
    let commands = world.commands();
    let refused =
        |error: &Error| matches!(error, Error::Protocol { problem, .. } if problem.starts_with("is fp16 of a "));
    assert!(rejected(&commands).len() == 1 && errors(&commands).all(refused), "{commands:?}");
}

#[test]
fn two_roots_are_a_disagreement() {
    let mut world = World::of(2);
    world.push(0, broadcast(0));
    world.open(1, Contribute { op: Op::Broadcast { root: WorkerId(1) }, ..header(0) });
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::InvalidArgument; 2]);
}

#[test]
fn a_length_may_change_from_round_to_round() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.commands();
    let answers = world.everybody(sized(400, header(1)));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn after_a_failed_round_the_next_one_can_be_summed() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.open(1, sized(20, header(0)));
    world.commands();
    let answers = world.everybody(header(1));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn a_round_that_waits_too_long_fails_and_names_the_missing() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.push(2, header(0));
    world.commands();
    world.pass(Duration::from_secs(60));
    world.open(1, header(0));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::DeadlineExceeded; 3], "also the one that came too late");
    for error in errors(&commands) {
        assert!(matches!(error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]), "{error}");
    }
    assert!(world.nobody_waits());
}

#[test]
fn a_waiting_round_is_reported_at_each_interval() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.commands();
    assert_eq!(world.node.poll_timeout(), Some(Time::ZERO + Duration::from_secs(10)));
    for seconds in [10, 20] {
        world.pass(Duration::from_secs(10));
        let stall = Stall {
            part: slot(0).part,
            round: Round(0),
            missing: vec![WorkerId(1)],
            waited: Duration::from_secs(seconds),
        };
        assert_eq!(world.commands(), [Command::Stalled { stall }]);
    }
}

#[test]
fn only_the_oldest_waiting_rounds_are_reported() {
    let mut world = World::of(2);
    for index in 0..10 {
        world.push(0, in_part(index, header(0)));
    }
    world.commands();
    world.pass(Duration::from_secs(10));
    assert_eq!(world.commands().len(), STALLS_PER_REPORT);
}

#[test]
fn a_round_with_a_sum_waits_for_nobody() {
    let mut world = World::of(2);
    world.everybody(header(0));
    assert!(world.nobody_waits());
}

#[test]
fn a_forgotten_tensor_fails_for_those_who_wait_and_those_who_come_later() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.commands();
    let error = Error::Cancelled;
    world.node.handle_member(MemberEvent::Forget { key: slot(0).part.key, error });
    world.open(1, header(0));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::Cancelled; 2]);
    assert!(commands.contains(&drops(0)));
    assert_eq!(world.progress().bytes_in_flight, 0);
}

#[test]
fn a_tensor_that_ended_leaves_nothing_and_late_bytes_of_it_begin_nothing() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.push(0, header(1));
    world.commands();
    world.node.handle_member(MemberEvent::Ended { keys: vec![slot(0).part.key], below: 1 });
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "nobody should be waiting");
    assert_eq!((world.node.services.sums.parts.len(), world.progress().bytes_in_flight), (0, 0));
    world.open(1, header(1));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
    assert_eq!(world.node.services.sums.parts.len(), 0);
    let again: Vec<ExchangeId> = [0, 1].map(|worker| world.push(worker, in_part(1, header(0)))).into();
    assert_eq!(answered(&world.commands()), again, "the name lives again, with another part");
    world.node.handle_member(MemberEvent::Ended { keys: vec![slot(0).part.key], below: 1 });
    assert_eq!(world.node.services.sums.parts.len(), 1, "a repeat is about the life before");
}

#[test]
fn a_hundred_thousand_names_that_end_leave_the_memory_of_a_server_flat() {
    let mut world = World::of(1);
    for index in 0..100_000 {
        let key = TensorKey(index);
        let part = PartId { key, index: 0 };
        let header = Contribute { target: Target { part, ..header(0).target }, ..header(0) };
        let exchange = world.push(0, header);
        world.node.handle_answered(exchange);
        world.node.handle_member(MemberEvent::Ended { keys: vec![key], below: 1 });
        world.commands();
    }
    let sum = &world.node.services.sums;
    assert_eq!((sum.parts.len(), sum.exchanges.len(), world.progress().bytes_in_flight), (0, 0, 0));
    assert_eq!(world.node.names.len(), 65_536, "what is remembered of names that ended is bounded");
}
