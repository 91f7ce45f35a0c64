//! Learning rates that operators change, one behaviour a test.

use gradlane_core::cluster::MemberEvent;
use gradlane_core::types::{Access, ClockKey, Closing, Half, Update, WorkerId};
use gradlane_core::wire::Use;

use super::tests::{INIT, World, floats, part, rule, to_do};

const STEP: Access = Access::PushPull(Update::Step);

#[test]
fn a_round_has_the_rate_of_its_global_step() {
    let mut world = World::of(1);
    let by = |access, round, clock_at| Use { clock_at, ..timed("sync", access, round) };
    call(&mut world, by(INIT, 0, 0));
    world.node.handle_rate(part().key, Some(2), 0.5).unwrap();
    world.node.handle_rate(part().key, Some(4), 0.25).unwrap();
    for (round, value) in [(1, 0.0), (2, -0.5), (3, -1.0), (4, -1.25), (5, -1.5)] {
        call(&mut world, by(Access::Push(Update::Step), 2 * round, round));
        close(&mut world, round);
        assert_eq!(call(&mut world, by(Access::Pull, 2 * round + 1, round)), [value; 4], "after round {round}");
    }
}

#[test]
fn a_change_without_a_clock_has_the_new_rate_at_once_and_its_header_the_old_rule() {
    let mut world = World::of(1);
    let by = |access, round| Use { rule: rule("sgd:lr=1"), ..to_do(access, round) };
    call(&mut world, by(INIT, 0));
    assert_eq!(call(&mut world, by(STEP, 1)), [0.0; 4]);
    world.node.handle_rate(part().key, None, 0.5).unwrap();
    assert_eq!(call(&mut world, by(STEP, 2)), [-0.5; 4]);
    world.node.handle_rate(part().key, None, 2.0).unwrap();
    assert_eq!(call(&mut world, by(STEP, 3)), [-2.5; 4]);
}

#[test]
fn a_change_by_an_asynchronous_clock_has_the_rate_of_the_step_that_its_worker_knows() {
    let mut world = World::of(1);
    let by = |access, round, clock_at| Use { clock_at, ..timed("async", access, round) };
    call(&mut world, by(INIT, 0, 0));
    world.node.handle_rate(part().key, Some(3), 0.5).unwrap();
    for (round, value) in [(1, 0.0), (2, -1.0), (3, -1.5)] {
        assert_eq!(call(&mut world, by(STEP, round, round - 1)), [value; 4], "step {round}");
    }
}

#[test]
fn a_schedule_goes_on_from_the_new_rate() {
    let mut world = World::of(1);
    let by = |access, round| Use { rule: rule("sgd:lr=1,schedule=step,every=2,gamma=0.5"), ..to_do(access, round) };
    call(&mut world, by(INIT, 0));
    world.node.handle_rate(part().key, None, 4.0).unwrap();
    for (round, value) in [(1, -3.0), (2, -7.0), (3, -9.0), (4, -11.0)] {
        assert_eq!(call(&mut world, by(STEP, round)), [value; 4]);
    }
}

#[test]
fn a_rate_ends_with_its_parameter() {
    let mut world = World::of(1);
    let by = |access, round| Use { rule: rule("sgd:lr=1"), ..to_do(access, round) };
    call(&mut world, by(INIT, 0));
    world.node.handle_rate(part().key, None, 0.5).unwrap();
    world.node.handle_member(MemberEvent::Forget { key: part().key, error: gradlane_core::Error::Cancelled });
    world.settle();
    world.node.handle_rate(part().key, None, 0.5).unwrap();
    world.node.handle_member(MemberEvent::Ended { keys: vec![part().key], below: 1 });
    world.settle();
    let mut again = by(INIT, 0);
    again.target.part.index = 1;
    call(&mut world, again);
    let mut step = by(STEP, 1);
    step.target.part.index = 1;
    assert_eq!(call(&mut world, step), [0.0; 4]);
}

fn timed(text: &str, access: Access, round: u64) -> Use {
    let mode = text.parse::<gradlane_core::types::Mode>().unwrap().with_clock(ClockKey(7));
    Use { rule: rule("sgd:lr=1"), mode, ..to_do(access, round) }
}

/// Brings ones, if something is brought; returns the value, if it comes.
fn call(world: &mut World, header: Use) -> Vec<f32> {
    let brings = header.access != Access::Pull;
    let exchange = world.open(0, header);
    if brings {
        world.bring(exchange, &floats([1.0; 4]));
    }
    let outcome = world.outcome(exchange);
    if header.access.receives() { outcome.value().1 } else { Vec::new() }
}

fn close(world: &mut World, round: u64) {
    let workers = [WorkerId(0)].into_iter().collect();
    let half = Half::Workers { workers, clips: false, samples: 0 };
    world.node.handle_member(MemberEvent::Close(Closing { clock: ClockKey(7), round, half }));
    world.settle();
}
