//! Whole engines whose tensors lie on CUDA devices, several of them on a machine: reduced there, exchanged once a machine, and brought back.
//! Driver and NCCL are the fakes.

use gradlane_core::Error;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_tests::cluster::{PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::elapsed;

use crate::seats::{LEN, start, total};

matrix! {
    [over_shm, over_quic]:
        a_sum_of_devices_is_exchanged_once_a_machine_and_is_exact_on_all_of_them;
}

fn a_sum_of_devices_is_exchanged_once_a_machine_and_is_exact_on_all_of_them(over: Over) {
    for machines in [&["a", "a"][..], &["a", "a", "b"], &["a", "a", "b", "b"]] {
        let (cluster, seats) = start(over, machines, &SMALL_PARTS);
        let count = machines.len();
        let root = WorkerId(u32::try_from(count - 1).unwrap());
        for op in [Op::Sum, Op::Mean, Op::Max, Op::Broadcast { root }] {
            let before = total(&cluster, "d2h_bytes");
            all(&cluster.workers, |engine| {
                let (rank, seat) = (engine.rank().0 as usize, &seats[engine.rank().0 as usize]);
                let contribution = |rank: usize| move |index: usize| (12 * (index % 50) * (rank + 1)) as f32;
                let ours: Vec<f32> = (0..LEN).map(contribution(rank)).collect();
                let (source, destination) = (seat.place(&ours), seat.place(&vec![-1.0; LEN]));
                let submission = |round: u64| {
                    let priority = Priority(i32::try_from(round).unwrap());
                    seat.submission(engine, &format!("{op}"), op, (source, destination), priority)
                };
                for round in 0..2 {
                    engine.reduce(submission(round), Some(PATIENCE)).unwrap();
                }
                let expected = (0..LEN).map(|index| {
                    let all = (0..count).map(|rank| contribution(rank)(index));
                    match op {
                        Op::Sum => all.sum(),
                        Op::Mean => all.sum::<f32>() / count as f32,
                        Op::Max => all.fold(0.0, f32::max),
                        _ => contribution(count - 1)(index),
                    }
                });
                assert_eq!(seat.values(destination), expected.collect::<Vec<f32>>(), "{op} on {machines:?}");
                assert_eq!(seat.values(source), ours, "what was contributed is still there");
            });
            let distinct = machines.iter().collect::<std::collections::BTreeSet<_>>().len();
            let senders = match op {
                _ if distinct == 1 => 0,
                Op::Broadcast { .. } => 1,
                _ => distinct,
            };
            let copied = total(&cluster, "d2h_bytes") - before;
            assert_eq!(copied, 2 * (senders * LEN * 4) as u64, "{op} on {machines:?}: a copy for each machine");
        }
    }
}

/// Rounds follow each other until each of the four ways was taken, because it depends on the moment which parts are ready together.
#[test]
fn parts_for_all_ranks_are_scattered_and_gathered_in_one_call_and_the_rest_goes_part_by_part() {
    const WAYS: [&str; 4] =
        ["nccl_reduce_scatter_bytes", "nccl_reduce_bytes", "nccl_all_gather_bytes", "nccl_broadcast_bytes"];
    let shapes: [(&[&str], &str, u64); 3] =
        [(&["a", "a", "b", "b"], "none", 4), (&["a", "a", "a", "b"], "none", 3), (&["a", "a", "a", "a"], "2", 4)];
    for (machines, size, devices) in shapes {
        let wiring = [("pcie_switch_size", size)];
        let wiring = if size == "none" { &[][..] } else { &wiring };
        let (cluster, seats) = start(Over::Quic, machines, &[&SMALL_PARTS, wiring].concat());
        let ways = || WAYS.map(|way| total(&cluster, way));
        let clock = Clock::start();
        for round in 0.. {
            all(&cluster.workers, |engine| {
                let (rank, seat) = (engine.rank().0 as usize, &seats[engine.rank().0 as usize]);
                let ours: Vec<f32> = (0..LEN).map(|index| (index % 1000 * (rank + 1)) as f32).collect();
                let place = seat.place(&ours);
                engine
                    .reduce(seat.submission(engine, "w", Op::Sum, (place, place), Priority(0)), Some(PATIENCE))
                    .unwrap();
                let expected = (0..LEN).map(|index| (index % 1000 * 10) as f32);
                assert_eq!(seat.values(place), expected.collect::<Vec<f32>>(), "round {round} on {machines:?}");
            });
            let [scattered, reduced, gathered, shown] = ways();
            // Every rank counts the whole of what it takes part in.
            let all = (round + 1) * devices * 4 * LEN as u64;
            assert_eq!((scattered + reduced, gathered + shown), (all, all), "{machines:?}");
            if ways().iter().all(|bytes| *bytes > 0) {
                break;
            }
            assert!(elapsed(clock) < PATIENCE, "{:?} on {machines:?}", ways());
        }
    }
}

#[test]
fn groups_are_counted_with_the_time_that_it_takes_to_issue_them() {
    let (cluster, seats) = start(Over::Quic, &["a", "a"], &[]);
    for groups in 1..=3 {
        all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let place = seat.place(&[1_f32; LEN]);
            let submission = seat.submission(engine, "w", Op::Sum, (place, place), Priority(0));
            engine.reduce(submission, Some(PATIENCE)).unwrap();
        });
        assert_eq!(total(&cluster, "nccl_groups"), 2 * groups);
    }
    assert!(total(&cluster, "nccl_issue_nanoseconds") > 0);
}

#[test]
fn ranks_of_a_machine_whose_tensors_lie_in_different_kinds_of_memory_all_learn_both() {
    for machines in [&["a", "a"][..], &["a", "a", "b"]] {
        let (cluster, seats) = start(Over::Quic, machines, &[("step_timeout", "1 h")]);
        let errors = all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let mut tensor = Tensor::new("w", vec![1_f32; LEN]);
            match engine.rank() {
                WorkerId(0) => tensor.reduce(engine, Op::Sum),
                _ => {
                    let place = seat.place(&tensor.data);
                    let submission = seat.submission(engine, "w", Op::Sum, (place, place), Priority(0));
                    engine.reduce(submission, Some(PATIENCE))
                }
            }
            .unwrap_err()
        });
        for error in errors {
            assert!(
                matches!(&error, Error::Mismatch { tensor, field, .. } if *tensor == "w".into() && field == "device"),
                "{error}"
            );
        }
    }
}
