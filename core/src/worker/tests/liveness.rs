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
    let bound = world.worker.settings.bounds.call;
    let ask = |world: &World| world.worker.liveness(world.now, id..id + 1, Time::ZERO);
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
    let bound = world.worker.settings.bounds.call;
    world.now = world.now + bound * 2;
    world.worker.take(world.now, Stage::Push).expect("the other one moves");
    assert_eq!(world.worker.liveness(world.now, id..id + 1, Time::ZERO), Liveness::Works { ask_in: bound });
    assert_eq!(world.worker.liveness(world.now, other..other + 1, Time::ZERO), Liveness::Works { ask_in: bound });
    world.now = world.now + bound * 6;
    assert_eq!(world.worker.liveness(world.now, id..id + 1, Time::ZERO), Liveness::Stuck);
}

#[test]
fn a_submission_whose_end_was_decided_and_not_told_is_stuck() {
    let mut world = World::joined();
    let id = world.submit("w");
    world.commands();
    world.worker.cancel(world.now, id);
    world.commands();
    assert_eq!(world.worker.liveness(world.now, id..id + 1, Time::ZERO), Liveness::Stuck);
}

#[test]
fn what_moves_among_the_ranks_of_a_host_counts() {
    let mut world = World::joined();
    let id = world.submit("w");
    world.commands();
    let bound = world.worker.settings.bounds.call;
    let began = world.now;
    world.now = began + bound;
    assert_eq!(world.worker.liveness(world.now, id..id + 1, Time::ZERO), Liveness::Stuck);
    let elsewhere = began + (bound - SECOND);
    let ask_in = bound - SECOND;
    assert_eq!(world.worker.liveness(world.now, id..id + 1, elsewhere), Liveness::Works { ask_in });
}

#[test]
fn the_time_of_a_submission_on_a_device_begins_when_the_device_has_come_to_it() {
    let mut world = World::joined();
    let on_device = world.submit_with("w", Some(Ordinal(0)), None);
    let on_host = world.submit("x");
    world.commands();
    let bound = world.worker.settings.bounds.call;
    let ask = |world: &World, id: u64| world.worker.liveness(world.now, id..id + 1, Time::ZERO);
    // However long it has other work to do.
    for _ in 0..20 {
        world.now = world.now + bound;
        assert_eq!(ask(&world, on_device), Liveness::Stuck, "nobody has looked at the device");
        world.worker.handle_device_behind(world.now);
        assert_eq!(ask(&world, on_device), Liveness::Works { ask_in: bound });
        assert_eq!(ask(&world, on_host), Liveness::Stuck, "it waits for no device");
    }
    world.now = world.now + bound;
    assert_eq!(ask(&world, on_device), Liveness::Stuck, "the device has come to it, and the engine does nothing");
}
