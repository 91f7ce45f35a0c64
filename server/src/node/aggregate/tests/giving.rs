//! Residuals that workers read to save them, and give after they have loaded them.

use gradlane_core::codec::feedback::Start;
use gradlane_core::wire::{AnswerResidual, ResidualAction};

use super::residual::fed_back;
use super::*;
use crate::node::command::Feedback;

/// The CRC-32C of the state that workers load.
const STATE: u32 = 77;

#[test]
fn a_worker_reads_what_the_answer_of_its_next_round_would_begin_with() {
    let mut world = World::of(2);
    world.read(0, 0, Hold::No);
    assert_eq!(world.shown(), [Feedback::NONE], "of a part that has no round yet");
    world.everybody(Contribute { hold: Hold::Before, ..fed_back(0) });
    for (hold, start) in [(Hold::No, Start::Kept), (Hold::Before, Start::Kept), (Hold::TakenBack, Start::Before)] {
        world.commands();
        world.read(1, 1, hold);
        assert_eq!(world.shown().iter().map(|shown| shown.start).collect::<Vec<_>>(), [start], "{hold:?}");
    }
    world.everybody(fed_back(1));
    assert_eq!(world.starts(), [Some(Start::Kept)], "to read changes nothing");
}

#[test]
fn a_worker_that_is_behind_the_others_hears_that_its_residual_is_gone() {
    let mut world = World::of(2);
    world.everybody(fed_back(0));
    world.everybody(fed_back(1));
    world.commands();
    world.read(0, 1, Hold::No);
    world.give(0, 1, STATE);
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::FailedPrecondition; 2]);
    assert!(errors(&commands).all(|error| error.to_string().contains("other workers have gone on")));
}

#[test]
fn while_an_answer_is_on_its_way_its_residual_is_to_be_asked_for_again() {
    let mut world = World::with(2, |config| config.block_bytes_max = 8);
    let long =
        |round| Contribute { part_bytes: 64, ..halved("bf16:feedback=1".parse().unwrap(), sized(64, header(round))) };
    for rank in 0..2 {
        world.open(rank, long(0));
    }
    assert_eq!(world.starts(), [Some(Start::Zero)], "the sum flows");
    world.read(0, 1, Hold::No);
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
}

#[test]
fn the_first_worker_brings_what_all_give_and_the_others_are_told_when_it_is_here() {
    let mut world = World::of(3);
    let [first, second] = [0, 1].map(|rank| world.give(rank, 0, STATE));
    let commands = world.commands();
    assert_eq!(gifts(&commands), [first]);
    assert_eq!(told(&commands), []);
    world.gift(first, Receipt::Whole);
    assert_eq!(told(&world.commands()), [first, second]);
    let third = world.give(2, 0, STATE);
    assert_eq!(told(&world.commands()), [third], "it is here already");
    for rank in 0..3 {
        world.push(rank, given(0));
    }
    assert_eq!(world.uses(), [Some(Feedback { start: Start::Kept, is_held: false, is_given: true })]);
    world.everybody(fed_back(1));
    assert_eq!(world.uses(), [Some(Feedback { start: Start::Kept, is_held: false, is_given: false })]);
}

#[test]
fn what_was_given_is_read_until_a_sum_has_used_it() {
    let mut world = World::loaded(2);
    world.read(1, 0, Hold::No);
    assert_eq!(world.shown(), [Feedback { start: Start::Kept, is_held: false, is_given: true }]);
    world.everybody(given(0));
    world.commands();
    world.read(1, 1, Hold::No);
    assert_eq!(world.shown(), [Feedback { start: Start::Kept, is_held: false, is_given: false }]);
}

#[test]
fn what_was_given_may_be_taken_back_with_the_sum_that_used_it() {
    let mut world = World::loaded(2);
    world.everybody(Contribute { hold: Hold::Before, ..given(0) });
    world.everybody(Contribute { hold: Hold::TakenBack, ..fed_back(1) });
    let due = [(Start::Kept, true), (Start::Before, false)];
    assert_eq!(world.uses(), due.map(|(start, is_given)| Some(Feedback { start, is_held: true, is_given })));
}

#[test]
fn another_state_than_that_of_the_others_is_refused() {
    let mut world = World::of(2);
    let first = world.give(0, 0, STATE);
    world.gift(first, Receipt::Whole);
    world.commands();
    world.give(1, 0, STATE + 1);
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::InvalidArgument]);
    let error = errors(&commands).next().unwrap().to_string();
    assert!(error.contains("CRC-32C 0000004d") && error.contains("CRC-32C 0000004e"), "{error}");
    world.give(1, 0, STATE);
    assert_eq!(rejected(&world.commands()), [], "the first one stays");
}

