//! What `arrive` promises, between processes.

use std::time::Duration;

use gradlane_core::Error;
use gradlane_tests::cluster::{Cluster, PATIENCE};
use gradlane_tests::over::Over;

use crate::actors::Job;

#[test]
fn a_barrier_waits_for_the_last() {
    let cluster = Cluster::start(Over::Quic, 3, 1);
    for _ in 0..2 {
        let early: Vec<_> = [0, 2].map(|rank| cluster.workers[rank].arrive("epoch", None)).into();
        // A round trip of the same worker's later than its arrival: the coordinator has seen it.
        cluster.embedded.status().expect("the coordinator lives");
        assert!(early.iter().all(|handle| handle.outcome().is_none()));
        let last = cluster.workers[1].arrive("epoch", None);
        for handle in early.into_iter().chain([last]) {
            assert_eq!(handle.wait(Some(PATIENCE)), Ok(()), "and its name can be used again");
        }
    }
}

#[test]
fn a_barrier_that_is_given_up_names_who_did_not_come_to_all_who_did() {
    let cluster = Cluster::start(Over::Quic, 3, 1);
    let patient = cluster.workers[0].arrive("epoch", Some(PATIENCE));
    let hasty = cluster.workers[2].arrive("epoch", Some(Duration::from_millis(300)));
    for handle in [patient, hasty] {
        let error = handle.wait(Some(PATIENCE)).unwrap_err();
        let Error::Timeout { what, .. } = &error else { panic!("{error}") };
        assert!(what.contains("barrier \"epoch\"") && what.ends_with("waiting for rank 1"), "{what}");
    }
    let again: Vec<_> = cluster.workers.iter().map(|engine| engine.arrive("epoch", None)).collect();
    assert!(again.into_iter().all(|handle| handle.wait(Some(PATIENCE)) == Ok(())), "the name is free again");
}

#[test]
fn a_worker_at_another_barrier_is_found() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let _elsewhere = cluster.workers[1].arrive("evaluation", Some(PATIENCE));
    let error = cluster.workers[0].arrive("epoch", Some(Duration::from_secs(1))).wait(Some(PATIENCE)).unwrap_err();
    assert!(error.to_string().contains("evaluation"), "{error}");
}

#[test]
fn a_barrier_without_a_name_or_arrived_at_twice_is_refused() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let nameless = cluster.workers[0].arrive("", None).wait(Some(PATIENCE));
    assert!(matches!(nameless, Err(Error::InvalidArgument { .. })), "{nameless:?}");
    let first = cluster.workers[0].arrive("epoch", None);
    let second = cluster.workers[0].arrive("epoch", None).wait(Some(PATIENCE));
    assert!(matches!(second, Err(Error::FailedPrecondition { .. })), "{second:?}");
    cluster.workers[1].arrive("epoch", None).wait(Some(PATIENCE)).unwrap();
    first.wait(Some(PATIENCE)).unwrap();
}

#[test]
fn a_barrier_fails_when_somebody_leaves() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let waiting = cluster.workers[0].arrive("epoch", None);
    let leaving = cluster.workers[1].shutdown(Duration::from_millis(10));
    assert!(matches!(&leaving, Err(Error::Timeout { what, .. }) if what.contains("worker 0")), "{leaving:?}");
    let error = waiting.wait(Some(PATIENCE)).unwrap_err();
    assert!(error.to_string().contains("worker 1"), "{error}");
}

#[test]
fn a_barrier_fails_with_the_cause_when_somebody_dies() {
    let mut job = Job::start(Over::Quic, 3, 1, &[("dead_timeout", "1h")]);
    for rank in [0, 1] {
        job.puppets[rank].order("barrier epoch 60000");
    }
    let pid = job.puppets[2].pid();
    job.puppets[2].signal("KILL");
    job.embedded.coordinator().report_death(pid, "worker 2 was killed by signal 9".to_owned());
    for rank in [0, 1] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed Aborted lost worker 2 on ") && answer.ends_with("signal 9"), "{answer}");
    }
}
