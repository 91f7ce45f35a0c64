//! What `push_pull` promises, on real sockets.

use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        two_workers_and_two_servers_sum_in_place;
}

fn two_workers_and_two_servers_sum_in_place(over: Over) {
    let cluster = Cluster::start(over, 2, 2);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![4_f32.powi(engine.rank().0 as i32); 3_000_000]);
        tensor.push_pull(engine, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 5.0));
}
