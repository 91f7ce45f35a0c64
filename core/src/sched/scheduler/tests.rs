//! The rules one by one; `random` checks that they hold together.

use super::*;
use crate::pipeline::{Duty, Route, Topology};
use crate::sched::task::Attempt;
use crate::sched::{StallDetector, StallReport};
use crate::types::TensorKey;
use crate::types::{DeviceKind, Priority};

mod coding;
mod copies;
mod pcie;
mod random;
mod tiers;
mod waits;
mod withdrawals;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_task_passes_all_stages_and_resolves_its_group() {
    let pipeline = device();
    let mut world = World::new(config(), pipeline.clone());
    let group = world.open("w", 1);
    let route = Route { lands: true, ..Route::device(Duty::Owner).coded() };
    let task = world.scheduler.submit(world.now, spec(route, part(0), 0, 10, 0, &[group]));
    for stage in pipeline.stages() {
        let wakes = if *stage == Stage::Pull { Vec::new() } else { vec![Command::Wake(*stage)] };
        assert_eq!(world.commands(), wakes);
        assert_eq!(world.take(*stage).unwrap().id, task);
        world.finish(task, Outcome::Done);
    }
    assert_eq!(
        world.commands(),
        [Command::Release(task), resolved(group, Ok(()))],
        "the memory is free before anybody is told"
    );
    assert!(world.scheduler.is_idle());
}

#[test]
fn a_group_resolves_with_its_last_part() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 2);
    let tasks = [world.submit(part(0), 10, 0, &[group]), world.submit(part(1), 10, 0, &[group])];
    world.complete(tasks[1]);
    assert!(!world.commands().contains(&resolved(group, Ok(()))));
    world.complete(tasks[0]);
    assert!(world.commands().contains(&resolved(group, Ok(()))));
}

#[test]
fn a_submission_without_parts_succeeds_at_once() {
    let mut world = World::new(config(), host());
    let group = world.open("empty", 0);
    assert_eq!(world.commands(), [resolved(group, Ok(()))]);
    assert_eq!(world.scheduler.poll_timeout(), None, "its deadline is forgotten");
}

#[test]
fn credit_is_drawn_at_push_and_returned_when_the_sum_has_arrived() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 3);
    let [first, second, third] = [0, 1, 2].map(|index| world.submit(part(index), 50, 0, &[group]));
    assert_eq!(world.take(Stage::Push).unwrap().id, first);
    assert_eq!(world.take(Stage::Push).unwrap().id, second);
    world.finish(first, Outcome::Done);
    assert_eq!(world.take(Stage::Push), None, "it is still in flight");
    assert_eq!(world.scheduler.credit_in_flight(), 100);
    world.take(Stage::Pull).unwrap();
    world.commands();
    world.finish(first, Outcome::Done);
    assert!(world.commands().contains(&Command::Wake(Stage::Push)));
    assert_eq!(world.take(Stage::Push).unwrap().id, third);
}

#[test]
fn an_urgent_task_passes_a_backlog_that_holds_all_credit() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("backlog", 3);
    let backlog = [0, 1, 2].map(|index| world.submit(part(index), 50, 0, &[group]));
    assert_eq!(world.take(Stage::Push).unwrap().id, backlog[0]);
    assert_eq!(world.take(Stage::Push).unwrap().id, backlog[1]);
    assert_eq!(world.take(Stage::Push), None);
    world.commands();
    let group = world.open("urgent", 1);
    let urgent = world.submit(part(3), 80, 9, &[group]);
    assert_eq!(world.commands(), [Command::Wake(Stage::Push)]);
    assert_eq!(world.take(Stage::Push).unwrap().id, urgent);
    assert_eq!(world.take(Stage::Push), None, "the rest of the backlog still waits");
    assert_eq!(world.scheduler.credit_in_flight(), 180);
}

