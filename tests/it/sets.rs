//! Process sets and sums with one receiver: who takes part, who gets what, and how many bytes travel for it.

use std::sync::atomic::Ordering;

use gradlane_core::Error;
use gradlane_core::engine::Engine;
use gradlane_core::types::{Op, Participants, WorkerId, WorkerSet};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        sets_reduce_side_by_side_and_beside_all_workers,
        only_the_receiver_gets_the_sum_and_the_others_keep_their_memory,
        every_reduction_of_a_set_means_what_it_says,
        a_message_goes_from_one_worker_to_another,
        members_that_disagree_are_named_to_all_of_them,
        who_is_no_member_is_refused_at_once,
        a_name_ends_when_its_members_have_undeclared_it;
    [over_shm, over_quic]:
        reduce_scatter_pushes_everything_and_pulls_a_share;
}

const LEN: usize = 70_001;

fn sets_reduce_side_by_side_and_beside_all_workers(over: Over) {
    for cluster in jobs(over) {
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0;
            let mut everybody = Tensor::new("everybody", vec![0_i32; LEN]);
            let mut of_parity = Tensor::new(&format!("parity {}", rank % 2), vec![0_i32; LEN]);
            of_parity.spec.participants = set(&[rank % 2, rank % 2 + 2]);
            let mut most = Tensor::new("most", vec![0_i32; 5]);
            most.spec.participants = set(&[0, 1, 3]);
            for round in 1..6 {
                let digit = round << (4 * rank);
                everybody.data.fill(digit);
                of_parity.data.fill(digit);
                most.data.fill(digit);
                let mut handles = Vec::new();
                if rank != 2 {
                    handles.push(most.push_pull(engine, Op::Sum).unwrap());
                }
                handles.push(of_parity.push_pull(engine, Op::Sum).unwrap());
                handles.push(everybody.push_pull(engine, Op::Sum).unwrap());
                handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
                let expected = round * if rank % 2 == 0 { 0x0101 } else { 0x1010 };
                assert!(of_parity.data.iter().all(|sum| *sum == expected), "{rank}: {:x}", of_parity.data[0]);
                assert!(everybody.data.iter().all(|sum| *sum == round * 0x1111));
                assert!(most.data.iter().all(|sum| *sum == if rank == 2 { digit } else { round * 0x1011 }));
            }
        });
    }
}

fn only_the_receiver_gets_the_sum_and_the_others_keep_their_memory(over: Over) {
    for cluster in jobs(over) {
        for (name, participants) in
            [("all", Participants::ALL), ("some", set(&[0, 2, 3])), ("one machine", set(&[0, 1]))]
        {
            all(&cluster.workers, |engine| {
                let own = engine.rank();
                if !participants.contains(own) {
                    return;
                }
                let members = (0..4).filter(|rank| participants.contains(WorkerId(*rank)));
                for receiver in members.clone() {
                    let mut tensor = Tensor::new(&format!("{name} to {receiver}"), vec![1.0 + own.0 as f32; LEN]);
                    tensor.spec.participants = participants.clone().with_receiver(WorkerId(receiver));
                    tensor.reduce(engine, Op::Mean).unwrap();
                    let mean =
                        members.clone().map(|rank| 1.0 + rank as f32).sum::<f32>() / members.clone().count() as f32;
                    let expected = if own.0 == receiver { mean } else { 1.0 + own.0 as f32 };
                    let differs = tensor.data.iter().find(|value| (**value - expected).abs() > 1e-6);
                    assert_eq!(differs, None, "{name} to {receiver} on {own}, not {expected}");
                }
            });
        }
    }
}

fn every_reduction_of_a_set_means_what_it_says(over: Over) {
    let (values, weights) = ([8.0_f32, 100.0, -16.0, 24.0], [1.0, 9.0, 0.0, 3.0]);
    let table = [(Op::Sum, 16.0), (Op::Min, -16.0), (Op::Max, 24.0), (Op::WeightedMean, 20.0)];
    let roots = [0, 2, 3].map(|root| (Op::Broadcast { root: WorkerId(root) }, values[root as usize]));
    for cluster in jobs(over) {
        for (op, expected) in table.into_iter().chain(roots) {
            all(&cluster.workers, |engine| {
                let rank = engine.rank().0 as usize;
                if rank == 1 {
                    return;
                }
                let mut tensor = Tensor::new(&op.to_string(), vec![values[rank]; 50_000]);
                tensor.spec.participants = set(&[0, 2, 3]);
                tensor.submit(engine, op, weights[rank], Default::default()).unwrap().wait(Some(PATIENCE)).unwrap();
                assert!(tensor.data.iter().all(|found| *found == expected), "{op}: {}", tensor.data[0]);
            });
        }
    }
}

