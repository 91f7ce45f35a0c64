//! What becomes of contributions that are not finite.

use std::collections::BTreeSet;

use super::*;

const REDUCTIONS: [Op; 5] = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean];
const SPECIAL: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

#[test]
fn a_nan_in_any_chunk_and_any_slice_is_an_error_on_every_rank_and_the_next_round_is_right() {
    for ranks in [2, 3] {
        let machine = Machine::looking(&vec![NanCheck::Error; ranks]);
        let (chunk, len) = (chunk_len(ranks), 5 * chunk_len(ranks) + 33);
        // The first and the last number of a chunk, in the slices of different ranks. The last chunk is short.
        let places = [0, chunk - 1, 2 * chunk, 3 * chunk - 1, 5 * chunk - 1, 5 * chunk, len - 1];
        for (part, at) in (0..).zip(places) {
            let (op, special, by) = (REDUCTIONS[at % 5], SPECIAL[at % 3], at % ranks);
            let outcomes = machine.each(|rank, collective| {
                let outcome =
                    collective.contribute(slot(part, 0), op, &mut ones(len, (rank == by).then_some((at, special))));
                let mut next = vec![1.0_f32; len];
                collective.reduce(slot(part, 1), Op::Sum, 1.0, &mut next).unwrap();
                assert!(next.iter().all(|sum| *sum == ranks as f32), "the next round");
                outcome
            });
            for (rank, (outcome, is_found)) in outcomes.into_iter().enumerate() {
                assert_eq!(outcome, Err(not_finite(part, by)), "{op} of {special} at {at}, rank {rank} of {ranks}");
                assert_eq!(is_found, rank == by);
            }
        }
    }
}

#[test]
fn a_warning_lets_it_pass_and_says_whose_it_is() {
    let machine = Machine::looking(&[NanCheck::Warn; 3]);
    let len = 4 * chunk_len(3);
    for (part, op) in (0..).zip([Op::Sum, Op::Mean, Op::WeightedMean, Op::Max]) {
        let outcomes = machine.each(|rank, collective| {
            let mut data = ones(len, (rank == 2).then_some((len / 2, f32::NAN)));
            let outcome = collective.contribute(slot(part, 0), op, &mut data);
            assert!(data[len / 2].is_nan() && data.iter().filter(|value| value.is_nan()).count() == 1, "{op}");
            outcome
        });
        let passed: Vec<_> = outcomes.iter().map(|(outcome, is_found)| (outcome.is_ok(), *is_found)).collect();
        assert_eq!(passed, [(true, false), (true, false), (true, true)]);
    }
}

#[test]
fn each_rank_decides_about_its_own_contribution() {
    let machine = Machine::looking(&[NanCheck::Off, NanCheck::Warn, NanCheck::Error]);
    for (part, (spoiled, expected)) in (0..).zip([
        (vec![0], Ok(vec![])),
        (vec![0, 1], Ok(vec![1])),
        (vec![2], Err(vec![2])),
        (vec![0, 1, 2], Err(vec![1, 2])),
    ]) {
        let outcomes = machine.each(|rank, collective| {
            collective.contribute(
                slot(part, 0),
                Op::Sum,
                &mut ones(1000, spoiled.contains(&rank).then_some((7, f32::NAN))),
            )
        });
        let (Ok(found) | Err(found)) = &expected;
        for (rank, (outcome, is_found)) in outcomes.into_iter().enumerate() {
            assert_eq!(
                (outcome.err(), is_found),
                (expected.is_err().then(|| not_finite(part, 2)), found.contains(&rank))
            );
        }
    }
}

#[test]
fn of_several_ranks_all_name_the_same() {
    let machine = Machine::looking(&[NanCheck::Error; 3]);
    let len = 3 * chunk_len(3);
    let outcomes = machine.each(|rank, collective| {
        // The higher one comes to it in the first chunk, the lower one in the last.
        let spoiled = [None, Some((len - 1, f32::NAN)), Some((0, f32::INFINITY))][rank];
        collective.contribute(slot(1, 0), Op::Sum, &mut ones(len, spoiled))
    });
    let expected = [false, true, true].map(|found| (Err(not_finite(1, 1)), found));
    assert_eq!(outcomes, expected);
}

#[test]
fn numbers_that_only_add_up_to_an_infinity_are_finite() {
    let machine = Machine::looking(&[NanCheck::Error; 2]);
    let outcomes = machine.each(|_, collective| {
        let mut data = vec![f32::MAX; 100];
        let outcome = collective.contribute(slot(1, 0), Op::Sum, &mut data);
        assert!(data.iter().all(|sum| *sum == f32::INFINITY));
        let mut halves = vec![f16::MAX; 100];
        collective.reduce(slot(2, 0), Op::Sum, 1.0, &mut halves).unwrap();
        outcome
    });
    assert!(outcomes.iter().all(|(outcome, is_found)| outcome.is_ok() && !is_found), "{outcomes:?}");
}

#[test]
fn every_float_is_looked_at_and_no_integer_is() {
    fn check<T: Number + Sync>(machine: &Machine, part: u64, special: T, expected: bool) {
        let outcomes = machine.each(|rank, collective| {
            let mut data = vec![T::of(1); 1001];
            if rank == 0 {
                data[1000] = special;
            }
            collective.reduce(slot(part, 0), Op::Sum, 1.0, &mut data)
        });
        assert_eq!(outcomes, vec![if expected { Err(not_finite(part, 0)) } else { Ok(()) }; 2], "{}", T::DTYPE);
    }
    let machine = Machine::looking(&[NanCheck::Error; 2]);
    check(&machine, 0, f32::NAN, true);
    check(&machine, 1, f64::NEG_INFINITY, true);
    check(&machine, 2, f16::NAN, true);
    check(&machine, 3, bf16::INFINITY, true);
    check(&machine, 4, -1_i32, false);
    check(&machine, 5, -1_i64, false);
    check(&machine, 6, -1_i8, false);
    check(&machine, 7, u8::MAX, false);
}

