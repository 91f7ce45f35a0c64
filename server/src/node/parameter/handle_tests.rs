//! The specification of handles, one behaviour a test: what they are told, and what their failures cost.

use std::sync::{Arc, Mutex, PoisonError};

use gradlane_core::error::{Code, Error};
use gradlane_core::types::{Access, ExchangeId, KeyPart, PartId, TensorKey, Update};
use gradlane_core::wire::{Target, Use};

use super::tests::{Outcome, World, floats, part, to_do};
use crate::handle::{DefaultHandle, Failure, Handle, Request};

const ADD: Access = Access::Push(Update::Add);
const ADD_PULL: Access = Access::PushPull(Update::Add);

#[test]
fn a_handle_changes_keys_block_by_block_and_is_told_what_they_are() {
    let handle = Arc::new(Max::default());
    let mut world = World::with_handle(2, Arc::clone(&handle) as _);
    assert_eq!(push(&mut world, 1, 0, [1.0, -2.0, 3.0, -4.0]).value(), (2, vec![1.0, 0.0, 3.0, 0.0]));
    assert_eq!(push(&mut world, 0, 0, [2.0, 5.0, -1.0, 1.0]).value(), (3, vec![2.0, 5.0, 3.0, 1.0]));
    let told = handle.0.lock().unwrap_or_else(PoisonError::into_inner).join("; ");
    // The world has blocks of 8 bytes, and the part begins at byte 64 of the value.
    let expected = "worker 1 3/9 float32 16..18; worker 1 3/9 float32 18..20; worker 0 3/9 float32 16..18; worker 0 3/9 float32 18..20";
    assert_eq!(told, expected);
}

#[test]
fn an_answer_that_is_under_way_keeps_the_value_that_it_was_given() {
    let mut world = World::with_handle(2, Arc::new(Max::default()));
    push(&mut world, 0, 0, [1.0; 4]);
    let before = world.open(1, keyed(Access::Pull, 0));
    push(&mut world, 0, 1, [5.0; 4]);
    assert_eq!(world.outcome(before).value(), (2, vec![1.0; 4]));
}

#[test]
fn the_default_handle_does_what_a_server_without_one_does() {
    let values = [None, Some(Arc::new(DefaultHandle) as Arc<dyn Handle>)].map(|handle| {
        let mut world = handle.map_or_else(|| World::of(1), |handle| World::with_handle(1, handle));
        push(&mut world, 0, 0, [1.0, 2.0, 3.0, 4.0]);
        push(&mut world, 0, 1, [0.5; 4]).value()
    });
    assert_eq!(values[0], (3, vec![1.5, 2.5, 3.5, 4.5]));
    assert_eq!(values[0], values[1]);
}

