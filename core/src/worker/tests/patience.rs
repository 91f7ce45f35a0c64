//! Workers of a job that goes on without lost workers, and that has no coordinator for a while.

use super::*;
use crate::cluster::{Contact, ContactTerms};
use crate::worker::Liveness;

const LOST_MAX: Duration = Duration::from_secs(3600);

#[test]
fn a_call_that_its_server_does_not_answer_waits_while_nobody_can_say_who_is_lost() {
    let (mut world, id) = pushed();
    world.worker.handle_contact(world.now, true);
    let call = world.worker.settings.bounds.call;
    let commands = pass(&mut world, LOST_MAX - SECOND);
    assert!(commands.is_empty(), "{commands:?}");
    let ask = |world: &World| world.worker.liveness(world.now, id..id + 1, Time::ZERO);
    assert_eq!(ask(&world), Liveness::Works { ask_in: call });
    // Its time begins anew.
    world.worker.handle_contact(world.now, false);
    assert!(pass(&mut world, call - SECOND).is_empty());
    assert_eq!(ask(&world), Liveness::Works { ask_in: SECOND });
    assert!(matches!(pass(&mut world, SECOND)[..], [Command::Abandon(_)]));
    assert_eq!(ask(&world), Liveness::Stuck);
}

#[test]
fn a_call_does_not_wait_for_a_coordinator_that_comes_and_goes_for_ever() {
    let (mut world, _) = pushed();
    let (mut commands, mut waited) = (Vec::new(), Duration::ZERO);
    while commands.is_empty() {
        world.worker.handle_contact(world.now, true);
        commands = pass(&mut world, SECOND);
        world.worker.handle_contact(world.now, false);
        commands.extend(pass(&mut world, SECOND));
        waited += SECOND * 2;
    }
    assert!(waited <= LOST_MAX + world.worker.settings.bounds.call + SECOND * 2, "{waited:?}");
    assert!(matches!(commands[..], [Command::Abandon(_)]), "{commands:?}");
}

#[test]
fn a_declaration_waits_for_the_coordinator_but_not_longer_than_its_caller_wants() {
    let mut world = patient();
    let [long, short] = [None, Some(STEP * 2)].map(|timeout| world.submit_with(&format!("{timeout:?}"), None, timeout));
    world.commands();
    world.worker.handle_contact(world.now, true);
    let ended = |commands: Vec<Command>| commands.iter().filter_map(failed_with("its declaration")).collect::<Vec<_>>();
    assert!(ended(pass(&mut world, STEP * 2 - SECOND)).is_empty());
    assert_eq!(ended(pass(&mut world, SECOND)), [short]);
    assert!(ended(pass(&mut world, LOST_MAX - STEP * 2)).is_empty());
    world.worker.handle_contact(world.now, false);
    assert_eq!(ended(pass(&mut world, LOST_MAX)), [long]);
}

#[test]
fn in_a_job_that_ends_with_a_loss_the_contact_changes_nothing() {
    let (mut world, _) = pushed();
    world.worker.contact = None;
    world.worker.handle_contact(world.now, true);
    let stuck = world.worker.settings.bounds.stuck;
    assert!(pass(&mut world, stuck - SECOND).is_empty());
    assert!(matches!(pass(&mut world, SECOND)[..], [Command::Abandon(_)]));
}

/// A worker with a contribution at its server that is not answered.
fn pushed() -> (World, u64) {
    let mut world = patient();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let task = world.worker.take(world.now, Stage::Push).unwrap().task.id;
    world.worker.end_push(world.now, task);
    world.commands();
    (world, id)
}

fn patient() -> World {
    let mut world = World::joined();
    let verdicts = world.worker.settings.bounds.call;
    world.worker.contact = Some(Contact::new(ContactTerms { verdicts, lost_max: LOST_MAX }));
    world
}

/// Lets this time pass. Returns what was decided meanwhile.
fn pass(world: &mut World, time: Duration) -> Vec<Command> {
    let (end, mut commands) = (world.now + time, Vec::new());
    while world.now < end {
        world.pass_until(end);
        commands.extend(world.commands());
    }
    commands
}
