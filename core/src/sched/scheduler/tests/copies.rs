//! Parts in memory of a device, which are staged on their way to the network and back.

use super::*;

const STAGES: [Stage; 4] = [Stage::CopyD2H, Stage::Push, Stage::Pull, Stage::CopyH2D];

#[test]
fn credit_is_drawn_before_a_part_is_staged_and_returned_when_its_sum_is_on_the_device() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, device());
    let group = world.open("w", 3);
    let [first, second, third] = [0, 1, 2].map(|index| world.submit(part(index), 50, 0, &[group]));
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, first);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, second);
    for stage in STAGES {
        if stage != Stage::CopyD2H {
            assert_eq!(world.take(stage).unwrap().id, first, "it needs no credit twice");
        }
        assert_eq!(world.take(Stage::CopyD2H), None, "{stage}");
        assert_eq!(world.scheduler.credit_in_flight(), 100);
        world.commands();
        world.finish(first, Outcome::Done);
    }
    assert!(world.commands().contains(&Command::Wake(Stage::CopyD2H)));
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, third);
}

#[test]
fn a_part_in_host_memory_passes_no_copies_and_gives_its_credit_back_with_its_sum() {
    let mut world = World::new(config(), device());
    let group = world.open("w", 1);
    let task = world.scheduler.submit(world.now, spec(Route::host(Duty::Owner), part(0), 0, 10, 0, &[group]));
    for stage in [Stage::Push, Stage::Pull] {
        let wakes = if stage == Stage::Pull { Vec::new() } else { vec![Command::Wake(stage)] };
        assert_eq!(world.commands(), wakes);
        assert_eq!(world.take(stage).unwrap().id, task);
        world.finish(task, Outcome::Done);
    }
    assert_eq!(world.commands(), [Command::Release(task), resolved(group, Ok(()))]);
    assert_eq!(world.scheduler.credit_in_flight(), 0);
}

#[test]
fn a_few_copies_are_under_way_at_a_time_and_the_most_urgent_is_next() {
    let mut world = World::new(SchedulerConfig { copies_max: 2, ..config() }, device());
    let group = world.open("w", 4);
    let [first, second, third] = [0, 1, 2].map(|index| world.submit(part(index), 10, 0, &[group]));
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, first);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, second);
    assert_eq!(world.take(Stage::CopyD2H), None, "there is no room");
    assert_eq!(world.scheduler.poll_timeout(), Some(world.now + 30 * SECOND), "and it is not for want of credit");
    let urgent = world.submit(part(3), 10, 9, &[group]);
    world.commands();
    world.finish(second, Outcome::Done);
    assert!(world.commands().contains(&Command::Wake(Stage::CopyD2H)));
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, urgent);
    world.finish(first, Outcome::Done);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, third);
}

#[test]
fn the_next_round_of_a_part_is_staged_after_the_sum_of_this_one_arrived() {
    let mut world = World::new(config(), device());
    let group = world.open("w", 2);
    let this = world.submit(part(0), 10, 0, &[group]);
    let next = world.submit_round(part(0), 1, 10, 9, &[group]);
    for stage in [Stage::CopyD2H, Stage::Push, Stage::Pull] {
        assert_eq!(world.take(stage).unwrap().id, this);
        assert_eq!(world.take(Stage::CopyD2H), None, "{stage}");
        world.finish(this, Outcome::Done);
    }
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, next, "beside the other's copy back");
}

#[test]
fn nothing_is_staged_for_a_server_that_is_not_connected() {
    let mut world = World::new(config(), device());
    let group = world.open("w", 1);
    world.scheduler.handle_link_down(world.now, ServerId(0));
    let task = world.submit(part(0), 10, 0, &[group]);
    assert_eq!(world.take(Stage::CopyD2H), None);
    world.commands();
    world.scheduler.handle_link_up(world.now, ServerId(0));
    assert_eq!(world.commands(), [Command::Wake(Stage::CopyD2H)]);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, task);
}

#[test]
fn what_is_staged_passes_what_waits_for_its_credit() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, device());
    let group = world.open("w", 2);
    let staged = world.submit(part(0), 100, 0, &[group]);
    world.take(Stage::CopyD2H).unwrap();
    world.finish(staged, Outcome::Done);
    let before = world.scheduler.submit(world.now, spec(Route::host(Duty::Owner), part(1), 0, 150, 9, &[group]));
    assert_eq!(world.take(Stage::Push).unwrap().id, staged);
    assert_eq!(world.take(Stage::Push), None);
    world.finish(staged, Outcome::Done);
    for stage in [Stage::Pull, Stage::CopyH2D] {
        assert_eq!(world.take(stage).unwrap().id, staged);
        world.finish(staged, Outcome::Done);
    }
    assert_eq!(world.take(Stage::Push).unwrap().id, before);
}

#[test]
fn what_is_repeated_stays_staged_and_keeps_its_credit_until_others_need_it() {
    let config = SchedulerConfig { credit_bytes: 100, retry_min: SECOND, ..config() };
    let mut world = World::new(config, device());
    let group = world.open("w", 2);
    let repeated = world.submit(part(0), 100, 0, &[group]);
    let waiting = world.submit(part(1), 100, 0, &[group]);
    world.take(Stage::CopyD2H).unwrap();
    world.finish(repeated, Outcome::Done);
    world.take(Stage::Push).unwrap();
    world.finish(repeated, retry(0));
    assert_eq!(world.scheduler.credit_in_flight(), 100, "its memory is held");
    assert_eq!(world.take(Stage::CopyD2H), None);
    world.wait(config.credit_patience);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, waiting, "it was lent on");
    world.wait(SECOND);
    assert_eq!(world.take(Stage::Push), None, "and is drawn again");
    world.finish(waiting, Outcome::Failed(unreachable()));
    assert_eq!(world.take(Stage::CopyD2H), None);
    assert_eq!(world.scheduler.credit_in_flight(), 0);
}

