//! The specification of parameters, one behaviour a test: the node and the memory together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Code, Error};
use gradlane_core::mem::{Copies, Frozen, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{
    Access, Average, DType, Effect, Epoch, ExchangeId, LinkId, Mode, PartId, Phase, Round, Rule, Squares, TensorKey,
    Time, Update, Version, View, Written,
};
use gradlane_core::wire::{Request, Response, Sent, Target, Use, Value, checksum};

use crate::checkpoint::FrozenPart;
use crate::handle::Handle;
use crate::node::accumulator::SumResources;
use crate::node::aggregate::tests::{EPOCH, config, node, view};
use crate::node::command::{Archive, Command, Route};
use crate::node::config::NodeConfig;
use crate::node::event::Event;
use crate::node::lanes::Told;
use crate::node::machine::Node;
use crate::node::store::Store;

const ADD: Access = Access::Push(Update::Add);
const ASSIGN: Access = Access::Push(Update::Assign);
const STEP: Access = Access::Push(Update::Step);
const ADD_PULL: Access = Access::PushPull(Update::Add);
const BYTES: u64 = 16;

#[test]
fn an_init_makes_version_one_and_every_worker_reads_it() {
    let mut world = World::of(2);
    assert_eq!(world.call(0, INIT, 0, [1.0; 4]), version(1));
    for rank in [0, 1] {
        assert_eq!(world.pull(rank, 1), (1, vec![1.0; 4]));
    }
}

#[test]
fn an_init_of_a_part_that_has_a_value_changes_nothing_and_its_body_is_not_taken() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    let late = world.open(1, to_do(INIT, 0));
    assert_eq!((world.outcome(late), world.accepted.contains(&late)), (version(1), false));
    assert_eq!(world.pull(1, 1), (1, vec![1.0; 4]));
}

#[test]
fn of_two_inits_that_are_on_their_way_the_first_whole_one_counts() {
    let mut world = World::of(2);
    let [slow, fast] = [world.open(0, to_do(INIT, 0)), world.open(1, to_do(INIT, 0))];
    world.bring(slow, &floats([1.0; 4])[..9]);
    world.bring(fast, &floats([2.0; 4]));
    assert_eq!(world.outcome(fast), version(1));
    world.bring(slow, &floats([1.0; 4])[9..]);
    assert_eq!(world.outcome(slow), version(1));
    assert_eq!((world.pull(0, 1), world.booked()), ((1, vec![2.0; 4]), BYTES));
}

#[test]
fn a_push_adds_or_assigns_and_is_told_the_version_that_it_made() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(world.call(1, ADD, 0, [10.0; 4]), version(2));
    assert_eq!(world.pull(0, 1), (2, vec![11.0, 12.0, 13.0, 14.0]));
    assert_eq!(world.call(0, ASSIGN, 2, [7.0; 4]), version(3));
    assert_eq!(world.pull(1, 1), (3, vec![7.0; 4]));
}

#[test]
fn a_push_pull_gets_the_value_that_its_own_change_made() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let got = world.call(0, ADD_PULL, 1, [2.0; 4]);
    assert_eq!(got.value(), (2, vec![3.0; 4]));
    let got = world.call(0, Access::PushPull(Update::Assign), 2, [5.0; 4]);
    assert_eq!(got.value(), (3, vec![5.0; 4]));
}

#[test]
fn a_gradient_changes_the_value_by_the_rule_which_keeps_its_momentum_until_the_parameter_is_over() {
    let mut world = World::of(2);
    let by = |access, round| Use { rule: rule("sgd:lr=0.5,momentum=0.5"), ..to_do(access, round) };
    let call = |world: &mut World, rank, header: Use, body| {
        let exchange = world.open(rank, header);
        world.bring(exchange, &floats(body));
        world.outcome(exchange)
    };
    assert_eq!(call(&mut world, 0, by(INIT, 0), [1.0; 4]), version(1));
    assert_eq!(world.booked(), 2 * BYTES, "the value and its momentum");
    assert_eq!(call(&mut world, 1, by(STEP, 0), [2.0; 4]), version(2));
    // The momentum is 2, then 0.5 * 2 + 4.
    let got = call(&mut world, 0, by(Access::PushPull(Update::Step), 1), [4.0; 4]);
    assert_eq!(got.value(), (3, vec![1.0 - 1.0 - 2.5; 4]));
    assert_eq!(world.booked(), 2 * BYTES);
    // What is assigned or added takes the place of the value, and the momentum goes on.
    assert_eq!(call(&mut world, 1, by(ASSIGN, 1), [10.0; 4]), version(4));
    let got = call(&mut world, 0, by(Access::PushPull(Update::Step), 2), [0.0; 4]);
    assert_eq!(got.value(), (5, vec![10.0 - 1.25; 4]));
    world.node.handle_member(MemberEvent::Ended { keys: vec![part().key], below: 1 });
    world.settle();
    assert_eq!((world.booked(), world.store.values().len()), (0, 0));
}

