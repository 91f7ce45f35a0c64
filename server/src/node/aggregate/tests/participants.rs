//! Rounds of some workers, and sums that one worker gets.

use gradlane_core::types::{Address, MachineId, Scheme};

use super::*;

#[test]
fn a_round_is_due_from_its_members_only() {
    let mut world = World::of(4);
    let mean = |round| Contribute { op: Op::Mean, ..of(&[1, 3], round) };
    let pushed = [1, 3].map(|rank| world.push(rank, mean(0)));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (pushed.to_vec(), 1));
    assert!(commands.contains(&step(Step::Publish { divisor: 2.0, residual: None })));
    for rank in [3, 1] {
        world.push(rank, mean(1));
    }
    assert!(world.commands().contains(&drops(0)), "both have come to the next round");
}

#[test]
fn members_that_do_not_come_are_named_and_no_others() {
    let mut world = World::of(4);
    world.push(1, of(&[1, 3], 0));
    world.pass(config().step_timeout);
    let commands = world.commands();
    let Some(Error::Stalled { missing, detail, .. }) = errors(&commands).next() else { panic!("{commands:?}") };
    assert_eq!((missing.as_slice(), &**detail), ([WorkerId(3)].as_slice(), "1 of 2 workers came for part 0"));
}

#[test]
fn only_the_receiver_gets_the_bytes_of_the_sum() {
    let mut world = World::of(3);
    let participants = Participants::ALL.with_receiver(WorkerId(2));
    let push = Contribute { participants, contribution: first(Some(7)), ..header(0) };
    for rank in 0..3 {
        world.push(rank, push.clone());
    }
    let answers: Vec<(WorkerId, u64, u64, bool)> = steps(&world.commands())
        .filter_map(|step| match step {
            Step::Answer { worker, header, .. } => {
                Some((*worker, header.part_bytes, header.body.bytes, header.checksum))
            }
            _ => None,
        })
        .collect();
    let nothing = |rank| (WorkerId(rank), 0, 0, false);
    assert_eq!(answers, [nothing(0), nothing(1), (WorkerId(2), 16, 16, true)]);
}

#[test]
fn a_root_and_a_receiver_are_a_message_from_one_to_the_other() {
    let mut world = World::of(3);
    let participants = Participants::of(set(&[0, 2])).with_receiver(WorkerId(2));
    let sent = Contribute { op: Op::Broadcast { root: WorkerId(0) }, participants, ..header(0) };
    world.push(0, sent.clone());
    world.open(2, Contribute { contribution: Contribution::Nothing, ..sent });
    let commands = world.commands();
    let bytes: Vec<u64> = steps(&commands)
        .filter_map(|step| if let Step::Answer { header, .. } = step { Some(header.body.bytes) } else { None })
        .collect();
    assert_eq!((bytes, seals(&commands)), (vec![0, 16], 1), "the root gets none of its own bytes");
}

#[test]
fn the_members_of_one_machine_exchange_what_each_has() {
    let mut world = World::of(0);
    let mut view = view(3, 1, Phase::Running);
    for member in &mut view.members {
        (member.process.machine, member.process.addresses) = (MachineId(7), vec![Address::new(Scheme::Shm, "socket")]);
    }
    world.follow(view);
    let pushed = [0, 2].map(|rank| world.push(rank, of(&[0, 2], 0)));
    assert_eq!(answered(&world.commands()), pushed);
}

#[test]
fn who_is_no_member_or_names_others_is_refused_and_the_round_goes_on() {
    let mut world = World::of(4);
    world.open(0, of(&[1, 3], 0));
    let stranger = errors(&world.commands()).next().unwrap().to_string();
    assert!(stranger.contains("are workers {1, 3}, and this worker is not one of them"), "{stranger}");
    let first = world.push(1, of(&[1, 3], 0));
    world.open(3, of(&[0, 3], 0));
    let other = errors(&world.commands()).next().unwrap().to_string();
    assert!(other.contains("are workers {0, 3}, and the part began with workers {1, 3}"), "{other}");
    let second = world.push(3, of(&[1, 3], 0));
    assert_eq!(answered(&world.commands()), [first, second]);
}

#[test]
fn a_member_that_withdraws_fails_the_round_of_the_others() {
    let mut world = World::of(4);
    world.push(1, of(&[1, 3], 0));
    world.withdraw(3, of(&[1, 3], 0), &Error::Cancelled);
    assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded], "the other member hears who gave up");
}

#[test]
fn a_lost_member_is_not_due() {
    let mut world = World::of(3);
    world.push(0, of(&[0, 2], 0));
    world.commands();
    world.view(2, 2, Phase::Running);
    let again =
        Contribute { target: Target { epoch: Epoch { term: 1, number: 2 }, ..header(0).target }, ..of(&[0, 2], 0) };
    let pushed = world.push(0, again);
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![pushed], 1));
}

fn of(ranks: &[u32], round: u64) -> Contribute {
    Contribute { participants: Participants::of(set(ranks)), ..header(round) }
}

fn set(ranks: &[u32]) -> WorkerSet {
    ranks.iter().copied().map(WorkerId).collect()
}

fn first(checksum: Option<u32>) -> Contribution {
    Contribution::First { body: Body::plain(16), checksum }
}