#[test]
fn workers_that_load_another_state_before_the_next_round_all_give_that() {
    let mut world = World::loaded(2);
    let first = world.give(1, 0, STATE + 1);
    assert_eq!(gifts(&world.commands()), [first]);
    world.gift(first, Receipt::Whole);
    world.give(0, 0, STATE + 1);
    world.commands();
    world.everybody(given(0));
    assert!(world.uses()[0].unwrap().is_given);

    // One of them only.
    let mut world = World::loaded(2);
    let first = world.give(1, 0, STATE + 1);
    world.gift(first, Receipt::Whole);
    world.commands();
    world.push(1, given(0));
    world.push(0, given(0));
    let commands = world.commands();
    let told = errors(&commands).map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|told| told.contains("worker 0 has loaded")), "{told:?}");
}

#[test]
fn a_round_to_which_only_some_have_given_fails_on_all_and_the_next_one_does_not() {
    for ranks in [[0, 1], [1, 0]] {
        let mut world = World::loaded(2);
        world.push(ranks[0], given(0));
        world.push(ranks[1], fed_back(0));
        assert_eq!(rejected(&world.commands()), [Code::InvalidArgument; 2]);
        world.everybody(fed_back(1));
        assert_eq!(world.starts(), [Some(Start::Zero)]);
        assert_eq!(world.progress().bytes_in_flight, 8 + 16, "the answer and the residual, and nothing that was given");
    }
}

#[test]
fn what_nobody_gave_is_not_used() {
    let mut world = World::of(2);
    world.push(0, given(0));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::FailedPrecondition]);
    assert!(errors(&commands).next().unwrap().to_string().contains("the server does not have"));
}

#[test]
fn a_repeat_of_a_contribution_may_come_after_its_sum_has_used_what_was_given() {
    let mut world = World::loaded(2);
    let torn = world.open(0, given(0));
    world.torn(torn);
    world.push(1, given(0));
    world.push(0, given(0));
    world.open(0, given(0));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [], "{commands:?}");
}

#[test]
fn a_gift_that_breaks_off_or_is_damaged_comes_again() {
    for receipt in [None, Some(Receipt::Damaged)] {
        let mut world = World::of(2);
        let [first, _] = [0, 1].map(|rank| world.give(rank, 0, STATE));
        world.commands();
        match receipt {
            None => world.torn(first),
            Some(receipt) => world.gift(first, receipt),
        }
        let commands = world.commands();
        let due: &[Code] = if receipt.is_some() { &[Code::DataLoss, Code::Unavailable] } else { &[Code::Unavailable] };
        assert_eq!(rejected(&commands), due);
        assert!(steps(&commands).any(|step| *step == Step::DropGift));
        assert_eq!(world.progress().bytes_in_flight, 0);
        let again = world.give(1, 0, STATE);
        assert_eq!(gifts(&world.commands()), [again]);
    }
}

#[test]
fn a_gift_of_another_form_than_the_part_is_not_used() {
    let mut world = World::of(1);
    let bytes = AnswerResidual { part_bytes: 32, ..residual(0, ResidualAction::Give { checksum: STATE }) };
    let exchange = world.ask(0, bytes);
    world.gift(exchange, Receipt::Whole);
    world.commands();
    world.push(0, given(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
}

#[test]
fn survivors_of_a_lost_worker_begin_at_zero_if_their_sum_had_used_what_was_given() {
    for is_flowing in [false, true] {
        let mut world = World::loaded_with(3, |config| config.block_bytes_max = 4);
        world.open(0, given(0));
        if is_flowing {
            for rank in 1..3 {
                world.open(rank, given(0));
            }
        }
        assert_eq!(world.uses().len(), usize::from(is_flowing));
        let mut survivors = view(3, 2, Phase::Running);
        survivors.members.retain(|member| member.index != 2);
        world.follow(survivors);
        for rank in [0, 1] {
            world.push(rank, in_epoch(Epoch { term: 1, number: 2 }, given(0)));
        }
        let start = if is_flowing { Start::Zero } else { Start::Kept };
        assert_eq!(world.uses(), [Some(Feedback { start, is_held: false, is_given: !is_flowing })]);
    }
}

#[test]
fn memory_is_booked_for_what_is_given_and_for_what_is_read() {
    let mut world = World::of(1);
    let exchange = world.give(0, 0, STATE);
    assert_eq!(world.progress().bytes_in_flight, 16);
    world.gift(exchange, Receipt::Whole);
    world.node.handle_answered(exchange);
    assert_eq!(world.progress().bytes_in_flight, 16);
    let read = world.read(0, 0, Hold::No);
    assert_eq!(world.progress().bytes_in_flight, 32);
    world.node.handle_answered(read);
    assert_eq!((world.progress().bytes_in_flight, world.progress().pending), (16, 0));
    world.push(0, given(0));
    assert_eq!(world.progress().bytes_in_flight, 8 + 16, "the answer, and the residual");
    world.give(0, 1, STATE);
    world.node.handle_member(MemberEvent::Ended { keys: vec![slot(0).part.key], below: 1 });
    assert_eq!(world.progress().bytes_in_flight, 0);

    let mut world = World::with(1, |config| config.memory_bytes_max = 15);
    world.give(0, 0, STATE);
    world.read(0, 0, Hold::No);
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition; 2], "it never fits");
}

