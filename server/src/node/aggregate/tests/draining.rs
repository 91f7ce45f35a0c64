//! How a server stops gently.

use super::*;

#[test]
fn a_round_that_was_begun_is_completed_and_one_that_was_not_is_refused() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    world.node.handle_drain();
    let second = world.push(1, header(0));
    assert_eq!(answered(&world.commands()), [first, second]);
    world.open(0, header(1));
    assert_eq!(errors(&world.commands()).collect::<Vec<_>>(), [&refusal()]);
}

#[test]
fn it_is_over_when_every_answer_has_arrived() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    assert!(!world.node.is_drained(), "nobody asked for it");
    world.node.handle_drain();
    assert!(!world.node.is_drained(), "a contribution is missing");
    let second = world.push(1, header(0));
    world.node.handle_answered(first);
    assert!(!world.node.is_drained(), "one has no answer yet");
    world.node.handle_answered(second);
    assert!(world.node.is_drained());
}

#[test]
fn an_idle_server_is_drained_at_once() {
    let mut world = World::of(2);
    for exchange in world.everybody(header(0)) {
        world.node.handle_answered(exchange);
    }
    world.node.handle_drain();
    assert!(world.node.is_drained());
}

#[test]
fn a_broadcast_waits_for_those_who_have_not_asked_for_it() {
    let mut world = World::of(2);
    let root = world.push(0, broadcast(0));
    world.node.handle_drain();
    assert!(!world.node.is_drained());
    let other = world.open(1, receiver(0));
    assert_eq!(answered(&world.commands()), [root, other]);
    world.node.handle_answered(root);
    world.node.handle_answered(other);
    assert!(world.node.is_drained());
}

#[test]
fn who_would_have_to_come_back_later_is_refused_too() {
    let mut world = World::of(2);
    for round in [0, 1] {
        world.push(0, broadcast(round));
    }
    world.commands();
    world.open(0, broadcast(2));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 1 is behind");
    world.node.handle_drain();
    world.open(0, broadcast(2));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
}

fn refusal() -> Error {
    let hint = "it was asked to stop; start the job again when its servers stay";
    Error::FailedPrecondition { what: "the server is draining".to_owned(), hint: hint.to_owned() }
}
