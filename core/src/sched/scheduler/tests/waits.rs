//! What a task says it has waited for, when it is pushed.

use super::*;
use crate::metrics::{Cell, Value, WorkerMetrics};
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
    let Value::Family(waits) = metrics.stage_wait_nanoseconds.value() else { panic!("a family") };
    let waited: Vec<(&str, &str, u64)> =
        waits.iter().map(|(labels, time)| (labels[0].as_str(), labels[1].as_str(), millis(*time))).collect();
    assert_eq!(waited, [("PUSH", "queue", 6), ("PUSH", "credit", 7), ("PULL", "queue", 0), ("PULL", "credit", 0)]);
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

fn waited(device: u64, queue: u64, credit: u64) -> Waited {
    let [device, queue, credit] = [device, queue, credit].map(wait);
    Waited { device, queue, credit }
}

fn wait(millis: u64) -> Wait {
    Wait::of(Duration::from_millis(millis))
}
