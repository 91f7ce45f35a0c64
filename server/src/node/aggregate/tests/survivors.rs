//! Rounds after the view lost workers.

use gradlane_core::types::{Address, MachineId, Scheme};

use super::*;

#[test]
fn an_open_round_restarts_with_the_survivors() {
    for op in [Op::Sum, Op::Mean] {
        let mut world = World::of(3);
        let [first, lost] = [0, 2].map(|rank| world.push(rank, Contribute { op, ..header(0) }));
        world.commands();
        world.lose(3, &[2]);
        let commands = world.commands();
        let told = [(first, Code::Unavailable), (lost, Code::Fenced)];
        assert_eq!(rejects(&commands), told, "the survivor tries again");
        assert!(commands.contains(&drops(0)), "what was added is void");
        assert_eq!(world.progress().bytes_in_flight, 0);
        let again = [0, 1].map(|rank| world.push(rank, next_epoch(Contribute { op, ..header(0) })));
        let commands = world.commands();
        assert_eq!((answered(&commands), seals(&commands)), (again.to_vec(), 1));
        let divisor = if op == Op::Mean { 2.0 } else { 1.0 };
        for header in answers(&commands) {
            assert_eq!((header.divisor, &header.contributors), (divisor, &Contributors::Due), "of the new view");
            assert_eq!((header.attempt, header.target.epoch), (1, NEXT_EPOCH));
        }
        let begun =
            steps(&commands).find_map(|step| if let Step::Begin(spec) = step { Some(&spec.senders) } else { None });
        assert_eq!(begun, Some(&vec![WorkerId(0), WorkerId(1)]));
    }
}

#[test]
fn a_round_of_workers_that_are_all_left_goes_on() {
    let of_two = || Participants::of([0, 1].map(WorkerId).into_iter().collect());
    let mut world = World::of(3);
    let first = world.push(0, Contribute { participants: of_two(), ..header(0) });
    world.commands();
    world.lose(3, &[2]);
    assert_eq!(rejects(&world.commands()), []);
    let second = world.push(1, next_epoch(Contribute { participants: of_two(), ..header(0) }));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![first, second], 1));
    assert!(answers(&commands).iter().all(|header| (header.attempt, &header.contributors) == (0, &Contributors::Due)));
}

#[test]
fn the_bit_of_a_lost_worker_does_not_stand_for_one_that_is_still_to_come() {
    let mut world = World::of(3);
    world.push(2, header(0));
    world.lose(3, &[2]);
    world.push(0, next_epoch(header(0)));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![], 0), "worker 1 has not come");
}

#[test]
fn a_contribution_that_was_sent_before_the_loss_is_refused() {
    let mut world = World::of(3);
    world.lose(3, &[2]);
    world.commands();
    for rank in 0..3 {
        world.open(rank, header(0));
    }
    assert_eq!(
        rejected(&world.commands()),
        [Code::Unavailable, Code::Unavailable, Code::Fenced],
        "survivors try again"
    );
    world.open(2, next_epoch(header(0)));
    assert_eq!(rejected(&world.commands()), [Code::Unauthenticated]);
}

#[test]
fn a_restarted_round_to_which_nobody_comes_ends_after_a_step_timeout() {
    let mut world = World::of(3);
    let _ = [0, 2].map(|rank| world.push(rank, header(0)));
    world.lose(3, &[2]);
    world.commands();
    world.pass(Duration::from_secs(30));
    world.pass(Duration::from_secs(30));
    world.pass(Duration::from_secs(30));
    assert_eq!(world.commands(), [], "nobody waits for it");
    assert_eq!(world.node.poll_timeout(), None, "there is nothing to look at any more");
    world.open(0, next_epoch(header(0)));
    let commands = world.commands();
    let [Error::Stalled { missing, .. }] = &errors(&commands).collect::<Vec<_>>()[..] else { panic!("{commands:?}") };
    assert_eq!(missing, &[WorkerId(0), WorkerId(1)]);
    let next = [0, 1].map(|rank| world.push(rank, next_epoch(header(1))));
    assert_eq!(answered(&world.commands()), next, "the name can be used again");
}

