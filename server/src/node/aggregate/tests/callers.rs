//! Workers of one machine whose contributions come with that of one of them.

use gradlane_core::types::{Address, MachineId, Machines, Scheme};

use super::*;

#[test]
fn a_round_waits_for_one_contribution_of_each_machine() {
    let mut world = on_machines(&[7, 7, 7, 8], |_| {});
    let first = world.push(owner(&world, 0), header(0));
    let commands = world.commands();
    let begin = steps(&commands).find_map(|step| if let Step::Begin(spec) = step { Some(spec) } else { None });
    let senders = vec![WorkerId(owner(&world, 0)), WorkerId(3)];
    assert_eq!(begin.map(|spec| &spec.senders), Some(&senders));
    let second = world.push(3, header(0));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![first, second], 1));
}

#[test]
fn a_mean_is_divided_by_the_workers_and_not_by_the_machines() {
    let mut world = on_machines(&[7, 7, 7, 8], |_| {});
    for rank in [owner(&world, 0), 3] {
        world.push(rank, Contribute { op: Op::Mean, ..header(0) });
    }
    let commands = world.commands();
    assert!(commands.contains(&step(Step::Publish { divisor: 4.0, residual: None })));
    let divisor = |step: &Step| if let Step::Answer { header, .. } = step { Some(header.divisor) } else { None };
    assert_eq!(steps(&commands).filter_map(divisor).collect::<Vec<_>>(), [4.0, 4.0]);
}

#[test]
fn the_weight_of_a_machine_is_what_its_caller_says() {
    let mut world = on_machines(&[7, 7, 8], |_| {});
    world.push(owner(&world, 0), weighted(5.0));
    world.push(2, weighted(1.5));
    assert!(world.commands().contains(&step(Step::Publish { divisor: 6.5, residual: None })));
}

