//! Sums that are sent while contributions are still on their way.

use super::*;

#[test]
fn the_sum_flows_when_the_last_worker_has_begun() {
    let mut world = World::of(2);
    let first = world.open(0, header(0));
    assert_eq!(answered(&world.commands()), []);
    let second = world.open(1, header(0));
    let commands = world.commands();
    assert!(commands.contains(&step(Step::Publish { divisor: 1.0, residual: None })));
    assert_eq!(answered(&commands), [first, second]);
}

#[test]
fn an_answer_says_whether_the_body_is_still_wanted() {
    let mut world = World::of(2);
    world.push(0, header(0));
    world.open(1, header(0));
    let commands = world.commands();
    let early: Vec<bool> = steps(&commands)
        .filter_map(|step| match step {
            Step::Answer { header, .. } => Some(header.early),
            _ => None,
        })
        .collect();
    assert_eq!(early, [false, true]);
}

#[test]
fn who_comes_back_while_the_sum_flows_is_answered_and_brings_the_rest() {
    let mut world = World::of(2);
    let torn = world.open(0, header(0));
    world.open(1, header(0));
    world.torn(torn);
    world.commands();
    let again = world.open(0, resumed(0, 8));
    let commands = world.commands();
    assert_eq!((received(&commands), answered(&commands)), (vec![again], vec![again]));
    world.whole(again);
    world.whole(ExchangeId(2));
    assert_eq!(seals(&world.commands()), 1);
}

#[test]
fn a_repeat_says_what_the_sum_has_overwritten_and_keeps_the_checksum_of_the_first_attempt() {
    let mut world = World::of(2);
    let torn = world.open(0, checked(7, header(0)));
    world.torn(torn);
    world.commands();
    let exchange = world.open(0, resumed(0, 8));
    let upload = Upload { body: Body::plain(16), weight: 1.0, checksum: Some(7), landed: 8 };
    assert_eq!(world.commands(), [step(Step::Receive { worker: WorkerId(0), exchange, upload })]);
}

#[test]
fn a_round_that_flows_can_still_fail_for_everybody() {
    let mut world = World::of(2);
    world.push(0, header(0));
    let half = world.open(1, header(0));
    world.torn(half);
    world.commands();
    world.pass(Duration::from_secs(60));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::DeadlineExceeded]);
    assert!(commands.contains(&drops(0)));
    world.open(1, resumed(0, 8));
    assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded]);
}

#[test]
fn what_becomes_of_the_job_takes_no_sealed_sum_away() {
    let mut world = World::of(2);
    let answers = world.everybody(header(0));
    world.commands();
    world.view(2, 2, Phase::Ended);
    let commands = world.commands();
    assert_eq!(rejected(&commands), []);
    assert_eq!(world.node.services.sums.exchanges.len(), answers.len(), "their answers are under way");
}

#[test]
fn a_contribution_that_the_sum_has_overwritten_and_nobody_has_is_lost() {
    let mut world = World::of(2);
    world.open(0, resumed(0, 8));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "nobody began this round");
    world.open(1, header(0));
    world.commands();
    world.open(0, resumed(0, 8));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition; 2], "it never began, so nobody gets a sum");
    let mut world = World::of(2);
    let begun = world.open(0, header(0));
    world.torn(begun);
    let again = world.open(0, resumed(0, 8));
    world.commands();
    world.receipt(again, Receipt::Lost);
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "less than that was taken");
}

#[test]
fn a_repeat_with_another_weight_breaks_the_protocol() {
    let mut world = World::of(2);
    let torn = world.open(0, weighted(1.0));
    world.torn(torn);
    world.open(0, weighted(2.0));
    assert_eq!(rejected(&world.commands()), [Code::Aborted]);
}

#[test]
fn more_cannot_have_landed_than_there_is() {
    let mut world = World::of(1);
    world.open(0, resumed(0, 17));
    assert_eq!(rejected(&world.commands()), [Code::Aborted]);
}

#[test]
fn of_a_sum_in_one_block_nothing_is_said_before_it_is_complete() {
    let mut world = World::with(2, |config| (config.block_bytes_min, config.block_bytes_max) = (16, 16));
    let first = world.push(0, header(0));
    let second = world.open(1, header(0));
    assert_eq!(answered(&world.commands()), []);
    world.whole(second);
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![first, second], 1));
    let early = |step: &Step| matches!(step, Step::Answer { header, .. } if header.early);
    assert!(!steps(&commands).any(early), "nobody wants a rest of the body");
}
