//! Workers of this machine that are lost while they reduce with this one, in a job that goes on.

use super::teams::{owned, parted, team_of};
use super::*;
use crate::types::Unmet;

#[test]
fn a_sum_of_a_machine_is_copied_to_its_place_when_it_is_there() {
    let mut world = World::of_machine(&[0, 1, 2], false);
    let id = world.submit_known("w");
    let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
    assert!(is_aside(&step));
    world.worker.handle_met(world.now, step.task.id, false, Ok(3.0));
    world.commands();
    let step = world.worker.take(world.now, Stage::Land).unwrap();
    assert_eq!((step.action, step.is_last), (Action::Land, true));
    world.worker.handle_copied(world.now, step.task.id, Ok(()));
    assert!(world.commands().contains(&resolved(id, Ok(()))));
}

#[test]
fn what_a_lost_rank_has_left_undone_begins_again_wherever_it_was() {
    // Up to where a part comes before the others of its machine are without a rank.
    for until in ["REDUCE", "PUSH", "PULL", "BROADCAST"] {
        let mut world = World::of_machine(&[0, 1, 2], true);
        let id = world.submit_known(&owned());
        let step = world.worker.take(world.now, Stage::Reduce).unwrap();
        let task = step.task.id;
        let torn = |world: &mut World| {
            world.worker.handle_met(world.now, task, true, Err(Unmet::NotBegun(parted())));
            let commands = world.commands();
            assert!(commands.contains(&Command::StartOver(task)), "{until}: {commands:?}");
        };
        match until {
            "REDUCE" => torn(&mut world),
            _ => {
                world.worker.handle_met(world.now, task, true, Ok(3.0));
                world.commands();
            }
        }
        if until == "PULL" || until == "BROADCAST" {
            let step = world.worker.take(world.now, Stage::Push).unwrap();
            world.worker.end_push(world.now, step.task.id);
            world.commands();
        }
        if until == "BROADCAST" {
            world.worker.handle_pulled(world.now, task, sum());
            world.commands();
            let step = world.worker.take(world.now, Stage::Broadcast).unwrap();
            assert_eq!(step.task.id, task);
            torn(&mut world);
        }
        world.view(&[0, 1], true);
        if until == "PULL" {
            assert_eq!(world.worker.take(world.now, Stage::Reduce), None, "its exchange has its memory");
            world.worker.handle_pulled(world.now, task, sum());
            assert!(world.commands().contains(&Command::StartOver(task)));
        }
        let again = world.worker.take(world.now, Stage::Reduce).unwrap_or_else(|| panic!("{until}"));
        assert_eq!((again.task.id, again.task.round, team_of(&again)), (task, Round(0), 2), "{until}");
        world.complete(&again, id);
    }
}

#[test]
fn a_weighted_mean_begins_again_with_the_weight_of_this_worker() {
    let mut world = World::of_machine(&[0, 1, 2], true);
    let spec = spec(&owned());
    let terms = Terms { demand: Demand::Reduce { op: Op::WeightedMean, weight: 0.5 }, timeout: None };
    world.worker.submit(world.now, &spec, tensor(&spec, None), terms);
    world.declare_all();
    let step = world.worker.take(world.now, Stage::Reduce).unwrap();
    assert_eq!(weight_of(&step), 0.5);
    world.worker.handle_met(world.now, step.task.id, true, Ok(7.5));
    world.commands();
    world.view(&[0, 1], true);
    let again = world.worker.take(world.now, Stage::Reduce).unwrap();
    assert_eq!(weight_of(&again), 0.5);
}

#[test]
fn a_part_that_nobody_wants_any_more_does_not_begin_again_and_the_others_are_told() {
    let mut world = World::of_machine(&[0, 1, 2], true);
    let id = world.submit_known(&owned());
    let step = world.worker.take(world.now, Stage::Reduce).unwrap();
    world.worker.cancel(world.now, id);
    world.commands();
    world.worker.handle_met(world.now, step.task.id, true, Err(Unmet::NotBegun(parted())));
    assert!(world.commands().contains(&resolved(id, Err(Error::Cancelled))));
    world.meets = false;
    world.view(&[0, 1], true);
    world.commands();
    world.worker.handle_equipped(world.now, 2);
    assert!(world.commands().iter().any(|command| matches!(command, Command::Decline(_))));
}

#[test]
fn a_part_that_waits_for_ranks_that_have_parted_ends_if_nobody_wants_it() {
    let mut world = World::of_machine(&[0, 1, 2], false);
    let first = world.submit_known("w");
    let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
    let second = world.submit_known("v");
    world.worker.cancel(world.now, second);
    assert!(!world.commands().contains(&resolved(second, Err(Error::Cancelled))), "the others may wait for it");
    world.worker.handle_met(world.now, step.task.id, false, Err(Unmet::NotBegun(parted())));
    assert!(world.commands().contains(&resolved(second, Err(Error::Cancelled))));
    let cause = Error::FailedPrecondition { what: "the job".to_owned(), hint: "is over".to_owned() };
    world.worker.handle_failed(world.now, cause.clone());
    assert!(world.commands().contains(&resolved(first, Err(cause))));
    assert!(world.worker.is_idle());
}

