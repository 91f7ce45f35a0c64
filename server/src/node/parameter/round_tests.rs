//! The specification of modes, one behaviour a test.

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::Code;
use gradlane_core::types::{
    Access, ClockKey, Closing, Effect, ExchangeId, Fate, Half, Mode, PartId, Squares, Update, Version, WorkerId,
    WorkerSet,
};
use gradlane_core::wire::{Target, Use};

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

#[test]
fn a_round_that_is_clipped_says_its_squares_and_is_applied_when_the_norm_is_known() {
    const CLIPPED: &str = "sgd:lr=0.5,clip_norm=3";
    let mut world = World::of(2);
    call(&mut world, 0, ruled(CLIPPED, INIT, 0, 0), 10.0);
    for (rank, gradient) in [(1, 4.0), (0, 2.0)] {
        call(&mut world, rank, ruled(CLIPPED, STEP, 1, 1), gradient);
    }
    seal(&mut world, 1, &[0, 1]);
    assert_eq!(world.measured, [squares(1, 4.0 * 3.0 * 3.0)], "the mean of both, four elements");
    assert_eq!(world.booked(), 2 * BYTES, "the value and one gradient");
    let early = world.open(1, ruled(CLIPPED, Access::Pull, 2, 1));
    assert_eq!(world.poll(early), None, "its worker knows that round 1 is closed");
    assert_eq!(pull(&mut world, 0, ruled(CLIPPED, Access::Pull, 2, 0)), (1, vec![10.0; 4]), "nothing is done yet");
    seal(&mut world, 1, &[0, 1]);
    assert_eq!(world.measured.len(), 1, "said once");
    let late = call(&mut world, 0, ruled(CLIPPED, STEP, 3, 1), 100.0);
    assert_eq!(fate_of(late), (1, Fate::DroppedLate, 0));
    assert_eq!(fate_of(call(&mut world, 0, ruled(CLIPPED, STEP, 4, 2), 1.0)), (1, Fate::Kept, 0));
    hear(&mut world, 2, Half::Norm(1.0));
    assert_eq!(world.poll(early), None, "the norm of another round");
    // Other servers have gradients of the same size.
    hear(&mut world, 1, Half::Norm(60.0));
    let clipped = 3.0 * (3.0 / (60.0 + 1e-6)) as f32;
    assert_eq!(world.outcome(early).value(), (2, vec![10.0 - 0.5 * clipped; 4]));
    hear(&mut world, 1, Half::Norm(60.0));
    assert_eq!(pull(&mut world, 0, ruled(CLIPPED, Access::Pull, 5, 1)).0, 2, "applied once");
    assert_eq!(world.booked(), 2 * BYTES, "the value, and the gradient of the next round");
}

#[test]
fn a_parameter_that_is_not_clipped_counts_for_no_norm_and_waits_with_the_others_of_its_clock() {
    let mut world = World::of(1);
    for (index, text, gradient) in [(0, "sgd:lr=1,clip_norm=1", 3.0), (1, "sgd:lr=1", 5.0)] {
        call(&mut world, 0, of_part(index, ruled(text, INIT, 0, 0)), 0.0);
        call(&mut world, 0, of_part(index, ruled(text, STEP, 1, 1)), gradient);
    }
    seal(&mut world, 1, &[0]);
    assert_eq!(world.measured, [squares(1, 36.0)]);
    let other = |access, round, at| of_part(1, ruled("sgd:lr=1", access, round, at));
    assert_eq!(pull(&mut world, 0, other(Access::Pull, 2, 0)), (1, vec![0.0; 4]), "no round is applied by halves");
    hear(&mut world, 1, Half::Norm(0.5));
    assert_eq!(pull(&mut world, 0, other(Access::Pull, 3, 1)), (2, vec![-5.0; 4]));
    let short = ruled("sgd:lr=1,clip_norm=1", Access::Pull, 2, 1);
    assert_eq!(pull(&mut world, 0, short), (2, vec![-3.0; 4]), "the norm is below the bound");
}

