//! Starting and stopping, in every order, leaves nothing behind.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::transport::quic::Credentials;
use gradlane_core::types::Role;
use gradlane_core::{Code, Error};
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, all, config};
use gradlane_tests::patience::eventually;
use gradlane_tests::rounds;

#[test]
fn a_server_can_be_stopped_in_every_state_and_as_often_as_one_likes() {
    let embedded = Embedded::start(EmbeddedOptions { config: config(&[]), workers: 1, servers: 2 }).unwrap();
    let server = &embedded.servers()[0];
    let running = server.join(Some(Duration::ZERO));
    assert!(matches!(running, Err(Error::Timeout { .. })), "it has not ended: {running:?}");
    server.stop(PATIENCE);
    assert_eq!(server.join(None), Ok(()), "a stopped server has ended");
    server.stop(PATIENCE);
    assert_eq!(server.join(Some(Duration::ZERO)), Ok(()));

    // One that has not reached its coordinator, and never will.
    let join = embedded.join_string();
    let credentials = Arc::new(Credentials::enroll(join, Role::Server, PATIENCE).unwrap());
    let nowhere = || {
        let (config, coordinator) = (config(&[]), "127.0.0.1:9".to_owned());
        Server::start(ServerOptions { config, coordinator, credentials: Arc::clone(&credentials), index: None })
            .unwrap()
    };
    let lonely = nowhere();
    lonely.stop(PATIENCE);
    assert_eq!(lonely.join(None), Ok(()));
    drop(nowhere());
}

#[test]
fn a_job_can_be_stopped_twice_and_says_so_to_who_asks_later() {
    let cluster = Cluster::start(1, 1);
    let stopped = cluster.embedded.stop(Duration::ZERO);
    assert!(matches!(stopped, Err(Error::Timeout { .. })), "a worker was still there: {stopped:?}");
    let again = cluster.embedded.stop(Duration::ZERO);
    assert_eq!(again.map_err(|error| error.code()), Err(Code::FailedPrecondition));
    assert_eq!(cluster.embedded.status().map_err(|error| error.code()), Err(Code::FailedPrecondition));
    let told = rounds::begin(&cluster.workers[0], "late", 0, 1000).and_then(rounds::Reduction::check);
    assert_eq!(told.map_err(|error| error.code()), Err(Code::FailedPrecondition));
}

#[test]
fn an_orderly_end_is_heard_by_everybody() {
    let cluster = Cluster::start(3, 2);
    for outcome in all(&cluster.workers, |engine| engine.shutdown(PATIENCE)) {
        assert_eq!(outcome, Ok(()));
    }
    for server in cluster.embedded.servers() {
        assert_eq!(server.join(Some(PATIENCE)), Ok(()));
    }
    assert_eq!(cluster.embedded.stop(PATIENCE), Ok(()));
    assert_eq!(cluster.workers[0].shutdown(PATIENCE), Ok(()), "again");
}

#[test]
fn who_does_not_leave_is_named_to_those_who_wait() {
    let cluster = Cluster::start(3, 1);
    let waited = all(&cluster.workers[..2], |engine| engine.shutdown(Duration::from_secs(1)));
    for outcome in waited {
        let Err(Error::Timeout { what, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(what.contains("worker 2 on ") && !what.contains("worker 0"), "{what}");
        assert!(what.contains(&format!("(pid {})", std::process::id())), "{what}");
    }
}

#[test]
fn a_server_that_stops_in_the_middle_of_many_pushes_leaves_no_handle_and_no_thread() {
    alone("lifecycle::a_server_that_stops_in_the_middle_of_many_pushes_leaves_no_handle_and_no_thread", || {
        let run = |stop: fn(&Embedded)| {
            let cluster = Cluster::with(2, 2, &[("suspect_timeout", "500ms"), ("dead_timeout", "2s")]);
            // Half of the rounds can complete; the others wait for the second worker.
            let begin = |engine, tensors: std::ops::Range<u32>| -> Vec<rounds::Reduction> {
                tensors.map(|i| rounds::begin(engine, &format!("tensor {i}"), 0, 20_000).unwrap()).collect()
            };
            let (first, second) = (begin(&cluster.workers[0], 0..100), begin(&cluster.workers[1], 0..50));
            stop(&cluster.embedded);
            for reduction in first.into_iter().chain(second) {
                let outcome = reduction.check().map_err(|error| error.code());
                assert!(matches!(outcome, Ok(()) | Err(Code::Aborted | Code::FailedPrecondition)), "{outcome:?}");
            }
        };
        let one_server = |embedded: &Embedded| embedded.servers()[0].stop(Duration::from_secs(1));
        let everything = |embedded: &Embedded| assert!(embedded.stop(Duration::ZERO).is_err());
        run(one_server);
        let before = Holdings::now();
        run(one_server);
        run(everything);
        before.are_back();
    });
}

#[test]
fn twenty_jobs_in_one_process_leave_no_thread_and_no_descriptor() {
    alone("lifecycle::twenty_jobs_in_one_process_leave_no_thread_and_no_descriptor", || {
        let run = |round| {
            let cluster = Cluster::start(4, 4);
            all(&cluster.workers, |engine| {
                rounds::begin(engine, "weight", round, 10_000).and_then(rounds::Reduction::check).unwrap();
                engine.shutdown(PATIENCE).unwrap();
            });
            cluster.embedded.stop(PATIENCE).unwrap();
        };
        run(0);
        let before = Holdings::now();
        (1..=20).for_each(run);
        before.are_back();
    });
}

#[test]
fn jobs_that_are_just_dropped_leave_no_thread_and_no_descriptor() {
    alone("lifecycle::jobs_that_are_just_dropped_leave_no_thread_and_no_descriptor", || {
        drop(Cluster::start(2, 2));
        let before = Holdings::now();
        (0..3).for_each(|_| drop(Cluster::start(2, 2)));
        let Cluster { workers, embedded } = Cluster::start(2, 1);
        drop(embedded);
        drop(workers);
        before.are_back();
    });
}

/// What a process has of the system.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Holdings {
    threads: usize,
    descriptors: usize,
}

impl Holdings {
    fn now() -> Self {
        let count = |directory: &str| std::fs::read_dir(directory).expect("of this process").count();
        Self { threads: count("/proc/self/task"), descriptors: count("/proc/self/fd") }
    }

    /// A thread that was joined may still be listed for a moment, and one that said goodbye for half a second.
    fn are_back(self) {
        eventually(&format!("{self:?} again"), || {
            let now = Self::now();
            if now.threads <= self.threads && now.descriptors <= self.descriptors {
                return Some(());
            }
            None
        });
    }
}

/// Runs `body` in a process of its own, where nobody else starts threads: this test's binary, asked for this test alone.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::args().any(|argument| argument == "--exact") {
        return body();
    }
    let binary = std::env::current_exe().expect("the system tells");
    let output = Command::new(binary).args(["--exact", test, "--nocapture"]).output().expect("it starts");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
