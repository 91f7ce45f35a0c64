//! Exchanges that break off and are begun anew.

use super::*;

#[test]
fn a_repeat_brings_what_the_first_attempt_did_not() {
    let mut world = World::of(1);
    let torn = world.open(0, header(0));
    world.torn(torn);
    world.commands();
    let again = world.open(0, header(0));
    assert_eq!(received(&world.commands()), [again]);
    world.whole(again);
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn a_contribution_that_is_whole_counts_though_its_link_is_gone() {
    let mut world = World::of(2);
    let gone = world.open(0, header(0));
    world.torn(gone);
    world.whole(gone);
    let other = world.push(1, header(0));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![other], 1));
}

#[test]
fn a_repeat_of_a_counted_push_only_waits() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    world.torn(first);
    world.commands();
    let again = world.open(0, header(0));
    assert_eq!(world.commands(), [], "no body is wanted");
    let other = world.push(1, header(0));
    assert_eq!(answered(&world.commands()), [again, other]);
}

#[test]
fn the_later_of_two_waiting_exchanges_is_answered() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.commands();
    let again = world.open(0, resumed(0, 16));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "the older has ended");
    let other = world.push(1, header(0));
    assert_eq!(answered(&world.commands()), [again, other]);
}

#[test]
fn of_two_uploads_of_one_worker_the_later_is_read() {
    let mut world = World::of(2);
    let older = world.open(0, header(0));
    let newer = world.open(0, header(0));
    let commands = world.commands();
    assert_eq!((rejected(&commands), received(&commands)), (vec![Code::Unavailable], vec![older, newer]));
    world.whole(older);
    assert_eq!(world.progress().last, None, "it came after all, and is reported for the newer");
    world.whole(newer);
    assert!(world.progress().last.is_some());
}

#[test]
fn a_contribution_is_counted_once() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    world.whole(first);
    world.whole(first);
    assert_eq!(seals(&world.commands()), 0);
}

#[test]
fn a_published_sum_is_sent_again_to_whoever_asks_again() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.commands();
    let one = world.open(0, resumed(0, 16));
    let two = world.open(1, header(0));
    let commands = world.commands();
    assert_eq!((answered(&commands), received(&commands)), (vec![one, two], vec![]));
}

#[test]
fn nothing_is_remembered_of_exchanges_that_ended() {
    let mut world = World::of(2);
    for round in 0..10 {
        for exchange in world.everybody(header(round)) {
            world.node.handle_answered(exchange);
        }
    }
    assert_eq!(world.node.services.sums.exchanges.len(), 0);
    assert_eq!(world.progress().bytes_in_flight, 16, "the last sum stays");
}
