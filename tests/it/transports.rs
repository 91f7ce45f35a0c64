//! The transport that a test names is the one that its gradients take. All other tests rely on that.

use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::engine::Engine;
use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        a_sum_takes_the_transport_that_the_test_names;
    [over_shm, over_quic]:
        the_sum_of_a_machine_takes_the_transport_that_the_test_names;
}

fn a_sum_takes_the_transport_that_the_test_names(over: Over) {
    let cluster = Cluster::with(over, 2, 2, &SMALL_PARTS);
    let expected = match over {
        Over::Local => [0, 0, BYTES],
        Over::Shm => [2, 2, 0],
        Over::Quic => [2, 0, 0],
    };
    assert_eq!(all(&cluster.workers, counts_of_a_sum), [expected; 2]);
}

#[test]
fn servers_of_the_same_machine_are_reached_by_shared_memory_without_a_setting() {
    let cluster = Cluster::with(Over::Quic, 2, 2, &[&SMALL_PARTS[..], &[("transport", "")]].concat());
    assert_eq!(all(&cluster.workers, counts_of_a_sum), [[2, 2, 0]; 2]);
}

fn the_sum_of_a_machine_takes_the_transport_that_the_test_names(over: Over) {
    let cluster = Cluster::on(over, &["a", "a", "b", "b"], 1, &SMALL_PARTS);
    let shm = u64::from(over == Over::Shm);
    // The servers are on the first machine, if the machines and they share memory.
    let connections = all(&cluster.workers, |engine| counts_of_a_sum(engine)[..2].to_vec());
    assert_eq!(connections, [[1, shm], [1, shm], [1, 0], [1, 0]]);
}

/// Reduces a tensor of many parts; the worker's connections, how many of them are shared memory, and the bytes that it reduced on its machine.
fn counts_of_a_sum(engine: &Engine) -> [u64; 3] {
    let mut tensor = Tensor::new("a", vec![1_f32; 100_000]);
    tensor.reduce(engine, Op::Sum).unwrap();
    assert!(tensor.data.iter().all(|sum| *sum == engine.size() as f32));
    let metrics = engine.metrics();
    [&metrics.connections, &metrics.shm_connections, &metrics.local_bytes].map(|count| count.load(Relaxed))
}

const BYTES: u64 = 400_000;
