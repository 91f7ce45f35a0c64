//! From a fault to the typed error, on every survivor: once in each test, and as often as `GRADLANE_TEST_REPETITIONS` says by
//! `make test-faults`, which prints medians and the 99th percentiles. The letters are those of the failure model that the tests follow.
//!
//! The trials train: every survivor submits the next round as soon as it has the one before, and each round is checked. So the fault comes
//! in the middle of whatever is under way.

mod cuts;
mod mistakes;

use std::net::UdpSocket;
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::JoinString;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::elapsed;
use gradlane_tests::processes::Process;

use crate::actors::{Job, coordinator, coordinator_at, repetitions, server, worker};

matrix! {
    [locally, over_shm, over_quic]:
        f1_to_f4_a_worker_is_killed,
        f6_f8_a_worker_stands_still_and_comes_back,
        f34_a_worker_leaves_a_tensor_out;
    [over_shm, over_quic]:
        f9_f10_a_server_is_killed,
        f12_a_server_is_killed_and_started_again_at_its_address,
        f14_all_servers_are_killed,
        f15_the_coordinator_is_killed,
        f16_the_coordinator_is_started_again_without_its_journal,
        f18_the_coordinator_and_a_worker_are_killed;
}

/// Silence is found out soon, and yet no busy machine is taken for a dead one.
const SETTINGS: &[(&str, &str)] = &[
    ("heartbeat_interval", "50ms"),
    ("suspect_timeout", "1s"),
    ("dead_timeout", "3s"),
    ("stall_warn", "1s"),
    ("step_timeout", "4s"),
    ("control_lost_timeout", "4s"),
];
/// What every call keeps, with these settings: the step timeout and twice the dead timeout.
const BOUND: Duration = Duration::from_secs(10);
/// What a machine may take that does much else.
const SLACK: Duration = Duration::from_secs(10);

fn f1_to_f4_a_worker_is_killed(over: Over) {
    trials("F1-F4 a worker is killed", over, |trial| {
        let mut job = Job::start(over, 3, 2, SETTINGS);
        train(&mut job.puppets, trial);
        let clock = Clock::start();
        job.puppets.pop().expect("three").signal("KILL");
        until_all_fail(&mut job.puppets, clock, &["lost worker 2"])
    });
}

fn f6_f8_a_worker_stands_still_and_comes_back(over: Over) {
    trials("F6 a worker stands still", over, |trial| {
        let mut job = Job::start(over, 3, 2, SETTINGS);
        train(&mut job.puppets, trial);
        let clock = Clock::start();
        let mut still = job.puppets.pop().expect("three");
        still.signal("STOP");
        let took = until_all_fail(&mut job.puppets, clock, &["lost worker 2"]);
        still.signal("CONT");
        until_all_fail(std::slice::from_mut(&mut still), Clock::start(), &["", ""]);
        took
    });
}

fn f9_f10_a_server_is_killed(over: Over) {
    trials("F9-F10 a server is killed", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.servers[1].signal("KILL");
        until_all_fail(&mut job.workers, clock, &["lost server 1"])
    });
}

fn f12_a_server_is_killed_and_started_again_at_its_address(over: Over) {
    trials("F12 a server is killed and started again at its address", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.servers[1].signal("KILL");
        job.servers[1].end();
        let place = [SETTINGS, &[("bind", &*job.places[1])]].concat();
        let _again = server(over, &job.join, 1, &place);
        until_all_fail(&mut job.workers, clock, &["lost server 1"])
    });
}

fn f14_all_servers_are_killed(over: Over) {
    trials("F14 all servers are killed", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.servers.iter().for_each(|server| server.signal("KILL"));
        until_all_fail(&mut job.workers, clock, &["lost server"])
    });
}

fn f15_the_coordinator_is_killed(over: Over) {
    trials("F15 the coordinator is killed, and is needed for a barrier", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.coordinator.signal("KILL");
        job.workers.iter_mut().for_each(|worker| {
            worker.line();
            worker.order("barrier epoch 60000");
        });
        until_all_fail(&mut job.workers, clock, &["lost coordinator"])
    });
}

