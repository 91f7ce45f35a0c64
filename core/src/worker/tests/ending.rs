//! Names that this worker uses no more.

use super::*;

#[test]
fn a_name_that_is_used_no_more_is_declared_anew() {
    let mut world = World::joined();
    reduce(&mut world, "w");
    let request = world.worker.undeclare(&["w".to_owned()]).unwrap();
    assert_eq!(world.commands(), [Command::Undeclare { request, names: vec!["w".to_owned()] }]);
    let early = world.submit("w");
    assert_eq!(world.commands().iter().find_map(failed_with("is being undeclared")), Some(early));
    world.worker.handle_undeclared(request);
    let other = TensorSpec { shape: vec![2, 2], ..spec("w") };
    let id = world.submit_spec(&other, tensor(&other, None));
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("not asked") };
    assert_eq!(tensors, std::slice::from_ref(&other));
    world.declared(request, &tensors);
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert_eq!(step.task.round, Round(0));
    finish(&mut world, step.task.id);
    assert!(world.commands().contains(&resolved(id, Ok(()))));
}

#[test]
fn a_name_that_is_in_use_does_not_end() {
    let mut world = World::joined();
    let id = world.submit("w");
    let refusal = |world: &mut World| world.worker.undeclare(&["w".to_owned()]).unwrap_err().to_string();
    assert!(refusal(&mut world).contains("still being declared"));
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    assert!(refusal(&mut world).contains("still being reduced"));
    let task = world.worker.take(world.now, Stage::Push).unwrap().task.id;
    finish(&mut world, task);
    assert!(world.commands().contains(&resolved(id, Ok(()))));
    world.worker.undeclare(&["w".to_owned()]).unwrap();
}

#[test]
fn names_that_share_a_part_end_together() {
    let mut world = World::sharing(&["a", "b"]);
    let refusal = world.worker.undeclare(&["a".to_owned()]).unwrap_err().to_string();
    assert!(refusal.contains("tensor a shares a part with b"), "{refusal}");
    world.worker.undeclare(&["a".to_owned(), "b".to_owned()]).unwrap();
    let refusal = world.worker.undeclare(&["a".to_owned()]).unwrap_err().to_string();
    assert!(refusal.contains("tensor a is not declared on worker 0"), "{refusal}");
}

#[test]
fn a_name_ends_after_the_news_that_this_worker_gave_a_round_up() {
    let mut world = World::joined();
    let id = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    world.worker.cancel(world.now, id);
    assert!(world.commands().contains(&resolved(id, Err(Error::Cancelled))));
    let request = world.worker.undeclare(&["w".to_owned()]).unwrap();
    assert_eq!(world.commands(), [], "a server must be told first");
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    assert!(matches!(step.action, Action::Push { header: Request::Withdraw(_), .. }), "{step:?}");
    finish(&mut world, step.task.id);
    assert!(world.commands().contains(&Command::Undeclare { request, names: vec!["w".to_owned()] }));
}

#[test]
fn names_end_no_more_once_the_job_has_ended() {
    let mut world = World::joined();
    reduce(&mut world, "w");
    world.worker.handle_failed(world.now, Error::Cancelled);
    assert_eq!(world.worker.undeclare(&["w".to_owned()]), Err(Error::Cancelled));
}

fn reduce(world: &mut World, name: &str) {
    let id = world.submit(name);
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let task = world.worker.take(world.now, Stage::Push).unwrap().task.id;
    finish(world, task);
    assert!(world.commands().contains(&resolved(id, Ok(()))));
}

/// The task was pushed, and its answer has come.
fn finish(world: &mut World, task: TaskId) {
    world.worker.end_push(world.now, task);
    world.worker.handle_pulled(
        world.now,
        task,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
}
