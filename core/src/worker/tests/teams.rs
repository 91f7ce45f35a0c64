//! Other workers reduce with this one on its machine than before.

use super::*;
use crate::types::{Incarnation, Machines, Unmet};
use crate::worker::Meeting;

#[test]
fn what_waits_for_the_former_team_begins_again_with_the_new_one_once_it_has_met() {
    let mut world = World::together(&[0, 1, 2], false);
    let id = world.submit_known("w");
    let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
    assert_eq!(team_of(&step), 1);
    world.meets = false;
    world.view(&[0, 1], false);
    assert_eq!(world.worker.team(), 2);
    // It was handed to the former team, whose ranks part before they begin it.
    world.worker.handle_met(world.now, step.task.id, false, Err(Unmet::NotBegun(parted())));
    world.commands();
    assert_eq!(world.worker.take(world.now, Stage::AllReduce), None, "they have not met");
    world.worker.handle_equipped(world.now, 1);
    assert_eq!(world.worker.take(world.now, Stage::AllReduce), None, "that was the former team");
    world.worker.handle_equipped(world.now, 2);
    assert_eq!(world.commands(), [Command::Wake(Stage::AllReduce)]);
    let again = world.worker.take(world.now, Stage::AllReduce).unwrap();
    assert_eq!((again.task.id, team_of(&again)), (step.task.id, 2));
    world.worker.handle_met(world.now, again.task.id, false, Ok(2.0));
    assert!(world.commands().contains(&resolved(id, Ok(()))));
    assert!(world.worker.is_idle());
}

#[test]
fn a_team_that_parts_before_the_view_says_so_waits_for_the_view_and_not_for_ever() {
    for hears in [true, false] {
        let mut world = World::together(&[0, 1, 2], false);
        let id = world.submit_known("w");
        let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
        world.worker.handle_met(world.now, step.task.id, false, Err(Unmet::NotBegun(parted())));
        world.commands();
        assert_eq!(world.worker.take(world.now, Stage::AllReduce), None);
        world.now = world.now + STEP;
        if hears {
            world.view(&[0, 1], false);
            assert!(world.worker.take(world.now, Stage::AllReduce).is_some());
            continue;
        }
        assert_eq!(world.worker.poll_timeout(), Some(world.now));
        world.worker.handle_timeout(world.now);
        let commands = world.commands();
        let said = |command: &Command| match command {
            Command::Resolve { submission, outcome: Err(error), .. } => (*submission == id).then(|| error.to_string()),
            _ => None,
        };
        let said = commands.iter().find_map(said).unwrap();
        assert!(said.contains("on_worker_loss"), "{said}");
    }
}

#[test]
fn what_the_former_team_completes_counts_if_nothing_is_to_be_done_with_it_any_more() {
    for (pushes, stage) in [(false, Stage::AllReduce), (true, Stage::Reduce)] {
        let mut world = World::together(&[0, 1, 2], pushes);
        let id = world.submit_known(&owned());
        let step = world.worker.take(world.now, stage).unwrap();
        world.view(&[0, 1], pushes);
        world.worker.handle_met(world.now, step.task.id, true, Ok(3.0));
        let commands = world.commands();
        let ended = commands.iter().find_map(|command| match command {
            Command::Resolve { submission, outcome, .. } if *submission == id => Some(outcome.clone()),
            _ => None,
        });
        match (pushes, ended) {
            (false, Some(Ok(()))) => {}
            (true, Some(Err(Error::Unavailable { what, .. }))) => assert!(what.contains("the sum of w"), "{what}"),
            (_, ended) => panic!("{pushes}: {ended:?}"),
        }
        world.withdraw();
        assert!(world.worker.is_idle(), "{commands:?}");
    }
}

#[test]
fn a_sum_that_the_former_team_has_begun_with_a_server_fails_and_the_next_one_works() {
    let mut world = World::together(&[0, 1, 2], true);
    let id = world.submit_known(&owned());
    let step = world.worker.take(world.now, Stage::Reduce).unwrap();
    world.worker.handle_met(world.now, step.task.id, true, Ok(3.0));
    world.commands();
    let step = world.worker.take(world.now, Stage::Push).unwrap();
    world.view(&[0, 1], true);
    assert!(world.commands().iter().all(|command| !matches!(command, Command::Resolve { .. })), "it holds its memory");
    world.worker.end_push(world.now, step.task.id);
    world.worker.handle_pulled(world.now, step.task.id, Exchanged::Torn { error: Error::Cancelled, landed: 0 });
    let commands = world.commands();
    let failed = |command: &Command| {
        matches!(command, Command::Resolve { submission, outcome: Err(Error::Unavailable { .. }), .. }
            if *submission == id)
    };
    assert!(commands.iter().any(failed), "{commands:?}");
    world.withdraw();
    world.submit_known(&owned());
    let step = world.worker.take(world.now, Stage::Reduce).unwrap();
    assert_eq!((team_of(&step), step.task.round), (2, Round(1)));
}