#[test]
fn an_average_is_the_value_before_the_first_step_and_follows_steps_alone() {
    let mut world = World::of(2);
    let by = |access, round| Use { rule: rule("sgd:lr=0.5,ema=0.5,window=1"), ..to_do(access, round) };
    let call = |world: &mut World, rank, header: Use, body: [f32; 4]| {
        let exchange = world.open(rank, header);
        world.bring(exchange, &floats(body));
        world.outcome(exchange)
    };
    let averages = |world: &mut World, round| {
        [(Average::Ema, round), (Average::Window, round + 1)].map(|(average, round)| {
            let exchange = world.open(1, by(Access::PullAverage(average), round));
            world.outcome(exchange).value()
        })
    };
    call(&mut world, 0, by(INIT, 0), [8.0; 4]);
    assert_eq!(world.booked(), 5 * BYTES, "the value, one average, and three sums");
    assert_eq!(averages(&mut world, 0), [(1, vec![8.0; 4]), (1, vec![8.0; 4])]);
    call(&mut world, 0, by(STEP, 1), [8.0; 4]);
    assert_eq!(averages(&mut world, 2), [(2, vec![6.0; 4]), (2, vec![4.0; 4])], "the value is 4");
    call(&mut world, 0, by(ASSIGN, 2), [100.0; 4]);
    assert_eq!(averages(&mut world, 4), [(3, vec![6.0; 4]), (3, vec![4.0; 4])]);
    let got = call(&mut world, 0, by(Access::PushPull(Update::Step), 3), [0.0; 4]);
    assert_eq!(got.value(), (4, vec![100.0; 4]), "the value is not disturbed");
    assert_eq!(averages(&mut world, 6), [(4, vec![53.0; 4]), (4, vec![52.0; 4])]);
    assert_eq!(world.booked(), 5 * BYTES);
}

#[test]
fn a_gradient_that_comes_again_is_not_applied_again() {
    let mut world = World::of(1);
    let by = |access, round| Use { rule: rule("sgd:lr=1"), ..to_do(access, round) };
    for (header, body) in [(by(INIT, 0), [3.0; 4]), (by(STEP, 1), [1.0; 4]), (by(STEP, 1), [1.0; 4])] {
        let exchange = world.open(0, header);
        world.bring(exchange, &floats(body));
        world.outcome(exchange);
    }
    let exchange = world.open(0, by(Access::Pull, 2));
    assert_eq!(world.outcome(exchange).value(), (2, vec![2.0; 4]));
}

#[test]
fn integers_wrap_and_half_floats_are_rounded_once_a_push() {
    for (dtype, [first, delta, sum]) in [
        (DType::U8, [vec![250; 16], vec![10; 16], vec![4; 16]]),
        (DType::I64, [i64::MAX, 1, i64::MIN].map(|element| element.to_le_bytes().repeat(2))),
        // 1.0 and 2^-8: the sum lies half-way between two numbers of bf16, and the even one is 1.0.
        (DType::BF16, [[0x80, 0x3f], [0x80, 0x3b], [0x80, 0x3f]].map(|element| element.repeat(8))),
    ] {
        let mut world = World::of(1);
        for (access, round, body) in [(INIT, 0, first), (ADD, 1, delta)] {
            let exchange = world.open(0, Use { dtype, ..to_do(access, round) });
            world.bring(exchange, &body);
            world.outcome(exchange);
        }
        let exchange = world.open(0, Use { dtype, ..to_do(Access::Pull, 2) });
        assert_eq!(world.outcome(exchange).body(), sum, "{dtype}");
    }
}

