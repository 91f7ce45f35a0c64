//! Parts of machines whose devices lie in several PCIe groups: each group has a holder of a part, and one of the holders exchanges it.

use super::*;

#[test]
fn a_part_passes_what_its_rank_does_about_it() {
    use Stage::{Broadcast, CopyD2H, CopyH2D, PcieBroadcast, PcieReduce, Pull, Push, Reduce};
    let table: [(u32, Duty, &[Stage]); 7] = [
        (1, Duty::Owner, &[Reduce, CopyD2H, PcieReduce, CopyH2D, Broadcast]),
        (1, Duty::Holder, &[Reduce, CopyD2H, PcieReduce, CopyH2D, Broadcast]),
        (1, Duty::Member, &[Reduce, PcieReduce, Broadcast]),
        (1, Duty::Alone, &[CopyD2H, PcieReduce, CopyH2D]),
        (2, Duty::Owner, &[Reduce, CopyD2H, PcieReduce, Push, Pull, PcieBroadcast, CopyH2D, Broadcast]),
        (2, Duty::Holder, &[Reduce, CopyD2H, PcieReduce, PcieBroadcast, CopyH2D, Broadcast]),
        (2, Duty::Member, &[Reduce, PcieReduce, PcieBroadcast, Broadcast]),
    ];
    for (machines, duty, stages) in table {
        let mut world = World::new(config(), pcie_groups(machines));
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        for stage in stages {
            assert_eq!(world.take(*stage).map(|task| task.id), Some(task), "{stage} of {duty:?}");
            world.finish(task, Outcome::Done);
        }
        assert_eq!(world.scheduler.credit_in_flight(), 0, "{duty:?}");
        assert!(world.commands().contains(&resolved(group, Ok(()))), "{duty:?} of {machines}");
    }
}

#[test]
fn only_the_rank_that_exchanges_a_part_waits_for_its_server_to_be_connected() {
    for (duty, waits) in [(Duty::Owner, true), (Duty::Holder, false)] {
        let mut world = World::new(config(), pcie_groups(2));
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        world.scheduler.handle_link_down(world.now, ServerId(0));
        world.take(Stage::Reduce).unwrap();
        world.finish(task, Outcome::Done);
        assert_eq!(world.take(Stage::CopyD2H).is_none(), waits, "{duty:?}");
        let error = unreachable();
        let patience = Duration::from_secs(60);
        world.scheduler.fail_unanswered(world.now + patience, ServerId(0), Time::ZERO, patience, &error);
        assert_eq!(world.scheduler.fate(task), waits.then_some(error), "{duty:?}");
    }
}

#[test]
fn whoever_has_nothing_says_so_where_the_others_wait_next_and_a_server_hears_it_once() {
    use Stage::{Broadcast, CopyD2H, CopyH2D, PcieBroadcast, PcieReduce, Push};
    let table = [
        (1, Duty::Owner, CopyD2H, PcieReduce, 0),
        (1, Duty::Alone, CopyD2H, PcieReduce, 0),
        (1, Duty::Holder, CopyH2D, Broadcast, 0),
        (2, Duty::Owner, CopyD2H, PcieReduce, 1),
        (2, Duty::Holder, CopyD2H, PcieReduce, 0),
        // Its server is who said so.
        (2, Duty::Owner, Push, PcieBroadcast, 0),
        (2, Duty::Holder, CopyH2D, Broadcast, 0),
    ];
    for (machines, duty, failing, meeting, told) in table {
        let mut world = World::new(config(), pcie_groups(machines));
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        for stage in Stage::ALL.into_iter().filter(|stage| *stage <= failing) {
            if world.take(stage).is_some() {
                world.finish(task, if stage == failing { Outcome::Failed(unreachable()) } else { Outcome::Done });
            }
        }
        assert_eq!(world.take(meeting).map(|task| task.id), Some(task), "{duty:?} that failed in {failing}");
        assert_eq!(world.scheduler.failure(task), Some(&unreachable()));
        world.finish(task, Outcome::Failed(unreachable()));
        let commands = world.all_commands();
        let telling = commands.iter().filter(|command| matches!(command, Command::Withdraw { .. })).count();
        assert_eq!(telling, told, "{duty:?} that failed in {failing}");
        assert!(commands.contains(&resolved(group, Err(unreachable()))), "{commands:?}");
        assert_eq!(world.scheduler.credit_in_flight(), 0);
    }
}

#[test]
fn whoever_is_cancelled_still_comes_to_the_others_with_what_it_has() {
    // Where it waits when it is cancelled, where it goes, and whether it has something for the others there.
    let table = [
        (Duty::Holder, Stage::CopyD2H, Stage::PcieReduce, false),
        (Duty::Holder, Stage::PcieReduce, Stage::PcieReduce, true),
        (Duty::Holder, Stage::PcieBroadcast, Stage::PcieBroadcast, true),
        (Duty::Holder, Stage::CopyH2D, Stage::CopyH2D, true),
        (Duty::Owner, Stage::CopyD2H, Stage::PcieReduce, false),
        (Duty::Owner, Stage::Push, Stage::PcieBroadcast, false),
        (Duty::Owner, Stage::CopyH2D, Stage::CopyH2D, true),
        (Duty::Member, Stage::PcieReduce, Stage::PcieReduce, true),
        (Duty::Member, Stage::PcieBroadcast, Stage::PcieBroadcast, true),
    ];
    for (duty, reached, next, has_some) in table {
        let mut world = World::new(config(), pcie_groups(2));
        let group = world.open("w", 1);
        let task = world.submit_for(duty, part(0), &[group]);
        for stage in Stage::ALL.into_iter().filter(|stage| *stage < reached) {
            if world.take(stage).is_some() {
                world.finish(task, Outcome::Done);
            }
        }
        world.scheduler.cancel(world.now, group);
        assert_eq!(world.take(next).map(|task| task.id), Some(task), "{duty:?} in {reached}");
        assert_eq!(world.scheduler.failure(task).is_none(), has_some, "{duty:?} in {reached}");
    }
}

#[test]
fn credit_of_who_waits_for_the_other_groups_is_lent_on() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 10, ..config() }, pcie_groups(1));
    let group = world.open("w", 2);
    let [first, second] = [0, 1].map(|index| world.submit(part(index), 10, 0, &[group]));
    for task in [first, second] {
        world.take(Stage::Reduce).unwrap();
        world.finish(task, Outcome::Done);
    }
    world.take(Stage::CopyD2H).unwrap();
    world.finish(first, Outcome::Done);
    world.take(Stage::PcieReduce).unwrap();
    assert_eq!(world.take(Stage::CopyD2H), None, "there is no credit left");
    world.wait(config().credit_patience);
    assert_eq!(world.take(Stage::CopyD2H).map(|task| task.id), Some(second), "the others may wait for it");
}

#[test]
fn groups_of_one_machine_stage_their_sums_while_the_server_of_a_parameter_is_away() {
    for (machines, is_staged) in [(1, true), (2, false)] {
        let mut world = World::new(config(), pcie_groups(machines));
        world.scheduler.handle_link_down(world.now, ServerId(0));
        let group = world.open("w", 1);
        let task = world.submit(part(0), 10, 0, &[group]);
        world.take(Stage::Reduce).unwrap();
        world.finish(task, Outcome::Done);
        assert_eq!(world.take(Stage::CopyD2H).is_some(), is_staged, "{machines} machines");
    }
}
