//! What a task says it has waited for, when it is pushed.

use super::*;
use crate::metrics::{Cell, Value, WaitReason, WorkerMetrics};
use crate::types::{Wait, Waited};

#[test]
fn a_task_that_is_pushed_at_once_has_waited_for_nothing() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    world.submit(part(0), 10, 0, &[group]);
    assert_eq!(world.take(Stage::Push).unwrap().waited, Waited::default());
}

#[test]
fn the_time_in_a_queue_is_told_until_the_first_push() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    pass(&mut world, 4);
    let first = world.take(Stage::Push).unwrap();
    assert_eq!(first.waited, waited(0, 4, 0));
    world.finish(task, retry(0));
    pass(&mut world, 1000);
    world.scheduler.handle_timeout(world.now);
    let again = world.take(Stage::Push).unwrap();
    assert_eq!((again.attempt, again.waited), (Attempt::Again, first.waited), "the server knows the rest");
}

#[test]
fn the_ranks_of_the_machine_are_told_the_time_in_the_queue_of_their_first_stage() {
    let mut world = World::new(config(), tiers());
    let group = world.open("w", 1);
    world.submit(part(0), 10, 0, &[group]);
    pass(&mut world, 4);
    assert_eq!(world.take(Stage::Reduce).unwrap().waited, waited(0, 4, 0));
}

#[test]
fn stages_before_the_push_are_told_apart_from_queues() {
    let pipeline = device();
    let mut world = World::new(config(), pipeline.clone());
    let group = world.open("w", 1);
    let route = Route::device(Duty::Owner);
    let task = world.scheduler.submit(world.now, spec(route, part(0), 0, 10, 0, &[group]));
    let mut stages = 0;
    for stage in pipeline.stages().iter().take_while(|stage| stage.precedes_push()) {
        pass(&mut world, 1);
        if world.take(*stage).is_some() {
            stages += 1;
            pass(&mut world, 2);
            world.finish(task, Outcome::Done);
        }
    }
    assert!(stages > 0, "it is staged");
    let waits = world.take(Stage::Push).unwrap().waited;
    assert_eq!((waits.device, waits.credit), (wait(2 * stages), Wait::default()));
    assert!(waits.queue >= wait(stages), "{waits:?}");
}

#[test]
fn the_time_for_which_credit_was_missing_is_told_apart_from_the_turn() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 3);
    let [first, second] = [0, 1].map(|index| world.submit(part(index), 100, 0, &[group]));
    pass(&mut world, 3);
    assert_eq!(world.take(Stage::Push).unwrap().waited, waited(0, 3, 0));
    assert_eq!(world.take(Stage::Push), None, "there is no credit");
    pass(&mut world, 7);
    // The time in which others lacked credit, before a task came, is not its own.
    let third = world.submit(part(2), 100, 0, &[group]);
    pass(&mut world, 1);
    world.complete(first);
    let taken = world.take(Stage::Push).unwrap();
    assert_eq!((taken.id, taken.waited), (second, waited(0, 3, 8)));
    assert_eq!(world.take(Stage::Push), None);
    pass(&mut world, 8);
    world.complete(second);
    let taken = world.take(Stage::Push).unwrap();
    assert_eq!((taken.id, taken.waited), (third, waited(0, 0, 9)));
}

#[test]
fn how_long_stages_take_and_what_they_wait_for_is_counted_of_every_attempt() {
    let metrics = WorkerMetrics::default();
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    world.scheduler.count_in(metrics.stage_times());
    let group = world.open("w", 2);
    let [first, second] = [0, 1].map(|index| world.submit(part(index), 100, 0, &[group]));
    pass(&mut world, 3);
    world.take(Stage::Push).unwrap();
    assert!(!world.scheduler.is_starved());
    assert_eq!(world.take(Stage::Push), None, "there is no credit");
    assert!(world.scheduler.is_starved());
    pass(&mut world, 2);
    world.finish(first, Outcome::Done);
    pass(&mut world, 5);
    world.finish(first, Outcome::Done);
    assert_eq!(world.take(Stage::Push).unwrap().id, second);
    assert!(!world.scheduler.is_starved());
    pass(&mut world, 1);
    world.finish(second, retry(0));
    let millis = |nanoseconds: u64| nanoseconds / 1_000_000;
    let Value::Histograms(durations) = metrics.stage_duration_nanoseconds.value() else { panic!("histograms") };
    let took: Vec<(&str, u64, u64)> = durations
        .iter()
        .map(|(labels, durations)| (labels[0].as_str(), durations.count(), millis(durations.nanoseconds)))
        .collect();
    assert_eq!(took, [("PUSH", 2, 3), ("PULL", 1, 5)]);
    let Value::Family(failures) = metrics.exchange_failures.value() else { panic!("a family") };
    assert_eq!(failures, [(vec!["unavailable".to_owned()], 1)]);
    let expected = [("PUSH", "queue", 6), ("PUSH", "credit", 7), ("PUSH", "order", 0), ("PUSH", "link", 0)];
    assert_eq!(waits(&metrics, "PUSH")[..4], expected);
    assert_eq!(waits(&metrics, "PULL").iter().map(|(.., time)| time).sum::<u64>(), 0);
}

