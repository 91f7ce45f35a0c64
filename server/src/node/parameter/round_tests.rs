//! The specification of modes, one behaviour a test.

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Code;
use gradlane_core::types::{Access, ClockKey, Closing, Effect, ExchangeId, Fate, Mode, Update, Version, WorkerId};
use gradlane_core::wire::Use;

use super::tests::{INIT, Outcome, World, floats, rule, to_do};

const STEP: Access = Access::Push(Update::Step);
const ADD: Access = Access::Push(Update::Add);
const BYTES: u64 = 16;

#[test]
fn a_stale_change_is_discarded_or_scaled_as_the_mode_says_and_its_worker_hears_so() {
    for (mode, fate, value) in [
        ("async", Fate::Accepted, 3.0 + 8.0),
        ("async:max_staleness=2", Fate::Accepted, 3.0 + 8.0),
        ("async:max_staleness=1", Fate::DiscardedStale, 3.0),
        ("async:max_staleness=1,beyond=scale", Fate::Scaled, 3.0 + 8.0 / 3.0),
    ] {
        let mut world = World::of(2);
        let by =
            |access, round, basis| Use { basis: Version(basis), mode: mode.parse().unwrap(), ..to_do(access, round) };
        call(&mut world, 0, by(INIT, 0, 0), 1.0);
        for round in 1..3 {
            assert_eq!(fate_of(call(&mut world, 0, by(ADD, round, round), 1.0)), (round + 1, Fate::Accepted, 0));
        }
        // Both versions that worker 0 has made came after the one that worker 1 has read.
        let made = 3 + u64::from(fate != Fate::DiscardedStale);
        assert_eq!(fate_of(call(&mut world, 1, by(ADD, 1, 1), 8.0)), (made, fate, 2), "{mode}");
        let repeat = world.open(1, by(ADD, 1, 1));
        assert_eq!(fate_of(world.outcome(repeat)), (made, fate, 2), "a repeat hears the same, {mode}");
        assert_eq!(pull(&mut world, 0, by(Access::Pull, 3, 0)), (made, vec![value; 4]), "{mode}");
        assert_eq!(world.booked(), BYTES, "{mode}");
    }
}

#[test]
fn an_assignment_has_no_lag_and_a_worker_that_has_read_nothing_has_none() {
    let mut world = World::of(1);
    let by = |access, round, basis| Use {
        basis: Version(basis),
        mode: "async:max_staleness=0".parse().unwrap(),
        ..to_do(access, round)
    };
    call(&mut world, 0, by(INIT, 0, 0), 1.0);
    call(&mut world, 0, by(ADD, 1, 1), 1.0);
    let assign = Access::Push(Update::Assign);
    assert_eq!(fate_of(call(&mut world, 0, by(assign, 2, 1), 5.0)), (3, Fate::Accepted, 0));
    assert_eq!(fate_of(call(&mut world, 0, by(ADD, 3, 0), 1.0)), (4, Fate::Accepted, 0));
}

#[test]
fn the_gradients_of_a_round_are_kept_until_it_is_closed_and_the_rule_is_applied_to_their_mean() {
    for (mode, value) in [("sync", 10.0 - 0.5 * 3.0), ("sync:merge=sum", 10.0 - 0.5 * 6.0)] {
        let mut world = World::of(2);
        call(&mut world, 0, timed(mode, INIT, 0, 0), 10.0);
        for (rank, gradient) in [(1, 4.0), (0, 2.0)] {
            let kept = call(&mut world, rank, timed(mode, STEP, 1, 1), gradient);
            assert_eq!(fate_of(kept), (1, Fate::Kept, 0));
        }
        assert_eq!(world.booked(), 4 * BYTES, "the value, its momentum, and two gradients");
        assert_eq!(pull(&mut world, 0, timed(mode, Access::Pull, 2, 0)), (1, vec![10.0; 4]), "nothing is done yet");
        let early = world.open(1, timed(mode, Access::Pull, 2, 1));
        assert_eq!(world.poll(early), None, "its worker knows that round 1 is closed, and this server does not");
        close(&mut world, 1, &[0, 1]);
        assert_eq!(world.outcome(early).value(), (2, vec![value; 4]));
        close(&mut world, 1, &[0, 1]);
        assert_eq!(pull(&mut world, 0, timed(mode, Access::Pull, 3, 1)), (2, vec![value; 4]), "closed once");
        assert_eq!(world.booked(), 2 * BYTES);
    }
}