#[test]
fn a_restarted_round_that_waits_for_one_survivor_has_the_deadline_of_any_round() {
    let mut world = World::of(3);
    let _ = [0, 2].map(|rank| world.push(rank, header(0)));
    world.lose(3, &[2]);
    let waiting = world.push(0, next_epoch(header(0)));
    world.commands();
    world.pass(Duration::from_secs(60));
    assert_eq!(rejects(&world.commands()), [(waiting, Code::DeadlineExceeded)]);
}

#[test]
fn a_restarted_round_fails_if_a_sum_has_landed_on_the_contribution_of_a_survivor() {
    for resumes_first in [true, false] {
        let mut world = World::of(3);
        world.push(0, header(0));
        world.lose(3, &[2]);
        world.commands();
        let mut headers = [(0, next_epoch(resumed(0, 8))), (1, next_epoch(header(0)))];
        if !resumes_first {
            headers.reverse();
        }
        for (rank, header) in headers {
            world.open(rank, header);
        }
        let texts: Vec<String> = errors(&world.commands()).map(Error::to_string).collect();
        let is_lost = |text: &String| text.contains("the contribution of worker 0 is lost");
        assert!(texts.len() == 2 && texts.iter().all(is_lost), "{texts:?}");
    }
}

#[test]
fn nothing_that_was_under_way_gets_into_the_next_attempt() {
    let mut world = World::of(3);
    let [half, lost] = [0, 2].map(|rank| world.open(rank, header(0)));
    world.commands();
    world.lose(3, &[2]);
    let commands = world.all_commands();
    for exchange in [half, lost] {
        assert!(commands.contains(&Command::Unroute { exchange }));
    }
    let again = world.open(0, next_epoch(header(0)));
    world.whole(half);
    world.push(1, next_epoch(header(0)));
    assert_eq!(seals(&world.commands()), 0, "the receipt is of the attempt before");
    world.whole(again);
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn a_sum_that_some_may_have_is_the_sum_for_all() {
    let mut world = World::of(3);
    let published = world.everybody(Contribute { op: Op::Mean, ..header(0) });
    world.torn(published[1]);
    world.commands();
    world.lose(3, &[2]);
    assert_eq!(world.commands(), [], "it stays as it is");
    let late = world.open(1, next_epoch(Contribute { op: Op::Mean, ..header(0) }));
    let commands = world.commands();
    assert_eq!((answered(&commands), received(&commands)), (vec![late], vec![]));
    let [answer] = answers(&commands)[..] else { panic!("{commands:?}") };
    let all = [0, 1, 2].map(WorkerId).into_iter().collect();
    assert_eq!((answer.divisor, &answer.contributors), (3.0, &Contributors::Only(all)), "the lost worker is in it");
    assert_eq!(answer.attempt, 0);
}

#[test]
fn a_published_sum_is_kept_until_all_survivors_passed_it_and_no_longer() {
    let mut world = World::of(3);
    world.everybody(header(0));
    world.push(2, header(1));
    world.commands();
    world.lose(3, &[2]);
    assert!(!world.commands().contains(&drops(0)));
    world.push(0, next_epoch(header(1)));
    assert!(!world.commands().contains(&drops(0)), "worker 1 may still ask");
    world.push(1, next_epoch(header(1)));
    assert!(world.commands().contains(&drops(0)));
}

#[test]
fn a_sum_that_only_the_lost_worker_had_not_passed_goes_with_it() {
    let mut world = World::of(3);
    world.everybody(header(0));
    world.push(0, header(1));
    world.open(1, sized(20, header(1)));
    assert!(!world.commands().contains(&drops(0)), "worker 2 may still ask");
    world.lose(3, &[2]);
    assert!(world.commands().contains(&drops(0)));
}

#[test]
fn a_round_whose_survivor_has_withdrawn_fails_instead_of_restarting() {
    for counted in [true, false] {
        let mut world = World::of(3);
        world.push(0, header(0));
        let abandoned = world.open(1, header(0));
        if counted {
            world.whole(abandoned);
        }
        world.withdraw(1, header(0), &Error::Cancelled);
        assert_eq!(rejected(&world.commands()), [], "what it has sent decides first");
        world.lose(3, &[2]);
        assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded; 2], "nobody sends again: {counted}");
        world.open(0, next_epoch(header(0)));
        assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded]);
    }
}

