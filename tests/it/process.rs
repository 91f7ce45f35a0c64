//! Whole jobs of processes under the launcher: exit codes, signals, and that nothing is left over.

use std::path::Path;
use std::time::Duration;

use gradlane_core::runtime::{Clock, process};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::{elapsed, eventually};
use gradlane_tests::processes::{Process, environment, lives, signal};

use crate::actors::{ACTOR, Job};

matrix! {
    [locally, over_shm, over_quic]:
        a_job_in_which_all_is_well_ends_with_zero;
    [over_shm, over_quic]:
        a_worker_that_is_killed_ends_the_job_for_all_with_its_name;
}

fn a_job_in_which_all_is_well_ends_with_zero(over: Over) {
    for servers in ["0", "2"] {
        let mut launcher = launch(over, &["-n", "3", "-s", servers], &["train", "5"]);
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.output.len(), 3, "{ended:?}");
        assert_eq!(ended.complaints, "");
    }
}

#[test]
fn the_launcher_ends_with_the_code_of_the_first_failure_and_tells_the_others_of_it() {
    let mut launcher = launch(Over::Quic, &["-n", "3", "-s", "1"], &["train", "0", "1", "42"]);
    let workers = joined(&mut launcher, 3);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(42), "{ended:?}");
    assert!(ended.complaints.contains("gradlane: worker 1 exited with code 42"), "{ended:?}");
    let heard = ended.complaints.lines().filter(|line| line.starts_with("lost worker 1 on ")).count();
    assert_eq!(heard, 2, "the other two were told: {ended:?}");
    assert_gone(&workers);
}

fn a_worker_that_is_killed_ends_the_job_for_all_with_its_name(over: Over) {
    let mut launcher = launch(over, &["-n", "3", "-s", "1"], &["train", "0"]);
    let workers = joined(&mut launcher, 3);
    let clock = Clock::start();
    signal(workers[2], "KILL");
    let ended = launcher.end();
    println!("a killed worker ended its job after {:.2} s", elapsed(clock).as_secs_f64());
    assert_eq!(ended.code, Some(128 + 9), "{ended:?}");
    // From its neighbours or from the launcher, whoever noticed first.
    let place = format!("(pid {}): ", workers[2]);
    let heard = ended.complaints.lines().filter(|line| line.starts_with("lost worker 2 on ") && line.contains(&place));
    assert_eq!(heard.count(), 2, "{ended:?}");
    assert_gone(&workers);
}

#[test]
fn a_signal_to_the_launcher_ends_everything_in_the_middle_of_the_work() {
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let mut launcher = launch(Over::Quic, &["-n", "4", "-s", "2"], &["train", "0"]);
        let workers = joined(&mut launcher, 4);
        let clock = Clock::start();
        launcher.signal(name);
        let ended = launcher.end();
        let took = elapsed(clock);
        println!("SIG{name} ended a job of 4 workers and 2 servers after {:.2} s", took.as_secs_f64());
        assert_eq!(ended.code, Some(128 + number), "{ended:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_gone(&workers);
    }
}

#[test]
fn a_launcher_that_is_killed_takes_its_job_along() {
    let mut launcher = launch(Over::Quic, &["-n", "2", "-s", "1"], &["train", "0"]);
    let workers = joined(&mut launcher, 2);
    launcher.signal("KILL");
    launcher.end();
    eventually("the workers are gone", || workers.iter().all(|worker| !lives(*worker)).then_some(()));
}

#[test]
fn a_worker_that_does_not_leave_is_named_in_the_others_end() {
    let mut job = Job::start(Over::Quic, 3, 1, &[]);
    for rank in [0, 1] {
        job.puppets[rank].order("shutdown 1000");
    }
    let stuck = job.puppets[2].pid();
    for rank in [0, 1] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed DeadlineExceeded waiting for worker 2 on "), "{answer}");
        assert!(answer.contains(&format!("(pid {stuck})")), "{answer}");
        assert_eq!(job.puppets[rank].end().code, Some(0), "and they are out all the same");
    }
    job.puppets[2].order("shutdown 60000");
    assert_eq!(job.puppets[2].line(), "ok");
}

#[test]
fn a_worker_that_hangs_at_the_end_does_not_outlive_the_others() {
    let mut launcher = launch(Over::Quic, &["-n", "3", "-s", "1", "--grace", "0"], &["train", "1", "2", "stuck"]);
    let workers = joined(&mut launcher, 3);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1), "the code of those who gave up waiting: {ended:?}");
    let named = format!("waiting for worker 2 on {} (pid {}) to leave", process::host(), workers[2]);
    assert!(ended.complaints.contains(&named), "{ended:?}");
    assert_gone(&workers);
}

fn launch(over: Over, arguments: &[&str], worker: &[&str]) -> Process {
    let line = [&["run"], arguments, &["--", ACTOR], worker].concat();
    Process::start(Path::new(ACTOR), &line, Path::new("/tmp"), &environment(&over.settings()))
}

/// The process ids of the workers by rank, once all have joined.
fn joined(launcher: &mut Process, workers: usize) -> Vec<u32> {
    let mut pids = vec![0; workers];
    for _ in 0..workers {
        let line = launcher.line();
        let words: Vec<&str> = line.split(' ').collect();
        let ["joined", rank, pid] = words[..] else { panic!("{line}") };
        pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
    }
    pids
}

fn assert_gone(workers: &[u32]) {
    for worker in workers {
        assert!(!lives(*worker), "worker {worker} is left over");
    }
}