#[test]
fn a_part_without_a_value_is_refused_to_whoever_does_not_initialise_it() {
    let mut world = World::of(2);
    let init = world.open(0, to_do(INIT, 0));
    world.bring(init, &floats([1.0; 4])[..4]);
    for access in [ADD, ASSIGN, Access::Pull, ADD_PULL] {
        let exchange = world.open(1, to_do(access, 0));
        let error = world.outcome(exchange).error();
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert!(error.to_string().contains("no worker has initialised it"), "{error}");
    }
    world.bring(init, &floats([1.0; 4])[4..]);
    assert_eq!(world.outcome(init), version(1), "it is not harmed");
}

#[test]
fn who_says_otherwise_of_a_part_hears_of_both_sides_and_the_part_is_not_harmed() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    let header = to_do(ADD, 0);
    for (field, first, second, other) in [
        ("dtype", "float32", "int32", Use { dtype: DType::I32, ..header }),
        ("length", "16 bytes", "8 bytes", Use { part_bytes: 8, ..header }),
        ("length", "16 bytes", "8 bytes", Use { part_bytes: 8, ..to_do(INIT, 0) }),
        ("length", "16 bytes", "24 bytes", Use { part_bytes: 24, ..to_do(Access::Pull, 0) }),
        ("rule", "none", "sgd:lr=0.5", Use { rule: rule("sgd:lr=0.5"), ..to_do(Access::Pull, 0) }),
    ] {
        let exchange = world.open(1, other);
        let Error::Mismatch { field: found, first: ours, second: theirs, .. } = world.outcome(exchange).error() else {
            panic!("{field}")
        };
        assert_eq!((found.as_str(), ours.value.as_str(), theirs.value.as_str()), (field, first, second));
        assert_eq!((ours.worker.0, theirs.worker.0), (0, 1));
    }
    assert_eq!((world.pull(1, 1), world.booked()), ((1, vec![1.0; 4]), BYTES));
}

#[test]
fn a_repeat_of_a_change_is_answered_and_not_done_again() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    world.call(0, ADD, 1, [1.0; 4]);
    world.call(1, ADD, 0, [1.0; 4]);
    let again = world.open(0, to_do(ADD, 1));
    assert_eq!((world.outcome(again), world.accepted.contains(&again)), (version(2), false), "that it made");
    let wants_value = world.open(0, to_do(ADD_PULL, 1));
    assert_eq!(world.outcome(wants_value).value(), (3, vec![3.0; 4]), "the present value with its own version");
    let overwritten = Use { sent: Sent::Nothing { checked: false }, ..to_do(ADD_PULL, 1) };
    let overwritten = world.open(0, overwritten);
    assert_eq!(world.outcome(overwritten).value(), (3, vec![3.0; 4]));
    let init = world.open(0, to_do(INIT, 0));
    assert_eq!(world.outcome(init).error().code(), Code::Aborted, "its later change is known");
}

#[test]
fn an_older_change_is_refused_and_gaps_between_uses_are_none() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    assert_eq!(world.call(0, ADD, 1 << 40, [1.0; 4]), version(2), "those between were cancelled");
    let old = world.open(0, to_do(ADD, 5));
    let Error::Protocol { field, problem, .. } = world.outcome(old).error() else { panic!("done twice") };
    assert_eq!((field.as_str(), problem.starts_with("is 5")), ("round", true), "{problem}");
    assert_eq!(world.pull(0, (1 << 40) + 1), (2, vec![2.0; 4]));
}

#[test]
fn a_change_that_was_overwritten_and_never_done_is_lost() {
    let mut world = World::of(1);
    let gone = |access, round| Use { sent: Sent::Nothing { checked: false }, ..to_do(access, round) };
    let init = world.open(0, gone(INIT, 0));
    assert_eq!(world.outcome(init).error().code(), Code::FailedPrecondition);
    world.call(0, INIT, 1, [1.0; 4]);
    let lost = world.open(0, gone(ADD_PULL, 2));
    let error = world.outcome(lost).error();
    assert!(error.to_string().contains("the change of worker 0 is lost"), "{error}");
    assert_eq!(world.pull(0, 3), (1, vec![1.0; 4]));
}

