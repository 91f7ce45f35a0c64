//! Sums whose codec has error feedback.

use gradlane_core::codec::feedback::Start;

use super::*;
use crate::node::command::Feedback;

#[test]
fn an_answer_goes_on_with_what_the_answer_of_the_round_before_lost() {
    let mut world = World::of(2);
    let mut starts = Vec::new();
    for round in 0..3 {
        world.everybody(fed_back(round));
        starts.extend(world.starts());
    }
    assert_eq!(starts, [Some(Start::Zero), Some(Start::Kept), Some(Start::Kept)]);
}

#[test]
fn without_error_feedback_there_is_no_residual() {
    let mut world = World::of(2);
    world.everybody(halved(CodecSpec::BF16, header(0)));
    assert_eq!(world.starts(), [None]);
    world.everybody(Contribute { op: Op::Min, ..fed_back(1) });
    assert_eq!(world.starts(), [], "only sums and means have it");
    assert_eq!(world.progress().bytes_in_flight, 8, "the answer");
}

#[test]
fn a_round_that_fails_while_its_sum_flows_makes_the_next_one_begin_at_zero() {
    let mut world = World::of(2);
    world.everybody(fed_back(0));
    let [first, _] = [0, 1].map(|rank| world.open(rank, fed_back(1)));
    world.receipt(first, Receipt::Damaged);
    assert_eq!(world.starts(), [Some(Start::Zero), Some(Start::Kept)]);
    world.everybody(fed_back(2));
    assert_eq!(world.starts(), [Some(Start::Zero)]);
}

#[test]
fn a_round_that_fails_before_its_sum_flows_changes_nothing() {
    let mut world = World::of(2);
    world.everybody(fed_back(0));
    world.push(0, fed_back(1));
    world.open(1, Contribute { op: Op::Mean, ..fed_back(1) });
    assert_eq!(world.starts(), [Some(Start::Zero)], "round 1 fails");
    world.everybody(fed_back(2));
    assert_eq!(world.starts(), [Some(Start::Kept)]);
}

#[test]
fn a_sum_of_other_workers_begins_at_zero() {
    let mut world = World::of(3);
    world.everybody(fed_back(0));
    world.everybody(fed_back(1));
    world.push(0, fed_back(2));
    assert_eq!(world.starts(), [Some(Start::Zero), Some(Start::Kept)]);
    let mut survivors = view(3, 2, Phase::Running);
    survivors.members.retain(|member| member.index != 2);
    world.follow(survivors);
    let epoch = Epoch { term: 1, number: 2 };
    for round in [2, 3] {
        for rank in [0, 1] {
            world.push(rank, in_epoch(epoch, fed_back(round)));
        }
    }
    assert_eq!(world.starts(), [Some(Start::Zero), Some(Start::Kept)], "of the two that are left");
}

#[test]
fn a_residual_is_booked_until_its_name_ends() {
    let mut world = World::of(2);
    world.open(0, fed_back(0));
    assert_eq!(world.progress().bytes_in_flight, 16 + 16, "the sum in f32, and the residual");
    world.everybody(fed_back(0));
    assert_eq!(world.progress().bytes_in_flight, 8 + 16, "the answer, and the residual");
    world.everybody(fed_back(1));
    assert_eq!(world.progress().bytes_in_flight, 8 + 16);
    world.commands();
    world.node.handle_member(MemberEvent::Ended { keys: vec![slot(0).part.key], below: 1 });
    assert!(steps(&world.commands()).any(|step| *step == Step::DropResidual));
    assert_eq!(world.progress().bytes_in_flight, 0);
}

#[test]
fn a_residual_for_which_there_is_no_memory_is_a_typed_refusal() {
    let mut world = World::with(1, |config| config.memory_bytes_max = 31);
    world.open(0, fed_back(0));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::FailedPrecondition]);
    let told = errors(&commands).next().unwrap().to_string();
    assert!(told.contains("needs 32 B") && told.contains("server_bytes_max"), "{told}");
    world.open(0, halved(CodecSpec::BF16, header(0)));
    assert_eq!(rejected(&world.commands()), [], "without one it fits");
}