#[test]
fn a_round_that_a_survivor_has_left_behind_fails_instead_of_restarting() {
    let mut world = World::of(3);
    let given_up = world.push(0, header(0));
    world.torn(given_up);
    let next = world.push(0, header(1));
    world.commands();
    world.lose(3, &[2]);
    assert_eq!(rejects(&world.commands()), [(next, Code::Unavailable)], "only the later one restarts");
    world.open(1, next_epoch(header(0)));
    let commands = world.commands();
    let Some(Error::Stalled { missing, .. }) = errors(&commands).next() else { panic!("{commands:?}") };
    assert_eq!(missing, &[WorkerId(0)]);
    let again = [0, 1].map(|rank| world.push(rank, next_epoch(header(1))));
    assert_eq!(answered(&world.commands()), again);
}

#[test]
fn a_restarted_round_that_a_survivor_skips_or_withdraws_from_fails() {
    for skips in [true, false] {
        let mut world = World::of(3);
        world.push(0, header(0));
        world.lose(3, &[2]);
        world.commands();
        if skips {
            world.open(1, next_epoch(header(1)));
        } else {
            world.withdraw(1, next_epoch(header(0)), &Error::Cancelled);
        }
        world.commands();
        world.open(0, next_epoch(header(0)));
        assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded], "{skips}");
        assert_eq!(world.progress().bytes_in_flight, if skips { 16 } else { 0 });
    }
}

#[test]
fn a_failed_round_stays_failed() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.open(2, Contribute { dtype: DType::I32, ..header(0) });
    world.commands();
    world.lose(3, &[2]);
    world.open(1, next_epoch(header(0)));
    assert_eq!(rejected(&world.commands()), [Code::InvalidArgument], "as worker 0 has heard");
}

#[test]
fn a_broadcast_whose_root_is_lost_fails_unless_it_was_published() {
    let from_the_lost = |header: Contribute| Contribute { op: Op::Broadcast { root: WorkerId(2) }, ..header };
    let mut world = World::of(3);
    world.open(0, from_the_lost(receiver(0)));
    world.commands();
    world.lose(3, &[2]);
    assert_eq!(rejected(&world.commands()), [Code::InvalidArgument]);
    world.open(1, next_epoch(from_the_lost(receiver(0))));
    assert_eq!(rejected(&world.commands()), [Code::InvalidArgument]);

    let mut world = World::of(3);
    world.push(2, from_the_lost(broadcast(0)));
    for rank in [0, 1] {
        world.open(rank, from_the_lost(receiver(0)));
    }
    world.commands();
    world.lose(3, &[2]);
    let late = [0, 1].map(|rank| world.open(rank, next_epoch(from_the_lost(receiver(0)))));
    assert_eq!(answered(&world.commands()), late);
}

#[test]
fn the_clock_of_a_restarted_round_starts_anew() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.pass(Duration::from_secs(59));
    world.lose(3, &[2]);
    assert!(world.nobody_waits());
    world.push(0, next_epoch(header(0)));
    world.pass(Duration::from_secs(59));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "the restart, and no stall");
    world.pass(Duration::from_secs(1));
    assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded]);
}

