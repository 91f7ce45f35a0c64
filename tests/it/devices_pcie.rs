//! Whole engines whose devices lie in several PCIe groups of a machine: reduced in each group, added on the host, exchanged once a machine,
//! and brought back. Driver and NCCL are the fakes.

use gradlane_core::Error;
use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_tests::cluster::{PATIENCE, SMALL_PARTS, Tensor, all};

use crate::seats::{LEN, start, total};

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
        let (cluster, seats) = start(machines, &settings);
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

#[test]
fn every_group_stages_once_and_a_machine_pushes_once() {
    let (cluster, seats) = start(&["a", "a", "a", "a", "b"], &[("pcie_switch_size", "2")]);
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
