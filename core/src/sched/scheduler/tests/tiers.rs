//! Parts that the ranks of a machine reduce among themselves before one of them exchanges them.

use super::*;

#[test]
fn the_owner_exchanges_a_part_and_the_others_wait_for_it() {
    let table: [(Duty, &[Stage]); 3] = [
        (Duty::Owner, &[Stage::Reduce, Stage::Push, Stage::Pull, Stage::Broadcast]),
        (Duty::Member, &[Stage::Reduce, Stage::Broadcast]),
        (Duty::Alone, &[Stage::Push, Stage::Pull]),
    ];
    for (duty, stages) in table {
        let mut world = World::new(config(), tiers());
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        for stage in stages {
            let wakes = if *stage == Stage::Pull { Vec::new() } else { vec![Command::Wake(*stage)] };
            assert_eq!(world.commands(), wakes, "{duty:?}");
            assert_eq!(world.take(*stage).unwrap().id, task);
            world.finish(task, Outcome::Done);
        }
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Ok(()))]);
    }
}

#[test]
fn the_next_round_is_reduced_after_the_others_have_this_one() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 2);
    let this = world.submit(part(0), 10, 0, &[group]);
    let next = world.submit_round(part(0), 1, 10, 0, &[group]);
    for stage in [Stage::Reduce, Stage::Push, Stage::Pull, Stage::Broadcast] {
        assert_eq!(world.take(stage).unwrap().id, this);
        assert_eq!(world.take(Stage::Reduce), None, "{stage}");
        world.finish(this, Outcome::Done);
    }
    assert_eq!(world.take(Stage::Reduce).unwrap().id, next);
}

#[test]
fn what_an_exchange_failed_of_is_brought_to_the_others_before_the_group_ends() {
    for stages in [&[Stage::Reduce, Stage::Push][..], &[Stage::Reduce, Stage::Push, Stage::Pull]] {
        let mut world = World::new(config(), tiers());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        for stage in stages {
            world.take(*stage).unwrap();
            let is_last = stages.last() == Some(stage);
            world.finish(task, if is_last { Outcome::Failed(unreachable()) } else { Outcome::Done });
        }
        assert_eq!(world.scheduler.credit_in_flight(), 0);
        world.commands();
        assert_eq!(world.take(Stage::Broadcast).unwrap().id, task);
        assert_eq!(world.scheduler.failure(task), Some(&unreachable()));
        assert_eq!(world.commands(), [], "nothing is abandoned and nobody told while the others are not");
        world.finish(task, Outcome::Failed(unreachable()));
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(unreachable()))]);
    }
}

#[test]
fn whoever_is_cancelled_after_reducing_still_comes_to_the_others() {
    for (duty, reached) in
        [(Duty::Owner, Stage::Push), (Duty::Owner, Stage::Broadcast), (Duty::Member, Stage::Broadcast)]
    {
        let mut world = World::new(config(), tiers());
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        for stage in [Stage::Reduce, Stage::Push, Stage::Pull].into_iter().filter(|stage| *stage < reached) {
            if world.take(stage).is_some() {
                world.finish(task, Outcome::Done);
            }
        }
        world.scheduler.cancel(world.now, group);
        world.commands();
        assert_eq!(world.take(Stage::Broadcast).unwrap().id, task, "{duty:?} before {reached}");
        // Whoever has no sum must not show what lies there instead.
        let has_none = duty == Duty::Owner && reached == Stage::Push;
        assert_eq!(world.scheduler.failure(task), has_none.then_some(&Error::Cancelled));
        assert_eq!(world.commands(), [Command::Abandon(task)]);
        world.finish(task, Outcome::Failed(Error::Cancelled));
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
    }
}

#[test]
fn a_round_that_is_cancelled_before_the_machine_can_begin_with_it_is_declined() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 2);
    let [running, waiting] = [world.submit(part(0), 10, 0, &[group]), world.submit_round(part(0), 1, 10, 0, &[group])];
    world.take(Stage::Reduce).unwrap();
    world.commands();
    world.scheduler.cancel(world.now, group);
    assert_eq!(world.commands(), [Command::Abandon(running), Command::Decline(waiting), Command::Release(waiting)]);
    world.finish(running, Outcome::Failed(Error::Cancelled));
    assert_eq!(world.commands(), [Command::Release(running), resolved(group, Err(Error::Cancelled))]);
}

#[test]
fn whoever_is_cancelled_on_its_way_to_the_others_tells_them_that_it_will_not_come() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.scheduler.cancel(world.now, group);
    assert_eq!(world.commands(), [Command::Wake(Stage::Reduce)], "it still has its turn");
    assert_eq!(world.take(Stage::Reduce).map(|task| task.id), Some(task));
    assert_eq!(world.commands(), [Command::Abandon(task)]);
    world.finish(task, Outcome::Failed(Error::Cancelled));
    assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
}

#[test]
fn why_one_part_failed_is_what_the_others_hear_of_all() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 4);
    let tasks: Vec<TaskId> = (0..4).map(|index| world.submit(part(index), 10, 0, &[group])).collect();
    for _ in 0..4 {
        world.take(Stage::Reduce).unwrap();
    }
    // The last one is still being reduced, which nobody stops: it would be stopped for the others too.
    for task in &tasks[..3] {
        world.finish(*task, Outcome::Done);
    }
    world.take(Stage::Push).unwrap();
    world.take(Stage::Push).unwrap();
    world.commands();
    world.finish(tasks[0], Outcome::Failed(unreachable()));
    assert!(world.commands().contains(&Command::Abandon(tasks[1])));
    world.finish(tasks[1], Outcome::Failed(Error::Cancelled));
    world.finish(tasks[3], Outcome::Done);
    for task in &tasks {
        assert!(world.take(Stage::Broadcast).is_some());
        assert_eq!(world.scheduler.failure(*task), Some(&unreachable()));
        world.finish(*task, Outcome::Failed(unreachable()));
    }
    assert!(world.commands().contains(&resolved(group, Err(unreachable()))));
}

#[test]
fn a_round_that_fails_for_a_reason_that_all_ranks_hear_is_given_up_a_moment_later() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Reduce).unwrap();
    world.commands();
    world.scheduler.fail_group(world.now, group, unreachable());
    assert_eq!(world.commands(), [], "the others hear the cause first");
    world.now = world.scheduler.poll_timeout().unwrap();
    world.scheduler.handle_timeout(world.now);
    assert_eq!(world.commands(), [Command::Abandon(task)], "those that heard it before do not come");
}
