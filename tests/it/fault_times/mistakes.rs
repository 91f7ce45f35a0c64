//! Mistakes of people: what a process that is started wrongly hears, or a tensor that workers do not agree about.

use gradlane_core::Error;
use gradlane_core::identity::Credentials;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{Op, Role};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all, config, worker};
use gradlane_tests::over::Over;
use gradlane_tests::patience::{elapsed, eventually};
use gradlane_tests::{matrix, rounds};

use super::{SETTINGS, trials};
use crate::actors;
use crate::errors::one_that_damages_bodies;

matrix! {
    [over_quic]:
        f29_a_process_has_a_wrong_secret_or_authority,
        f31_a_rank_is_taken,
        f32_the_job_has_another_size,
        f52_a_body_is_damaged;
    [locally, over_shm, over_quic]:
        f33_workers_disagree_about_a_tensor;
}

fn f29_a_process_has_a_wrong_secret_or_authority(over: Over) {
    trials("F29 wrong secret or authority", over, |trial| {
        let cluster = Cluster::with(over, 1, 1, SETTINGS);
        let mut join = cluster.embedded.join_string().clone();
        if trial.is_multiple_of(2) {
            join.secret[0] ^= 1;
        } else {
            join.ca_hash[0] ^= 1;
        }
        let clock = Clock::start();
        let outcome = Credentials::enroll(&join, Role::Worker, PATIENCE);
        assert!(matches!(outcome, Err(Error::Auth { .. })), "{outcome:?}");
        elapsed(clock)
    });
}

fn f31_a_rank_is_taken(over: Over) {
    refused("F31 a rank is taken", over, (1, 2), |error| matches!(error, Error::DuplicateRank { .. }));
}

fn f32_the_job_has_another_size(over: Over) {
    refused("F32 the job has another size", over, (1, 3), |error| matches!(error, Error::Incompatible { .. }));
}

/// Times the refusal of a worker of this rank and size in a job of two whose rank 1 is taken.
fn refused(what: &str, over: Over, (rank, size): (u32, u32), is_right: impl Fn(&Error) -> bool) {
    trials(what, over, |_| {
        let config = config(over, SETTINGS);
        let job = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 2, servers: 1 }).unwrap();
        let _holder = actors::worker(over, &["puppet"], job.join_string(), Some(1), 2, SETTINGS);
        eventually("it has a seat", || job.status().unwrap().view.workers().next().map(drop));
        let clock = Clock::start();
        let error = worker(&config, job.join_string(), Some(rank), size).err().expect("refused");
        assert!(is_right(&error), "{error}");
        elapsed(clock)
    });
}

fn f33_workers_disagree_about_a_tensor(over: Over) {
    trials("F33 workers disagree about a tensor", over, |_| {
        let cluster = Cluster::with(over, 3, 1, SETTINGS);
        let clock = Clock::start();
        let outcomes = all(&cluster.workers, |engine| {
            let len = if engine.rank().0 == 1 { 11 } else { 10 };
            Tensor::new("weight", vec![1_f32; len]).reduce(engine, Op::Sum)
        });
        let took = elapsed(clock);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Mismatch { .. }))), "{outcomes:?}");
        took
    });
}

fn f52_a_body_is_damaged(over: Over) {
    trials("F52 a body is damaged", over, |_| {
        let cluster = one_that_damages_bodies(over);
        let clock = Clock::start();
        let error = rounds::begin(&cluster.workers[0], "weight", 0, 1000).and_then(rounds::Reduction::check);
        assert!(matches!(error, Err(Error::Checksum { .. })), "{error:?}");
        elapsed(clock)
    });
}