fn a_message_goes_from_one_worker_to_another(over: Over) {
    for (cluster, is_local) in jobs(over).into_iter().zip([over == Over::Local, false]) {
        let moved = all(&cluster.workers, |engine| {
            let rank = engine.rank().0;
            if rank == 0 || rank == 2 {
                let mut tensor = Tensor::new("message", vec![rank as i32 + 7; LEN]);
                tensor.spec.participants = set(&[0, 2]).with_receiver(WorkerId(2));
                tensor.reduce(engine, Op::Broadcast { root: WorkerId(0) }).unwrap();
                assert!(tensor.data.iter().all(|value| *value == 7), "rank {rank}");
            }
            carried(engine)
        });
        let bytes = if is_local { 0 } else { 4 * LEN as u64 };
        assert_eq!(moved, [[bytes, 0], [0, 0], [0, bytes], [0, 0]], "pushed and pulled by each");
    }
}

fn reduce_scatter_pushes_everything_and_pulls_a_share(over: Over) {
    let cluster = Cluster::with(over, 4, 2, &SMALL_PARTS);
    let moved = all(&cluster.workers, |engine| {
        let rank = engine.rank().0;
        let mut chunks: Vec<Tensor<i32>> = (0..4).map(|chunk| chunk_of(chunk, 1 << (4 * rank))).collect();
        let handles: Vec<_> = chunks.iter_mut().map(|chunk| chunk.push_pull(engine, Op::Sum).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
        for (chunk, expected) in (0..).zip([1 << (4 * rank); 4]) {
            let expected = if chunk == rank { 0x1111 } else { expected };
            assert!(chunks[chunk as usize].data.iter().all(|value| *value == expected), "chunk {chunk} on {rank}");
        }
        carried(engine)
    });
    let bytes = 4 * 4 * LEN as u64;
    assert_eq!(moved, [[bytes, bytes / 4]; 4], "all of the tensor out, a fourth of it back");
}

fn members_that_disagree_are_named_to_all_of_them(over: Over) {
    for cluster in jobs(over) {
        let outcomes = all(&cluster.workers, |engine| {
            let rank = engine.rank().0;
            let participants = match rank {
                0 => set(&[0, 1]),
                1 => set(&[0, 1, 3]),
                _ => return Ok(()),
            };
            let mut tensor = Tensor::new("disputed", vec![1_i32; 100]);
            tensor.spec.participants = participants;
            tensor.reduce(engine, Op::Sum)
        });
        for outcome in &outcomes[..2] {
            let Err(Error::Mismatch { field, first, second, .. }) = outcome else { panic!("{outcome:?}") };
            let mut values = [first.value.as_str(), second.value.as_str()];
            values.sort_unstable();
            assert_eq!((field.as_str(), values), ("participants", ["workers {0, 1, 3}", "workers {0, 1}"]));
        }
    }
}

fn who_is_no_member_is_refused_at_once(over: Over) {
    let cluster = Cluster::start(over, 3, 1);
    let tensor = |participants| {
        let mut tensor = Tensor::new("of others", vec![1_i32; 10]);
        tensor.spec.participants = participants;
        tensor
    };
    for (participants, op, why) in [
        (set(&[0, 1]), Op::Sum, "worker 2 is not one of them"),
        (set(&[0, 2, 3]), Op::Sum, "worker 3 does not exist in a job of 3 workers"),
        (set(&[]), Op::Sum, "without members"),
        (set(&[0, 2]).with_receiver(WorkerId(1)), Op::Sum, "its sums go to worker 1"),
        (set(&[0, 2]), Op::Broadcast { root: WorkerId(1) }, "broadcast from worker 1"),
    ] {
        let error = tensor(participants).reduce(&cluster.workers[2], op).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(why), "{error}");
    }
}

fn a_name_ends_when_its_members_have_undeclared_it(over: Over) {
    let cluster = Cluster::start(over, 3, 1);
    all(&cluster.workers[..2], |engine| {
        for len in [10, 20] {
            let mut tensor = Tensor::new("reused", vec![1_i32; len]);
            tensor.spec.participants = set(&[0, 1]);
            tensor.reduce(engine, Op::Sum).unwrap();
            assert!(tensor.data.iter().all(|value| *value == 2));
            engine.undeclare(&["reused".to_owned()], Some(PATIENCE)).unwrap();
        }
    });
}

/// Four workers, on one machine or each for itself; and where there are servers, also two machines of two.
fn jobs(over: Over) -> Vec<Cluster> {
    let mut jobs = vec![Cluster::with(over, 4, 1, &SMALL_PARTS)];
    if over != Over::Local {
        jobs.push(Cluster::on(over, &["a", "a", "b", "b"], 2, &SMALL_PARTS));
    }
    jobs
}

/// The chunk of a tensor whose sum goes to the worker of this rank.
fn chunk_of(receiver: u32, value: i32) -> Tensor<i32> {
    let mut chunk = Tensor::new(&format!("tensor/{receiver}"), vec![value; LEN]);
    chunk.spec.participants = Participants::ALL.with_receiver(WorkerId(receiver));
    chunk
}

fn set(ranks: &[u32]) -> Participants {
    Participants::of(ranks.iter().copied().map(WorkerId).collect::<WorkerSet>())
}

/// Bytes that a worker pushed and pulled.
fn carried(engine: &Engine) -> [u64; 2] {
    let metrics = engine.metrics();
    [&metrics.push_bytes, &metrics.pull_bytes].map(|count| count.load(Ordering::Relaxed))
}
