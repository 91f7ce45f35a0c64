//! The kill matrix: jobs of three workers, some servers and a coordinator, each a process, of which one ends or stops at a chosen place
//! ([`Failpoint`]). The others go on, no step is lost, and every sum is exact.
//!
//! Here each place is tried once, with SIGKILL. `make test-kills SEEDS=5` tries all of them over both transports with every [`Action`], at
//! moments that the seed chooses.
//!
//! [`Failpoint`]: gradlane_core::local::failpoint::Failpoint

mod cases;
mod job;
mod trial;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradlane_core::local::failpoint::Failpoint;

use cases::{CASES, Case};
use trial::{Action, Trial};

/// The tests that end a process of a job with parameters at each place of a checkpoint, and load what is left. Their lists name the places.
const CHECKPOINTS: &str = include_str!("../python/test_checkpoint_jobs.py");

#[test]
fn the_others_go_on_and_lose_no_step_wherever_a_process_ends() {
    let seeds = told("KILL_SEEDS").map(|seeds| seeds.parse().expect("a number of seeds"));
    run(&trials(seeds));
}

#[test]
fn every_place_is_in_the_matrix() {
    let tried: BTreeSet<&str> = CASES.iter().flat_map(|case| case.victims).map(|victim| victim.point.name()).collect();
    let (of_checkpoints, others): (BTreeSet<&str>, BTreeSet<&str>) =
        Failpoint::ALL.iter().map(|point| point.name()).partition(|name| CHECKPOINTS.contains(&format!("\"{name}\"")));
    assert_eq!(tried, others);
    assert!(tried.is_disjoint(&of_checkpoints));
}

/// All cases over all transports, with all actions and so many seeds. Without seeds, each case once: with SIGKILL, over the transport whose
/// turn it is.
fn trials(seeds: Option<u64>) -> Vec<Trial> {
    let is_chosen =
        |case: &&Case| told("ONLY").is_none_or(|only| only.split(',').any(|part| case.name().contains(part)));
    let mut trials = Vec::new();
    for (turn, case) in CASES.iter().filter(is_chosen).enumerate() {
        let Some(seeds) = seeds else {
            trials.push(Trial { case, over: case.over[turn % case.over.len()], action: Action::Kill, seed: 0 });
            continue;
        };
        for over in case.over {
            for action in Action::ALL {
                trials.extend((0..seeds).map(|seed| Trial { case, over: *over, action, seed }));
            }
        }
    }
    trials
}

/// Makes the trials. Says how each one ended, and which were too late or too early for a place that a job may miss.
fn run(trials: &[Trial]) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS_AT_ONCE {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match trial.run() {
                        Ok(true) => println!("ok      {trial}"),
                        Ok(false) => println!("missed  {trial}"),
                        Err(wrong) => {
                            println!("FAILED  {wrong}");
                            failed.lock().expect("no panic").push(wrong);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    println!("{} trials, {} failed", trials.len(), failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Two cores have no more to do, and nobody falls silent because others work.
const JOBS_AT_ONCE: usize = 3;

impl Case {
    /// Its victims and their places.
    fn name(&self) -> String {
        self.victims
            .iter()
            .map(|victim| format!("{:?} at {}", victim.who, victim.point.name()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// What make tells the tests about the run.
#[expect(clippy::disallowed_methods, reason = "it is the test that is told, not Gradlane")]
fn told(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}