#[test]
fn a_sum_that_all_its_workers_have_taken_back_is_as_if_it_had_not_been() {
    use Hold::{Before, No, TakenBack};
    let mut world = World::of(2);
    let mut starts = Vec::new();
    for (round, holds) in [
        (0, [Before, Before]),
        (1, [TakenBack, TakenBack]),
        (2, [TakenBack, Before]),
        (3, [Before, TakenBack]),
        (4, [TakenBack, No]),
        (5, [TakenBack, TakenBack]),
    ] {
        for (rank, hold) in (0..).zip(holds) {
            world.push(rank, Contribute { hold, ..fed_back(round) });
        }
        starts.extend(world.uses());
    }
    let uses = |start, is_held| Some(Feedback { start, is_held, is_given: false });
    let due = [
        uses(Start::Zero, true),
        uses(Start::Before, true),
        uses(Start::Kept, true),
        uses(Start::Kept, true),
        uses(Start::Kept, false),
        // The one before was not held.
        uses(Start::Kept, true),
    ];
    assert_eq!(starts, due);
}

#[test]
fn a_repeat_says_again_that_a_sum_was_taken_back_and_nothing_is_taken_back_twice() {
    let mut world = World::of(2);
    world.everybody(Contribute { hold: Hold::Before, ..fed_back(0) });
    let again = Contribute { hold: Hold::TakenBack, ..fed_back(1) };
    let torn = world.open(0, again.clone());
    world.torn(torn);
    world.push(0, again.clone());
    world.push(1, again.clone());
    assert_eq!(world.starts(), [Some(Start::Zero), Some(Start::Before)]);
    world.open(1, again);
    world.everybody(Contribute { hold: Hold::Before, ..fed_back(2) });
    assert_eq!(world.starts(), [Some(Start::Kept)]);
}

#[test]
fn of_a_round_without_a_sum_nothing_is_taken_back() {
    let held = |round| Contribute { hold: Hold::Before, ..fed_back(round) };
    for is_flowing in [false, true] {
        let mut world = World::of(2);
        world.everybody(held(0));
        let first = world.open(0, held(1));
        if is_flowing {
            world.open(1, held(1));
            world.receipt(first, Receipt::Damaged);
        } else {
            world.open(1, Contribute { op: Op::Mean, ..held(1) });
        }
        world.commands();
        world.everybody(Contribute { hold: Hold::TakenBack, ..fed_back(2) });
        // The sum of round 0 was used.
        assert_eq!(world.starts(), [Some(if is_flowing { Start::Zero } else { Start::Kept })]);
    }
}

#[test]
fn survivors_take_back_no_sum_of_those_that_were_lost() {
    let mut world = World::of(3);
    world.everybody(Contribute { hold: Hold::Before, ..fed_back(0) });
    let mut survivors = view(3, 2, Phase::Running);
    survivors.members.retain(|member| member.index != 2);
    world.follow(survivors);
    let epoch = Epoch { term: 1, number: 2 };
    for round in [1, 2] {
        for rank in [0, 1] {
            world.push(rank, Contribute { hold: Hold::TakenBack, ..in_epoch(epoch, fed_back(round)) });
        }
    }
    assert_eq!(world.starts(), [Some(Start::Zero), Some(Start::Zero), Some(Start::Before)]);
}

#[test]
fn a_residual_that_is_held_is_booked_twice() {
    let mut world = World::of(2);
    world.everybody(fed_back(0));
    assert_eq!(world.progress().bytes_in_flight, 8 + 16, "the answer, and the residual");
    world.everybody(Contribute { hold: Hold::Before, ..fed_back(1) });
    assert_eq!(world.progress().bytes_in_flight, 8 + 2 * 16);
    world.everybody(Contribute { hold: Hold::TakenBack, ..fed_back(2) });
    assert_eq!(world.progress().bytes_in_flight, 8 + 2 * 16);
    world.node.handle_member(MemberEvent::Ended { keys: vec![slot(0).part.key], below: 1 });
    assert_eq!(world.progress().bytes_in_flight, 0);
}

impl World {
    /// How the answers that began since the last call use the residual.
    pub(super) fn starts(&mut self) -> Vec<Option<Start>> {
        self.uses().into_iter().map(|residual| residual.map(|feedback| feedback.start)).collect()
    }

    pub(super) fn uses(&mut self) -> Vec<Option<Feedback>> {
        let commands = self.commands();
        let start = |step: &Step| if let Step::Publish { residual, .. } = step { Some(*residual) } else { None };
        steps(&commands).filter_map(start).collect()
    }
}

/// A contribution with error feedback.
pub(super) fn fed_back(round: u64) -> Contribute {
    halved("bf16:feedback=1".parse().unwrap(), header(round))
}
