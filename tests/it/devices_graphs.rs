//! CUDA graphs of the caller beside sums of the engine: captured before, launched before a sum, behind it, and while it is under way. Driver
//! and NCCL are the fakes, whose graphs do what was captured.

use gradlane_core::types::{Op, Priority};
use gradlane_tests::cluster::{PATIENCE, SMALL_PARTS, all};
use gradlane_tests::over::Over;

use crate::seats::{LEN, Seat, start};

/// Longer than any pause of a busy machine between two calls: a wait that is missing shows every time.
const LAG_US: u64 = 100_000;

#[test]
fn sums_wait_for_graphs_before_them_and_graphs_wait_for_sums_before_them() {
    // One machine reduces by NCCL alone; two exchange with a server, by copies.
    for machines in [&["a", "a"][..], &["a", "b"]] {
        let (cluster, seats) = start(Over::Quic, machines, &SMALL_PARTS);
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as usize;
            let seat = &seats[rank];
            let Places { input, gradient, weights, elsewhere } = Places::of(seat);
            let warm_up = seat.submission(engine, "w", Op::Sum, (gradient, gradient), Priority(0));
            engine.reduce(warm_up, Some(PATIENCE)).unwrap();
            let (stream, side) = (seat.control.user_stream(seat.ordinal()), seat.control.user_stream(seat.ordinal()));
            let backward = captured(seat, stream, (gradient, input));
            let step = captured(seat, stream, (weights, gradient));
            let beside = captured(seat, stream, (elsewhere, input));
            for round in 1..=3 {
                let of = |rank: usize| move |index: usize| (index % 1000 * (rank + 1) * round) as f32;
                let bytes: Vec<u8> = (0..LEN).flat_map(|index| of(rank)(index).to_ne_bytes()).collect();
                // What the first graph reads comes late, and so does its own work.
                seat.control.lag(stream, LAG_US);
                seat.control.produce(seat.ordinal(), stream, input, &bytes);
                seat.control.launch(&backward, stream);
                let submission = seat.submission_after(stream, engine, "w", Op::Sum, (gradient, gradient));
                let handle = engine.push_pull(submission, |_| {}).unwrap();
                handle.follow(Some(PATIENCE), |_| Some(stream)).unwrap();
                seat.control.launch(&step, stream);
                seat.control.launch(&beside, side);
                let expected: Vec<f32> = (0..LEN).map(|index| of(0)(index) + of(1)(index)).collect();
                seat.control.consume(seat.ordinal(), stream, weights, 1);
                assert_eq!(seat.values(weights), expected, "round {round} on {machines:?}: the graph behind the sum");
                handle.wait(Some(PATIENCE)).unwrap();
                assert_eq!(seat.values(gradient), expected, "round {round} on {machines:?}: the sum");
                seat.control.launch(&beside, side);
                seat.control.consume(seat.ordinal(), side, elsewhere, 1);
                let own: Vec<f32> = (0..LEN).map(of(rank)).collect();
                assert_eq!(seat.values(elsewhere), own, "round {round} on {machines:?}: the graph beside the sum");
            }
        });
    }
}

/// Memory of one rank.
struct Places {
    input: u64,
    gradient: u64,
    weights: u64,
    elsewhere: u64,
}

impl Places {
    fn of(seat: &Seat) -> Self {
        let [input, gradient, weights, elsewhere] = [-1.0; 4].map(|value| seat.place(&[value; LEN]));
        Self { input, gradient, weights, elsewhere }
    }
}

/// A graph that carries a tensor from one place to another.
fn captured(seat: &Seat, stream: u64, places: (u64, u64)) -> fakecuda::Exec {
    seat.control.begin_capture(stream);
    seat.control.carry(seat.ordinal(), stream, places, 4 * LEN);
    seat.control.end_capture(stream)
}