#[test]
fn what_closes_the_gates_of_a_task_is_told_apart_from_its_turn_and_from_credit() {
    let metrics = WorkerMetrics::default();
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    world.scheduler.count_in(metrics.stage_times());
    let [early, late] = ["w", "w"].map(|name| world.open(name, 1));
    let [first, second] =
        [(0, early), (1, late)].map(|(round, group)| world.submit_round(part(0), round, 100, 0, &[group]));
    world.take(Stage::Push).unwrap();
    pass(&mut world, 4);
    // While the round before is under way, the link breaks: the first reason counts until it is gone.
    world.scheduler.handle_link_down(world.now, ServerId(0));
    pass(&mut world, 1);
    world.complete(first);
    pass(&mut world, 20);
    world.scheduler.handle_link_up(world.now, ServerId(0));
    pass(&mut world, 3);
    let taken = world.take(Stage::Push).unwrap();
    assert_eq!((taken.id, taken.waited), (second, waited(0, 28, 0)), "the header has no more room");
    let expected = [("PUSH", "queue", 3), ("PUSH", "credit", 0), ("PUSH", "order", 5), ("PUSH", "link", 20)];
    assert_eq!(waits(&metrics, "PUSH")[..4], expected);
}

#[test]
fn parts_wait_for_the_device_while_as_many_copies_as_may_be_are_under_way() {
    let metrics = WorkerMetrics::default();
    let pipeline = device();
    let mut world = World::new(SchedulerConfig { copies_max: 1, ..config() }, pipeline);
    world.scheduler.count_in(metrics.stage_times());
    let group = world.open("w", 2);
    let [first, _] = [0, 1].map(|index| {
        let spec = spec(Route::device(Duty::Owner), part(index), 0, 10, 0, &[group]);
        world.scheduler.submit(world.now, spec)
    });
    pass(&mut world, 2);
    world.take(Stage::CopyD2H).unwrap();
    assert_eq!(world.take(Stage::CopyD2H), None, "there is no room");
    pass(&mut world, 6);
    world.finish(first, Outcome::Done);
    pass(&mut world, 1);
    world.take(Stage::CopyD2H).unwrap();
    let told = waits(&metrics, "COPYD2H");
    assert_eq!((told[0], told[4]), (("COPYD2H", "queue", 5), ("COPYD2H", "device", 6)));
}

#[test]
fn credit_is_not_missing_when_nothing_waits_for_it_any_more() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let [first, second] = ["a", "b"].map(|name| world.open(name, 1));
    world.submit(part(0), 100, 0, &[first]);
    world.submit(part(1), 100, 0, &[second]);
    world.take(Stage::Push).unwrap();
    assert_eq!(world.take(Stage::Push), None, "there is no credit");
    world.scheduler.cancel(world.now, second);
    assert!(!world.scheduler.is_starved());
}

fn pass(world: &mut World, millis: u64) {
    world.now = world.now + Duration::from_millis(millis);
}

/// What was counted of a stage, in milliseconds.
fn waits(metrics: &WorkerMetrics, stage: &'static str) -> Vec<(&'static str, &'static str, u64)> {
    let Value::Family(waits) = metrics.stage_wait_nanoseconds.value() else { panic!("a family") };
    let of_stage = waits.into_iter().filter(|(labels, _)| labels[0] == stage);
    let reason = |word: &str| WaitReason::ALL.into_iter().find(|reason| reason.name() == word).unwrap().name();
    of_stage.map(|(labels, time)| (stage, reason(&labels[1]), time / 1_000_000)).collect()
}

fn waited(device: u64, queue: u64, credit: u64) -> Waited {
    let [device, queue, credit] = [device, queue, credit].map(wait);
    Waited { device, queue, credit }
}

fn wait(millis: u64) -> Wait {
    Wait::of(Duration::from_millis(millis))
}
