//! The long suites, which print tables: `make test-net`. `cargo test` runs short forms of them.
//!
//! `net` runs every case of [`network::CASES`] at both moments. `SEEDS=n` sets how often (3), `ONLY=a,b` picks the cases whose name has
//! one of these texts. The exit code is 1 if a row failed.

use std::process::ExitCode;
use std::time::Duration;

use gradlane_tests::network::{self, CASES, Case, Due, Moment, Outcome};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let failed = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["net"] => net(),
        _ => panic!("{words:?}: say `net`"),
    };
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// Returns how many runs failed.
fn net() -> usize {
    println!("case                  moment        seed   steps  wrong  hangs  errors  recovery   longest error  datagrams harmed");
    let mut failed = 0;
    let seeds = environment("SEEDS").map_or(3, |seeds| seeds.parse().expect("a number"));
    let only = environment("ONLY").unwrap_or_default();
    for case in CASES.iter().filter(|case| only.split(',').any(|text| case.name.contains(text))) {
        for moment in [Moment::Steady, Moment::EpochChange] {
            // A job that loses a member before it has formed is the subject of other tests.
            if moment == Moment::EpochChange && case.due != Due::Sums {
                continue;
            }
            for seed in 0..seeds {
                let outcome = network::run(case, moment, seed);
                print(case, moment, seed, &outcome);
                if let Some(fault) = outcome.fault(case) {
                    println!("  FAILED: {fault}");
                    failed += 1;
                }
            }
        }
    }
    failed
}

fn print(case: &Case, moment: Moment, seed: u64, outcome: &Outcome) {
    let Outcome { steps, wrong, hangs, errors, recovery, harmed } = outcome;
    let seconds = |time: Option<Duration>| time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
    let longest = seconds(errors.iter().map(|(_, after)| *after).max());
    println!(
        "{:<21} {:<12} {seed:>5} {steps:>7} {:>6} {hangs:>6} {:>7} {:>9} {longest:>15} {harmed:>17}",
        case.name,
        format!("{moment:?}"),
        wrong.len(),
        errors.len(),
        seconds(*recovery),
    );
}

#[expect(clippy::disallowed_methods, reason = "a suite is told by its caller what to run")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
