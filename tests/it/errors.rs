//! What a caller is told when nothing comes of what it asked for. Disagreements, membership, barriers and identity stand in their own
//! files.

use std::time::Duration;

use gradlane_core::types::{Op, WorkerId};
use gradlane_core::{Code, Error};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor};
use gradlane_tests::rounds;

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