#[test]
fn a_machine_whose_ranks_lose_one_in_the_middle_of_work_on_devices_is_lost_as_a_whole() {
    let mut world = World::of_machine(&[0, 1, 2], false);
    let id = world.submit_with("w", Some(Ordinal(0)), None);
    world.declare_all();
    let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
    let [member, host, cause] = ["worker 1", "here", "its process ended"].map(str::to_owned);
    let lost = Error::PeerLost { member, host, cause };
    world.worker.handle_met(world.now, step.task.id, false, Err(Unmet::Failed(lost.clone())));
    let commands = world.commands();
    assert!(commands.contains(&Command::BreakDown(lost)), "{commands:?}");
    assert!(commands.iter().any(|command| matches!(command, Command::Resolve { submission, .. } if *submission == id)));
}

#[test]
fn so_it_is_in_whichever_order_they_hear_of_the_loss() {
    // Of a part that REDUCE has brought to this rank, which is its owner.
    let halfway = |world: &mut World| {
        let id = world.submit_with(&owned(), Some(Ordinal(0)), None);
        world.declare_all();
        let step = world.worker.take(world.now, Stage::Reduce).unwrap();
        (id, step.task.id)
    };
    let [member, host, cause] = ["worker 2", "here", "its process ended"].map(str::to_owned);
    let lost = Error::PeerLost { member, host, cause };
    for order in ["a view before BROADCAST", "a view in REDUCE", "a loss in BROADCAST"] {
        let mut world = World::of_machine(&[0, 1, 2], true);
        let (id, task) = halfway(&mut world);
        world.meets = false;
        if order == "a view in REDUCE" {
            world.view(&[0, 1], true);
        }
        world.worker.handle_met(world.now, task, true, Ok(3.0));
        match order {
            "a view before BROADCAST" => world.view(&[0, 1], true),
            "a loss in BROADCAST" => {
                let step = world.worker.take(world.now, Stage::CopyD2H).unwrap();
                world.worker.handle_copied(world.now, step.task.id, Ok(()));
                let step = world.worker.take(world.now, Stage::Push).unwrap();
                world.worker.end_push(world.now, step.task.id);
                world.worker.handle_pulled(world.now, task, sum());
                let step = world.worker.take(world.now, Stage::CopyH2D).unwrap();
                world.worker.handle_copied(world.now, step.task.id, Ok(()));
                let step = world.worker.take(world.now, Stage::Broadcast).unwrap();
                world.worker.handle_met(world.now, step.task.id, false, Err(Unmet::NotBegun(lost.clone())));
            }
            _ => {}
        }
        let commands = world.commands();
        let of_loss = |error: &Error| matches!(error, Error::PeerLost { member, .. } if member == "worker 2");
        let told = commands.iter().find_map(|command| match command {
            Command::Resolve { submission, outcome, .. } if *submission == id => Some(outcome.clone()),
            _ => None,
        });
        assert!(told.is_some_and(|outcome| outcome.is_err_and(|error| of_loss(&error))), "{order}: {commands:?}");
        let is_end = |command: &Command| matches!(command, Command::BreakDown(error) if of_loss(error));
        assert!(commands.iter().any(is_end), "{order}: {commands:?}");
    }
}

fn sum() -> Exchanged {
    Exchanged::Sum { body: Body::plain(16), divisor: 1.0, contributors: Contributors::Due }
}

fn is_aside(step: &Step) -> bool {
    matches!(&step.action, Action::Meet(meeting) if meeting.aside)
}

fn weight_of(step: &Step) -> f64 {
    let Action::Meet(meeting) = &step.action else { panic!("{step:?}") };
    meeting.claim.weight
}

impl World {
    /// As [`together`](Self::together), in a job that goes on without lost workers.
    fn of_machine(ranks: &[u32], pushes: bool) -> Self {
        let mut world = Self::together(ranks, pushes);
        world.worker.settings.keeps = true;
        world
    }

    /// Brings a part from its first stage to the end of its submission.
    fn complete(&mut self, reduced: &Step, id: u64) {
        let task = reduced.task.id;
        self.worker.handle_met(self.now, task, true, Ok(2.0));
        self.commands();
        self.worker.take(self.now, Stage::Push).unwrap();
        self.worker.end_push(self.now, task);
        self.commands();
        self.worker.handle_pulled(self.now, task, sum());
        self.commands();
        self.worker.take(self.now, Stage::Broadcast).unwrap();
        self.worker.handle_met(self.now, task, false, Ok(2.0));
        self.commands();
        self.worker.take(self.now, Stage::Land).unwrap();
        self.worker.handle_copied(self.now, task, Ok(()));
        assert!(self.commands().contains(&resolved(id, Ok(()))));
        assert!(self.worker.is_idle());
    }
}