#[test]
fn a_worker_that_is_left_alone_takes_the_way_that_its_job_began_with() {
    for (pushes, stage) in [(false, Stage::AllReduce), (true, Stage::Push)] {
        let mut world = World::together(&[0, 1], pushes);
        world.submit_known("w");
        world.view(&[0], pushes);
        let step = world.worker.take(world.now, stage).unwrap_or_else(|| panic!("{stage}"));
        match step.action {
            Action::Meet(Meeting { goal: Goal::AllReduce, team: 2, .. }) => assert!(!pushes),
            Action::Push { .. } => assert!(pushes),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn that_a_rank_will_not_come_is_told_when_the_others_have_met() {
    let mut world = World::together(&[0, 1, 2], false);
    let first = world.submit_known("w");
    world.meets = false;
    world.view(&[0, 1], false);
    // The second round waits for the first, so nobody has heard of it.
    let second = world.submit_known("w");
    world.worker.cancel(world.now, second);
    let declined = |command: &Command| matches!(command, Command::Decline(_));
    assert!(!world.commands().iter().any(declined), "there is nobody to tell");
    world.worker.handle_equipped(world.now, 2);
    assert_eq!(world.commands().iter().filter(|command| declined(command)).count(), 1);
    let step = world.worker.take(world.now, Stage::AllReduce).unwrap();
    world.worker.handle_met(world.now, step.task.id, false, Ok(2.0));
    assert!(world.commands().contains(&resolved(first, Ok(()))));
}

impl World {
    /// A job of workers of one machine, and one of another if its sums go to a server. This one has met the others.
    pub(super) fn together(ranks: &[u32], pushes: bool) -> Self {
        let mut world = Self::joined_in(machine(ranks, pushes, 0));
        for command in world.commands() {
            if let Command::Dial(Dial { server, attempt, .. }) = command {
                world.worker.handle_dialled(world.now, server, attempt, Ok(LinkId(7)));
            }
        }
        world.commands();
        world
    }

    /// Another view: these are left.
    pub(super) fn view(&mut self, ranks: &[u32], pushes: bool) {
        let epoch = self.worker.formation().unwrap().epoch().number + 1;
        self.worker.handle_view(self.now, machine(ranks, pushes, epoch));
        if self.meets {
            self.commands();
        }
    }

    pub(super) fn submit_known(&mut self, name: &str) -> u64 {
        let id = self.submit(name);
        self.declare_all();
        id
    }

    /// Tells the server from which rounds this worker withdraws.
    fn withdraw(&mut self) {
        while let Some(step) = self.worker.take(self.now, Stage::Push) {
            self.worker.end_push(self.now, step.task.id);
            self.commands();
            self.worker.handle_pulled(self.now, step.task.id, Exchanged::Rejected(Error::Cancelled));
            self.commands();
        }
    }
}

fn machine(ranks: &[u32], pushes: bool, number: u32) -> View {
    let mut view = View::of_workers(&[(1, "/0"), (1, "/1"), (1, "/2"), (2, "")]);
    for (member, life) in view.members.iter_mut().zip(1..) {
        member.process.incarnation = Incarnation(life);
    }
    view.members.retain(|member| ranks.contains(&member.index) || pushes && member.index == 3);
    view.formed_together = !pushes;
    if pushes {
        view.members.extend(super::view().members.into_iter().filter(|member| member.process.role == Role::Server));
    }
    view.epoch.number = number;
    view
}

/// A tensor whose sum goes to its server from rank 0.
pub(super) fn owned() -> String {
    let machines = Machines::of(&machine(&[0, 1, 2], true, 0));
    let part = |name: &str| PartId { key: spec(name).key(), index: 0 };
    let is_owned = |name: &String| machines.owner(part(name), DType::F32, WorkerId(0)) == WorkerId(0);
    (0..).map(|number| format!("w{number}")).find(is_owned).unwrap()
}

pub(super) fn team_of(step: &Step) -> u32 {
    let Action::Meet(Meeting { team, .. }) = &step.action else { panic!("{step:?}") };
    *team
}

pub(super) fn parted() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "others meet".to_owned() }
}
