//! What a framework must not do with memory and streams of a device, and ranks that do not do the same: it ends with an error that says so,
//! or changes nothing, and no other memory is touched. Driver and NCCL are the fakes.

use gradlane_core::Error;
use gradlane_core::engine::{Batch, BatchSubmission, Engine, Handle, Member, Submission};
use gradlane_core::types::{DType, Op, Priority, TensorSpec, WorkerId};
use gradlane_tests::cluster::{Cluster, PATIENCE, all};
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;

use crate::seats::{LEN, Seat, start, total};

/// Longer than any pause of a busy machine between two calls: a wait that is missing shows every time.
const LAG_US: u64 = 100_000;

/// One machine reduces by NCCL alone; two exchange with a server, by copies.
const SHAPES: [[&str; 2]; 2] = [["a", "a"], ["a", "b"]];

#[test]
fn memory_that_is_freed_before_its_sum_comes_is_named_in_an_error() {
    for machines in SHAPES {
        let (cluster, seats) = start(Over::Quic, &machines, &[]);
        let Freed { handle, address, neighbours } = freed_too_early(&cluster, &seats[0], &machines);
        let other = sum_of(&cluster.workers[1], &seats[1], 2.0);
        let error = handle.wait(Some(PATIENCE)).unwrap_err();
        if machines[0] == machines[1] {
            assert!(
                matches!(&error, Error::Device { what, tensor, .. } if what == "ncclAllReduce" && *tensor == "w".into()),
                "{error}"
            );
            let error = other.unwrap_err();
            assert!(matches!(error, Error::Device { .. } | Error::PeerLost { .. }), "{error}");
        } else {
            let Error::InvalidArgument { what, hint } = &error else { panic!("{error}") };
            assert!(what.contains(&format!("{address:#x}")) && hint.contains("keep it"), "{error}");
            assert_eq!(other, Ok(vec![3.0; LEN]), "the other worker has its sum");
        }
        neighbours.are_intact(&seats[0]);
    }
}

#[test]
fn a_sum_goes_where_it_was_ordered_although_the_memory_is_another_tensors_by_then() {
    for machines in SHAPES {
        let (cluster, seats) = start(Over::Quic, &machines, &[]);
        let (engine, seat) = (&cluster.workers[0], &seats[0]);
        let Freed { handle, address, neighbours } = freed_too_early(&cluster, seat, &machines);
        assert_eq!(seat.place(&[10.0; LEN]), address, "what was freed is given out again at once");
        let next = seat.submission(engine, "next", Op::Sum, (address, address), Priority(0));
        let refused = engine.push_pull(next, |_| {}).unwrap_err().to_string();
        assert!(refused.contains("tensor next: its memory is in use for tensor w"), "{refused}");
        // NCCL reads the memory when the other worker has come, a copy has read it before.
        let expected = vec![if machines[0] == machines[1] { 12.0 } else { 3.0 }; LEN];
        assert_eq!(sum_of(&cluster.workers[1], &seats[1], 2.0), Ok(expected.clone()));
        assert_eq!(handle.wait(Some(PATIENCE)), Ok(()));
        assert_eq!(seat.values(address), expected);
        neighbours.are_intact(seat);
    }
}

#[test]
fn a_stream_that_is_destroyed_after_a_submission_has_still_made_the_gradient() {
    for machines in SHAPES {
        let (cluster, seats) = start(Over::Quic, &machines, &[]);
        all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let place = seat.place(&[-1.0; LEN]);
            let warm_up = seat.submission(engine, "w", Op::Sum, (place, place), Priority(0));
            engine.reduce(warm_up, Some(PATIENCE)).unwrap();
            let stream = seat.control.user_stream(seat.ordinal());
            seat.control.lag(stream, LAG_US);
            let gradient = (1.0 + engine.rank().0 as f32).to_ne_bytes().repeat(LEN);
            seat.control.produce(seat.ordinal(), stream, place, &gradient);
            let submission = seat.submission_after(stream, engine, "w", Op::Sum, (place, place));
            let handle = engine.push_pull(submission, |_| {}).unwrap();
            seat.control.destroy(stream);
            handle.wait(Some(PATIENCE)).unwrap();
            assert_eq!(seat.values(place), [3.0; LEN], "{machines:?}");
        });
    }
}

