//! Submissions that no thread works at.

use super::*;
use crate::worker::Liveness;

#[test]
fn a_submission_whose_step_never_ends_is_stuck_after_the_bound() {
    let mut world = World::joined();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    world.worker.take(world.now, Stage::Push).unwrap();
    let bound = world.worker.answer_bound();
    let ask = |world: &World| world.worker.liveness(world.now, id..id + 1);
    assert_eq!(ask(&world), Liveness::Works { ask_in: bound });
    world.now = world.now + (bound - SECOND);
    assert_eq!(ask(&world), Liveness::Works { ask_in: SECOND });
    world.now = world.now + SECOND;
    assert_eq!(ask(&world), Liveness::Stuck);
}

#[test]
fn a_submission_that_rests_while_others_move_is_stuck_much_later() {
    let mut world = World::joined();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    world.worker.take(world.now, Stage::Push).unwrap();
    let other = world.submit("x");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let bound = world.worker.answer_bound();
    world.now = world.now + bound * 2;
    world.worker.take(world.now, Stage::Push).expect("the other one moves");
    assert_eq!(world.worker.liveness(world.now, id..id + 1), Liveness::Works { ask_in: bound });
    assert_eq!(world.worker.liveness(world.now, other..other + 1), Liveness::Works { ask_in: bound });
    world.now = world.now + bound * 6;
    assert_eq!(world.worker.liveness(world.now, id..id + 1), Liveness::Stuck);
}

#[test]
fn a_submission_whose_end_was_decided_and_not_told_is_stuck() {
    let mut world = World::joined();
    let id = world.submit("w");
    world.commands();
    world.worker.cancel(world.now, id);
    world.commands();
    assert_eq!(world.worker.liveness(world.now, id..id + 1), Liveness::Stuck);
}