#[test]
fn a_server_says_its_squares_of_all_parts_together_and_also_if_it_has_none() {
    const CLIPPED: &str = "sgd:lr=1,clip_norm=1";
    let mut world = World::of(1);
    seal(&mut world, 1, &[0]);
    assert_eq!(world.measured.pop_front(), Some(squares(1, 0.0)));
    hear(&mut world, 1, Half::Norm(0.0));
    for (index, gradient) in [(0, 3.0), (1, f32::INFINITY), (2, 4.0)] {
        call(&mut world, 0, of_part(index, ruled(CLIPPED, INIT, 0, 0)), 0.0);
        call(&mut world, 0, of_part(index, ruled(CLIPPED, STEP, 1, 2)), gradient);
    }
    world.is_slow = true;
    seal(&mut world, 2, &[0]);
    assert!(world.deliver() && world.deliver());
    assert_eq!(world.measured, [], "a part is missing");
    // The parameter ends while its squares are under way.
    let key = to_do(INIT, 0).target.part.key;
    world.node.handle_member(MemberEvent::Ended { keys: vec![key], below: 3 });
    world.settle();
    assert!(world.deliver());
    assert_eq!((world.measured.pop_front(), world.booked()), (Some(squares(2, f64::INFINITY)), 0));
    hear(&mut world, 2, Half::Norm(f64::INFINITY));
    assert!(!world.deliver() && world.store.values().is_empty());
}

#[test]
fn a_schedule_by_samples_follows_those_of_the_rounds_before() {
    // The rate is 1, and a half from 64 samples on.
    const RULE: &str = "sgd:lr=1,schedule=step,every=64,gamma=0.5,by=samples";
    let mut world = World::of(1);
    call(&mut world, 0, ruled(RULE, INIT, 0, 0), 10.0);
    for (round, samples, value) in [(1, 0, 6.0), (2, 63, 2.0), (3, 64, 0.0), (4, 128, -1.0)] {
        call(&mut world, 0, ruled(RULE, STEP, 2 * round, round), 4.0);
        hear(&mut world, round, Half::Workers { workers: set(&[0]), clips: false, samples });
        assert_eq!(pull(&mut world, 0, ruled(RULE, Access::Pull, 2 * round + 1, round)).1, [value; 4]);
    }
}

#[test]
fn gradients_of_an_infinite_norm_become_nothing() {
    const CLIPPED: &str = "sgd:lr=1,clip_norm=1";
    let mut world = World::of(1);
    for (index, gradient) in [(0, 3.0), (1, f32::NAN)] {
        call(&mut world, 0, of_part(index, ruled(CLIPPED, INIT, 0, 0)), 2.0);
        call(&mut world, 0, of_part(index, ruled(CLIPPED, STEP, 1, 1)), gradient);
    }
    seal(&mut world, 1, &[0]);
    assert_eq!(world.measured, [squares(1, f64::INFINITY)]);
    hear(&mut world, 1, Half::Norm(f64::INFINITY));
    let mut value = |index| pull(&mut world, 0, of_part(index, ruled(CLIPPED, Access::Pull, 2, 1))).1;
    assert_eq!(value(0), [2.0; 4]);
    assert!(value(1).iter().all(|element| element.is_nan()));
}

/// A use by a clock of a parameter that `sgd` changes, with a momentum of nothing yet.
fn timed(text: &str, access: Access, round: u64, clock_at: u64) -> Use {
    Use { rule: rule("sgd:lr=0.5,momentum=0.9"), mode: mode(text, 7), clock_at, ..to_do(access, round) }
}

fn mode(text: &str, clock: u64) -> Mode {
    text.parse::<Mode>().unwrap().with_clock(ClockKey(clock))
}

fn close(world: &mut World, round: u64, workers: &[u32]) {
    hear(world, round, Half::Workers { workers: set(workers), clips: false, samples: 0 });
}

/// The first half of a round that is clipped.
fn seal(world: &mut World, round: u64, workers: &[u32]) {
    hear(world, round, Half::Workers { workers: set(workers), clips: true, samples: 0 });
}

fn hear(world: &mut World, round: u64, half: Half) {
    world.node.handle_member(MemberEvent::Close(Closing { clock: ClockKey(7), round, half }));
    world.settle();
}

fn set(workers: &[u32]) -> WorkerSet {
    workers.iter().map(|worker| WorkerId(*worker)).collect()
}

/// A use of a parameter that `rule_text` changes, by the clock of a mode in which all workers close each round.
fn ruled(rule_text: &str, access: Access, round: u64, clock_at: u64) -> Use {
    Use { rule: rule(rule_text), ..timed("sync", access, round, clock_at) }
}

fn of_part(index: u32, header: Use) -> Use {
    let part = PartId { index, ..header.target.part };
    Use { target: Target { part, ..header.target }, ..header }
}

fn squares(round: u64, sum: f64) -> Squares {
    Squares { clock: ClockKey(7), round, sum }
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