#[test]
fn parameters_that_are_no_keys_and_what_is_assigned_do_not_concern_a_handle() {
    let handle = Arc::new(Max::default());
    let mut world = World::with_handle(1, Arc::clone(&handle) as _);
    world.call(0, Access::Init, 0, [1.0; 4]);
    world.call(0, ADD, 1, [-1.0; 4]);
    assert_eq!(world.pull(0, 2), (2, vec![0.0; 4]));
    world.call(0, Access::Push(Update::Assign), 3, [-7.0; 4]);
    assert_eq!(world.pull(0, 4), (3, vec![-7.0; 4]));
    assert!(handle.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
}

#[test]
fn a_handle_may_answer_pulls_with_something_else_and_the_value_stays() {
    let mut world = World::with_handle(1, Arc::new(Negated));
    assert_eq!(
        push(&mut world, 0, 0, [1.0, 2.0, 3.0, 4.0]).value(),
        (2, vec![-1.0, -2.0, 3.0, 4.0]),
        "its first block"
    );
    assert_eq!(push(&mut world, 0, 1, [1.0; 4]).value(), (3, vec![-2.0, -3.0, 4.0, 5.0]), "added to the value");
    assert_eq!(world.booked(), 16, "what was pulled was given back");
}

#[test]
fn a_handle_that_fails_or_panics_costs_the_value_of_that_part_and_nothing_else() {
    for (change, problem) in [(-1.0, "failed: no"), (-2.0, "panicked: never")] {
        let mut world = World::with_handle(2, Arc::new(Strict));
        push(&mut world, 0, 0, [1.0; 4]);
        let other = PartId { key: TensorKey(8), index: 1 };
        let of_other = |access, round| {
            let header = keyed(access, round);
            Use { target: Target { part: other, ..header.target }, ..header }
        };
        for (access, round) in [(Access::Init, 0), (ADD, 1)] {
            let exchange = world.open(0, of_other(access, round));
            world.bring(exchange, &floats([3.0; 4]));
            assert!(matches!(world.outcome(exchange), Outcome::Done(_)));
        }
        // The first block of the part is changed, the second one is not.
        let failed = use_of(&mut world, 1, ADD, 1, [1.0, 1.0, change, 1.0]);
        let error = refusal(&mut world, failed);
        let text = error.to_string();
        for expected in
            ["Strict", "push of worker 1", "elements 18 to 19", problem, "the value of part 0 of the key is lost"]
        {
            assert!(text.contains(expected), "{text}");
        }
        assert!(matches!(&error, Error::TensorState { tensor, .. } if *tensor == part().key.into()), "{error:?}");
        assert_eq!(error.code(), Code::FailedPrecondition);
        for (rank, access, round) in [(0, ADD, 2), (0, ADD_PULL, 3), (1, Access::Init, 2), (1, Access::Pull, 3)] {
            let exchange = use_of(&mut world, rank, access, round, [1.0; 4]);
            assert_eq!(refusal(&mut world, exchange), error, "{access}");
        }
        let pull = world.open(1, of_other(Access::Pull, 5));
        assert_eq!(world.outcome(pull).value(), (2, vec![6.0; 4]), "the lane and its other parts live");
        assert_eq!(world.booked(), 2 * 16, "nothing but the values is booked, one of them lost");
    }
}

#[test]
fn a_key_whose_handle_has_failed_begins_anew_when_its_name_has_ended() {
    let mut world = World::with_handle(1, Arc::new(Strict));
    push(&mut world, 0, 0, [1.0; 4]);
    let failed = use_of(&mut world, 0, ADD, 2, [-1.0; 4]);
    refusal(&mut world, failed);
    world.end_name(part().key, 1);
    let next = PartId { index: 1, ..part() };
    let init = Use { target: Target { part: next, ..to_do(Access::Init, 0).target }, ..to_do(Access::Init, 0) };
    let exchange = world.open(0, init);
    world.bring(exchange, &floats([0.0; 4]));
    assert!(matches!(world.outcome(exchange), Outcome::Done(_)));
}

#[test]
fn a_pull_that_fails_is_an_error_for_its_worker_alone() {
    for (rank, problem) in [(1, "failed: no pull"), (2, "it gives 3 bytes for 8"), (3, "panicked: no message")] {
        let mut world = World::with_handle(4, Arc::new(Picky));
        push_only(&mut world, 0, 0, [1.0; 4]);
        let pull = world.open(rank, keyed(Access::Pull, 0));
        let text = refusal(&mut world, pull).to_string();
        assert!(text.contains(problem) && text.contains(&format!("pull of worker {rank}")), "{text}");
        let pull = world.open(0, keyed(Access::Pull, 2));
        assert_eq!(world.outcome(pull).value(), (2, vec![1.0; 4]));
        assert_eq!(world.booked(), 16);
    }
}

/// Keeps the largest elements, and notes what it was told.
#[derive(Default)]
struct Max(Mutex<Vec<String>>);

impl Handle for Max {
    fn push(&self, request: &Request, value: &mut [u8], pushed: &[u8]) -> Result<(), Failure> {
        let Request { worker, app, key, dtype, elements, .. } = request;
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(format!("{worker} {app}/{key} {dtype} {elements:?}"));
        request.update(value, pushed, f32::max)
    }
}

/// Pulls get the first block with the other sign.
struct Negated;

impl Handle for Negated {
    fn pull(&self, request: &Request, value: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        if request.elements.start != 16 {
            return Ok(None);
        }
        let mut answer = value.to_vec();
        request.update(&mut answer, value, |_, element: f32| -element)?;
        Ok(Some(answer))
    }
}

/// Refuses what is negative.
struct Strict;

impl Handle for Strict {
    fn push(&self, request: &Request, value: &mut [u8], pushed: &[u8]) -> Result<(), Failure> {
        let mut refused = false;
        request.update(value, pushed, |value: f32, pushed| {
            assert!(pushed > -2.0, "never");
            refused |= pushed < 0.0;
            value + pushed
        })?;
        if refused { Err("no".into()) } else { Ok(()) }
    }
}

/// Only worker 0 may pull.
struct Picky;

impl Handle for Picky {
    fn pull(&self, request: &Request, _: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        match request.worker.0 {
            0 => Ok(None),
            1 => Err("no pull".into()),
            2 => Ok(Some(vec![0; 3])),
            _ => std::panic::panic_any(()),
        }
    }
}

/// A use of key 9 of app 3, of whose value the part begins at element 16.
fn keyed(access: Access, round: u64) -> Use {
    let key = Some(KeyPart { app: 3, key: 9, offset: 64 }).filter(|_| access.is_handled());
    Use { key, ..to_do(access, round) }
}

fn use_of(world: &mut World, rank: u32, access: Access, round: u64, elements: [f32; 4]) -> ExchangeId {
    let exchange = world.open(rank, keyed(access, round));
    world.bring(exchange, &floats(elements));
    exchange
}

/// A push_pull of the key, which begins with zeros.
fn push(world: &mut World, rank: u32, turn: u64, elements: [f32; 4]) -> Outcome {
    let init = use_of(world, rank, Access::Init, 10 * turn, [0.0; 4]);
    world.outcome(init);
    let exchange = use_of(world, rank, ADD_PULL, 10 * turn + 1, elements);
    world.outcome(exchange)
}

fn push_only(world: &mut World, rank: u32, round: u64, elements: [f32; 4]) {
    for (access, round, elements) in [(Access::Init, round, [0.0; 4]), (ADD, round + 1, elements)] {
        let exchange = use_of(world, rank, access, round, elements);
        assert!(matches!(world.outcome(exchange), Outcome::Done(_)));
    }
}

fn refusal(world: &mut World, exchange: ExchangeId) -> Error {
    let error = world.outcome(exchange).error();
    // A store's reject ends its exchange, as any answer does.
    world.tear(exchange);
    error
}
