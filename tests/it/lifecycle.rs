//! Starting and stopping, in every order, leaves nothing behind.

use std::mem::discriminant;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine::Engine;
use gradlane_core::identity::Credentials;
use gradlane_core::runtime::Clock;
use gradlane_core::types::Role;
use gradlane_core::{Code, Error};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions, ServerState};
use gradlane_tests::cluster::{Cluster, PATIENCE, all, config, worker};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::{elapsed, eventually};
use gradlane_tests::rounds;

use crate::actors;

matrix! {
    [over_shm, over_quic]:
        a_server_that_stops_in_the_middle_of_many_pushes_leaves_no_handle_and_no_thread,
        a_server_that_drains_completes_what_was_begun_and_refuses_what_was_not,
        a_server_process_that_is_told_to_end_does_not_wait_long_for_a_round_that_is_open,
        fifty_jobs_in_one_process_leave_no_thread_and_no_descriptor,
        jobs_that_are_just_dropped_leave_no_thread_and_no_descriptor;
}

#[test]
fn a_server_can_be_stopped_in_every_state_and_as_often_as_one_likes() {
    let embedded =
        Embedded::start(EmbeddedOptions { config: config(Over::Quic, &[]), workers: 1, servers: 2 }).unwrap();
    let server = &embedded.servers()[0];
    let running = server.join(Some(Duration::ZERO));
    assert!(matches!(running, Err(Error::Timeout { .. })), "it has not ended: {running:?}");
    server.stop(PATIENCE);
    assert_eq!(server.join(None), Ok(()), "a stopped server has ended");
    server.stop(PATIENCE);
    assert_eq!(server.join(Some(Duration::ZERO)), Ok(()));

    let lonely = nowhere(&embedded);
    lonely.stop(PATIENCE);
    assert_eq!(lonely.join(None), Ok(()));
    drop(nowhere(&embedded));
}

#[test]
fn every_call_in_every_state_of_a_server_leads_to_the_state_of_the_table() {
    use ServerState::{Draining, Failed, Joining, Running, Stopped};
    let failed = || Failed(Error::Cancelled);
    let calls: [Call; 3] = [
        |server| drop(server.join(Some(Duration::ZERO))),
        |server| {
            server.drain(Duration::ZERO);
        },
        |server| server.stop(Duration::from_secs(1)),
    ];
    let table: [(Stage, [ServerState; 3]); 5] = [
        (call_while_joining, [Joining, Stopped, Stopped]),
        (call_while_running, [Running, Stopped, Stopped]),
        (call_while_draining, [Draining, Stopped, Stopped]),
        (call_when_stopped, [Stopped, Stopped, Stopped]),
        (call_when_failed, [failed(), failed(), failed()]),
    ];
    // The rows beside each other: most of the time goes into farewells.
    std::thread::scope(|scope| {
        for (row, (call_in_state, expected)) in table.into_iter().enumerate() {
            scope.spawn(move || {
                for (column, (call, expected)) in calls.into_iter().zip(expected).enumerate() {
                    let state = call_in_state(call);
                    assert_eq!(discriminant(&state), discriminant(&expected), "row {row}, call {column}: {state:?}");
                }
            });
        }
    });
}

