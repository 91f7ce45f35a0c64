//! One sends, all receive.

use super::*;

#[test]
fn receivers_send_no_body_and_wait_for_the_root() {
    let mut world = World::of(3);
    let one = world.open(1, receiver(0));
    assert_eq!(steps(&world.commands()).count(), 1, "the round begins");
    let root = world.push(0, broadcast(0));
    let commands = world.commands();
    assert!(commands.contains(&step(Step::Publish { divisor: 1.0 })));
    assert_eq!(answered(&commands), [one, root], "rank 2 need not have come");
    let late = world.open(2, receiver(0));
    assert_eq!(answered(&world.commands()), [late]);
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
fn a_root_two_rounds_ahead_of_a_receiver_is_asked_to_come_back() {
    let mut world = World::of(2);
    world.push(0, broadcast(0));
    world.push(0, broadcast(1));
    world.commands();
    world.open(0, broadcast(2));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    world.open(1, receiver(0));
    world.open(1, receiver(1));
    world.commands();
    let exchange = world.open(0, broadcast(2));
    assert_eq!(received(&world.commands()), [exchange]);
}
