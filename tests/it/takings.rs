//! How often the way of one part through the job takes the locks that all its threads share.
//!
//! A round is a synchronous sum of one part, of one worker at one server. Heartbeats and timers take the locks too, but only now and then:
//! the average of many rounds, rounded, is exact.

use std::sync::Arc;

use gradlane_core::cluster::MemberConfig;
use gradlane_core::engine::{Engine, EngineOptions};
use gradlane_core::runtime::process;
use gradlane_core::transport::mem::MemNetwork;
use gradlane_core::types::{Op, Role};
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, config};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

/// Submitted, taken for PUSH, handed over, summed.
const OF_THE_STATE: u64 = 4;
/// Opened, received, answered.
const OF_THE_NODE: u64 = 3;
const ROUNDS: u64 = 200;

#[test]
fn a_part_takes_the_locks_a_few_times_in_one_process() {
    // No exchange passes a socket.
    let config = config(Over::Quic, &[]);
    let network = MemNetwork::new().unwrap();
    let options = EmbeddedOptions { config: config.clone(), workers: 1, servers: 1 };
    let job = Embedded::start_coordinator(&options).unwrap();
    let coordinator = job.join_string().address.clone();
    let credentials = |role| Arc::new(job.coordinator().credentials(role).unwrap());
    let (of_server, of_worker) = (credentials(Role::Server), credentials(Role::Worker));
    let options = ServerOptions {
        config: config.clone(),
        coordinator: coordinator.clone(),
        credentials: of_server,
        index: Some(0),
    };
    let server = Server::start_in(options, &network).unwrap();
    let engine = Engine::start(EngineOptions {
        member: MemberConfig { requested: Some(0), workers: 1, ..process::member(Role::Worker, &config) },
        config,
        coordinator,
        transport: Arc::new(network.transport(of_worker.node())),
        credentials: of_worker,
        copies: network.copies().clone(),
        device: None,
    })
    .unwrap();
    assert_eq!(takings(&engine, &server), [OF_THE_STATE, OF_THE_NODE]);
}

matrix! {
    [over_shm, over_quic]: a_part_takes_the_locks_a_few_times;
}

fn a_part_takes_the_locks_a_few_times(over: Over) {
    let cluster = Cluster::start(over, 1, 1);
    assert_eq!(takings(&cluster.workers[0], &cluster.embedded.servers()[0]), [OF_THE_STATE, OF_THE_NODE]);
}

/// How often a round takes the lock of the worker's state, and that of the server's node.
fn takings(engine: &Engine, server: &Server) -> [u64; 2] {
    let mut tensor = Tensor::new("a", vec![1_f32; 1000]);
    let mut reduce = || engine.reduce(tensor.submission(Op::Sum), Some(PATIENCE)).unwrap();
    // Declares it.
    reduce();
    let count = || [engine.state_takings(), server.node_takings()];
    let before = count();
    (0..ROUNDS).for_each(|_| reduce());
    let [state, node] = count();
    [state - before[0], node - before[1]].map(|total| (total + ROUNDS / 2) / ROUNDS)
}