#[test]
fn a_push_of_another_worker_of_the_machine_is_refused_and_changes_nothing() {
    let mut world = on_machines(&[7, 7, 8], |_| {});
    world.push(owner(&world, 0), header(0));
    world.commands();
    let stranger = 1 - owner(&world, 0);
    world.open(stranger, header(0));
    let commands = world.commands();
    assert_eq!((rejected(&commands), commands.len()), (vec![Code::Aborted], 1));
    let text = errors(&commands).next().unwrap().to_string();
    assert!(text.contains(&format!("worker {} exchanges", owner(&world, 0))), "{text}");
    world.push(2, header(0));
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn all_workers_of_a_machine_that_does_not_come_are_named() {
    let mut world = on_machines(&[7, 7, 7, 8], |_| {});
    world.push(3, header(0));
    world.pass(config().step_timeout);
    let commands = world.commands();
    let Some(Error::Stalled { missing, detail, .. }) = errors(&commands).next() else { panic!("{commands:?}") };
    assert_eq!(missing, &[0, 1, 2].map(WorkerId));
    assert_eq!(&**detail, "1 of 2 machines came for part 0");
    let reported = commands.iter().find_map(|command| match command {
        Command::Stalled { stall } => Some(&stall.missing),
        Command::Step(_)
        | Command::Archive(_)
        | Command::Obeyed { .. }
        | Command::Reject { .. }
        | Command::Accept { .. }
        | Command::Unroute { .. }
        | Command::Grant { .. }
        | Command::Short { .. }
        | Command::Measured { .. }
        | Command::Timed { .. }
        | Command::Disconnect { .. } => None,
    });
    assert!(reported.is_none_or(|missing| missing.len() == 3), "the coordinator hears the same");
}

#[test]
fn the_caller_of_the_roots_machine_sends_what_it_broadcasts() {
    let mut world = on_machines(&[7, 7, 7, 8], |_| {});
    let caller = owner(&world, 0);
    let root = WorkerId((caller + 1) % 3);
    let push = Contribute { op: Op::Broadcast { root }, ..header(0) };
    let listener = world.open(3, Contribute { contribution: Contribution::Nothing, ..push.clone() });
    let sender = world.push(caller, push);
    let commands = world.commands();
    assert_eq!((received(&commands), answered(&commands)), (vec![sender], vec![listener, sender]));
    assert_eq!(seals(&commands), 1);
}

#[test]
fn the_sum_of_a_round_is_freed_when_every_machine_came_to_the_next() {
    let mut world = on_machines(&[7, 7, 8, 8], |_| {});
    let callers = [owner(&world, 0), owner(&world, 2)];
    for round in 0..3 {
        for caller in callers {
            world.push(caller, header(round));
        }
    }
    let commands = world.commands();
    assert!(commands.contains(&drops(0)) && commands.contains(&drops(1)) && !commands.contains(&drops(2)));
}

#[test]
fn in_rank_order_memory_is_kept_for_the_machines() {
    let mut world = on_machines(&[7, 7, 7, 8], |config| config.deterministic = true);
    world.push(3, header(0));
    assert_eq!(world.progress().bytes_in_flight, 2 * 16);
}

#[test]
fn floats_of_a_small_range_come_from_every_worker() {
    let mut world = on_machines(&[7, 7, 8], |_| {});
    let pushed: Vec<ExchangeId> =
        (0..3).map(|rank| world.push(rank, Contribute { dtype: DType::F16, ..header(0) })).collect();
    let commands = world.commands();
    assert_eq!((answered(&commands), rejected(&commands)), (pushed, vec![]));
}

#[test]
fn a_worker_that_joins_later_is_not_due_before_its_first_round() {
    let mut world = World::of(0);
    let mut joined = view(3, 1, Phase::Running);
    joined.members[2].first_round = Round(1);
    world.follow(joined);
    let mean = |round| Contribute { op: Op::Mean, ..header(round) };
    let pushed = [0, 1].map(|rank| world.push(rank, mean(0)));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (pushed.to_vec(), 1));
    assert!(commands.contains(&step(Step::Publish { divisor: 2.0, residual: None })));
    world.open(2, mean(0));
    let text = errors(&world.commands()).next().unwrap().to_string();
    assert!(text.contains("round is 0, before the first one"), "{text}");
    for rank in [0, 1] {
        world.push(rank, mean(1));
    }
    assert_eq!(seals(&world.commands()), 0, "round 1 is due from all three");
    world.push(2, mean(1));
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn a_machine_is_due_as_soon_as_one_of_its_workers_is() {
    let mut world = World::of(0);
    let mut joined = view_of(&[7, 7, 8]);
    joined.members[0].first_round = Round(5);
    world.follow(joined);
    world.push(2, Contribute { op: Op::Mean, ..header(0) });
    assert_eq!(seals(&world.commands()), 0);
    world.push(owner(&world, 0), Contribute { op: Op::Mean, ..header(0) });
    assert!(
        world.commands().contains(&step(Step::Publish { divisor: 2.0, residual: None })),
        "by the workers that have begun"
    );
}

/// A worker on each of these machines.
pub(super) fn on_machines(machines: &[u64], change: impl FnOnce(&mut NodeConfig)) -> World {
    let mut world = World::with(0, change);
    world.node.handle_member(MemberEvent::View(view_of(machines)));
    world
}

fn view_of(machines: &[u64]) -> View {
    let mut view = view(u32::try_from(machines.len()).unwrap(), 1, Phase::Running);
    for (member, machine) in view.members.iter_mut().zip(machines) {
        (member.process.machine, member.process.addresses) =
            (MachineId(*machine), vec![Address::new(Scheme::Shm, "socket")]);
    }
    view
}

/// The caller for this rank in the part that all these tests are about.
pub(super) fn owner(world: &World, rank: u32) -> u32 {
    let machines: &Machines = &world.node.services.sums.membership.as_ref().unwrap().machines;
    machines.owner(slot(0).part, DType::F32, WorkerId(rank)).0
}