#[test]
fn credit_that_waits_for_other_workers_is_lent_on() {
    // Two workers submit two tensors in different orders, and each has credit for one: neither sum can come before both are pushed.
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 2);
    let first = world.submit(part(0), 100, 0, &[group]);
    let second = world.submit(part(1), 100, 0, &[group]);
    assert_eq!(world.take(Stage::Push).unwrap().id, first);
    assert_eq!(world.take(Stage::Push), None);
    world.finish(first, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.commands();
    world.wait(config().credit_patience);
    assert!(world.commands().contains(&Command::Wake(Stage::Push)));
    assert_eq!(world.take(Stage::Push).unwrap().id, second);
    assert_eq!(world.scheduler.credit_in_flight(), 100, "of the second alone");
    world.finish(first, Outcome::Done);
    assert_eq!(world.scheduler.credit_in_flight(), 100, "the first had given its own back");
}

#[test]
fn credit_of_a_contribution_that_is_not_handed_over_is_not_lent_on() {
    let mut world = World::new(SchedulerConfig { credit_bytes: 100, ..config() }, host());
    let group = world.open("w", 2);
    let slow = world.submit(part(0), 100, 0, &[group]);
    world.submit(part(1), 100, 0, &[group]);
    world.take(Stage::Push).unwrap();
    for _ in 0..3 {
        assert_eq!(world.take(Stage::Push), None);
        world.wait(config().credit_patience);
    }
    world.finish(slow, Outcome::Done);
    assert_eq!(world.take(Stage::Push), None);
    world.wait(config().credit_patience);
    assert!(world.take(Stage::Push).is_some());
}

#[test]
fn an_urgent_part_overtakes_what_was_submitted_before() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 2);
    let _low = world.submit(part(0), 10, -5, &[group]);
    let high = world.submit(part(1), 10, 3, &[group]);
    assert_eq!(world.take(Stage::Push).unwrap().id, high);
}

#[test]
fn the_next_round_of_a_part_is_pushed_after_the_sum_of_this_one_arrived() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 2);
    let this = world.submit(part(0), 10, 0, &[group]);
    let next = world.submit_round(part(0), 1, 10, 9, &[group]);
    assert_eq!(world.take(Stage::Push).unwrap().id, this);
    assert_eq!(world.take(Stage::Push), None);
    world.finish(this, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    assert_eq!(world.take(Stage::Push), None);
    world.commands();
    world.finish(this, Outcome::Done);
    assert!(world.commands().contains(&Command::Wake(Stage::Push)));
    assert_eq!(world.take(Stage::Push).unwrap().id, next);
}

#[test]
fn a_round_that_is_given_up_does_not_block_the_next() {
    let mut world = World::new(config(), host());
    let groups = [world.open("w", 1), world.open("w", 1)];
    world.submit(part(0), 10, 0, &groups[..1]);
    let next = world.submit_round(part(0), 1, 10, 0, &groups[1..]);
    world.scheduler.cancel(world.now, groups[0]);
    world.commands();
    assert_eq!(world.take(Stage::Push).unwrap().id, next);
}

#[test]
fn nothing_is_pushed_to_a_server_that_is_not_connected() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 2);
    let first = world.submit(part(0), 10, 0, &[group]);
    world.scheduler.handle_link_down(world.now, ServerId(0));
    let second = world.submit(part(1), 10, 0, &[group]);
    assert_eq!(world.take(Stage::Push), None);
    world.commands();
    world.scheduler.handle_link_up(world.now, ServerId(0));
    assert_eq!(world.commands(), [Command::Wake(Stage::Push)]);
    assert_eq!(world.take(Stage::Push).unwrap().id, first);
    assert_eq!(world.take(Stage::Push).unwrap().id, second);
}

