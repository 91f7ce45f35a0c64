//! Who is late in a round, and why.

use gradlane_core::types::{Cause, Late, Wait, Waited};

use super::callers::{on_machines, owner};
use super::survivors::next_epoch;
use super::*;
use crate::node::command::Added;

#[test]
fn the_last_worker_is_late_for_as_long_as_only_it_was_missing() {
    // When each rank's header came, and its last byte; the last rank, and its delay by submit and transfer.
    for (came, expected) in [
        ([(0, 1), (0, 2), (9, 9)], (2, 7, 0)),
        ([(0, 1), (0, 2), (0, 9)], (2, 0, 7)),
        ([(0, 1), (0, 2), (5, 9)], (2, 3, 4)),
        ([(8, 9), (0, 2), (3, 4)], (0, 4, 1)),
        // Two come at the same time: nobody was waited for alone.
        ([(0, 1), (5, 9), (9, 9)], (2, 0, 0)),
    ] {
        let mut world = World::of(3);
        let timed = play(&mut world, &came, |_| Waited::default());
        let (rank, submit, transfer) = expected;
        let late = Some((WorkerId(rank), late(&[(Cause::Submit, submit), (Cause::Transfer, transfer)])));
        assert_eq!(timed, [(millis(9), late)], "{came:?}");
    }
}

#[test]
fn what_the_part_waited_for_in_its_worker_is_no_late_submission() {
    let mut world = World::of(2);
    let waited = |rank| match rank {
        1 => Waited { device: wait(1), queue: wait(2), credit: wait(3) },
        _ => Waited { device: Wait::MAX, ..Waited::default() },
    };
    let timed = play(&mut world, &[(0, 0), (10, 14)], waited);
    let expected =
        [(Cause::Submit, 4), (Cause::Device, 1), (Cause::Queue, 2), (Cause::Credit, 3), (Cause::Transfer, 4)];
    assert_eq!(timed, [(millis(14), Some((WorkerId(1), late(&expected))))]);
}

#[test]
fn a_server_that_is_behind_with_its_additions_is_no_slow_transfer() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.now = at(1);
    let last = world.open(1, header(0));
    world.now = at(9);
    let (slot, worker) = world.exchanges[&last];
    let added = Added { receipt: Receipt::Whole, behind: millis(6) };
    world.node.handle_receipt(world.now, Route::Sum { slot, worker }, last, added);
    let expected = late(&[(Cause::Submit, 1), (Cause::Transfer, 2), (Cause::Sum, 6)]);
    assert_eq!(timed(&mut world), [(millis(9), Some((WorkerId(1), expected)))]);
}

#[test]
fn nobody_waits_for_the_only_worker() {
    let mut world = World::of(1);
    assert_eq!(play(&mut world, &[(0, 5)], |_| Waited::default()), [(millis(5), None)]);
}

#[test]
fn a_contribution_that_is_repeated_came_with_its_first_byte() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.now = at(2);
    let torn = world.open(1, said(Waited { queue: wait(1), ..Waited::default() }));
    world.torn(torn);
    world.now = at(7);
    let again = world.open(1, said(Waited { queue: Wait::MAX, ..Waited::default() }));
    world.now = at(9);
    world.whole(again);
    let expected = [(Cause::Submit, 1), (Cause::Queue, 1), (Cause::Transfer, 7)];
    assert_eq!(timed(&mut world), [(millis(9), Some((WorkerId(1), late(&expected))))]);
}

#[test]
fn a_counted_worker_that_asks_again_is_counted_once() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    world.now = at(3);
    world.torn(first);
    world.open(0, header(0));
    world.now = at(5);
    world.push(1, header(0));
    world.open(1, header(0));
    let expected = late(&[(Cause::Submit, 5)]);
    assert_eq!(timed(&mut world), [(millis(5), Some((WorkerId(1), expected)))]);
}

#[test]
fn after_a_lost_worker_a_round_is_timed_anew() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.push(2, header(0));
    world.now = at(50);
    world.view(2, 2, Phase::Running);
    world.now = at(60);
    world.push(0, next_epoch(header(0)));
    world.now = at(64);
    world.push(1, next_epoch(header(0)));
    let expected = late(&[(Cause::Submit, 4)]);
    assert_eq!(timed(&mut world), [(millis(4), Some((WorkerId(1), expected)))]);
}

#[test]
fn a_round_without_a_sum_blames_nobody() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.now = at(9);
    world.withdraw(1, header(0), &Error::Cancelled);
    assert_eq!(timed(&mut world), []);
    assert!(world.nobody_waits(), "the round has failed");
}

#[test]
fn the_worker_that_brings_the_sum_of_a_machine_is_named_for_it() {
    let mut world = on_machines(&[7, 7, 8], |_| {});
    let first = owner(&world, 0);
    world.push(2, header(0));
    world.now = at(6);
    let waited = Waited { device: wait(2), ..Waited::default() };
    world.push(first, said(waited));
    let expected = late(&[(Cause::Submit, 4), (Cause::Device, 2)]);
    assert_eq!(timed(&mut world), [(millis(6), Some((WorkerId(first), expected)))]);
}

#[test]
fn who_only_receives_a_broadcast_comes_with_its_question() {
    let mut world = World::of(2);
    world.push(0, broadcast(0));
    world.now = at(5);
    world.open(1, Contribute { waited: Waited { queue: wait(2), ..Waited::default() }, ..receiver(0) });
    let expected = late(&[(Cause::Submit, 3), (Cause::Queue, 2)]);
    assert_eq!(timed(&mut world), [(millis(5), Some((WorkerId(1), expected)))]);
}

/// Has the headers and the last bytes of round 0 come at these milliseconds.
fn play(
    world: &mut World,
    came: &[(u64, u64)],
    waited: impl Fn(usize) -> Waited,
) -> Vec<(Duration, Option<(WorkerId, Late)>)> {
    let mut exchanges = BTreeMap::new();
    let last = came.iter().map(|(_, whole)| *whole).max().unwrap_or_default();
    for now in 0..=last {
        world.now = at(now);
        for (rank, (opens, whole)) in came.iter().enumerate() {
            if *opens == now {
                exchanges.insert(rank, world.open(u32::try_from(rank).unwrap(), said(waited(rank))));
            }
            if *whole == now {
                world.whole(exchanges[&rank]);
            }
        }
    }
    timed(world)
}

fn timed(world: &mut World) -> Vec<(Duration, Option<(WorkerId, Late)>)> {
    let of = |command| if let Command::Timed { took, last, .. } = command { Some((took, last)) } else { None };
    world.all_commands().into_iter().filter_map(of).collect()
}

fn said(waited: Waited) -> Contribute {
    Contribute { waited, ..header(0) }
}

fn late(times: &[(Cause, u64)]) -> Late {
    let mut late = Late::default();
    for (cause, time) in times {
        late[*cause as usize] = millis(*time);
    }
    late
}

fn wait(time: u64) -> Wait {
    Wait::of(millis(time))
}

/// 1024 us, so that the waits of a few of them are exact.
fn millis(count: u64) -> Duration {
    Duration::from_micros(1024 * count)
}

fn at(time: u64) -> Time {
    Time::ZERO + millis(time)
}
