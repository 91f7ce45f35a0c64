//! The simulation: thousands of whole clusters, each from a seed.
//!
//! `SEED=n` replays one seed with its whole history; `SEEDS=n` sets how many are tried.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gradlane_core::types::Defect;
use gradlane_tests::sim::{self, Checker, Failure};

#[test]
fn a_cluster_keeps_its_promises_whatever_goes_wrong() {
    let seeds = environment("SEEDS").unwrap_or(4000);
    if let Some(failure) = first_failure(seeds, None) {
        panic!("{failure}");
    }
}

/// A simulation that finds nothing proves nothing, unless it finds what is there.
#[test]
fn every_planted_defect_is_caught() {
    const SEEDS: u64 = 500;
    let caught = |defect: &Defect| match first_failure(SEEDS, Some(*defect)) {
        Some(Failure { seed, violation }) => {
            println!("{:<24} {:<13} after {} seeds", format!("{defect:?}"), violation.checker, seed + 1);
            true
        }
        None => {
            println!("{:<24} missed in {SEEDS} seeds", format!("{defect:?}"));
            false
        }
    };
    let missed: Vec<&Defect> = Defect::ALL.iter().filter(|defect| !caught(defect)).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}

#[test]
fn a_seed_has_one_history() {
    for seed in 0..100 {
        let history = |_| sim::run(seed, None, false).map_err(|failure| failure.to_string());
        let [first, second] = [0, 1].map(history);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn a_wrong_sum_tells_who_was_counted_how_often() {
    let counted_twice = first_failure(500, Some(Defect::PrefixIgnored)).expect("caught above");
    assert_eq!(counted_twice.violation.checker, Checker::Sum);
    let text = counted_twice.to_string();
    assert!(text.contains("counted per rank: ") && text.contains("SEED="), "{text}");
}

#[test]
fn replay() {
    if let Some(seed) = environment("SEED")
        && let Err(failure) = sim::run(seed, None, true)
    {
        panic!("{failure}");
    }
}

/// The lowest of `seeds` seeds that breaks a rule, found on all cores.
fn first_failure(seeds: u64, defect: Option<Defect>) -> Option<Failure> {
    let (next, worst) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let search = || {
        let mut found: Option<Failure> = None;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.min(worst.load(Ordering::Relaxed)) {
                return found;
            }
            if let Err(failure) = sim::run(seed, defect, false) {
                worst.fetch_min(seed, Ordering::Relaxed);
                found.get_or_insert(failure);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let found = thread::scope(|scope| {
        let searches: Vec<_> = (0..cores).map(|_| scope.spawn(search)).collect();
        searches.into_iter().filter_map(|search| search.join().expect("a world's panic is caught")).collect::<Vec<_>>()
    });
    found.into_iter().min_by_key(|failure| failure.seed)
}

#[expect(clippy::disallowed_methods, reason = "a test is told by its caller which seeds to try")]
fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
