//! Which rounds may be alive.

use super::*;

#[test]
fn a_sum_is_kept_while_a_slow_worker_may_ask_for_it() {
    let mut world = World::of(2);
    let answers = world.everybody(header(0));
    world.torn(answers[1]);
    world.push(0, header(1));
    world.commands();
    let slow = world.open(1, header(0));
    let commands = world.commands();
    assert_eq!(answered(&commands), [slow]);
    assert!(matches!(commands[0], Command::Step(Work::Sum { slot: of, .. }) if of == slot(0)), "and not of round 1");
}

#[test]
fn a_sum_goes_when_all_reached_the_next_round() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.push(0, header(1));
    assert!(!world.commands().contains(&drops(0)));
    world.push(1, header(1));
    assert!(world.commands().contains(&drops(0)));
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "over");
}

#[test]
fn a_worker_cannot_push_a_round_without_having_the_sum_before() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.push(0, header(1));
    world.commands();
    world.open(0, header(2));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "it may have given up waiting for round 1");
    world.open(0, header(u64::MAX));
    assert_eq!(rejected(&world.commands()), [Code::Aborted], "a protocol error");
}

#[test]
fn a_round_that_a_worker_gave_up_fails_at_once_for_those_who_wait() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.push(0, header(1));
    world.commands();
    assert_eq!(world.node.waiting_rounds(), 1);
    world.open(1, header(2));
    let commands = world.commands();
    assert!(
        errors(&commands)
            .any(|error| matches!(error, Error::Stalled { round: Round(1), missing, .. } if *missing == [WorkerId(1)]))
    );
    assert!(world.nobody_waits());
}

#[test]
fn a_worker_that_gave_up_rounds_before_anybody_came_to_them_is_waited_for_in_none() {
    let mut world = World::of(2);
    let answers = world.everybody(header(0));
    answers.into_iter().for_each(|exchange| world.node.handle_answered(exchange));
    world.commands();
    world.open(1, header(3));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "the other is not there yet");
    for round in [1, 2] {
        world.open(0, header(round));
        assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded], "worker 1 gave it up");
    }
    let answers = world.everybody(header(3));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn who_goes_far_ahead_lets_the_sums_of_all_rounds_before_go() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.everybody(header(1));
    world.push(0, header(2));
    world.commands();
    world.open(1, header(4));
    let commands = world.commands();
    assert!(commands.contains(&drops(1)), "all came to round 2 or gave it up");
    assert_eq!(rejected(&commands), [Code::DeadlineExceeded, Code::Unavailable]);
}

#[test]
fn when_all_gave_a_round_up_the_next_can_be_summed() {
    let mut world = World::of(2);
    world.everybody(header(0));
    let given_up = world.open(0, header(1));
    world.torn(given_up);
    world.open(0, header(2));
    world.open(1, header(2));
    world.commands();
    let answers = world.everybody(header(2));
    let answered = answered(&world.commands());
    assert!(answers.iter().all(|exchange| answered.contains(exchange)));
}

#[test]
fn a_worker_that_never_comes_holds_the_others_up_for_one_step_timeout() {
    let mut world = World::of(2);
    world.everybody(header(0));
    let given_up = world.push(0, header(1));
    world.pass(Duration::from_secs(60));
    world.torn(given_up);
    world.commands();
    world.open(0, header(2));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 1 may ask for the sum of round 0");
    world.pass(Duration::from_secs(60));
    let exchange = world.open(0, header(2));
    assert_eq!(received(&world.commands()), [exchange]);
}

#[test]
fn the_last_round_of_all_has_no_successor() {
    let mut world = World::beginning_at(u64::MAX);
    let last = world.push(0, header(u64::MAX));
    assert_eq!(answered(&world.commands()), [last]);
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::Aborted], "nobody contributes to it");
}

#[test]
fn a_part_begins_with_the_first_round_of_the_view() {
    for first in [0, 7] {
        let mut world = World::beginning_at(first);
        for (round, code) in [(u64::MAX, Code::Aborted), (1_000_000_000, Code::Aborted), (first + 1, Code::Unavailable)]
        {
            world.open(0, header(round));
            assert_eq!(rejected(&world.commands()), [code], "round {round} of a part that begins with {first}");
        }
        let mut world = World::beginning_at(first);
        world.open(0, in_part(1, header(u64::MAX)));
        world.commands();
        let exchange = world.push(0, in_part(1, header(first)));
        assert_eq!(answered(&world.commands()), [exchange], "what was refused left nothing behind");
    }
}

#[test]
fn a_receiver_that_goes_on_before_the_first_broadcast_waits_for_it_and_ends_it() {
    let mut world = World::of(3);
    world.open(1, header(1));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    world.open(0, broadcast(0));
    world.open(2, receiver(0));
    assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded; 2]);
    let answers = world.everybody(header(1));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn a_first_round_to_which_nobody_comes_holds_the_next_up_for_one_step_timeout() {
    let mut world = World::of(2);
    world.open(1, header(1));
    world.pass(Duration::from_secs(60));
    let exchange = world.open(1, header(1));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    let other = world.push(0, header(1));
    world.whole(exchange);
    assert_eq!(answered(&world.commands()), [exchange, other]);
}

#[test]
fn a_round_that_one_worker_skipped_ends_when_all_went_on() {
    let mut world = World::of(2);
    let given_up = world.push(0, header(0));
    world.torn(given_up);
    let skipper = world.push(1, header(1));
    let other = world.push(0, header(1));
    let commands = world.commands();
    assert!(commands.contains(&drops(0)));
    assert_eq!(answered(&commands), [skipper, other]);
    assert!(world.nobody_waits());
}

#[test]
fn parts_are_independent() {
    let mut world = World::of(1);
    world.everybody(header(0));
    world.everybody(header(1));
    let exchange = world.push(0, in_part(1, header(0)));
    assert!(answered(&world.commands()).contains(&exchange));
}

#[test]
fn the_round_before_the_last_of_all_has_no_successor_two_rounds_on() {
    let mut world = World::beginning_at(u64::MAX - 1);
    world.push(0, header(u64::MAX - 1));
    let last = world.push(0, header(u64::MAX));
    assert!(answered(&world.commands()).contains(&last));
    world.open(0, header(u64::MAX - 1));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "over");
}
