//! Whole engines whose devices lie in several PCIe groups of a machine: reduced in each group, added on the host, exchanged once a machine,
//! and brought back. Driver and NCCL are the fakes.

use std::sync::Barrier;

use gradlane_core::Error;
use gradlane_core::types::{DType, Op, Priority, TensorSpec, WorkerId};
use gradlane_tests::cluster::{PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

use crate::seats::{LEN, start, total};

matrix! {
    [over_shm, over_quic]:
        every_group_stages_once_and_a_machine_pushes_once;
}

/// Machines, and how many devices a switch has.
const SHAPES: [(&[&str], &str); 6] = [
    (&["a", "a"], "1"),
    (&["a", "a", "a", "a"], "2"),
    (&["a", "a", "a"], "1"),
    (&["a", "a", "a"], "2"),
    (&["a", "a", "a", "b"], "2"),
    (&["a", "a", "a", "a", "b", "b", "b"], "2"),
];

#[test]
fn groups_of_any_number_and_size_add_up_exactly() {
    for (machines, size) in SHAPES {
        let settings = [&SMALL_PARTS[..], &[("pcie_switch_size", size)]].concat();
        let (cluster, seats) = start(Over::Quic, machines, &settings);
        let count = machines.len();
        let last = WorkerId(u32::try_from(count - 1).unwrap());
        for op in [
            Op::Sum,
            Op::Mean,
            Op::Max,
            Op::WeightedMean,
            Op::Broadcast { root: last },
            Op::Broadcast { root: WorkerId(0) },
        ] {
            all(&cluster.workers, |engine| {
                let (rank, seat) = (engine.rank().0 as usize, &seats[engine.rank().0 as usize]);
                let contribution = |rank: usize| move |index: usize| (840 * (index % 50) * (rank + 1)) as f32;
                let ours: Vec<f32> = (0..LEN).map(contribution(rank)).collect();
                let (source, destination) = (seat.place(&ours), seat.place(&vec![-1.0; LEN]));
                for round in 0..2 {
                    let mut submission =
                        seat.submission(engine, &format!("{op}"), op, (source, destination), Priority(round));
                    // Only two of them weigh something, as much each.
                    submission.weight =
                        if op != Op::WeightedMean || rank == 0 || rank + 1 == count { 1.0 } else { 0.0 };
                    engine.reduce(submission, Some(PATIENCE)).unwrap();
                }
                let expected = (0..LEN).map(|index| {
                    let all = (0..count).map(|rank| contribution(rank)(index));
                    match op {
                        Op::Sum => all.sum(),
                        Op::Mean => all.sum::<f32>() / count as f32,
                        Op::Max => all.fold(0.0, f32::max),
                        Op::WeightedMean => (contribution(0)(index) + contribution(count - 1)(index)) / 2.0,
                        Op::Broadcast { root } => contribution(root.0 as usize)(index),
                        other => panic!("{other}"),
                    }
                });
                assert_eq!(seat.values(destination), expected.collect::<Vec<f32>>(), "{op} on {machines:?} of {size}");
                assert_eq!(seat.values(source), ours, "what was contributed is still there");
            });
        }
    }
}

fn every_group_stages_once_and_a_machine_pushes_once(over: Over) {
    let (cluster, seats) = start(over, &["a", "a", "a", "a", "b"], &[("pcie_switch_size", "2")]);
    all(&cluster.workers, |engine| {
        let seat = &seats[engine.rank().0 as usize];
        let place = seat.place(&vec![1.0; LEN]);
        engine.reduce(seat.submission(engine, "w", Op::Sum, (place, place), Priority(0)), Some(PATIENCE)).unwrap();
        assert!(seat.values(place).iter().all(|sum| *sum == 5.0));
    });
    assert_eq!(total(&cluster, "d2h_bytes"), (3 * 4 * LEN) as u64, "two groups and a machine");
    assert_eq!(total(&cluster, "h2d_bytes"), (3 * 4 * LEN) as u64);
    assert_eq!(total(&cluster, "push_bytes"), (2 * 4 * LEN) as u64, "two machines");
}

#[test]
fn floats_of_a_small_range_are_added_on_the_host_and_tensors_of_the_host_know_no_groups() {
    // Two halves of 1.0 in each float of 32 bits.
    let ones = |count: f32| f32::from_bits(u32::from(half::f16::from_f32(count).to_bits()) * 0x1_0001);
    for machines in [&["a", "a", "a", "a"][..], &["a", "a", "a", "b"]] {
        let (cluster, seats) = start(Over::Quic, machines, &[("pcie_switch_size", "2")]);
        all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let place = seat.place(&vec![ones(1.0); LEN]);
            let mut halves = seat.submission(engine, "halves", Op::Sum, (place, place), Priority(0));
            halves.tensor = TensorSpec::new("halves", DType::F16, vec![2 * LEN as u64]);
            engine.reduce(halves, Some(PATIENCE)).unwrap();
            assert!(seat.values(place).iter().all(|sum| sum.to_bits() == ones(4.0).to_bits()), "{machines:?}");
            let mut tensor = Tensor::new("on the host", vec![engine.rank().0 as f32; LEN]);
            tensor.reduce(engine, Op::Mean).unwrap();
            assert!(tensor.data.iter().all(|mean| *mean == 1.5), "{machines:?}");
        });
    }
}