#[test]
fn when_the_caller_of_a_machine_is_lost_another_of_its_workers_sends() {
    let mut world = World::of(0);
    world.follow(machines(&[7, 7, 7, 8], 1, &[]));
    let owner = owner(&world);
    world.push(owner, header(0));
    world.commands();
    world.follow(machines(&[7, 7, 7, 8], 2, &[owner]));
    world.commands();
    let heir = self::owner(&world);
    assert_ne!(heir, owner);
    world.push(3, next_epoch(Contribute { op: Op::Mean, ..header(0) }));
    world.push(heir, next_epoch(Contribute { op: Op::Mean, ..header(0) }));
    let commands = world.commands();
    assert_eq!((answered(&commands).len(), seals(&commands)), (2, 1));
    assert!(commands.contains(&step(Step::Publish { divisor: 3.0, residual: None })), "by the workers that are left");
}

#[test]
fn a_draining_server_completes_a_restarted_round() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.node.handle_drain();
    world.lose(3, &[2]);
    world.commands();
    assert!(!world.node.is_drained());
    let again = [0, 1].map(|rank| world.push(rank, next_epoch(header(0))));
    assert_eq!(answered(&world.commands()), again);
}

#[test]
fn two_losses_restart_a_round_twice() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.lose(3, &[2]);
    world.push(0, next_epoch(header(0)));
    world.commands();
    world.follow(without(view(3, 3, Phase::Running), &[1, 2]));
    world.commands();
    world.push(0, in_epoch(Epoch { term: 1, number: 3 }, header(0)));
    let commands = world.commands();
    let [answer] = answers(&commands)[..] else { panic!("{commands:?}") };
    assert_eq!((answer.attempt, &answer.contributors), (2, &Contributors::Due));
}

const NEXT_EPOCH: Epoch = Epoch { term: 1, number: 2 };

impl World {
    /// The next view lacks these of so many workers.
    pub(super) fn lose(&mut self, of: u32, lost: &[u32]) {
        self.follow(without(view(of, NEXT_EPOCH.number, Phase::Running), lost));
    }
}

fn without(mut view: View, lost: &[u32]) -> View {
    view.members.retain(|member| !lost.contains(&member.index));
    view
}

fn machines(machines: &[u64], number: u32, lost: &[u32]) -> View {
    let mut view = view(u32::try_from(machines.len()).unwrap(), number, Phase::Running);
    for (member, machine) in view.members.iter_mut().zip(machines) {
        (member.process.machine, member.process.addresses) =
            (MachineId(*machine), vec![Address::new(Scheme::Shm, "socket")]);
    }
    without(view, lost)
}

/// The worker of the machine of ranks 0 to 2 that exchanges the part for it.
fn owner(world: &World) -> u32 {
    let machines = &world.node.services.sums.membership.as_ref().unwrap().machines;
    machines.owners(slot(0).part, DType::F32)[0].0
}

pub(super) fn next_epoch(header: Contribute) -> Contribute {
    in_epoch(NEXT_EPOCH, header)
}

fn answers(commands: &[Command]) -> Vec<&Sum> {
    steps(commands)
        .filter_map(|step| if let Step::Answer { header, .. } = step { Some(header) } else { None })
        .collect()
}

/// Rejected exchanges, and why.
pub(super) fn rejects(commands: &[Command]) -> Vec<(ExchangeId, Code)> {
    let reject = |command: &Command| match command {
        Command::Reject { exchange, error, .. } => Some((*exchange, error.code())),
        Command::Step(_)
        | Command::Short { .. }
        | Command::Measured { .. }
        | Command::Timed { .. }
        | Command::Stalled { .. }
        | Command::Archive(_)
        | Command::Obeyed { .. }
        | Command::Accept { .. }
        | Command::Unroute { .. }
        | Command::Grant { .. }
        | Command::Disconnect { .. } => None,
    };
    commands.iter().filter_map(reject).collect()
}