#[test]
fn a_job_can_be_stopped_twice_and_says_so_to_who_asks_later() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
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
    let cluster = Cluster::start(Over::Quic, 3, 2);
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
    let cluster = Cluster::start(Over::Quic, 3, 1);
    let waited = all(&cluster.workers[..2], |engine| engine.shutdown(Duration::from_secs(1)));
    for outcome in waited {
        let Err(Error::Timeout { what, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(what.contains("worker 2 on ") && !what.contains("worker 0"), "{what}");
        assert!(what.contains(&format!("(pid {})", std::process::id())), "{what}");
    }
}

fn a_server_that_stops_in_the_middle_of_many_pushes_leaves_no_handle_and_no_thread(over: Over) {
    alone(
        &format!("lifecycle::a_server_that_stops_in_the_middle_of_many_pushes_leaves_no_handle_and_no_thread::{over}"),
        || {
            let run = |stop: fn(&Embedded)| {
                let cluster = Cluster::with(over, 2, 2, &[("suspect_timeout", "500ms"), ("dead_timeout", "2s")]);
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
        },
    );
}

fn a_server_that_drains_completes_what_was_begun_and_refuses_what_was_not(over: Over) {
    alone(
        &format!("lifecycle::a_server_that_drains_completes_what_was_begun_and_refuses_what_was_not::{over}"),
        || {
            const TENSORS: u32 = 100;
            const LEN: usize = 20_000;
            let run = || {
                let cluster = Cluster::start(over, 2, 1);
                let server = &cluster.embedded.servers()[0];
                let begin = |engine| -> Vec<rounds::Reduction> {
                    (0..TENSORS).map(|i| rounds::begin(engine, &format!("tensor {i}"), 0, LEN).unwrap()).collect()
                };
                let first = begin(&cluster.workers[0]);
                let all_of_them = u64::from(TENSORS) * (LEN * size_of::<f32>()) as u64;
                eventually("all are begun", || (server.stats().received_bytes() == all_of_them).then_some(()));
                std::thread::scope(|scope| {
                    let drained = scope.spawn(|| server.drain(PATIENCE));
                    eventually("it drains", || (server.state() == ServerState::Draining).then_some(()));
                    let late = rounds::begin(&cluster.workers[0], "late", 0, LEN).and_then(rounds::Reduction::check);
                    let Err(Error::FailedPrecondition { what, .. }) = &late else { panic!("{late:?}") };
                    assert_eq!(what, "server 0 is draining");
                    for reduction in begin(&cluster.workers[1]).into_iter().chain(first) {
                        assert_eq!(reduction.check(), Ok(()));
                    }
                    assert!(drained.join().unwrap(), "nothing was left open");
                });
                assert_eq!(server.state(), ServerState::Stopped);
            };
            run();
            let before = Holdings::now();
            run();
            before.are_back();
        },
    );
}

fn a_server_process_that_is_told_to_end_does_not_wait_long_for_a_round_that_is_open(over: Over) {
    let config = config(over, &[]);
    let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 2, 1), &config, None).unwrap();
    let join = coordinator.join_string();
    let mut server = actors::server(over, join, 0, &[]);
    let workers: Vec<Engine> = std::thread::scope(|scope| {
        let joining = [0, 1].map(|rank| {
            let config = &config;
            scope.spawn(move || worker(config, join, Some(rank), 2).unwrap())
        });
        joining.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    all(&workers, |engine| rounds::begin(engine, "a", 0, 1000).and_then(rounds::Reduction::check).unwrap());
    let _open = rounds::begin(&workers[0], "a", 1, 1000).unwrap();
    let clock = Clock::start();
    server.signal("TERM");
    assert_eq!(server.end().code, Some(128 + 15));
    let took = elapsed(clock);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

fn fifty_jobs_in_one_process_leave_no_thread_and_no_descriptor(over: Over) {
    alone(&format!("lifecycle::fifty_jobs_in_one_process_leave_no_thread_and_no_descriptor::{over}"), || {
        let run = |round| {
            let cluster = Cluster::start(over, 4, 4);
            all(&cluster.workers, |engine| {
                rounds::begin(engine, "weight", round, 10_000).and_then(rounds::Reduction::check).unwrap();
                engine.shutdown(PATIENCE).unwrap();
            });
            cluster.embedded.stop(PATIENCE).unwrap();
        };
        run(0);
        let before = Holdings::now();
        (1..=50).for_each(run);
        before.are_back();
    });
}

fn jobs_that_are_just_dropped_leave_no_thread_and_no_descriptor(over: Over) {
    alone(&format!("lifecycle::jobs_that_are_just_dropped_leave_no_thread_and_no_descriptor::{over}"), || {
        drop(Cluster::start(over, 2, 2));
        let before = Holdings::now();
        (0..3).for_each(|_| drop(Cluster::start(over, 2, 2)));
        let Cluster { workers, embedded } = Cluster::start(over, 2, 1);
        drop(embedded);
        drop(workers);
        before.are_back();
    });
}

/// Something that is done with a server.
type Call = fn(&Server);
/// Brings a server into a state, calls, and tells its state afterwards.
type Stage = fn(Call) -> ServerState;

fn call_while_joining(call: Call) -> ServerState {
    let embedded =
        Embedded::start(EmbeddedOptions { config: config(Over::Quic, &[]), workers: 1, servers: 1 }).unwrap();
    let server = nowhere(&embedded);
    assert_eq!(server.state(), ServerState::Joining);
    call(&server);
    server.state()
}

fn call_while_running(call: Call) -> ServerState {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let server = &cluster.embedded.servers()[0];
    // The workers may hear that the job has formed before the server does.
    eventually("it runs", || (server.state() == ServerState::Running).then_some(()));
    call(server);
    server.state()
}

fn call_while_draining(call: Call) -> ServerState {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let server = &cluster.embedded.servers()[0];
    let _open = rounds::begin(&cluster.workers[0], "a", 0, 1000).unwrap();
    eventually("a round is open", || (server.stats().received_bytes() > 0).then_some(()));
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| server.drain(PATIENCE));
        eventually("it drains", || (server.state() == ServerState::Draining).then_some(()));
        call(server);
        let state = server.state();
        // Also where the call left it draining.
        server.stop(Duration::from_secs(1));
        assert!(!drained.join().unwrap(), "a round was left open");
        state
    })
}

fn call_when_stopped(call: Call) -> ServerState {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let server = &cluster.embedded.servers()[0];
    server.stop(Duration::from_secs(1));
    assert_eq!(server.state(), ServerState::Stopped);
    call(server);
    server.state()
}

fn call_when_failed(call: Call) -> ServerState {
    let config = config(Over::Quic, &[("form_timeout", "10ms")]);
    let embedded = Embedded::start(EmbeddedOptions { config, workers: 1, servers: 1 }).unwrap();
    let server = &embedded.servers()[0];
    let failure = server.join(Some(PATIENCE)).expect_err("no worker comes");
    assert_eq!(server.state(), ServerState::Failed(failure));
    call(server);
    server.state()
}

/// A server that has not reached its coordinator, and never will.
fn nowhere(embedded: &Embedded) -> Server {
    let credentials = Arc::new(Credentials::enroll(embedded.join_string(), Role::Server, PATIENCE).unwrap());
    let (config, coordinator) = (config(Over::Quic, &[]), "127.0.0.1:9".to_owned());
    Server::start(ServerOptions { config, coordinator, credentials, index: None }).unwrap()
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