#[test]
fn what_is_not_added_is_not_looked_at() {
    let machine = Machine::looking(&[NanCheck::Error; 3]);
    machine.each(|rank, collective| {
        let mut data = ones(1000, (rank == 1).then_some((3, f32::NAN)));
        collective.reduce(slot(1, 0), Op::WeightedMean, if rank == 1 { 0.0 } else { 1.0 }, &mut data).unwrap();
        assert!(data.iter().all(|mean| *mean == 1.0), "it has no weight");
        let mut bits = ones(1000, Some((3, f32::NAN)));
        collective.reduce(slot(2, 0), Op::Broadcast { root: WorkerId(1) }, 1.0, &mut bits).unwrap();
        assert!(bits[3].is_nan());
        // The results of groups were looked at as contributions.
        let holders: Vec<WorkerId> = (0..3).map(WorkerId).collect();
        let goal = Goal::Join { origin: None, holders, taker: None };
        let mut joined = ones(1000, Some((3, f32::NAN)));
        let operation = collective.operation(slot(3, 0), Op::Sum, 1.0, &mut joined);
        collective.run(Operation { goal, ..operation }).unwrap();
    });
}

#[test]
fn the_error_reaches_the_members_that_get_no_result_and_nobody_else() {
    let machine = Machine::looking(&[NanCheck::Error; 3]);
    let goals = [Goal::Deliver { receiver: WorkerId(2) }, Goal::Reduce { owner: WorkerId(0) }];
    for (part, goal) in (0..).zip(goals) {
        let outcomes = machine.each(|rank, collective| {
            if rank == 1 {
                return Ok(0.0);
            }
            let mut data = ones(50_000, (rank == 2).then_some((49_999, f32::NAN)));
            let operation = collective.operation(slot(part, 0), Op::Sum, 1.0, &mut data);
            let claim = Claim { members: 0b101, ..operation.claim };
            collective.run(Operation { goal: goal.clone(), claim, ..operation })
        });
        assert_eq!(outcomes, [Err(not_finite(part, 2)), Ok(0.0), Err(not_finite(part, 2))], "{goal:?}");
    }
    let sums = machine.each(|_, collective| {
        let mut data = vec![1.0_f32; 50_000];
        collective.reduce(slot(7, 0), Op::Sum, 1.0, &mut data).unwrap();
        data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 3.0));
}

#[test]
fn of_many_parts_in_flight_those_fail_that_are_not_finite() {
    let machine = Machine::looking(&[NanCheck::Error; 3]);
    let (parts, len) = (300_u64, chunk_len(3) + 5);
    let is_spoiled = |part: u64, rank: usize| part % 7 == rank as u64;
    let found = machine.each(|rank, collective| {
        let spoiled = |part| is_spoiled(part, rank).then_some((part as usize * 97 % len, f32::NAN));
        let mut data: Vec<Vec<f32>> = (0..parts).map(|part| ones(len, spoiled(part))).collect();
        let (sender, ended) = mpsc::channel();
        for (part, data) in (0..).zip(&mut data) {
            let sender = sender.clone();
            let operation = collective.operation(slot(part, 0), Op::Sum, 1.0, data);
            let done = Done::new(move |outcome| sender.send((part, outcome)).unwrap());
            collective.0.run(operation, done);
        }
        let mut failed = BTreeSet::new();
        for _ in 0..parts {
            let (part, outcome) = ended.recv_timeout(PATIENCE).unwrap();
            match outcome {
                Ok(_) => assert!(data[part as usize].iter().all(|sum| *sum == 3.0), "part {part}"),
                Err(unmet) => {
                    assert_eq!(unmet, Unmet::Failed(not_finite(part, part as usize % 7)));
                    failed.insert(part);
                }
            }
        }
        failed
    });
    let expected: BTreeSet<u64> = (0..parts).filter(|part| part % 7 < 3).collect();
    assert_eq!(found, vec![expected; 3]);
}

impl Machine {
    /// A machine whose ranks have these settings.
    fn looking(settings: &[NanCheck]) -> Self {
        Self::that(settings.len(), &|rank, options| HostOptions { nan_check: settings[rank], ..options })
    }
}

impl Member {
    /// Reduces in place. Also returns whether this rank's contribution was found not to be finite.
    fn contribute(&self, slot: Slot, op: Op, data: &mut [f32]) -> (Result<f64>, bool) {
        let operation = self.operation(slot, op, 1.0, data);
        let finding = operation.finding.clone();
        (self.run(operation), finding.is_raised())
    }
}

/// The number of floats in a chunk of so many ranks.
fn chunk_len(ranks: usize) -> usize {
    layout::Layout::new(ranks).chunk() / 4
}

fn ones(len: usize, special: Option<(usize, f32)>) -> Vec<f32> {
    let mut data = vec![1.0; len];
    if let Some((at, special)) = special {
        data[at] = special;
    }
    data
}

fn not_finite(part: u64, rank: usize) -> Error {
    Error::NotFinite { tensor: TensorKey(part).into(), round: Round(0), from: format!("worker {rank}") }
}
