//! One sends, all receive.

use super::*;

#[test]
fn receivers_send_no_body_and_all_wait_for_each_other() {
    let mut world = World::of(3);
    let one = world.open(1, receiver(0));
    assert_eq!(steps(&world.commands()).count(), 1, "the round begins");
    let root = world.push(0, broadcast(0));
    assert_eq!(answered(&world.commands()), [], "rank 2 has not come");
    let two = world.open(2, receiver(0));
    let commands = world.commands();
    assert!(commands.contains(&step(Step::Publish { divisor: 1.0, residual: None })));
    assert_eq!(answered(&commands), [one, root, two]);
}

#[test]
fn a_root_hears_of_receivers_that_do_not_come() {
    let mut world = World::of(3);
    world.push(0, broadcast(0));
    world.open(2, receiver(0));
    world.pass(Duration::from_secs(60));
    let commands = world.commands();
    let missing: Vec<_> = errors(&commands)
        .map(|error| matches!(error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]))
        .collect();
    assert_eq!(missing, [true; 2]);
}

#[test]
fn a_body_of_a_receiver_and_a_root_without_one_break_the_protocol() {
    let mut world = World::of(2);
    world.open(1, broadcast(0));
    world.open(0, receiver(0));
    assert_eq!(rejected(&world.commands()), [Code::Aborted; 2]);
}

#[test]
fn a_root_that_does_not_exist_is_an_error_on_every_worker() {
    let mut world = World::of(2);
    for rank in 0..2 {
        world.open(rank, Contribute { op: Op::Broadcast { root: WorkerId(9) }, ..receiver(0) });
    }
    assert_eq!(rejected(&world.commands()), [Code::InvalidArgument; 2]);
}

#[test]
fn whoever_does_not_wait_for_a_broadcast_ends_it_for_all() {
    for (hasty, patient) in [(0, 1), (1, 0)] {
        let header = |rank, round| if rank == 0 { broadcast(round) } else { receiver(round) };
        let mut world = World::of(2);
        world.push(patient, header(patient, 0));
        world.open(hasty, header(hasty, 1));
        let commands = world.commands();
        let blamed =
            matches!(errors(&commands).next(), Some(Error::Stalled { missing, .. }) if *missing == [WorkerId(hasty)]);
        assert!(blamed, "{commands:?}");
    }
}
