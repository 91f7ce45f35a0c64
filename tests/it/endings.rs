//! Names that end when every worker has undeclared them.

use std::time::Duration;

use gradlane_core::engine::Engine;
use gradlane_core::types::Op;
use gradlane_core::{Code, Result};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [locally, over_shm, over_quic]:
        a_name_that_every_worker_undeclared_comes_again_with_another_shape,
        a_worker_that_uses_a_name_again_waits_for_the_others;
}

fn a_name_that_every_worker_undeclared_comes_again_with_another_shape(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    for len in [3, 1000, 3] {
        all(&cluster.workers, |engine| {
            assert_eq!(sum(engine, "metric", len), Ok(()));
            assert_eq!(sum(engine, "metric", len), Ok(()));
            engine.undeclare(&["metric".to_owned()], Some(PATIENCE)).unwrap();
        });
    }
}

fn a_worker_that_uses_a_name_again_waits_for_the_others(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "5 s")]);
    let [first, second] = &cluster.workers[..] else { panic!("two workers") };
    all(&cluster.workers, |engine| sum(engine, "metric", 3).unwrap());
    first.undeclare(&["metric".to_owned()], Some(PATIENCE)).unwrap();
    // The second worker still means the tensor before.
    let mut other = Tensor::new("metric", vec![1_f32; 7]);
    let waits = other.push_pull(first, Op::Sum).unwrap();
    assert!(waits.wait(Some(Duration::from_millis(200))).is_err(), "the name has not ended");
    second.undeclare(&["metric".to_owned()], Some(PATIENCE)).unwrap();
    let mut same = Tensor::new("metric", vec![1_f32; 7]);
    same.reduce(second, Op::Sum).unwrap();
    waits.wait(Some(PATIENCE)).unwrap();
    assert_eq!((other.data, same.data), (vec![2.0; 7], vec![2.0; 7]));

    // And if the other one never says so, the call ends like every other call.
    first.undeclare(&["metric".to_owned()], Some(PATIENCE)).unwrap();
    let error = sum(first, "metric", 7).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.to_string().contains("once every worker has undeclared it"), "{error}");
}

fn sum(engine: &Engine, name: &str, len: usize) -> Result<()> {
    let mut tensor = Tensor::new(name, vec![1_f32; len]);
    tensor.reduce(engine, Op::Sum)?;
    assert_eq!(tensor.data, vec![2.0; len], "{name}");
    Ok(())
}