#[test]
fn a_failed_exchange_is_repeated_after_a_pause_that_doubles() {
    let mut world = World::new(SchedulerConfig { retry_min: SECOND, retry_max: 3 * SECOND, ..config() }, host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    for (attempt, pause) in [(Attempt::First, 1), (Attempt::Again, 2), (Attempt::Again, 3), (Attempt::Again, 3)] {
        assert_eq!(world.take(Stage::Push).unwrap().attempt, attempt);
        world.finish(task, retry(0));
        assert_eq!(world.scheduler.credit_in_flight(), 0);
        assert_eq!(world.take(Stage::Push), None);
        world.commands();
        assert_eq!(world.scheduler.poll_timeout(), Some(world.now + pause * SECOND));
        world.wait(pause * SECOND);
        assert_eq!(world.commands(), [Command::Wake(Stage::Push)]);
    }
    world.complete(task);
    assert!(world.commands().contains(&resolved(group, Ok(()))));
}

#[test]
fn once_the_sum_began_to_land_every_repeat_says_how_much_of_it() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.finish(task, retry(8));
    world.wait(SECOND);
    assert_eq!(world.take(Stage::Push).unwrap().attempt, Attempt::Resumed { landed: 8 });
    world.finish(task, retry(0));
    world.wait(SECOND);
    assert_eq!(world.take(Stage::Push).unwrap().attempt, Attempt::Resumed { landed: 8 }, "for good");
}

#[test]
fn only_an_exchange_can_be_repeated() {
    let mut world = World::new(config(), device());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::CopyD2H).unwrap();
    world.finish(task, retry(0));
    assert!(world.commands().contains(&resolved(group, Err(unreachable()))));
}

#[test]
fn a_failed_part_fails_its_group_with_the_cause_and_the_other_parts_are_given_up() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 3);
    let [failing, running, queued] = [0, 1, 2].map(|index| world.submit(part(index), 10, 0, &[group]));
    world.take(Stage::Push).unwrap();
    world.take(Stage::Push).unwrap();
    world.commands();
    world.finish(failing, Outcome::Failed(unreachable()));
    let commands = world.commands();
    assert!(commands.contains(&Command::Abandon(running)), "{commands:?}");
    assert!(commands.contains(&Command::Release(queued)));
    assert!(!commands.iter().any(|command| matches!(command, Command::Resolved { .. })), "a part still holds memory");
    world.finish(running, Outcome::Failed(Error::Cancelled));
    assert_eq!(world.commands(), [Command::Release(running), resolved(group, Err(unreachable()))]);
    assert!(world.scheduler.is_idle());
}

#[test]
fn a_deadline_says_where_the_tensor_was() {
    let mut world = World::new(config(), host());
    let group = world.open("fc.weight", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.commands();
    world.wait(30 * SECOND);
    assert_eq!(world.commands(), [Command::Abandon(task)]);
    world.finish(task, Outcome::Failed(Error::Cancelled));
    let what = "tensor fc.weight, round 0: in PULL with server 0".to_owned();
    assert_eq!(world.commands().last(), Some(&resolved(group, Err(Error::Timeout { what, waited: 30 * SECOND }))));
}

#[test]
fn a_deadline_says_what_a_waiting_tensor_waits_for() {
    let mut world = World::new(SchedulerConfig { retry_min: 40 * SECOND, retry_max: 40 * SECOND, ..config() }, host());
    let shared = world.open("bias", 1);
    let repeated = world.open("weight", 2);
    let task = world.submit(part(0), 10, 0, &[repeated]);
    world.take(Stage::Push).unwrap();
    world.finish(task, retry(0));
    world.commands();
    world.wait(30 * SECOND);
    let texts: Vec<String> = world.commands().iter().filter_map(failure).map(|error| error.to_string()).collect();
    assert_eq!(texts[0], "tensor bias, round 0: waiting for tensors that share a part with it: not done after 30.0 s");
    let expected = "tensor weight, round 0: waiting to repeat PUSH, attempt 1 failed with: server 0 is not reachable now: link lost; \
                    0 of 2 parts done: not done after 30.0 s";
    assert_eq!(texts[1], expected);
    assert_eq!(world.scheduler.poll_timeout(), None, "nothing is forgotten");
    assert!(world.scheduler.group(shared).is_none());
}

#[test]
fn a_shared_part_is_given_up_only_when_nobody_wants_it() {
    let mut world = World::new(config(), host());
    let groups = [world.open("a", 1), world.open("b", 1)];
    let task = world.submit(part(0), 10, 0, &groups);
    world.commands();
    world.scheduler.cancel(world.now, groups[0]);
    assert_eq!(world.commands(), [], "a's memory is still in use");
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Done);
    world.take(Stage::Pull).unwrap();
    world.commands();
    world.finish(task, Outcome::Done);
    let ends = [Command::Release(task), resolved(groups[0], Err(Error::Cancelled)), resolved(groups[1], Ok(()))];
    assert_eq!(world.commands(), ends);
}

