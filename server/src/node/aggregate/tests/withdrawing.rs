//! A worker says that it will not contribute.

use gradlane_core::error::Claim;

use super::*;

#[test]
fn whoever_waits_and_whoever_comes_later_hears_at_once_why_a_worker_gave_up() {
    let mut world = World::of(4);
    let early = [world.push(0, header(0)), world.push(1, header(0))];
    world.commands();
    assert_eq!(world.withdraw(2, header(0), &mismatch()), mismatch(), "who gave up is answered");
    let commands = world.commands();
    assert_eq!(errors(&commands).cloned().collect::<Vec<_>>(), [mismatch(), mismatch()]);
    assert!(commands.contains(&drops(0)), "the memory is free");
    let late = world.open(3, header(0));
    assert_eq!(errors(&world.commands()).cloned().collect::<Vec<_>>(), [mismatch()]);
    assert!(early.iter().chain([&late]).all(|exchange| !world.node.services.sums.exchanges.contains_key(exchange)));
    world.everybody(header(1));
    assert_eq!(answered(&world.commands()).len(), 4, "the next round works");
}

#[test]
fn a_round_may_be_given_up_before_anybody_came_to_it() {
    let mut world = World::of(2);
    for round in [0, 1] {
        world.withdraw(1, header(round), &Error::Cancelled);
        world.push(0, header(round));
        let commands = world.commands();
        let Some(Error::Stalled { missing, waited, detail, .. }) = errors(&commands).next() else {
            panic!("{commands:?}")
        };
        assert_eq!((missing.as_slice(), *waited), (&[WorkerId(1)][..], Duration::ZERO));
        assert!(detail.starts_with("worker 1 gave this round up: "), "{detail}");
        assert_eq!(world.progress().bytes_in_flight, 0);
    }
    world.everybody(header(2));
    assert_eq!(answered(&world.commands()).len(), 2);
}

#[test]
fn saying_it_twice_or_in_vain_changes_nothing() {
    let mut world = World::of(2);
    for _ in 0..2 {
        world.withdraw(1, header(0), &mismatch());
    }
    assert_eq!(world.commands(), []);
    world.push(0, header(0));
    assert_eq!(errors(&world.commands()).cloned().collect::<Vec<_>>(), [mismatch()]);
    // The round has its sum, or the contribution of whoever gives it up.
    world.push(1, header(1));
    world.commands();
    world.withdraw(1, header(1), &mismatch());
    world.push(0, header(1));
    assert_eq!(answered(&world.commands()).len(), 2);
    world.withdraw(0, header(1), &mismatch());
    assert_eq!(world.commands(), []);
    // It is over.
    world.everybody(header(2));
    world.commands();
    let answer = world.withdraw(1, header(0), &mismatch());
    assert!(matches!(&answer, Error::TensorState { what, .. } if what.contains("is over")), "{answer}");
    assert_eq!(world.commands(), []);
}

#[test]
fn a_late_push_of_whoever_gave_up_is_refused() {
    let mut world = World::of(2);
    world.withdraw(1, header(0), &mismatch());
    world.open(1, header(0));
    world.open(0, header(0));
    assert_eq!(errors(&world.commands()).cloned().collect::<Vec<_>>(), [mismatch(), mismatch()]);
}

#[test]
fn what_is_under_way_decides_first() {
    for (receipt, expected) in [(Some(Receipt::Whole), 1), (None, 0)] {
        let mut world = World::of(2);
        world.push(0, header(0));
        let abandoned = world.open(1, header(0));
        world.commands();
        world.withdraw(1, header(0), &mismatch());
        assert_eq!(world.commands(), [], "it may still be whole");
        if let Some(receipt) = receipt {
            world.receipt(abandoned, receipt);
        }
        world.torn(abandoned);
        let commands = world.commands();
        assert_eq!((seals(&commands), errors(&commands).count()), (expected, 1 - expected), "{commands:?}");
    }
    let mut world = World::of(2);
    let abandoned = world.open(1, header(0));
    world.torn(abandoned);
    world.push(0, header(0));
    world.commands();
    world.withdraw(1, header(0), &mismatch());
    assert_eq!(errors(&world.commands()).cloned().collect::<Vec<_>>(), [mismatch()], "it broke off before");
}

#[test]
fn an_upload_that_begins_anew_is_under_way_again() {
    let mut world = World::of(2);
    world.push(0, header(0));
    let first = world.open(1, header(0));
    world.withdraw(1, header(0), &mismatch());
    let second = world.open(1, header(0));
    world.torn(first);
    world.commands();
    world.whole(second);
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn whoever_gives_a_broadcast_up_ends_it_for_all() {
    for (gives_up, comes) in [(0, 1), (1, 0)] {
        let header = |rank| if rank == 0 { broadcast(0) } else { receiver(0) };
        let mut world = World::of(2);
        world.withdraw(gives_up, header(gives_up), &mismatch());
        world.open(comes, header(comes));
        assert_eq!(errors(&world.commands()).cloned().collect::<Vec<_>>(), [mismatch()]);
    }
}

#[test]
fn only_a_caller_of_the_membership_gives_up_and_only_a_round_in_its_turn() {
    let mut world = World::of(2);
    let answer = world.withdraw(7, header(0), &mismatch());
    assert!(matches!(answer, Error::Auth { .. }), "{answer}");
    let stale = in_epoch(Epoch { term: 0, number: 9 }, header(0));
    let answer = world.withdraw(1, stale, &mismatch());
    assert!(matches!(answer, Error::Fenced { .. }), "{answer}");
    assert!(world.node.services.sums.parts.is_empty());
    // Worker 0 may still want the sum in whose slot the round belongs.
    world.everybody(header(0));
    world.push(1, header(1));
    world.commands();
    let answer = world.withdraw(1, header(2), &mismatch());
    assert!(answer.retryable(), "{answer}");
}

#[test]
fn whoever_gives_up_a_later_round_contributes_to_none_before() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.commands();
    world.withdraw(1, header(1), &mismatch());
    assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded]);
}

impl World {
    /// A worker withdraws from a round; what it is answered.
    pub(super) fn withdraw(&mut self, rank: u32, push: Contribute, error: &Error) -> Error {
        let body = reject::to_body(error);
        let Contribute { target, dtype, op, participants, .. } = push;
        let header = Withdraw { target, dtype, op, participants, error_bytes: body.len() as u64 };
        let before = self.commands();
        let exchange = ExchangeId(u64::MAX);
        self.request(rank, exchange, Request::Withdraw(header));
        self.node.handle_body(self.now, exchange, &[Bytes::from(body)]);
        let (answers, others): (Vec<Command>, Vec<Command>) = self
            .commands()
            .into_iter()
            .partition(|command| matches!(command, Command::Reject { exchange: to, .. } if *to == exchange));
        self.node.services.sums.commands.extend(before.into_iter().chain(others));
        match answers.as_slice() {
            [Command::Reject { error, .. }] => error.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn mismatch() -> Error {
    let claim = |rank, value: &str| Claim { worker: WorkerId(rank), value: value.to_owned() };
    let (tensor, field) = ("weight".into(), "op".to_owned());
    Error::Mismatch { tensor, field, first: claim(2, "sum"), second: claim(3, "max") }
}
