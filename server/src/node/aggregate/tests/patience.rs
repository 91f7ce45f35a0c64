//! What does not fail while the coordinator is out of contact, in a job that goes on without lost workers.

use gradlane_core::cluster::ContactTerms;

use super::survivors::{next_epoch, rejects};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const VERDICTS: Duration = Duration::from_secs(12);
const LOST_MAX: Duration = Duration::from_secs(300);

#[test]
fn a_round_waits_for_a_missing_worker_until_the_coordinator_could_say_that_it_is_lost() {
    for back_after in [SECOND * 61, SECOND * 299] {
        let mut world = patient();
        let exchange = world.push(0, header(0));
        world.contact(true);
        world.pass(back_after);
        world.contact(false);
        world.pass(VERDICTS - SECOND);
        assert!(rejected(&world.commands()).is_empty());
        world.pass(SECOND);
        assert_eq!(rejects(&world.commands()), [(exchange, Code::DeadlineExceeded)]);
    }
}

#[test]
fn a_round_restarts_without_the_worker_that_was_lost_meanwhile() {
    let mut world = patient();
    world.everybody(header(0));
    world.push(0, header(1));
    world.contact(true);
    world.pass(SECOND * 200);
    world.contact(false);
    world.pass(VERDICTS / 2);
    world.commands();
    world.lose(2, &[1]);
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 0 sends again");
    let again = world.push(0, next_epoch(header(1)));
    assert_eq!(answered(&world.commands()), [again]);
}

#[test]
fn a_server_does_not_wait_longer_than_it_may_be_without_a_coordinator() {
    let mut world = patient();
    let exchange = world.push(0, header(0));
    for _ in 0..(LOST_MAX + VERDICTS).as_secs() / 2 {
        assert!(rejected(&world.commands()).is_empty());
        world.contact(true);
        world.pass(SECOND);
        world.contact(false);
        world.pass(SECOND);
    }
    assert_eq!(rejects(&world.commands()), [(exchange, Code::DeadlineExceeded)]);
}

#[test]
fn stalls_are_reported_all_the_same() {
    let mut world = patient();
    world.push(0, header(0));
    world.contact(true);
    world.pass(SECOND * 10);
    assert!(matches!(world.commands()[..], [.., Command::Stalled { .. }]));
}

#[test]
fn a_worker_that_takes_no_sums_keeps_its_link_and_the_sums_stay() {
    let mut world = patient();
    let [first, _] = world.everybody(header(0))[..] else { panic!("two workers") };
    world.node.handle_answered(first);
    world.commands();
    world.contact(true);
    (0..9).for_each(|_| world.pass(SECOND * 30));
    assert_eq!((world.commands(), world.progress().bytes_in_flight), (vec![], 16));
    world.contact(false);
    (0..4).for_each(|_| world.pass(SECOND * 30));
    assert!(matches!(world.commands()[..], [Command::Disconnect { link: LinkId(1), .. }, ..]));
}

#[test]
fn a_round_that_waits_for_room_goes_on_waiting() {
    let mut world = patient();
    world.everybody(header(0));
    let given_up = world.push(0, header(1));
    world.pass(SECOND * 60);
    world.torn(given_up);
    world.contact(true);
    world.commands();
    for _ in 0..2 {
        world.open(0, header(2));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 1 may ask for the sum of round 0");
        world.pass(SECOND * 61);
    }
}

#[test]
fn memory_that_is_short_may_be_short_for_longer() {
    let mut world = World::with(2, |config| {
        (config.contact, config.memory_bytes_max) = (Some(terms()), 16);
    });
    world.push(0, header(0));
    world.commands();
    world.contact(true);
    for _ in 0..3 {
        world.open(0, in_part(1, header(0)));
        assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
        world.pass(SECOND * 90);
    }
}

#[test]
fn in_a_job_that_ends_with_a_loss_a_round_fails_after_the_step_timeout() {
    let mut world = World::of(2);
    let exchange = world.push(0, header(0));
    world.contact(true);
    world.pass(SECOND * 60);
    assert_eq!(rejects(&world.commands()), [(exchange, Code::DeadlineExceeded)]);
}

fn patient() -> World {
    World::with(2, |config| config.contact = Some(terms()))
}

fn terms() -> ContactTerms {
    ContactTerms { verdicts: VERDICTS, lost_max: LOST_MAX }
}

impl World {
    fn contact(&mut self, is_lost: bool) {
        self.node.handle_member(MemberEvent::Contact { at: self.now, is_lost });
    }
}
