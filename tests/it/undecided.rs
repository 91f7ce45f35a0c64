//! Workers are missing, and the coordinator has not said whether they are lost.

use std::path::Path;

use gradlane_core::types::JoinString;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::processes::Process;

use crate::actors::{Job, coordinator_at, server, worker};

matrix! {
    [over_shm, over_quic]:
        a_step_waits_longer_than_the_step_timeout_while_nobody_can_say_who_is_lost;
    [over_quic]:
        a_step_waits_longer_than_the_step_timeout_while_the_coordinator_decides,
        calls_wait_longer_than_the_step_timeout_for_a_coordinator_that_is_started_again;
}

fn a_step_waits_longer_than_the_step_timeout_while_nobody_can_say_who_is_lost(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let settings = &[
        ("on_worker_loss", "continue"),
        ("step_timeout", "3s"),
        ("suspect_timeout", "500ms"),
        ("dead_timeout", "1s"),
        ("control_lost_timeout", "1h"),
    ];
    let start = |bind: &str| resumable(home.path(), bind, settings);
    let (mut coordinator, join) = start("127.0.0.1:0");
    let mut server = server(over, &join, 0, settings);
    let mut workers = four_workers(over, &join, settings);
    let sum = |workers: &mut [Process], ranks: &[usize], round: u32| {
        ranks.iter().for_each(|rank| workers[*rank].order(&format!("beside weight {round}")));
    };
    let check = |workers: &mut [Process], ranks: &[usize]| {
        for rank in ranks {
            assert_eq!(workers[*rank].line(), format!("sum of {ranks:?}"));
            assert_eq!(workers[*rank].line(), "ok");
        }
    };
    sum(&mut workers, &[0, 1, 2, 3], 0);
    check(&mut workers, &[0, 1, 2, 3]);
    // Nobody leads the job when worker 2 dies in the middle of a step.
    coordinator.signal("KILL");
    coordinator.end();
    sum(&mut workers, &[0, 1], 1);
    workers[2].signal("KILL");
    workers[2].end();
    // So much later two contributions have waited for longer than the step timeout, and twice `dead_timeout`.
    workers[3].order("barrier epoch 8000");
    let late = workers[3].line();
    assert!(late.starts_with("failed DeadlineExceeded "), "{late}");
    sum(&mut workers, &[3], 1);
    let (mut coordinator, _) = start(&join.address);
    check(&mut workers, &[0, 1, 3]);
    sum(&mut workers, &[0, 1, 3], 2);
    check(&mut workers, &[0, 1, 3]);
    for worker in [0, 1, 3] {
        workers[worker].order("shutdown 10000");
    }
    for worker in [0, 1, 3] {
        assert_eq!(workers[worker].line(), "ok");
    }
    assert_eq!((server.end().code, coordinator.end().code), (Some(0), Some(0)));
}

fn a_step_waits_longer_than_the_step_timeout_while_the_coordinator_decides(over: Over) {
    let settings = [
        ("on_worker_loss", "continue"),
        ("stall_warn", "200ms"),
        ("step_timeout", "500ms"),
        ("suspect_timeout", "1s"),
        ("dead_timeout", "2s"),
    ];
    let mut job = Job::start(over, 3, 1, &settings);
    (0..3).for_each(|rank| job.puppets[rank].order("beside weight 0"));
    (0..3).for_each(|rank| assert_eq!(job.puppets[rank].line(), "sum of [0, 1, 2]"));
    (0..3).for_each(|rank| assert_eq!(job.puppets[rank].line(), "ok"));
    [0, 1].into_iter().for_each(|rank: usize| job.puppets[rank].order("beside weight 1"));
    // Nobody sees its end, so only its silence shows it.
    job.puppets[2].signal("KILL");
    [0, 1].into_iter().for_each(|rank: usize| assert_eq!(job.puppets[rank].line(), "sum of [0, 1]"));
}

fn calls_wait_longer_than_the_step_timeout_for_a_coordinator_that_is_started_again(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let settings = &[
        ("on_worker_loss", "continue"),
        ("stall_warn", "200ms"),
        ("step_timeout", "500ms"),
        ("suspect_timeout", "200ms"),
        ("dead_timeout", "400ms"),
        ("control_lost_timeout", "1h"),
    ];
    let start = |bind: &str| resumable(home.path(), bind, settings);
    let (mut coordinator, join) = start("127.0.0.1:0");
    let mut server = server(over, &join, 0, settings);
    let mut workers = four_workers(over, &join, settings);
    workers.iter_mut().for_each(|worker| worker.order("sum weight 0"));
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok"));
    coordinator.signal("KILL");
    coordinator.end();
    workers[0].order("barrier epoch");
    workers[1].order("add number");
    workers[2].order("undeclare weight");
    // The bounds of all of them, with which the engine's own threads would be called stuck, are over by then.
    workers[3].order("barrier alone 16000");
    let late = workers[3].line();
    assert!(late.starts_with("failed DeadlineExceeded "), "a time that was named passes: {late}");
    let (mut coordinator, _) = start(&join.address);
    [1, 2, 3].into_iter().for_each(|rank: usize| workers[rank].order("barrier epoch"));
    let added = workers[1].line();
    assert_eq!(added, "Number(1)");
    for rank in [1, 2, 0, 1, 2, 3] {
        assert_eq!(workers[rank].line(), "ok", "worker {rank}");
    }
    workers.iter_mut().for_each(|worker| worker.order("shutdown 10000"));
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok"));
    assert_eq!((server.end().code, coordinator.end().code), (Some(0), Some(0)));
}

/// A coordinator of four workers and a server that goes on with the job in this folder, or begins it.
fn resumable(home: &Path, bind: &str, settings: &[(&str, &str)]) -> (Process, JoinString) {
    coordinator_at(home, bind, 4, 1, &[settings, &[("resume", "true")]].concat())
}

/// Its workers, once the job has formed.
fn four_workers(over: Over, join: &JoinString, settings: &[(&str, &str)]) -> [Process; 4] {
    let mut workers = [0, 1, 2, 3].map(|rank| worker(over, &["puppet"], join, Some(rank), 4, settings));
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.line(), format!("joined {rank}"));
    }
    workers
}
