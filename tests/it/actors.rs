//! Jobs whose workers are processes, because they are to be stopped or killed.

use std::path::Path;

use gradlane_core::types::JoinString;
use gradlane_core::wire::frame::{Health, Status};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::config;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::{Process, environment, variables};

/// The program that plays all parts: `tests/bin/actor.rs`.
pub(crate) const ACTOR: &str = env!("CARGO_BIN_EXE_gradlane-actor");

/// Coordinator and servers in this process, each worker in a process of its own, which does what the test orders.
pub(crate) struct Job {
    /// By rank.
    pub(crate) puppets: Vec<Process>,
    pub(crate) embedded: Embedded,
}

impl Job {
    /// Starts a job that has formed.
    pub(crate) fn start(over: Over, workers: u32, servers: u32, settings: &[(&str, &str)]) -> Self {
        let options = EmbeddedOptions { config: config(over, settings), workers, servers };
        let embedded = Embedded::start(options).expect("starts");
        let join = embedded.join_string();
        let mut puppets: Vec<_> =
            (0..workers).map(|rank| worker(over, &["puppet"], join, Some(rank), workers, settings)).collect();
        for (rank, puppet) in puppets.iter_mut().enumerate() {
            assert_eq!(puppet.line(), format!("joined {rank}"));
        }
        Self { puppets, embedded }
    }

    /// Orders all workers to do the same, and expects that they can.
    pub(crate) fn all_do(&mut self, order: &str) {
        self.puppets.iter_mut().for_each(|puppet| puppet.order(order));
        for puppet in &mut self.puppets {
            assert_eq!(puppet.line(), "ok", "{order}");
        }
    }

    /// The state of the job as soon as the coordinator finds the worker of this rank to be like this.
    pub(crate) fn once(&self, rank: usize, health: Health) -> Status {
        eventually(&format!("worker {rank} is {health:?}"), || {
            let status = self.embedded.status().expect("the coordinator lives");
            (status.members[rank].health == health).then_some(status)
        })
    }
}

/// Starts an actor as a worker of the job.
pub(crate) fn worker(
    over: Over,
    part: &[&str],
    join: &JoinString,
    rank: Option<u32>,
    workers: u32,
    settings: &[(&str, &str)],
) -> Process {
    let place = rank.map(|rank| [rank, workers].map(|number| number.to_string()));
    // One that is to be given a rank does not know how many there are.
    let place = place.iter().flat_map(|[rank, size]| [("rank", &**rank), ("size", &**size)]);
    let settings: Vec<_> = over.with(settings).into_iter().chain(place).collect();
    // It has no file to keep, so any directory is a home.
    Process::start(Path::new(ACTOR), part, Path::new("/tmp"), &variables(join, &settings))
}

/// Starts a summation server of the job.
pub(crate) fn server(over: Over, join: &JoinString, index: u32, settings: &[(&str, &str)]) -> Process {
    let index = index.to_string();
    let settings = over.with(&[&[("server_index", &*index), ("bind", "127.0.0.1:0")], settings].concat());
    Process::start(Path::new(ACTOR), &["server"], Path::new("/tmp"), &variables(join, &settings))
}

/// Starts a coordinator in a home of its own, for this many workers and servers. Returns the string that lets processes join.
pub(crate) fn coordinator(home: &Path, workers: u32, servers: u32, settings: &[(&str, &str)]) -> (Process, JoinString) {
    coordinator_at(home, "127.0.0.1:0", workers, servers, settings)
}

/// The same at an address.
pub(crate) fn coordinator_at(
    home: &Path,
    bind: &str,
    workers: u32,
    servers: u32,
    settings: &[(&str, &str)],
) -> (Process, JoinString) {
    let (workers, servers) = (workers.to_string(), servers.to_string());
    let line = ["coordinator", "-n", &workers, "-s", &servers, "--bind", bind];
    let mut coordinator = Process::start(Path::new(ACTOR), &line, home, &environment(settings));
    let join = announced(&mut coordinator);
    (coordinator, join)
}

/// The join string in the file that a coordinator names first.
pub(crate) fn announced(coordinator: &mut Process) -> JoinString {
    let line = coordinator.line();
    let path = line.strip_prefix("GRADLANE_JOIN_FILE=").expect("its first word");
    std::fs::read_to_string(path).unwrap().lines().next().unwrap().parse().unwrap()
}

/// How often a fault is tried: `usual` times, or as `GRADLANE_TEST_REPETITIONS` says.
pub(crate) fn repetitions(usual: u32) -> u32 {
    #[expect(clippy::disallowed_methods, reason = "it is the test that is told, not Gradlane")]
    let told = std::env::var("GRADLANE_TEST_REPETITIONS");
    told.map_or(usual, |count| count.parse().expect("a number of repetitions"))
}
