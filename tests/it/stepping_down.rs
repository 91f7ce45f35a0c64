//! A coordinator is told to stop while its job runs.

use gradlane_core::types::JoinString;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::processes::{Ended, Process};

use crate::actors::{coordinator_at, server, worker};

matrix! {
    [over_shm, over_quic]:
        a_coordinator_with_resume_leaves_its_job_at_sigterm_to_the_next_one_and_no_call_fails;
    [over_quic]:
        sigint_ends_the_job_of_a_coordinator_with_resume,
        sigterm_ends_the_job_of_a_coordinator_without_resume;
}

const SETTINGS: &[(&str, &str)] = &[("dead_timeout", "1s"), ("suspect_timeout", "500ms")];

fn a_coordinator_with_resume_leaves_its_job_at_sigterm_to_the_next_one_and_no_call_fails(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let start = |bind: &str| coordinator_at(home.path(), bind, 2, 1, &[SETTINGS, &[("resume", "true")]].concat());
    let (mut coordinator, join) = start("127.0.0.1:0");
    let mut server = server(over, &join, 0, SETTINGS);
    let mut workers = joined::<2>(over, &join);
    all_do(&mut workers, "sum weight 0");
    // What waits for the coordinator is answered by the next one.
    workers[0].order("barrier epoch");
    coordinator.signal("TERM");
    let Ended { code, output, complaints } = coordinator.end();
    assert_eq!(code, Some(75), "{output:?} {complaints}");
    assert!(complaints.contains("--resume continues its job"), "{complaints}");
    let (mut coordinator, again) = start(&join.address);
    assert_eq!(again, join);
    workers[1].order("barrier epoch");
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok"));
    // Sums need none.
    coordinator.signal("TERM");
    assert_eq!(coordinator.end().code, Some(75));
    all_do(&mut workers, "sum weight 1");
    let (mut coordinator, _) = start(&join.address);
    all_do(&mut workers, "sum weight 2");
    all_do(&mut workers, "shutdown 10000");
    assert_eq!((server.end().code, coordinator.end().code), (Some(0), Some(0)));
}

fn sigint_ends_the_job_of_a_coordinator_with_resume(over: Over) {
    a_signal_ends_the_job(over, &[("resume", "true")], "INT", 128 + 2);
}

fn sigterm_ends_the_job_of_a_coordinator_without_resume(over: Over) {
    a_signal_ends_the_job(over, &[], "TERM", 128 + 15);
}

fn a_signal_ends_the_job(over: Over, settings: &[(&str, &str)], signal: &str, code: i32) {
    let home = tempfile::tempdir().unwrap();
    let settings = [SETTINGS, settings].concat();
    let (mut coordinator, join) = coordinator_at(home.path(), "127.0.0.1:0", 1, 1, &settings);
    let mut server = server(over, &join, 0, SETTINGS);
    let [mut worker] = joined(over, &join);
    worker.order("sum weight 0");
    assert_eq!(worker.line(), "ok");
    coordinator.signal(signal);
    assert_eq!(coordinator.end().code, Some(code));
    let ended = server.end();
    assert_eq!(ended.code, Some(75));
    assert!(ended.complaints.contains("it was stopped by a signal"), "{}", ended.complaints);
    worker.order("barrier epoch");
    let told = worker.line();
    assert!(told.contains("it was stopped by a signal"), "{told}");
}

/// These workers of a job of as many, once it has formed.
fn joined<const SIZE: usize>(over: Over, join: &JoinString) -> [Process; SIZE] {
    let start = |rank| worker(over, &["puppet"], join, Some(rank as u32), SIZE as u32, SETTINGS);
    let mut workers = std::array::from_fn(start);
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.line(), format!("joined {rank}"));
    }
    workers
}

fn all_do(workers: &mut [Process], order: &str) {
    workers.iter_mut().for_each(|worker| worker.order(order));
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok", "{order}"));
}
