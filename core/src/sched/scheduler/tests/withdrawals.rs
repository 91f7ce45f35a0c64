//! Servers hear of rounds that were given up.

use super::*;

#[test]
fn a_round_that_is_given_up_is_told_to_its_server_before_the_next_is_pushed() {
    let mut world = World::new(config(), host());
    let groups = [world.open("w", 1), world.open("w", 1)];
    let task = world.submit(part(0), 10, 0, &groups[..1]);
    let next = world.submit_round(part(0), 1, 10, 0, &groups[1..]);
    world.scheduler.cancel(world.now, groups[0]);
    let (word, commands) = world.word(task, &Error::Cancelled);
    let ends = [Command::Release(task), resolved(groups[0], Err(Error::Cancelled)), Command::Wake(Stage::Push)];
    assert_eq!(commands, ends, "the caller does not wait for it");
    let telling = world.take(Stage::Push).unwrap();
    assert_eq!((telling.id, telling.round, telling.bytes), (word, Round(0), 0));
    assert_eq!(world.take(Stage::Push), None);
    world.finish(word, Outcome::Done);
    assert_eq!(world.take(Stage::Pull).unwrap().id, word);
    world.finish(word, Outcome::Failed(Error::Cancelled));
    assert!(world.all_commands().contains(&Command::Release(word)));
    assert_eq!(world.take(Stage::Push).unwrap().id, next);
    assert_eq!(world.scheduler.poll_timeout(), Some(world.now + 30 * SECOND), "its deadline is forgotten");
}

#[test]
fn a_round_is_given_up_in_its_turn_only() {
    let mut world = World::new(config(), host());
    let groups = [world.open("w", 1), world.open("w", 1)];
    let before = world.submit(part(0), 10, 0, &groups[..1]);
    let task = world.submit_round(part(0), 1, 10, 0, &groups[1..]);
    world.take(Stage::Push).unwrap();
    world.scheduler.cancel(world.now, groups[1]);
    let (word, _) = world.word(task, &Error::Cancelled);
    assert_eq!(world.take(Stage::Push), None, "it would end the round before");
    world.finish(before, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.finish(before, Outcome::Done);
    assert_eq!(world.take(Stage::Push).unwrap().id, word);
}

#[test]
fn a_server_is_told_again_until_it_answers_or_the_time_for_it_has_passed() {
    let mut world = World::new(SchedulerConfig { step_timeout: SECOND, ..config() }, host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.scheduler.cancel(world.now, group);
    let (word, _) = world.word(task, &Error::Cancelled);
    for _ in 0..3 {
        assert_eq!(world.take(Stage::Push).unwrap().id, word);
        world.finish(word, retry(0));
        world.wait(Duration::from_millis(200));
    }
    assert_eq!(world.take(Stage::Push).unwrap().id, word);
    world.wait(SECOND);
    assert!(world.all_commands().contains(&Command::Abandon(word)));
    world.finish(word, retry(0));
    assert_eq!(world.all_commands(), [Command::Release(word)]);
    assert!(world.scheduler.is_idle());
    assert_eq!((world.scheduler.poll_timeout(), world.scheduler.credit_in_flight()), (None, 0));
}

#[test]
fn what_ends_while_its_exchange_is_open_is_given_up_when_that_is_closed() {
    for pulled in [false, true] {
        let mut world = World::new(config(), host());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        world.take(Stage::Push).unwrap();
        world.scheduler.cancel(world.now, group);
        if pulled {
            world.finish(task, Outcome::Done);
            world.take(Stage::Pull).unwrap();
        }
        world.finish(task, Outcome::Failed(Error::Cancelled));
        world.word(task, &Error::Cancelled);
    }
}

#[test]
fn what_the_server_knows_or_nobody_waits_for_is_not_told() {
    // The server refused it; the sum came; the job ended; another rank of the machine pushes it.
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Failed(Error::Cancelled));
    let group = world.open("w", 1);
    let task = world.submit(part(1), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.scheduler.cancel(world.now, group);
    world.finish(task, Outcome::Done);
    let group = world.open("w", 1);
    world.submit(part(2), 10, 0, &[group]);
    world.scheduler.fail_all(world.now, unreachable());
    assert_eq!(world.scheduler.open_withdrawals(), []);
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 1);
    world.submit_for(Duty::Member, part(0), &[group]);
    world.scheduler.cancel(world.now, group);
    assert_eq!(world.scheduler.open_withdrawals(), []);
}

#[test]
fn the_end_of_the_job_ends_telling_too() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    world.submit(part(0), 10, 0, &[group]);
    world.scheduler.cancel(world.now, group);
    world.scheduler.fail_all(world.now, unreachable());
    assert!(world.scheduler.is_idle());
}

#[test]
fn an_owner_whose_machine_disagrees_tells_the_other_machines() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 1);
    let task = world.submit_for(Duty::Owner, part(0), &[group]);
    world.take(Stage::Reduce).unwrap();
    world.finish(task, Outcome::Failed(unreachable()));
    world.word(task, &unreachable());
    // And so does one that is cancelled after the others of its machine reduced with it, while they are told as well.
    let group = world.open("w", 1);
    let task = world.submit_for(Duty::Owner, part(1), &[group]);
    world.take(Stage::Reduce).unwrap();
    world.finish(task, Outcome::Done);
    world.all_commands();
    world.scheduler.cancel(world.now, group);
    world.word(task, &Error::Cancelled);
    assert_eq!(world.take(Stage::Broadcast).unwrap().id, task);
}

impl World {
    /// The task that tells why `task` was given up, and the other commands.
    fn word(&mut self, task: TaskId, why: &Error) -> (TaskId, Vec<Command>) {
        let (words, others): (Vec<Command>, Vec<Command>) =
            self.all_commands().into_iter().partition(|command| matches!(command, Command::Withdraw { .. }));
        match words.as_slice() {
            [Command::Withdraw { task: word, of, error }] if *of == task && error == why => (*word, others),
            other => panic!("{other:?}"),
        }
    }
}