#[test]
fn workers_of_different_groups_that_disagree_both_learn_it_and_the_next_round_is_whole() {
    for machines in [&["a", "a", "a", "a"][..], &["a", "a", "a", "a", "b"]] {
        let (cluster, seats) = start(Over::Quic, machines, &[("pcie_switch_size", "2"), ("step_timeout", "1 h")]);
        let errors = all(&cluster.workers[..4], |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let place = seat.place(&vec![1.0; LEN]);
            let op = if engine.rank() == WorkerId(3) { Op::Max } else { Op::Sum };
            engine.reduce(seat.submission(engine, "w", op, (place, place), Priority(0)), Some(PATIENCE)).unwrap_err()
        });
        for error in errors {
            assert!(matches!(&error, Error::Mismatch { field, .. } if field == "op"), "{error}");
        }
        all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let place = seat.place(&vec![1.0; LEN]);
            let next = seat.submission(engine, "next", Op::Sum, (place, place), Priority(0));
            engine.reduce(next, Some(PATIENCE)).unwrap();
            assert!(seat.values(place).iter().all(|sum| *sum == machines.len() as f32));
        });
    }
}

#[test]
fn a_worker_of_another_group_that_does_not_come_is_named() {
    let (cluster, seats) = start(
        Over::Quic,
        &["a", "a", "a", "a"],
        &[("pcie_switch_size", "2"), ("stall_warn", "500 ms"), ("step_timeout", "1 s")],
    );
    let errors = all(&cluster.workers[..3], |engine| {
        let seat = &seats[engine.rank().0 as usize];
        let place = seat.place(&vec![1.0; LEN]);
        engine.reduce(seat.submission(engine, "w", Op::Sum, (place, place), Priority(0)), Some(PATIENCE)).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(3)]), "{error}");
    }
}

#[test]
fn whoever_cancels_gets_its_memory_back_and_no_sum_is_wrong() {
    // Which of the workers cancels: of each part one of them exchanges it, another holds it, and two do neither.
    for canceller in 0..4 {
        let settings = [&SMALL_PARTS[..], &[("pcie_switch_size", "2"), ("stall_warn", "1 s"), ("step_timeout", "5 s")]];
        let (cluster, seats) = start(Over::Quic, &["a", "a", "a", "a", "b"], &settings.concat());
        let (submitted, over) = (Barrier::new(5), Barrier::new(5));
        all(&cluster.workers, |engine| {
            let (rank, seat) = (engine.rank().0, &seats[engine.rank().0 as usize]);
            let place = seat.place(&vec![1.0; LEN]);
            let submission = |place| seat.submission(engine, "w", Op::Sum, (place, place), Priority(0));
            // Libraries are loaded and devices meet, so that nothing waits for that later.
            engine.reduce(submission(place), Some(PATIENCE)).unwrap();
            let place = seat.place(&vec![1.0; LEN]);
            let handle = engine.push_pull(submission(place), |_| {}).unwrap();
            // Its parts are anywhere on their way by now.
            submitted.wait();
            if rank == canceller {
                handle.cancel();
            }
            match handle.wait(Some(PATIENCE)) {
                Ok(()) => assert!(seat.values(place).iter().all(|sum| *sum == 5.0)),
                Err(Error::Cancelled) if rank == canceller => {}
                Err(Error::Stalled { missing, .. }) => assert!(missing.contains(&WorkerId(canceller)), "{missing:?}"),
                Err(error) => panic!("{error}"),
            }
            over.wait();
            let place = seat.place(&vec![1.0; LEN]);
            let next = seat.submission(engine, "next", Op::Sum, (place, place), Priority(0));
            engine.reduce(next, Some(PATIENCE)).unwrap();
            assert!(seat.values(place).iter().all(|sum| *sum == 5.0));
        });
    }
}
