//! What a round costs, and what happens when there is too little.

use super::*;

#[test]
fn what_does_not_fit_is_refused_before_it_is_received_and_fits_later() {
    let mut world = World::with(1, |config| config.memory_bytes_max = 48);
    let large = Contribute { dtype: DType::BF16, ..header(0) };
    let second = in_part(1, header(0));
    let first = world.open(0, large);
    assert_eq!(world.progress().bytes_in_flight, 32, "half-size floats are added in full-size ones");
    world.open(0, sized(20, second));
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
    world.whole(first);
    world.commands();
    let exchange = world.open(0, sized(20, second));
    assert_eq!(received(&world.commands()), [exchange], "the sum is half as large");
}

#[test]
fn a_begun_round_can_take_every_contribution() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 16);
    let answers = world.everybody(header(0));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn memory_that_never_becomes_free_is_an_error_that_is_not_repeated() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    for (seconds, code) in [(0, Code::ResourceExhausted), (119, Code::ResourceExhausted), (1, Code::FailedPrecondition)]
    {
        world.pass(Duration::from_secs(seconds));
        world.open(0, sized(36, header(0)));
        assert_eq!(rejected(&world.commands()), [code]);
    }
}

#[test]
fn a_round_that_made_room_in_vain_can_be_followed_by_another() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 48);
    world.everybody(header(0));
    world.open(0, header(3));
    world.pass(Duration::from_secs(60));
    world.open(0, sized(64, header(3)));
    world.commands();
    let exchange = world.open(0, header(3));
    assert_eq!(received(&world.commands()), [exchange]);
}

#[test]
fn a_sum_that_nobody_reads_any_more_is_freed_after_a_step_timeout() {
    let mut world = World::of(2);
    let [first, second] = world.everybody(header(0))[..] else { panic!("two workers") };
    world.node.handle_answered(first);
    for half_minutes in 0..5 {
        assert_eq!(world.progress().bytes_in_flight, 16, "{half_minutes}: one worker still reads it");
        world.pass(Duration::from_secs(30));
    }
    world.node.handle_answered(second);
    world.commands();
    for (freed, booked) in [(vec![], 16), (vec![], 16), (vec![drops(0)], 0)] {
        world.pass(Duration::from_secs(30));
        assert_eq!((world.commands(), world.progress().bytes_in_flight), (freed, booked));
    }
    assert_eq!(world.node.poll_timeout(), None, "there is nothing to look at any more");
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "too late");
    let next = world.everybody(header(1));
    assert_eq!(answered(&world.commands()), next, "the name can be used again");
}

#[test]
fn who_asks_again_in_time_finds_the_sum() {
    let mut world = World::of(1);
    let lost = world.push(0, header(0));
    world.torn(lost);
    for _ in 0..2 {
        world.pass(Duration::from_secs(60));
        world.commands();
        let again = world.open(0, header(0));
        assert_eq!(answered(&world.commands()), [again]);
        world.node.handle_answered(again);
    }
}

#[test]
fn two_rounds_of_a_part_are_all_that_is_ever_kept() {
    let mut world = World::of(3);
    for round in 0..10 {
        world.everybody(header(round));
        assert!(world.progress().bytes_in_flight <= 2 * 16);
    }
}

#[test]
fn in_rank_order_every_rank_but_the_first_has_room_of_its_own() {
    let mut world = World::with(3, |config| (config.deterministic, config.memory_bytes_max) = (true, 63));
    world.open(1, sized(24, in_part(1, header(0))));
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted], "two times 24 beside the sum");
    let late = world.push(2, header(0));
    world.open(2, in_part(1, header(0)));
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
    let [zero, one] = [0, 1].map(|rank| world.push(rank, header(0)));
    assert_eq!(answered(&world.commands()), [late, zero, one]);
}