#[test]
fn a_body_that_breaks_off_changes_nothing_and_its_repeat_begins_anew() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let torn = world.open(0, to_do(ADD, 1));
    world.bring(torn, &floats([9.0; 4])[..15]);
    assert_eq!(world.booked(), 2 * BYTES);
    world.tear(torn);
    assert_eq!(world.booked(), BYTES);
    assert_eq!(world.call(0, ADD, 1, [1.0; 4]), version(2));
    assert_eq!(world.pull(0, 2), (2, vec![2.0; 4]));
}

#[test]
fn an_init_that_breaks_off_leaves_nothing() {
    let mut world = World::of(1);
    let torn = world.open(0, to_do(INIT, 0));
    world.bring(torn, &[0; 3]);
    world.tear(torn);
    assert_eq!((world.booked(), world.store.values().len()), (0, 0));
    let other = world.open(0, Use { dtype: DType::I32, ..to_do(INIT, 0) });
    world.bring(other, &[0; 16]);
    assert_eq!(world.outcome(other), version(1), "of another type than the one that broke off");
}

#[test]
fn a_damaged_body_changes_nothing() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let right = checksum(0, &floats([1.0; 4]));
    let whole = |checksum| Use { sent: Sent::Whole { checksum: Some(checksum) }, ..to_do(ADD_PULL, 1) };
    let damaged = world.open(0, whole(right ^ 1));
    world.bring(damaged, &floats([1.0; 4]));
    let error = world.outcome(damaged).error();
    assert!(matches!(&error, Error::Checksum { from, .. } if from == "worker 0"), "{error}");
    let again = world.open(0, whole(right));
    world.bring(again, &floats([1.0; 4]));
    assert_eq!(world.outcome(again).value(), (2, vec![2.0; 4]));
}

#[test]
fn a_value_is_followed_by_its_checksum_if_it_is_wanted() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    for checked in [true, false, true] {
        let pull = world.open(0, Use { sent: Sent::Nothing { checked }, ..to_do(Access::Pull, 1) });
        let Outcome::Answered { header, body, crc } = world.outcome(pull) else { panic!("refused") };
        let expected = if checked { checksum(0, &body) } else { 0 };
        assert_eq!((header.checksum, crc), (checked, expected));
    }
    let push = Use { sent: Sent::Whole { checksum: Some(checksum(0, &floats([1.0; 4]))) }, ..to_do(ADD, 2) };
    let push = world.open(0, push);
    world.bring(push, &floats([1.0; 4]));
    assert_eq!(world.outcome(push), version(2), "nothing follows a version");
}

#[test]
fn a_newer_exchange_of_a_worker_replaces_an_unfinished_one() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    let [old, other] = [world.open(0, to_do(ADD, 1)), world.open(1, to_do(ADD, 0))];
    world.bring(old, &floats([9.0; 4])[..15]);
    let new = world.open(0, to_do(ADD, 1));
    assert!(world.outcome(old).error().retryable());
    world.bring(old, &floats([9.0; 4])[15..]);
    world.bring(new, &floats([1.0; 4]));
    assert_eq!(world.outcome(new), version(2));
    world.bring(other, &floats([1.0; 4]));
    assert_eq!(world.outcome(other), version(3), "of another worker: it goes on");
    assert_eq!((world.pull(0, 2), world.booked()), ((3, vec![3.0; 4]), BYTES));
}

#[test]
fn an_answer_that_may_have_arrived_is_not_broken_off_by_the_next_use() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let first = world.open(0, to_do(Access::Pull, 1));
    let next = world.open(0, to_do(Access::Pull, 2));
    assert!(world.rejected.is_empty());
    let after = world.open(0, to_do(Access::Pull, 3));
    assert_eq!(world.rejected.keys().copied().collect::<Vec<_>>(), [first], "nobody asks for that any more");
    let stale = world.open(0, to_do(Access::Pull, 2));
    assert_eq!(world.outcome(stale).error().code(), Code::Aborted);
    assert_eq!(world.booked(), 3 * BYTES);
    [next, after].into_iter().for_each(|exchange| world.node.handle_answered(exchange));
    assert_eq!(world.booked(), BYTES);
}

