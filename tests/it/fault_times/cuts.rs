//! Paths that are cut, both ways or one way, and never heal.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{JoinString, Role};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Server, ServerOptions};
use gradlane_tests::cluster::config;
use gradlane_tests::matrix;
use gradlane_tests::network::{CLEAR, CUT, Relay};
use gradlane_tests::over::Over;
use gradlane_tests::processes::Process;

use super::{SETTINGS, train, trials, until_all_fail};
use crate::actors::worker;

matrix! {
    [over_quic]:
        f19_a_worker_and_the_coordinator_lose_each_other,
        f20_nobody_reaches_the_server,
        f21_nobody_reaches_the_coordinator,
        f22_one_direction_between_a_worker_and_the_coordinator_is_lost;
}

fn f19_a_worker_and_the_coordinator_lose_each_other(over: Over) {
    trials("F5, F19 a worker and the coordinator lose each other", over, |trial| {
        let mut job = Job::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.to_coordinator[2].cut();
        job.until_survivors_fail(clock)
    });
}

/// The longest of all: the link is silent for twice the dead timeout, then dialling takes its six seconds.
fn f20_nobody_reaches_the_server(over: Over) {
    trials("F20 nobody reaches the server", over, |trial| {
        let mut job = Job::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.to_server.cut();
        until_all_fail(&mut job.workers, clock, &["server 0"])
    });
}

fn f21_nobody_reaches_the_coordinator(over: Over) {
    trials("F21 nobody reaches the coordinator, which is needed for a barrier", over, |trial| {
        let mut job = Job::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        job.to_coordinator.iter().for_each(Relay::cut);
        job.workers.iter_mut().for_each(|worker| {
            worker.line();
            worker.order("barrier epoch 60000");
        });
        until_all_fail(&mut job.workers, clock, &["lost coordinator"])
    });
}

fn f22_one_direction_between_a_worker_and_the_coordinator_is_lost(over: Over) {
    trials("F22 one direction between a worker and the coordinator is lost", over, |trial| {
        let mut job = Job::start(over);
        train(&mut job.workers, trial);
        let clock = Clock::start();
        let (there, back) = if trial.is_multiple_of(2) { (CUT, CLEAR) } else { (CLEAR, CUT) };
        job.to_coordinator[2].set(there, back);
        job.until_survivors_fail(clock)
    });
}

/// Three workers, each a process with its own path to the coordinator, and one path to the server for all.
struct Job {
    // In the order in which they end.
    workers: Vec<Process>,
    to_coordinator: Vec<Relay>,
    to_server: Relay,
    _server: Server,
    _coordinator: CoordinatorNode,
}

impl Job {
    fn start(over: Over) -> Self {
        let config = config(over, SETTINGS);
        let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 3, 1), &config, None).unwrap();
        let server = Server::start(ServerOptions {
            config: Config { advertise: Some(Relay::HOST.to_owned()), ..config },
            coordinator: coordinator.join_string().address.clone(),
            credentials: Arc::new(coordinator.credentials(Role::Server).unwrap()),
            index: None,
        })
        .unwrap();
        let to_server = Relay::before(server.address());
        let relay =
            |seed| Relay::start(([127, 0, 0, 1], 0).into(), coordinator.join_string().address.parse().unwrap(), seed);
        let to_coordinator: Vec<Relay> = (0..3).map(relay).collect();
        let start = |(rank, relay): (u32, &Relay)| {
            let join = JoinString { address: relay.address(), ..coordinator.join_string().clone() };
            worker(over, &["puppet"], &join, Some(rank), 3, SETTINGS)
        };
        let mut workers: Vec<Process> = (0..).zip(&to_coordinator).map(start).collect();
        for (rank, worker) in workers.iter_mut().enumerate() {
            assert_eq!(worker.line(), format!("joined {rank}"));
        }
        Self { workers, to_coordinator, to_server, _server: server, _coordinator: coordinator }
    }

    /// The time until workers 0 and 1 have heard whom they lost. Worker 2 hears something too.
    fn until_survivors_fail(&mut self, clock: Clock) -> Duration {
        let (survivors, lost) = self.workers.split_at_mut(2);
        let took = until_all_fail(survivors, clock, &["lost worker 2"]);
        until_all_fail(lost, clock, &[""]);
        took
    }
}
