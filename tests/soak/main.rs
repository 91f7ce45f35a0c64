//! Native threads that share a session: each submits and waits for tensors of its own, over every transport, and checks every element. The
//! long form is `make test-soak`.
//!
//! The simulation runs on one thread, and Python's threads take turns. Only native threads wait at once for one engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine::Handle;
use gradlane_core::types::Op;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_session::{Found, JoinRequest, Session};
use gradlane_tests::cluster::{Tensor, config};
use gradlane_tests::digits::{check, contribution};
use gradlane_tests::over::Over;

const WORKERS: u32 = 2;
/// Rounds of the short form.
const ROUNDS: u64 = 150;
/// Lengths in elements of a thread's tensors: one that the submitting thread pushes itself, and one that the thread of PUSH pushes.
const LENGTHS: [usize; 2] = [300, 20_000];
/// The length of many sums.
const SHORT: [usize; 1] = [300];
/// No wait takes so long, unless it hangs.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn threads_that_wait_at_once_get_their_sums_locally() {
    soak(Over::Local);
}

#[test]
fn threads_that_wait_at_once_get_their_sums_over_shm() {
    soak(Over::Shm);
}

#[test]
fn threads_that_wait_at_once_get_their_sums_over_quic() {
    soak(Over::Quic);
}

#[test]
fn eight_threads_of_a_process_add_a_thousand_sums_each_locally() {
    run(Over::Local, 8, &SHORT, rounds().max(1000));
}

#[test]
fn eight_threads_of_a_process_add_a_thousand_sums_each_over_shm() {
    run(Over::Shm, 8, &SHORT, rounds().max(1000));
}

#[test]
fn eight_threads_of_a_process_add_a_thousand_sums_each_over_quic() {
    run(Over::Quic, 8, &SHORT, rounds().max(1000));
}

fn soak(over: Over) {
    [2, 3, 4].into_iter().for_each(|threads| run(over, threads, &LENGTHS, rounds()));
}

fn run(over: Over, threads: u32, lengths: &[usize], rounds: u64) {
    let embedded =
        Embedded::start(EmbeddedOptions { config: config(over, &[]), workers: WORKERS, servers: 1 }).unwrap();
    let sessions = sessions(over, &embedded);
    std::thread::scope(|scope| {
        for session in &sessions {
            for thread in 0..threads {
                scope.spawn(move || train(session, thread, lengths, rounds));
            }
        }
    });
    println!("{over}, {threads} threads: {rounds} rounds of {} tensors each", lengths.len());
}

/// The session of each worker.
fn sessions(over: Over, embedded: &Embedded) -> Vec<Arc<Session>> {
    std::thread::scope(|scope| {
        let joining: Vec<_> = (0..WORKERS)
            .map(|rank| {
                scope.spawn(move || {
                    let request = JoinRequest {
                        rank: Some(rank),
                        workers: WORKERS,
                        servers: 1,
                        patience: DEADLINE,
                        software: BTreeMap::new(),
                    };
                    let found = Found::from(embedded.join_string().clone());
                    Arc::new(Session::join(found, request, config(over, &[])).expect("joins"))
                })
            })
            .collect();
        joining.into_iter().map(|session| session.join().expect("no panic")).collect()
    })
}

/// What one thread of one worker does.
fn train(session: &Session, thread: u32, lengths: &[usize], rounds: u64) {
    let rank = session.rank();
    for round in 0..rounds {
        let mut tensors: Vec<Tensor> = lengths
            .iter()
            .map(|len| {
                let name = format!("thread {thread}, {len} elements");
                let data = contribution(rank, &name, round, *len);
                Tensor::new(&name, data)
            })
            .collect();
        // In every other round the thread does work of the engine from the submission on.
        let waits = round.is_multiple_of(2).then_some(DEADLINE);
        let begin = |tensor: &mut Tensor| session.submit(tensor.submission(Op::Sum), waits, |_| {}).expect("accepted");
        let begun: Vec<Handle> = tensors.iter_mut().map(begin).collect();
        for (handle, tensor) in begun.iter().zip(&tensors) {
            assert_eq!(handle.wait(Some(DEADLINE)), Ok(()), "{}, round {round}, rank {rank}", tensor.spec.name);
        }
        for tensor in &tensors {
            assert_eq!(check(&tensor.data, WORKERS, &tensor.spec.name, round), Ok(()), "rank {rank}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is the test that is told, not Gradlane")]
fn rounds() -> u64 {
    std::env::var("SOAK_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("a number"))
}