#[test]
fn only_the_workers_that_closed_a_round_count_and_others_are_too_late() {
    let mode = "k_of_n:k=2";
    let mut world = World::of(3);
    call(&mut world, 0, timed(mode, INIT, 0, 0), 0.0);
    for (rank, gradient) in [(0, 1.0), (1, 100.0), (2, 3.0)] {
        call(&mut world, rank, timed(mode, STEP, 1, 1), gradient);
    }
    close(&mut world, 1, &[0, 2]);
    assert_eq!(pull(&mut world, 0, timed(mode, Access::Pull, 2, 1)), (2, vec![-1.0; 4]), "without worker 1");
    let late = call(&mut world, 1, timed(mode, STEP, 2, 1), 100.0);
    assert_eq!(fate_of(late), (2, Fate::DroppedLate, 0));
    assert_eq!(world.booked(), 2 * BYTES, "nothing of it is left");
    // A worker that is ahead brings its gradient for a round before this server has heard that the one before is closed.
    call(&mut world, 0, timed(mode, STEP, 3, 3), 1.0);
    close(&mut world, 2, &[0, 1]);
    assert_eq!(pull(&mut world, 0, timed(mode, Access::Pull, 4, 2)).0, 2, "a round without gradients is no version");
    close(&mut world, 3, &[0, 1]);
    assert_eq!(pull(&mut world, 0, timed(mode, Access::Pull, 5, 3)).0, 3);
}

#[test]
fn a_second_gradient_of_a_round_is_refused_and_the_first_one_counts() {
    let mut world = World::of(2);
    call(&mut world, 0, timed("sync", INIT, 0, 0), 0.0);
    call(&mut world, 0, timed("sync", STEP, 1, 1), 2.0);
    let error = call(&mut world, 0, timed("sync", STEP, 2, 1), 5.0).error();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains("for round 1 already"), "{error}");
    let repeat = world.open(0, timed("sync", STEP, 1, 1));
    assert_eq!(fate_of(world.outcome(repeat)), (1, Fate::Kept, 0), "a repeat of the first one is no second one");
    close(&mut world, 1, &[0]);
    assert_eq!(pull(&mut world, 1, timed("sync", Access::Pull, 1, 1)), (2, vec![-1.0; 4]));
}

#[test]
fn another_mode_or_clock_is_a_mismatch_that_names_both() {
    let mut world = World::of(2);
    call(&mut world, 0, timed("sync", INIT, 0, 0), 0.0);
    for (field, first, second, other) in [
        ("mode", "sync", "k_of_n:k=1", timed("k_of_n:k=1", Access::Pull, 0, 0)),
        (
            "clock",
            "0000000000000007",
            "0000000000000008",
            Use { mode: mode("sync", 8), ..timed("sync", Access::Pull, 0, 0) },
        ),
    ] {
        let exchange = world.open(1, other);
        let error = world.outcome(exchange).error().to_string();
        assert!([field, first, second].iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn gradients_of_an_open_round_go_with_their_parameter() {
    let mut world = World::of(2);
    call(&mut world, 0, timed("sync", INIT, 0, 0), 0.0);
    call(&mut world, 0, timed("sync", STEP, 1, 1), 2.0);
    let waiting = world.open(1, timed("sync", Access::Pull, 1, 1));
    let part = to_do(INIT, 0).target.part;
    world.node.handle_member(MemberEvent::Ended { keys: vec![part.key], below: 1 });
    world.settle();
    assert_eq!(world.outcome(waiting).error().code(), Code::FailedPrecondition);
    assert_eq!((world.booked(), world.store.values().is_empty()), (0, true));
    close(&mut world, 1, &[0]);
}

/// A use by a clock of a parameter that `sgd` changes, with a momentum of nothing yet.
fn timed(text: &str, access: Access, round: u64, clock_at: u64) -> Use {
    Use { rule: rule("sgd:lr=0.5,momentum=0.9"), mode: mode(text, 7), clock_at, ..to_do(access, round) }
}

fn mode(text: &str, clock: u64) -> Mode {
    text.parse::<Mode>().unwrap().with_clock(ClockKey(clock))
}

fn close(world: &mut World, round: u64, workers: &[u32]) {
    let workers = workers.iter().map(|worker| WorkerId(*worker)).collect();
    world.node.handle_member(MemberEvent::Close(Closing { clock: ClockKey(7), round, workers }));
    world.settle();
}

fn call(world: &mut World, rank: u32, header: Use, element: f32) -> Outcome {
    let exchange: ExchangeId = world.open(rank, header);
    world.bring(exchange, &floats([element; 4]));
    world.outcome(exchange)
}

fn pull(world: &mut World, rank: u32, header: Use) -> (u64, Vec<f32>) {
    let exchange = world.open(rank, header);
    world.outcome(exchange).value()
}

fn fate_of(outcome: Outcome) -> (u64, Fate, u32) {
    match outcome {
        Outcome::Done(Effect { version, fate, lag }) => (version.0, fate, lag),
        outcome => panic!("{outcome:?}"),
    }
}