fn f16_the_coordinator_is_started_again_without_its_journal(over: Over) {
    trials("F16 the coordinator is started again without its journal", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.coordinator.signal("KILL");
        job.coordinator.end();
        let home = tempfile::tempdir().unwrap();
        let _again = coordinator_at(home.path(), &job.join.address, 3, 2, SETTINGS);
        until_all_fail(&mut job.workers, clock, &["lost coordinator"])
    });
}

fn f18_the_coordinator_and_a_worker_are_killed(over: Over) {
    trials("F18 the coordinator and a worker are killed", over, |trial| {
        let mut job = Apart::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.coordinator.signal("KILL");
        job.workers.pop().expect("three").signal("KILL");
        until_all_fail(&mut job.workers, clock, &["lost coordinator", "no contribution", "lost worker"])
    });
}

fn f34_a_worker_leaves_a_tensor_out(over: Over) {
    trials("F34 a worker leaves a tensor out", over, |_| {
        let mut job = Job::start(over, 3, 2, SETTINGS);
        job.all_do("sum weight 0");
        let clock = Clock::start();
        job.puppets[..2].iter_mut().for_each(|puppet| puppet.order("sum weight 1"));
        job.puppets.truncate(3);
        let (survivors, _forgetful) = job.puppets.split_at_mut(2);
        until_all_fail(survivors, clock, &["rank 2", "worker 2"])
    });
}

/// Coordinator, servers and workers, each a process.
struct Apart {
    // In the order in which they end.
    workers: Vec<Process>,
    servers: Vec<Process>,
    coordinator: Process,
    join: JoinString,
    /// Where the servers listen.
    places: Vec<String>,
    _home: tempfile::TempDir,
}

impl Apart {
    fn start(over: Over) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (coordinator, join) = coordinator(home.path(), 3, 2, SETTINGS);
        let places = free_places();
        let at = |place| [SETTINGS, &[("bind", place)]].concat();
        let servers = (0..).zip(&places).map(|(index, place)| server(over, &join, index, &at(place))).collect();
        let mut workers: Vec<Process> =
            (0..3).map(|rank| worker(over, &["puppet"], &join, Some(rank), 3, SETTINGS)).collect();
        for (rank, worker) in workers.iter_mut().enumerate() {
            assert_eq!(worker.line(), format!("joined {rank}"));
        }
        Self { workers, servers, coordinator, join, places, _home: home }
    }
}

/// Two addresses of which the system says that they are free.
fn free_places() -> Vec<String> {
    let held = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
    held.iter().map(|socket| socket.local_addr().expect("it is bound").to_string()).collect()
}

/// Reduces a few rounds, as many more as trials were made before, and begins another one, whose answers are not read.
fn train(workers: &mut [Process], trial: u32) {
    for round in 0..2 + trial % 5 {
        workers.iter_mut().for_each(|worker| worker.order(&format!("sum weight{} {round}", round % 3)));
        workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok"));
    }
    // A name that was not used before, of which no round went before.
    workers.iter_mut().for_each(|worker| worker.order("sum last 0"));
}

/// The time from `clock` until all have failed, each with one of `causes`. What ends well before is followed by another round.
fn until_all_fail(workers: &mut [Process], clock: Clock, causes: &[&str]) -> Duration {
    for worker in workers {
        for round in 1.. {
            let answer = worker.line();
            if answer != "ok" {
                assert!(answer.starts_with("failed "), "{answer}");
                assert!(causes.iter().any(|cause| answer.contains(cause)), "{answer}");
                break;
            }
            worker.order(&format!("sum last {round}"));
        }
    }
    let took = elapsed(clock);
    assert!(took < BOUND + SLACK, "{took:?}");
    took
}

/// Makes trials, and says how long they took.
fn trials(what: &str, over: Over, trial: impl Fn(u32) -> Duration) {
    let mut took: Vec<Duration> = (0..repetitions(1)).map(trial).collect();
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100].as_secs_f64();
    println!("{what}, {over}: {} trials, p50 {:.3} s, p99 {:.3} s", took.len(), at(50), at(99));
}