#[test]
fn a_reader_gets_one_version_whatever_is_changed_meanwhile() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    let slow = world.open(0, to_do(Access::Pull, 1));
    for round in 0..3 {
        world.call(1, ADD, round, [1.0; 4]);
    }
    assert_eq!(world.outcome(slow).value(), (1, vec![1.0; 4]), "its blocks were not written");
    assert_eq!(world.pull(0, 2), (4, vec![4.0; 4]));
}

#[test]
fn booked_are_values_and_bodies_and_answers_until_they_were_handed_over() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 3 * BYTES);
    world.call(0, INIT, 0, [1.0; 4]);
    let [pull, push] = [world.open(0, to_do(Access::Pull, 1)), world.open(1, to_do(ADD_PULL, 0))];
    assert_eq!(world.booked(), 3 * BYTES);
    world.bring(push, &floats([1.0; 4]));
    assert_eq!(world.booked(), 3 * BYTES, "the answer's bytes took the place of the body's");
    let short = world.open(1, to_do(ADD, 1));
    let error = world.rejected.get(&short).expect("there is no memory").clone();
    assert_eq!((error.code(), error.retryable()), (Code::ResourceExhausted, true));
    assert_eq!(world.shortages, 1);
    assert_eq!(world.outcome(pull).value(), (1, vec![1.0; 4]));
    assert_eq!(world.booked(), 2 * BYTES);
    assert_eq!(world.outcome(push).value(), (2, vec![2.0; 4]));
    assert_eq!(world.booked(), BYTES);
    assert_eq!(world.call(1, ADD, 1, [1.0; 4]), version(3), "when it asks again");
    let torn = world.open(0, to_do(Access::Pull, 2));
    world.tear(torn);
    assert_eq!(world.booked(), BYTES);
}

#[test]
fn a_part_of_no_bytes_has_versions_too() {
    let mut world = World::of(1);
    let of = |access, round| Use { part_bytes: 0, ..to_do(access, round) };
    for (access, round, made) in [(INIT, 0, 1), (ADD_PULL, 1, 2), (Access::Pull, 2, 2)] {
        let exchange = world.open(0, of(access, round));
        assert_eq!(world.outcome(exchange), version(made), "{access}");
    }
}

#[test]
fn a_name_that_ends_or_fails_leaves_nothing_and_its_users_hear_why() {
    let key = part().key;
    for (event, code) in [
        (MemberEvent::Ended { keys: vec![key], below: 1 }, Code::FailedPrecondition),
        (MemberEvent::Forget { key, error: Error::Cancelled }, Code::Cancelled),
        (MemberEvent::Left, Code::Unavailable),
        (MemberEvent::View(view(3, 2, Phase::Running)), Code::Unavailable),
    ] {
        let mut world = World::of(2);
        world.call(0, INIT, 0, [1.0; 4]);
        let [pull, push] = [world.open(0, to_do(Access::Pull, 1)), world.open(1, to_do(ADD, 0))];
        world.node.handle_member(event);
        world.settle();
        let codes = [pull, push].map(|exchange| world.rejected[&exchange].code());
        assert_eq!((codes, world.booked(), world.store.values().len()), ([code; 2], 0, 0));
    }
}

