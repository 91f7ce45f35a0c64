//! The simulation: thousands of whole clusters, each from a seed.
//!
//! `SEED=n` replays one seed with its whole history; `SEEDS=n` sets how many are tried, and `FROM=n` the first of them.
//! `DEFECT=name` plants this defect alone.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gradlane_core::types::Defect;
use gradlane_tests::sim::{self, Checker, Failure};

#[test]
fn a_cluster_keeps_its_promises_whatever_goes_wrong() {
    let (from, seeds) = (environment("FROM").unwrap_or(0), environment("SEEDS").unwrap_or(2000));
    if let Some(failure) = lowest(from..from + seeds, |seed| sim::run(seed, None, false)) {
        panic!("{failure}");
    }
}

/// A simulation that finds nothing proves nothing, unless it finds what is there.
#[test]
fn every_planted_defect_is_caught() {
    const SEEDS: u64 = 500;
    let caught = |defect: &Defect| match lowest(0..SEEDS, |seed| sim::run(seed, Some(*defect), false)) {
        Some(Failure { seed, violation }) => {
            println!("{:<24} {:<13} after {} seeds", format!("{defect:?}"), violation.checker, seed + 1);
            true
        }
        None => {
            println!("{:<24} missed in {SEEDS} seeds", format!("{defect:?}"));
            false
        }
    };
    let only = told("DEFECT");
    let is_chosen = |defect: &&Defect| only.as_ref().is_none_or(|only| format!("{defect:?}") == *only);
    let chosen: Vec<&Defect> = Defect::ALL.iter().filter(is_chosen).collect();
    assert!(!chosen.is_empty(), "there is no defect {only:?}");
    let missed: Vec<&Defect> = chosen.into_iter().filter(|defect| !caught(defect)).collect();
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
    // A wrong minimum or maximum does not show who was counted; which reduction fails first is chance.
    let failures = (0..500).filter_map(|seed| sim::run(seed, Some(Defect::PrefixIgnored), false).err());
    let texts = failures.filter(|failure| failure.violation.checker == Checker::Sum).map(|failure| failure.to_string());
    let tells = |text: &String| text.contains("counted per rank: ") && text.contains("SEED=");
    assert!(
        texts.take(50).any(|text| tells(&text)),
        "of the first 50 wrong sums, some were of numbers that can be told apart"
    );
}

#[test]
fn replay() {
    if let Some(seed) = environment("SEED")
        && let Err(failure) = sim::run(seed, None, true)
    {
        panic!("{failure}");
    }
}

/// The lowest of these seeds that fails, found on all cores.
fn lowest(seeds: Range<u64>, run: impl Fn(u64) -> Result<u64, Failure> + Sync) -> Option<Failure> {
    let (next, worst) = (AtomicU64::new(seeds.start), AtomicU64::new(seeds.end));
    let search = || {
        let mut found: Option<Failure> = None;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= worst.load(Ordering::Relaxed) {
                return found;
            }
            if let Err(failure) = run(seed) {
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

fn environment(name: &str) -> Option<u64> {
    told(name)?.parse().ok()
}

#[expect(clippy::disallowed_methods, reason = "a test is told by its caller what to try")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
