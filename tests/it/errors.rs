//! What a caller is told: every class of failure of the data path, provoked once. Those of membership, barriers and identity stand in
//! their own files.

use std::time::Duration;

use gradlane_core::types::{DType, Op, Priority, TensorSpec, WorkerId};
use gradlane_core::{Code, Error};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor};
use gradlane_tests::rounds;

#[test]
fn what_makes_no_sense_is_refused_at_once() {
    let cluster = Cluster::start(1, 1);
    let engine = &cluster.workers[0];
    let mut tensor = Tensor::new("a", vec![1.0; 4]);
    tensor.spec.shape = vec![5];
    assert_eq!(tensor.push_pull(engine, Op::Sum).map(drop).map_err(|e| e.code()), Err(Code::InvalidArgument));
    tensor.spec.shape = vec![4];
    for (op, weight) in [(Op::WeightedMean, f64::NAN), (Op::Broadcast { root: WorkerId(1) }, 1.0)] {
        let refused = tensor.submit(engine, op, weight, Priority::default()).map(drop);
        assert_eq!(refused.map_err(|error| error.code()), Err(Code::InvalidArgument), "{op}");
    }
    tensor.push_pull(engine, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap();
}

#[test]
fn a_disagreement_about_a_tensor_names_both_sides_to_both() {
    let cluster = Cluster::start(2, 1);
    let spec = |len| vec![TensorSpec { name: "head".to_owned(), dtype: DType::F32, shape: vec![len] }];
    cluster.workers[0].declare(spec(10), false, Some(PATIENCE)).unwrap();
    let told = cluster.workers[1].declare(spec(11), false, Some(PATIENCE));
    let Err(Error::Mismatch { tensor, field, first, second }) = &told else { panic!("{told:?}") };
    assert_eq!((tensor.as_str(), field.as_str()), ("head", "shape"));
    assert_eq!((first.worker, second.worker), (WorkerId(0), WorkerId(1)));
    let also = rounds::begin(&cluster.workers[0], "head", 0, 10).and_then(rounds::Reduction::check);
    assert_eq!(also, told, "the same error for who was first");
}

#[test]
fn a_sum_that_somebody_withholds_fails_in_time_and_names_who() {
    let cluster = Cluster::with(2, 1, &[("step_timeout", "1s"), ("stall_warn", "200ms")]);
    let stalled = rounds::begin(&cluster.workers[0], "a", 0, 1000).and_then(rounds::Reduction::check);
    let Err(error @ Error::Stalled { missing, .. }) = &stalled else { panic!("{stalled:?}") };
    assert_eq!((missing.as_slice(), error.code()), (&[WorkerId(1)][..], Code::DeadlineExceeded));
}

#[test]
fn a_caller_can_give_up_and_is_told_so() {
    let cluster = Cluster::start(2, 1);
    let mut tensor = Tensor::new("a", vec![1.0; 1000]);
    let handle = tensor.push_pull(&cluster.workers[0], Op::Sum).unwrap();
    let impatient = handle.wait(Some(Duration::from_millis(10)));
    assert_eq!(impatient.map_err(|error| error.code()), Err(Code::DeadlineExceeded));
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
}

#[test]
fn after_the_shutdown_nothing_is_accepted() {
    let cluster = Cluster::start(1, 1);
    cluster.workers[0].shutdown(PATIENCE).unwrap();
    let late = rounds::begin(&cluster.workers[0], "a", 0, 10).and_then(rounds::Reduction::check);
    assert_eq!(late.map_err(|error| error.code()), Err(Code::FailedPrecondition));
    let late = cluster.workers[0].arrive("epoch", None).wait(Some(PATIENCE));
    assert_eq!(late.map_err(|error| error.code()), Err(Code::FailedPrecondition));
}