#[test]
fn a_part_cannot_be_sent_when_one_of_its_tensors_was_given_up_before() {
    let mut world = World::new(config(), host());
    let groups = [world.open("a", 1), world.open("b", 1)];
    world.scheduler.cancel(world.now, groups[0]);
    assert_eq!(world.commands(), [resolved(groups[0], Err(Error::Cancelled))]);
    let task = world.submit(part(0), 10, 0, &groups);
    let commands = world.commands();
    assert_eq!(commands[0], Command::Release(task));
    assert!(matches!(failure(&commands[1]), Some(Error::FailedPrecondition { .. })));
    assert!(world.scheduler.is_idle());
}

#[test]
fn an_open_exchange_is_given_up_if_nobody_wants_the_sum() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.finish(task, Outcome::Done);
    world.commands();
    world.scheduler.cancel(world.now, group);
    assert_eq!(world.commands(), [Command::Abandon(task)], "the transport may still read the contribution");
    world.finish(task, Outcome::Failed(Error::Cancelled));
    assert_eq!(world.commands(), [Command::Release(task), resolved(group, Err(Error::Cancelled))]);
    assert_eq!(world.scheduler.credit_in_flight(), 0);
}

#[test]
fn a_push_that_ends_well_after_it_was_given_up_still_closes_its_exchange() {
    let mut world = World::new(config(), host());
    let group = world.open("w", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    world.take(Stage::Push).unwrap();
    world.scheduler.cancel(world.now, group);
    world.commands();
    world.finish(task, Outcome::Done);
    assert_eq!(world.commands(), [Command::Abandon(task)], "the first command may have come before the push");
    world.finish(task, Outcome::Done);
    assert!(world.commands().contains(&resolved(group, Err(Error::Cancelled))), "too late to succeed");
}

#[test]
fn after_a_fatal_failure_everything_fails_with_the_first_cause() {
    let mut world = World::new(config(), host());
    let before = world.open("before", 1);
    world.submit(part(0), 10, 0, &[before]);
    world.scheduler.fail_all(world.now, unreachable());
    world.scheduler.fail_all(world.now, Error::Cancelled);
    assert_eq!(world.commands().iter().filter_map(failure).collect::<Vec<_>>(), [&unreachable()]);
    let after = world.open("after", 1);
    let task = world.submit(part(1), 10, 0, &[after]);
    assert_eq!(world.commands(), [resolved(after, Err(unreachable())), Command::Release(task)]);
    assert!(world.scheduler.is_idle());
}

#[test]
fn what_does_not_move_is_reported_once_an_interval() {
    let mut world = World::new(config(), host());
    let mut detector = StallDetector::new(world.now, 10 * SECOND);
    let [stuck, shared] = [world.open("stuck", 2), world.open("shared", 1)];
    let tasks = [world.submit(part(0), 10, 0, &[stuck]), world.submit(part(1), 10, 0, &[stuck])];
    for task in tasks {
        assert_eq!(world.take(Stage::Push).unwrap().id, task);
    }
    world.wait(9 * SECOND);
    assert_eq!(detector.handle_timeout(world.now, &world.scheduler), []);
    world.wait(2 * SECOND);
    let report = |group, name: &str, at, parts| StallReport {
        group,
        name: name.into(),
        round: Round(0),
        at,
        parts,
        waited: 11 * SECOND,
        cause: None,
    };
    let expected = [report(stuck, "stuck", Some((Stage::Push, ServerId(0))), 2), report(shared, "shared", None, 1)];
    assert_eq!(detector.handle_timeout(world.now, &world.scheduler), expected);
    assert_eq!(detector.handle_timeout(world.now, &world.scheduler), [], "until the next interval");
    assert_eq!(detector.stalled(&world.scheduler), 2, "each once");
    for _ in [Stage::Push, Stage::Pull] {
        tasks.iter().for_each(|task| world.finish(*task, Outcome::Done));
    }
    assert_eq!(detector.stalled(&world.scheduler), 1, "one has ended since");
    assert_eq!(detector.poll_timeout(), Some(world.now + 10 * SECOND));
}

#[test]
fn a_part_for_which_its_server_has_no_memory_is_tried_again_soon_reported_and_fails_after_the_step_timeout() {
    let step_timeout = 20 * SECOND;
    let mut world = World::new(SchedulerConfig { step_timeout, ..config() }, host());
    let mut detector = StallDetector::new(world.now, 10 * SECOND);
    let group = world.open("weight", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    let [what, limit, hint] = ["memory of the server for sums", "1 MiB", "raise server_bytes_max"].map(str::to_owned);
    let short = Error::Exhausted { what, limit, hint };
    let mut reports = Vec::new();
    let ends = loop {
        world.take(Stage::Push).expect("its pause is over");
        world.finish(task, Outcome::Retry { error: short.clone(), landed: 0 });
        let commands = world.all_commands();
        if let Some(error) = commands.iter().find_map(failure) {
            assert!(commands.iter().any(|command| matches!(command, Command::Withdraw { .. })), "{commands:?}");
            break error.to_string();
        }
        let pause = world.scheduler.poll_timeout().expect("it is repeated").since(world.now);
        assert!(pause <= Duration::from_millis(100), "the pause does not multiply the wait: {pause:?}");
        reports.extend(detector.handle_timeout(world.now, &world.scheduler));
        world.wait(pause);
    };
    assert!(
        ends.contains("tensor weight waited 20.") && ends.contains("at server 0 for memory of the server for sums"),
        "{ends}"
    );
    let report = &reports[0];
    assert_eq!((report.cause.as_ref(), report.waited >= 9 * SECOND), (Some(&short), true));
}

#[test]
fn what_waits_to_be_repeated_is_repeated_at_once_when_the_members_change() {
    let mut world = World::new(config(), host());
    let group = world.open("weight", 1);
    let task = world.submit(part(0), 10, 0, &[group]);
    for _ in 0..5 {
        world.take(Stage::Push).expect("its pause is over");
        world.finish(task, retry(0));
        assert!(world.take(Stage::Push).is_none(), "it pauses");
        world.all_commands();
        world.scheduler.end_pauses(world.now);
        assert!(world.all_commands().contains(&Command::Wake(Stage::Push)));
    }
    world.take(Stage::Push).expect("it does not pause any more");
    let deadline = world.now + 30 * SECOND;
    assert_eq!(world.scheduler.poll_timeout(), Some(deadline), "nothing is left of the pauses");
}

struct World {
    scheduler: Scheduler,
    now: Time,
}

impl World {
    fn new(config: SchedulerConfig, pipeline: Pipeline) -> Self {
        Self { scheduler: Scheduler::new(config, pipeline), now: Time::ZERO }
    }

    fn open(&mut self, name: &str, shares: u32) -> GroupId {
        self.scheduler.open_group(self.now, name.into(), Round(0), shares, Some(self.now + 30 * SECOND))
    }

    fn submit(&mut self, part: PartId, bytes: u64, priority: i32, groups: &[GroupId]) -> TaskId {
        self.submit_round(part, 0, bytes, priority, groups)
    }

    fn submit_round(&mut self, part: PartId, round: u64, bytes: u64, priority: i32, groups: &[GroupId]) -> TaskId {
        self.scheduler.submit(self.now, spec(self.route(Duty::Owner), part, round, bytes, priority, groups))
    }

    fn submit_for(&mut self, duty: Duty, part: PartId, groups: &[GroupId]) -> TaskId {
        self.scheduler.submit(self.now, spec(self.route(duty), part, 0, 10, 0, groups))
    }

    /// That of a part in memory of a device, where there is one.
    fn route(&self, duty: Duty) -> Route {
        if self.scheduler.pipeline().contains(Stage::CopyD2H) { Route::device(duty) } else { Route::host(duty) }
    }

    /// Takes the next task. Nobody takes a task for PULL: the result is the first one that is there.
    fn take(&mut self, stage: Stage) -> Option<Task> {
        match stage {
            Stage::Pull => self.pulled().min_by_key(|task| task.id),
            stage => self.scheduler.take(self.now, stage),
        }
    }

    /// The tasks in PULL.
    fn pulled(&self) -> impl Iterator<Item = Task> {
        let pulled = |work: &Work| (work.stage, work.place) == (Stage::Pull, Place::Running);
        self.scheduler.tasks.iter().filter(move |(_, work)| pulled(work)).map(|(id, work)| {
            let TaskSpec { part, server, bytes, round, .. } = work.spec;
            let waited = work.waits.waited();
            Task { id: TaskId(id), part, server, bytes, round, attempt: work.attempt(), waited }
        })
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) {
        self.scheduler.finish(self.now, task, outcome);
    }

    /// Takes whatever goes before `task`, too, and completes it alone.
    fn complete(&mut self, task: TaskId) {
        while self.take(Stage::Push).is_some_and(|taken| taken.id != task) {}
        // PUSH and PULL.
        (0..2).for_each(|_| self.finish(task, Outcome::Done));
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.scheduler.handle_timeout(self.now);
    }

    /// What is to be done. Servers hear at once which rounds were given up.
    fn commands(&mut self) -> Vec<Command> {
        for task in self.scheduler.open_withdrawals() {
            self.scheduler.drop_withdrawal(self.now, task);
            let tells = |command: &Command| matches!(command, Command::Withdraw { task: other, .. } | Command::Release(other) if *other == task);
            self.scheduler.commands.retain(|command| !tells(command));
            if !self.scheduler.has_ready(Stage::Push) {
                self.scheduler.wakes &= !(1 << Stage::Push.index());
            }
        }
        self.all_commands()
    }

    fn all_commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.scheduler.next_command()).collect()
    }
}