#[test]
fn a_server_that_drains_answers_what_is_read_and_takes_nothing() {
    let mut world = World::of(1);
    world.node.handle_drain();
    let read = world.read(0, 0, Hold::No);
    assert!(!world.node.is_drained());
    world.node.handle_answered(read);
    assert!(world.node.is_drained());
    world.commands();
    world.give(0, 0, STATE);
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
}

#[test]
fn who_does_not_take_part_in_a_tensor_neither_reads_nor_gives() {
    let mut world = World::of(2);
    let participants = Participants::of([WorkerId(0)].into_iter().collect());
    for action in [ResidualAction::Read(Hold::No), ResidualAction::Give { checksum: STATE }] {
        world.ask(1, AnswerResidual { participants: participants.clone(), ..residual(0, action) });
    }
    assert_eq!(rejected(&world.commands()), [Code::Aborted; 2]);
}

impl World {
    /// So many workers, all of which have given the same state.
    fn loaded(workers: u32) -> Self {
        Self::loaded_with(workers, |_| {})
    }

    fn loaded_with(workers: u32, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut world = Self::with(workers, change);
        for rank in 0..workers {
            let exchange = world.give(rank, 0, STATE);
            world.gift(exchange, Receipt::Whole);
            world.node.handle_answered(exchange);
        }
        world.commands();
        world
    }

    fn ask(&mut self, rank: u32, header: AnswerResidual) -> ExchangeId {
        let exchange = ExchangeId(self.exchanges.len() as u64 + 1);
        let slot = SlotId { part: header.target.part, round: header.target.round };
        self.exchanges.insert(exchange, (slot, WorkerId(rank)));
        self.request(rank, exchange, Request::AnswerResidual(header));
        exchange
    }

    fn read(&mut self, rank: u32, round: u64, hold: Hold) -> ExchangeId {
        self.ask(rank, residual(round, ResidualAction::Read(hold)))
    }

    fn give(&mut self, rank: u32, round: u64, checksum: u32) -> ExchangeId {
        self.ask(rank, residual(round, ResidualAction::Give { checksum }))
    }

    /// What the exchange brought is the residual, or is not.
    fn gift(&mut self, exchange: ExchangeId, receipt: Receipt) {
        let (slot, _) = self.exchanges[&exchange];
        self.node.handle_receipt(self.now, Route::Gift { part: slot.part }, exchange, receipt.into());
    }

    /// What was shown since the last call.
    fn shown(&mut self) -> Vec<Feedback> {
        let commands = self.commands();
        let shown = |step: &Step| if let Step::AnswerResidual { shown, .. } = step { *shown } else { None };
        steps(&commands).filter_map(shown).collect()
    }
}

/// Exchanges that are to bring a residual.
fn gifts(commands: &[Command]) -> Vec<ExchangeId> {
    let taken = |step: &Step| if let Step::TakeGift { exchange, .. } = step { Some(*exchange) } else { None };
    steps(commands).filter_map(taken).collect()
}

/// Exchanges that are told that the residual is here.
fn told(commands: &[Command]) -> Vec<ExchangeId> {
    let told = |step: &Step| match step {
        Step::AnswerResidual { exchange, shown: None, .. } => Some(*exchange),
        _ => None,
    };
    steps(commands).filter_map(told).collect()
}

fn residual(round: u64, action: ResidualAction) -> AnswerResidual {
    let codec = "bf16:feedback=1".parse().unwrap();
    AnswerResidual { target: target(round), participants: Participants::ALL, codec, part_bytes: 16, action }
}

/// A contribution of a worker that has loaded a state.
fn given(round: u64) -> Contribute {
    Contribute { is_given: true, ..fed_back(round) }
}