#[test]
fn what_was_staged_for_a_server_that_is_lost_lends_its_credit_on() {
    let config = SchedulerConfig { credit_bytes: 100, ..config() };
    let mut world = World::new(config, device());
    let group = world.open("w", 2);
    let staged = world.submit(part(0), 100, 0, &[group]);
    let other = world.submit(part(2), 100, 0, &[group]);
    world.take(Stage::CopyD2H).unwrap();
    world.finish(staged, Outcome::Done);
    world.scheduler.handle_link_down(world.now, ServerId(0));
    assert_eq!(world.take(Stage::CopyD2H), None);
    world.wait(config.credit_patience);
    assert_eq!(world.take(Stage::CopyD2H).unwrap().id, other, "for a server that is there");
}

#[test]
fn a_copy_that_failed_fails_its_group_and_has_the_server_told_unless_that_has_summed() {
    for (stages, is_told) in [(&STAGES[..1], true), (&STAGES, false)] {
        let mut world = World::new(config(), device());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        for stage in stages {
            world.take(*stage).unwrap();
            let is_last = stages.last() == Some(stage);
            world.finish(task, if is_last { Outcome::Failed(unreachable()) } else { Outcome::Done });
        }
        let commands = world.all_commands();
        let tells = |command: &Command| matches!(command, Command::Withdraw { of, .. } if *of == task);
        assert_eq!(commands.iter().any(tells), is_told, "{stages:?}");
        assert!(commands.contains(&resolved(group, Err(unreachable()))));
        assert_eq!(world.scheduler.credit_in_flight(), 0);
    }
}

#[test]
fn a_copy_under_way_is_waited_for_when_nobody_wants_it_any_more() {
    for stages in [&STAGES[..1], &STAGES] {
        let mut world = World::new(config(), device());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        for stage in stages {
            world.take(*stage).unwrap();
            if stages.last() != Some(stage) {
                world.finish(task, Outcome::Done);
            }
        }
        world.commands();
        world.scheduler.cancel(world.now, group);
        assert_eq!(world.commands(), [Command::Abandon(task)], "the device still uses the memory");
        world.finish(task, Outcome::Done);
        let commands = world.commands();
        assert_eq!(commands, [Command::Release(task), resolved(group, Err(Error::Cancelled))], "{stages:?}");
        assert_eq!(world.scheduler.credit_in_flight(), 0);
    }
}

#[test]
fn what_waits_to_be_copied_is_gone_at_once_when_nobody_wants_it_any_more() {
    for reached in [0, 3] {
        let mut world = World::new(config(), device());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        for stage in &STAGES[..reached] {
            world.take(*stage).unwrap();
            world.finish(task, Outcome::Done);
        }
        world.commands();
        world.scheduler.cancel(world.now, group);
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
        assert_eq!(world.scheduler.credit_in_flight(), 0);
        assert_eq!(world.scheduler.waiting(STAGES[reached]), 0);
    }
}

#[test]
fn an_owner_that_has_the_sum_brings_it_to_the_others_though_nobody_here_wants_it() {
    // While it waits for COPYH2D, while it is there, and while it is still in PULL.
    for reached in [Stage::Pull, Stage::CopyH2D] {
        for is_running in [true, false] {
            let mut world = World::new(config(), device_tiers());
            let group = world.open("w", 1);
            let task = world.submit(part(0), 10, 0, &[group]);
            let stages = [Stage::Reduce, Stage::CopyD2H, Stage::Push, Stage::Pull, Stage::CopyH2D];
            for stage in stages.into_iter().take_while(|stage| *stage < reached) {
                world.take(stage).unwrap();
                world.finish(task, Outcome::Done);
            }
            if is_running {
                world.take(reached).unwrap();
            }
            world.scheduler.cancel(world.now, group);
            if !is_running {
                world.take(reached).unwrap();
            }
            world.finish(task, Outcome::Done);
            if reached == Stage::Pull {
                assert_eq!(world.take(Stage::CopyH2D).unwrap().id, task);
                world.finish(task, Outcome::Done);
            }
            assert_eq!(world.take(Stage::Broadcast).unwrap().id, task);
            assert_eq!(world.scheduler.failure(task), None, "the others get the sum");
            assert_eq!(world.scheduler.credit_in_flight(), 0);
            world.commands();
            world.finish(task, Outcome::Done);
            assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
        }
    }
}

#[test]
fn an_owner_whose_copy_failed_tells_the_others() {
    for failing in [Stage::CopyD2H, Stage::CopyH2D] {
        let mut world = World::new(config(), device_tiers());
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        for stage in [Stage::Reduce, Stage::CopyD2H, Stage::Push, Stage::Pull, Stage::CopyH2D] {
            world.take(stage).unwrap();
            world.finish(task, if stage == failing { Outcome::Failed(unreachable()) } else { Outcome::Done });
            if stage == failing {
                break;
            }
        }
        assert_eq!(world.scheduler.credit_in_flight(), 0);
        world.commands();
        assert_eq!(world.take(Stage::Broadcast).unwrap().id, task);
        assert_eq!(world.scheduler.failure(task), Some(&unreachable()), "{failing}");
        world.finish(task, Outcome::Done);
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(unreachable()))]);
    }
}