#[test]
fn tensors_of_one_call_here_and_of_single_calls_there_have_the_right_sums() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    for machines in SHAPES {
        let (cluster, seats) = start(Over::Quic, &machines, &[]);
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as usize;
            let seat = &seats[rank];
            for round in 1..=3 {
                let value = |rank: usize, index: usize| (round * 10 * (index + 1) + rank) as f32;
                let places: Vec<u64> = (0..3).map(|index| seat.place(&[value(rank, index); SMALL])).collect();
                let submission = |index: usize| small(seat, engine, NAMES[index], places[index]);
                let handles = match rank {
                    0 => vec![grouped(engine, (0..3).map(submission).collect())],
                    _ => [2, 0, 1].map(|index| engine.push_pull(submission(index), |_| {}).unwrap()).into(),
                };
                handles.iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
                for (index, place) in places.into_iter().enumerate() {
                    let expected = (value(0, index) + value(1, index)).to_ne_bytes().repeat(SMALL);
                    assert!(seat.control.consume(seat.ordinal(), 0, place, 4 * SMALL) == expected, "{machines:?}");
                }
            }
        });
    }
}

#[test]
fn workers_that_group_other_tensors_together_all_learn_it() {
    for machines in SHAPES {
        let (cluster, seats) = start(Over::Quic, &machines, &[("step_timeout", "1 s"), ("stall_warn", "100 ms")]);
        let errors = all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as usize;
            let names = [["a", "b"], ["a", "c"]][rank];
            let submission = |name: &&str| small(&seats[rank], engine, name, seats[rank].place(&[1.0; SMALL]));
            grouped(engine, names.iter().map(submission).collect()).wait(Some(PATIENCE)).unwrap_err()
        });
        // Who declared first decides with what `a` shares its part. It waits for the other worker, which does not have all of that part.
        for (rank, error) in errors.iter().enumerate() {
            let other = WorkerId(1 - rank as u32);
            let told = match error {
                Error::Stalled { missing, .. } => *missing == [other],
                Error::FailedPrecondition { hint, .. } => hint.contains("submit all tensors of a declaration"),
                _ => false,
            };
            assert!(told, "{machines:?}: {error}");
        }
    }
}

/// Memory that its owner freed after the submission of tensor `w`.
struct Freed {
    handle: Handle,
    address: u64,
    neighbours: Neighbours,
}

/// Allocations of tensors before and behind another one.
struct Neighbours([u64; 2]);

impl Neighbours {
    const VALUES: [f32; 2] = [70.0, 90.0];

    fn are_intact(&self, seat: &Seat) {
        for (address, value) in self.0.iter().zip(Self::VALUES) {
            assert_eq!(seat.values(*address), [value; LEN]);
        }
    }
}

/// Submits ones of the first worker, and frees them before the other worker has come.
fn freed_too_early(cluster: &Cluster, seat: &Seat, machines: &[&str; 2]) -> Freed {
    let engine = &cluster.workers[0];
    let [before, address, behind] =
        [Neighbours::VALUES[0], 1.0, Neighbours::VALUES[1]].map(|value| seat.place(&[value; LEN]));
    let submission = seat.submission(engine, "w", Op::Sum, (address, address), Priority(0));
    let handle = engine.push_pull(submission, |_| {}).unwrap();
    if machines[0] != machines[1] {
        eventually("it is copied", || (total(cluster, "d2h_bytes") == 4 * LEN as u64).then_some(()));
    }
    seat.control.free(address);
    Freed { handle, address, neighbours: Neighbours([before, behind]) }
}

/// What becomes of these values of a worker in tensor `w`.
fn sum_of(engine: &Engine, seat: &Seat, value: f32) -> gradlane_core::Result<Vec<f32>> {
    let place = seat.place(&[value; LEN]);
    engine.reduce(seat.submission(engine, "w", Op::Sum, (place, place), Priority(0)), Some(PATIENCE))?;
    Ok(seat.values(place))
}

/// Floats of a tensor that shares a part with others.
const SMALL: usize = 8;

fn small(seat: &Seat, engine: &Engine, name: &str, address: u64) -> Submission {
    let [source, destination] = [(); 2].map(|()| seat.memory(engine, address, SMALL, 0));
    let tensor = TensorSpec::new(name, DType::F32, vec![SMALL as u64]);
    Submission { tensor, source, destination, op: Op::Sum, weight: 1.0, priority: Priority(0), timeout: None }
}

/// Reduces them in one call.
fn grouped(engine: &Engine, submissions: Vec<Submission>) -> Handle {
    let batch = Batch::new(submissions.iter().map(|submission| submission.tensor.clone()).collect()).unwrap();
    let member = |Submission { source, destination, priority, .. }| Member { source, destination, priority };
    let members = submissions.into_iter().map(member).collect();
    engine
        .push_pull_all(BatchSubmission { batch: &batch, members, op: Op::Sum, weight: 1.0, timeout: None }, |_| {})
        .unwrap()
}
