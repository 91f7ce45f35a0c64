//! Parts that the host encodes on their way to the network and decodes on their way back.

use super::*;

const STAGES: [Stage; 4] = [Stage::Compress, Stage::Push, Stage::Pull, Stage::Decompress];

#[test]
fn credit_is_drawn_before_a_part_is_encoded_and_returned_when_its_sum_is_decoded() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 2);
    let [first, second] = [0, 1].map(|index| submit(&mut world, part(index), 100, 0, group));
    for stage in STAGES {
        assert_eq!(world.take(stage).unwrap().id, first, "it needs no credit twice");
        assert_eq!(world.take(Stage::Compress), None, "{stage}");
        assert_eq!(world.scheduler.credit_in_flight(), 100);
        world.commands();
        world.finish(first, Outcome::Done);
    }
    assert!(world.commands().contains(&Command::Wake(Stage::Compress)));
    assert_eq!(world.take(Stage::Compress).unwrap().id, second);
}

#[test]
fn the_next_round_of_a_part_is_encoded_after_the_sum_of_this_one_arrived() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 2);
    let this = submit(&mut world, part(0), 10, 0, group);
    let next = world.scheduler.submit(world.now, spec(Route::host(Duty::Owner).coded(), part(0), 1, 10, 9, &[group]));
    for stage in [Stage::Compress, Stage::Push, Stage::Pull] {
        assert_eq!(world.take(stage).unwrap().id, this);
        assert_eq!(world.take(Stage::Compress), None, "{stage}");
        world.finish(this, Outcome::Done);
    }
    assert_eq!(world.take(Stage::Compress).unwrap().id, next, "while the other is decoded");
}

#[test]
fn nothing_is_encoded_for_a_server_that_is_not_connected() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    world.scheduler.handle_link_down(world.now, ServerId(0));
    let task = submit(&mut world, part(0), 10, 0, group);
    assert_eq!(world.take(Stage::Compress), None);
    world.commands();
    world.scheduler.handle_link_up(world.now, ServerId(0));
    assert_eq!(world.commands(), [Command::Wake(Stage::Compress)]);
    assert_eq!(world.take(Stage::Compress).unwrap().id, task);
}

#[test]
fn what_is_encoded_passes_what_waits_for_its_credit() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 2);
    let encoded = submit(&mut world, part(0), 100, 0, group);
    world.take(Stage::Compress).unwrap();
    world.finish(encoded, Outcome::Done);
    let before = world.submit(part(1), 150, 9, &[group]);
    for stage in &STAGES[1..] {
        assert_eq!(world.take(*stage).unwrap().id, encoded);
        assert_eq!(world.take(Stage::Push), None, "{stage}");
        world.finish(encoded, Outcome::Done);
    }
    assert_eq!(world.take(Stage::Push).unwrap().id, before);
}

#[test]
fn what_was_copied_from_a_device_is_encoded_though_others_wait_for_credit() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, pcie_groups(2));
    let group = world.open("w", 2);
    let copied =
        world.scheduler.submit(world.now, spec(Route::device(Duty::Owner).coded(), part(0), 0, 100, 0, &[group]));
    for stage in [Stage::Reduce, Stage::CopyD2H, Stage::PcieReduce] {
        assert_eq!(world.take(stage).unwrap().id, copied);
        world.finish(copied, Outcome::Done);
    }
    let urgent =
        world.scheduler.submit(world.now, spec(Route::host(Duty::Alone).coded(), part(1), 0, 150, 9, &[group]));
    assert_eq!(world.take(Stage::Compress).unwrap().id, copied);
    assert_eq!(world.take(Stage::Compress), None);
    world.finish(copied, Outcome::Failed(unreachable()));
    assert_eq!(world.take(Stage::PcieBroadcast).unwrap().id, copied, "the others hear of it");
    assert_eq!(world.take(Stage::Compress), None, "its group has failed");
    assert_eq!((world.scheduler.waiting(Stage::Compress), world.scheduler.credit_in_flight()), (0, 0), "{urgent:?}");
}

#[test]
fn what_is_repeated_stays_encoded_and_says_how_many_bytes_of_the_wire_form_landed() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, retry_min: SECOND, ..config() }, host());
    let group = world.open("w", 1);
    let task = submit(&mut world, part(0), 100, 0, group);
    for stage in &STAGES[..2] {
        world.take(*stage).unwrap();
        world.finish(task, Outcome::Done);
    }
    world.take(Stage::Pull).unwrap();
    world.finish(task, retry(7));
    assert_eq!(world.scheduler.credit_in_flight(), 100, "its memory is held");
    world.wait(SECOND);
    assert_eq!(world.take(Stage::Push).unwrap().attempt, Attempt::Resumed { landed: 7 });
}

#[test]
fn a_sum_that_cannot_be_decoded_fails_its_group_and_the_other_ranks_of_the_machine() {
    for pipeline in [host(), tiers()] {
        let is_awaited = pipeline.reduces();
        let mut world = World::new(config(), pipeline);
        let group = world.open("w", 1);
        let task = submit(&mut world, part(0), 10, 0, group);
        if is_awaited {
            world.take(Stage::Reduce).unwrap();
            world.finish(task, Outcome::Done);
        }
        for stage in STAGES {
            world.take(stage).unwrap();
            world.finish(task, if stage == Stage::Decompress { Outcome::Failed(unreachable()) } else { Outcome::Done });
        }
        if is_awaited {
            assert_eq!(world.take(Stage::Broadcast).unwrap().id, task);
            assert_eq!(world.scheduler.failure(task), Some(&unreachable()));
            world.finish(task, Outcome::Done);
        }
        let commands = world.all_commands();
        assert!(commands.contains(&resolved(group, Err(unreachable()))), "{commands:?}");
        assert!(!commands.iter().any(|command| matches!(command, Command::Withdraw { .. })), "the server has summed");
        assert_eq!(world.scheduler.credit_in_flight(), 0);
    }
}

#[test]
fn what_waits_to_be_encoded_or_decoded_is_gone_at_once_when_nobody_wants_it_any_more() {
    for reached in [0, 3] {
        let mut world = World::new(config(), host());
        let group = world.open("w", 1);
        let task = submit(&mut world, part(0), 10, 0, group);
        for stage in &STAGES[..reached] {
            world.take(*stage).unwrap();
            world.finish(task, Outcome::Done);
        }
        world.commands();
        world.scheduler.cancel(world.now, group);
        assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
        assert_eq!(world.scheduler.credit_in_flight(), 0);
    }
}

/// A part in host memory whose tensors have a codec.
fn submit(world: &mut World, part: PartId, bytes: u64, priority: i32, group: GroupId) -> TaskId {
    world.scheduler.submit(world.now, spec(Route::host(Duty::Owner).coded(), part, 0, bytes, priority, &[group]))
}