fn config() -> SchedulerConfig {
    SchedulerConfig { oldest_every: 0, ..SchedulerConfig::default() }
}

fn host() -> Pipeline {
    Pipeline::for_role(&Topology::flat(2, DeviceKind::Host))
}

/// Machines with one rank and one device each.
fn device() -> Pipeline {
    Pipeline::for_role(&Topology::flat(2, DeviceKind::Cuda))
}

/// Machines with several ranks each.
fn tiers() -> Pipeline {
    let local = Topology { local_ranks: 2, local_collective: true, ..Topology::single(DeviceKind::Host) };
    Pipeline::for_role(&Topology { machines: 2, ..local })
}

/// The same with a device each.
fn device_tiers() -> Pipeline {
    let local = Topology { local_ranks: 2, local_collective: true, ..Topology::single(DeviceKind::Cuda) };
    Pipeline::for_role(&Topology { machines: 2, ..local })
}

/// Machines with several ranks each, whose devices lie in two PCIe groups.
fn pcie_groups(machines: u32) -> Pipeline {
    let local =
        Topology { local_ranks: 4, pcie_groups: 2, local_collective: true, ..Topology::single(DeviceKind::Cuda) };
    Pipeline::for_role(&Topology { machines, ..local })
}

fn spec(route: Route, part: PartId, round: u64, bytes: u64, priority: i32, groups: &[GroupId]) -> TaskSpec {
    let (server, round, priority) = (ServerId(part.index / 2 % 2), Round(round), Priority(priority));
    TaskSpec { part, server, bytes, round, priority, route, groups: groups.to_vec() }
}

fn part(index: u32) -> PartId {
    PartId { key: TensorKey(1), index }
}

fn retry(landed: u64) -> Outcome {
    Outcome::Retry { error: unreachable(), landed }
}

fn unreachable() -> Error {
    Error::Unavailable { what: "server 0".to_owned(), cause: "link lost".to_owned() }
}

fn resolved(group: GroupId, outcome: Result<()>) -> Command {
    Command::Resolved { group, outcome }
}

fn failure(command: &Command) -> Option<&Error> {
    match command {
        Command::Resolved { outcome: Err(error), .. } => Some(error),
        Command::Resolved { outcome: Ok(()), .. }
        | Command::Wake(_)
        | Command::Abandon(_)
        | Command::Decline(_)
        | Command::Withdraw { .. }
        | Command::Release(_) => None,
    }
}
