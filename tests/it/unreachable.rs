//! Servers that a worker cannot reach, though the coordinator reaches both: every call ends with an error that says why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::engine::Engine;
use gradlane_core::types::{Op, Role};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Server, ServerOptions};
use gradlane_tests::cluster::{Tensor, all, config, worker};
use gradlane_tests::network::Relay;
use gradlane_tests::over::Over;

const STEP: Duration = Duration::from_secs(5);
const SETTINGS: [(&str, &str); 4] =
    [("step_timeout", "5 s"), ("stall_warn", "500 ms"), ("dead_timeout", "1 s"), ("suspect_timeout", "500 ms")];

/// Nobody listens at the server's port of this address of the host.
const NOWHERE: &str = "127.0.0.3";

#[test]
fn a_server_that_announces_a_wrong_address_is_named_with_the_refusal_over_quic() {
    let job = Job::start(NOWHERE);
    let began = now();
    for error in job.reduce("lost").map(Result::unwrap_err) {
        let Error::ServerUnreachable { server, waited, cause, hint } = &error else { panic!("{error}") };
        assert_eq!(*server, format!("server 0 at {}", job.server.address()));
        assert!(cause.contains("connection refused") && hint.contains("advertise"), "{error}");
        assert!(*waited >= STEP, "{waited:?}");
    }
    println!("from the call to the error: {:.2} s", began.elapsed().as_secs_f64());
}

#[test]
fn however_short_the_timeouts_are_the_error_is_that_of_the_server_and_not_of_a_stuck_engine_over_quic() {
    // Of the workers alone: the coordinator of a busy machine gives no member up that fast.
    let short = [("step_timeout", "300 ms"), ("stall_warn", "100 ms"), ("dead_timeout", "100 ms")];
    let job = Job::start_with(NOWHERE, &short);
    for error in job.reduce("lost").map(Result::unwrap_err) {
        assert!(matches!(error, Error::ServerUnreachable { .. }), "{error}");
    }
}

#[test]
fn a_path_that_drops_everything_from_some_time_on_ends_calls_on_every_rank_over_quic() {
    let job = Job::start(Relay::HOST);
    let relay = Relay::before(job.server.address());
    assert_eq!(job.reduce("before"), [Ok(()), Ok(())]);
    relay.cut();
    let began = now();
    for error in job.reduce("after").map(Result::unwrap_err) {
        let Error::ServerUnreachable { server, cause, hint, .. } = &error else { panic!("{error}") };
        assert_eq!(*server, format!("server 0 at {}", job.server.address()));
        assert!(cause.contains("nothing answers at") && hint.contains("firewall"), "{error}");
    }
    println!("from the cut to the error: {:.2} s", began.elapsed().as_secs_f64());
    assert!(relay.harmed() > 0);
}

/// A coordinator, a server that announces the address of some host, and two workers.
struct Job {
    // In the order in which they end.
    workers: Vec<Engine>,
    server: Server,
    _coordinator: CoordinatorNode,
}

impl Job {
    fn start(advertise: &str) -> Self {
        Self::start_with(advertise, &[])
    }

    /// The same, with other settings of the workers.
    fn start_with(advertise: &str, of_workers: &[(&str, &str)]) -> Self {
        let config = config(Over::Quic, &SETTINGS);
        let of_workers = if of_workers.is_empty() { config.clone() } else { self::config(Over::Quic, of_workers) };
        let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 2, 1), &config, None).unwrap();
        let join = coordinator.join_string();
        let server = Server::start(ServerOptions {
            config: Config { advertise: Some(advertise.to_owned()), ..config.clone() },
            coordinator: join.address.clone(),
            credentials: Arc::new(coordinator.credentials(Role::Server).unwrap()),
            index: None,
        })
        .unwrap();
        let start = |rank| worker(&of_workers, join, Some(rank), 2).unwrap();
        let workers = std::thread::scope(|scope| {
            let starting = [0, 1].map(|rank| scope.spawn(move || start(rank)));
            starting.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        Self { workers, server, _coordinator: coordinator }
    }

    /// Reduces a tensor on both workers, by a call without a timeout.
    fn reduce(&self, name: &str) -> [Result<(), Error>; 2] {
        let outcomes = all(&self.workers, |engine| {
            let mut tensor = Tensor::new(name, vec![1_f32; 100]);
            tensor.push_pull(engine, Op::Sum)?.wait(None)
        });
        outcomes.try_into().expect("two workers")
    }
}

#[expect(clippy::disallowed_methods, reason = "a figure for people, on which nothing depends")]
fn now() -> Instant {
    Instant::now()
}