#[test]
fn a_lost_worker_leaves_its_changes_and_its_bodies_and_its_place_in_the_ledger_go() {
    let mut world = World::of(3);
    world.call(2, INIT, 0, [1.0; 4]);
    world.call(2, ADD, 1, [1.0; 4]);
    world.call(0, ADD, 0, [1.0; 4]);
    let [under_way, other] = [world.open(2, to_do(ADD, 2)), world.open(0, to_do(ADD_PULL, 1))];
    world.bring(under_way, &floats([9.0; 4])[..8]);
    world.node.handle_member(MemberEvent::View(view(2, 2, Phase::Running)));
    world.settle();
    assert_eq!(world.outcome(under_way).error().code(), Code::Fenced);
    world.bring(under_way, &floats([9.0; 4])[8..]);
    world.bring(other, &floats([1.0; 4]));
    let Outcome::Answered { header, .. } = world.outcome(other) else { panic!("it goes on") };
    assert_eq!((header.effect.version, header.target.epoch), (Version(4), Epoch { number: 2, ..EPOCH }));
    let ledger = world.node.services.parameters.parts[&part()].ledger.keys().copied().collect::<Vec<_>>();
    assert_eq!(ledger, [node(0)]);
    let header = to_do(Access::Pull, 0);
    let target = Target { epoch: Epoch { number: 2, ..EPOCH }, ..header.target };
    let pull = world.open(1, Use { target, ..header });
    assert_eq!((world.outcome(pull).value(), world.booked()), ((4, vec![4.0; 4]), BYTES));
}

#[test]
fn a_server_that_drains_completes_what_was_begun_and_refuses_new_uses() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    world.call(0, ADD, 1, [1.0; 4]);
    let begun = world.open(1, to_do(ADD, 0));
    world.node.handle_drain();
    for access in [INIT, ADD, Access::Pull] {
        let new = world.open(0, to_do(access, 2));
        let error = world.outcome(new).error();
        assert!(error.to_string().contains("draining"), "{error}");
    }
    let repeat = world.open(0, to_do(ADD, 1));
    assert_eq!(world.outcome(repeat), version(2));
    world.bring(begun, &floats([1.0; 4]));
    assert!(!world.node.is_drained());
    assert_eq!(world.outcome(begun), version(3));
    assert!(world.node.is_drained(), "values do not hinder it");
}

#[test]
fn after_a_defect_of_a_lane_its_values_are_lost_and_nobody_waits() {
    let mut world = World::of(2);
    world.call(0, INIT, 0, [1.0; 4]);
    let begun = world.open(1, to_do(ADD, 0));
    let mut events = Vec::new();
    world.store.lose_all(&mut |event| events.push(event));
    world.hear(events);
    world.settle();
    let later = world.open(1, to_do(ADD, 1));
    for exchange in [begun, later] {
        let error = world.rejected.get(&exchange).expect("it cannot be done").to_string();
        assert!(error.contains("was lost"), "{error}");
    }
    let pull = world.open(0, to_do(Access::Pull, 1));
    assert!(world.outcome(pull).error().to_string().contains("was lost"));
}

pub(crate) const INIT: Access = Access::Init;

/// A node with its memory, behind links that lose nothing. Exchanges that were answered are open until [`World::outcome`] looks at them.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) store: Store,
    exchanges: u64,
    routes: BTreeMap<ExchangeId, Route>,
    told: VecDeque<Told>,
    /// What the store says reaches the node when [`World::deliver`] says so.
    pub(crate) is_slow: bool,
    /// What the coordinator is told of rounds that are clipped.
    pub(crate) measured: VecDeque<Squares>,
    pub(crate) accepted: BTreeSet<ExchangeId>,
    pub(crate) rejected: BTreeMap<ExchangeId, Error>,
    /// With the checksum, once it came.
    answers: BTreeMap<ExchangeId, (Value, Vec<Frozen>, Option<u32>)>,
    shortages: usize,
    /// What is to be written or read.
    pub(super) archives: Vec<Archive>,
    /// What the coordinator was told of its orders.
    pub(super) obeyed: Vec<(u64, gradlane_core::Result<Written>)>,
    /// Parts that were frozen, by order.
    pub(super) frozen: BTreeMap<(u64, PartId), FrozenPart>,
}

/// What a worker hears at the end of an exchange.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    Answered { header: Value, body: Vec<u8>, crc: u32 },
    Done(Effect),
    Rejected(Error),
}

impl Outcome {
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Rejected(error) => error,
            Self::Answered { .. } | Self::Done(_) => panic!("{self:?}"),
        }
    }

    fn body(self) -> Vec<u8> {
        match self {
            Self::Answered { body, .. } => body,
            Self::Rejected(_) | Self::Done(_) => panic!("{self:?}"),
        }
    }

    pub(crate) fn value(self) -> (u64, Vec<f32>) {
        match self {
            Self::Answered { header, body, .. } => {
                let (elements, _) = body.as_chunks::<4>();
                (header.effect.version.0, elements.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
            Self::Rejected(_) | Self::Done(_) => panic!("{self:?}"),
        }
    }
}

impl World {
    pub(crate) fn of(workers: u32) -> Self {
        Self::with(workers, |_| {})
    }

    pub(crate) fn with(workers: u32, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = NodeConfig { block_bytes_max: 8, block_bytes_min: 8, ..config() };
        change(&mut config);
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect: None };
        let mut world = Self {
            node: Node::new(config),
            store: Store::new(resources),
            exchanges: 0,
            routes: BTreeMap::new(),
            told: VecDeque::new(),
            is_slow: false,
            measured: VecDeque::new(),
            accepted: BTreeSet::new(),
            rejected: BTreeMap::new(),
            answers: BTreeMap::new(),
            shortages: 0,
            archives: Vec::new(),
            obeyed: Vec::new(),
            frozen: BTreeMap::new(),
        };
        let view: View = view(workers, 1, Phase::Running);
        world.node.handle_member(MemberEvent::View(view));
        (0..workers).for_each(|rank| world.node.handle_link_up(LinkId(rank.into()), node(rank)));
        world
    }

    /// A world whose server has this handle.
    pub(super) fn with_handle(workers: u32, handle: Arc<dyn Handle>) -> Self {
        let world = Self::of(workers);
        Self { store: world.store.with_handle(Some(handle)), ..world }
    }

    /// All workers have undeclared a name, with all parts below an index.
    pub(super) fn end_name(&mut self, key: TensorKey, below: u32) {
        self.node.handle_member(MemberEvent::Ended { keys: vec![key], below });
        self.settle();
    }

    /// A header arrives.
    pub(crate) fn open(&mut self, rank: u32, header: Use) -> ExchangeId {
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        self.node.handle_opened(now(), LinkId(rank.into()), exchange, &Request::Use(header));
        self.settle();
        exchange
    }

    /// The next bytes of a body arrive, if the server wants them.
    pub(crate) fn bring(&mut self, exchange: ExchangeId, bytes: &[u8]) {
        if let Some(route) = self.routes.get(&exchange).copied() {
            let mut events = Vec::new();
            self.store.receive(route, exchange, &[bytes], &mut |event| events.push(event));
            self.hear(events);
            self.settle();
        }
    }

    pub(crate) fn tear(&mut self, exchange: ExchangeId) {
        self.answers.remove(&exchange);
        self.node.handle_torn(exchange);
        self.settle();
    }

    /// The end of an exchange, which reaches its worker.
    pub(crate) fn outcome(&mut self, exchange: ExchangeId) -> Outcome {
        self.poll(exchange).expect("the exchange has no end")
    }

    pub(crate) fn poll(&mut self, exchange: ExchangeId) -> Option<Outcome> {
        if let Some(error) = self.rejected.get(&exchange) {
            return Some(Outcome::Rejected(error.clone()));
        }
        let (header, blocks, crc) = self.answers.remove(&exchange)?;
        self.node.handle_answered(exchange);
        self.settle();
        let crc = crc.expect("an answer is given whole");
        let body: Vec<u8> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
        assert_eq!(body.len() as u64, header.part_bytes);
        let is_version = header.part_bytes == 0;
        Some(if is_version { Outcome::Done(header.effect) } else { Outcome::Answered { header, body, crc } })
    }

    /// One use from its header to its end.
    pub(super) fn call(&mut self, rank: u32, access: Access, round: u64, elements: [f32; 4]) -> Outcome {
        let exchange = self.open(rank, to_do(access, round));
        self.bring(exchange, &floats(elements));
        self.outcome(exchange)
    }

    pub(super) fn pull(&mut self, rank: u32, round: u64) -> (u64, Vec<f32>) {
        let exchange = self.open(rank, to_do(Access::Pull, round));
        self.outcome(exchange).value()
    }

    pub(crate) fn booked(&self) -> u64 {
        self.node.progress().bytes_in_flight
    }

    /// Whether an answer was sent that nobody has taken.
    pub(crate) fn has_answer(&self, exchange: ExchangeId) -> bool {
        self.answers.contains_key(&exchange)
    }

    /// The driver, until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        self.obey();
        while !self.is_slow && self.deliver() {}
    }

    /// What the store has said next reaches the node; whether there was something.
    pub(crate) fn deliver(&mut self) -> bool {
        match self.told.pop_front() {
            Some(Told::Receipt { route, exchange, receipt }) => {
                self.node.handle_receipt(now(), route, exchange, receipt.into());
            }
            Some(Told::Squares { part, round, sum }) => self.node.handle_squares(part, round, sum),
            Some(Told::Served(_) | Told::Waits(_) | Told::Refused { .. }) => unreachable!("no table is used"),
            None => return false,
        }
        self.obey();
        true
    }

    fn obey(&mut self) {
        while let Some(command) = self.node.next_command() {
            self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Step(work) => {
                if let Some((exchange, route)) = work.receives() {
                    self.routes.insert(exchange, route);
                    self.accepted.insert(exchange);
                }
                let mut events = Vec::new();
                self.store.step(work, &mut |event| events.push(event));
                self.hear(events);
            }
            Command::Unroute { exchange } => {
                assert!(self.routes.remove(&exchange).is_some(), "a route ends once");
            }
            Command::Reject { exchange, error, .. } => {
                self.answers.remove(&exchange);
                assert!(self.rejected.insert(exchange, error).is_none(), "an exchange ends once");
            }
            Command::Short { .. } => self.shortages += 1,
            Command::Measured { squares } => self.measured.push_back(squares),
            Command::Grant { .. } => {}
            Command::Archive(archive) => self.archives.push(archive),
            Command::Obeyed { order, outcome } => self.obeyed.push((order, outcome)),
            Command::Accept { .. } | Command::Disconnect { .. } | Command::Stalled { .. } | Command::Timed { .. } => {
                panic!("{command:?}")
            }
        }
    }

    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Receipt { route, exchange, receipt } => {
                    self.told.push_back(Told::Receipt { route, exchange, receipt });
                }
                Event::Squares { part, round, sum } => self.told.push_back(Told::Squares { part, round, sum }),
                Event::Served(_) | Event::Waits(_) => unreachable!("no table is used"),
                Event::Frozen { order, part, frozen } => {
                    self.frozen.insert((order, part), frozen.expect("no defect is planted"));
                }
                Event::Send(Outgoing::Answer { exchange, header: Response::Value(header) }) => {
                    let before = self.answers.insert(exchange, (header, Vec::new(), None));
                    assert!(before.is_none(), "an exchange is answered once");
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    self.answers.get_mut(&exchange).expect("the answer was begun").1.push(block);
                }
                Event::Send(Outgoing::End { exchange, checksum }) => {
                    self.answers.get_mut(&exchange).expect("the answer was begun").2 = Some(checksum);
                }
                Event::Send(Outgoing::Reject { exchange, error, .. }) => {
                    self.rejected.insert(exchange, error);
                }
                Event::Send(other) => panic!("{other:?}"),
            }
        }
    }
}

/// A use of the part of 16 bytes, f32, with a body without a checksum if it has one.
pub(crate) fn to_do(access: Access, round: u64) -> Use {
    let target = Target { epoch: EPOCH, part: part(), round: Round(round) };
    let sent = if access.sends() { Sent::Whole { checksum: None } } else { Sent::Nothing { checked: false } };
    Use {
        target,
        dtype: DType::F32,
        access,
        urgency: 0,
        part_bytes: BYTES,
        rule: None,
        mode: Mode::ASYNC,
        clock_at: 0,
        basis: Version(0),
        key: None,
        sent,
    }
}

pub(crate) fn rule(text: &str) -> Option<Rule> {
    Some(text.parse().unwrap())
}

pub(crate) fn part() -> PartId {
    PartId { key: TensorKey(7), index: 0 }
}

pub(crate) fn floats(elements: [f32; 4]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

fn version(version: u64) -> Outcome {
    Outcome::Done(Effect::accepted(Version(version)))
}

fn now() -> Time {
    Time::ZERO + Duration::from_secs(1)
}
