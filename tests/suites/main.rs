//! The long suites, which print tables: `make test-net`, `make test-hostile`. `cargo test` runs short forms of them.
//!
//! `hostile` attacks a job that trains, and tells how fast it was before, during and after each attack ([`siege::ATTACKS`]). `net` runs every case of [`network::CASES`] at both moments. `SEEDS=n` sets how often (3), `ONLY=a,b` picks the rows whose name has one
//! of these texts. The exit code is 1 if a row failed.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use gradlane_tests::network::{self, CASES, Case, Due, Moment, Outcome};
use gradlane_tests::siege::{self, ATTACKS, Times};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let failed = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["net"] => net(),
        ["hostile"] => hostile(),
        _ => panic!("{words:?}: say `net` or `hostile`"),
    };
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// Returns how many runs failed.
fn net() -> usize {
    println!(
        "case                  moment        seed   steps  wrong  hangs  errors  recovery   longest error  datagrams harmed"
    );
    let mut failed = 0;
    let seeds = environment("SEEDS").map_or(3, |seeds| seeds.parse().expect("a number"));
    for case in CASES.iter().filter(|case| is_chosen(case.name)) {
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

/// Returns how many attacks did harm. How fast the job was is a figure: it depends on what else the machine does.
fn hostile() -> usize {
    println!(
        "attack                               on           steps/s  during       after        memory    attempts  admitted   streams"
    );
    let times = Times { each: Duration::from_secs(4), pause: Duration::from_secs(5) };
    let mut failed = 0;
    for attack in ATTACKS.iter().filter(|attack| is_chosen(attack.name)) {
        let cost = siege::endure(attack, times, Path::new(env!("CARGO_BIN_EXE_gradlane-actor")));
        let [before, during, after] = cost.steps;
        let [during, after] = [during, after].map(|steps| steps / before);
        println!(
            "{:<36} {:<12} {before:>7.0}  {:<12} {:<12} {:>+4} MiB {:>11} {:>9} {:>9}",
            attack.name,
            format!("{:?}", attack.on),
            share(during, 0.3),
            share(after, 0.95),
            cost.grown_bytes >> 20,
            cost.attempts,
            cost.admitted,
            cost.streams,
        );
        let faults = cost.faults(attack);
        faults.iter().for_each(|fault| println!("  FAILED: {fault}"));
        failed += usize::from(!faults.is_empty());
    }
    failed
}

/// A share of the speed without an attack, beside the one that is aimed at if it is less.
fn share(of: f64, aim: f64) -> String {
    let percent = format!("{:.0} %", of * 100.0);
    if of < aim { format!("{percent} < {:.0} %", aim * 100.0) } else { percent }
}

/// Whether the caller wants this row.
fn is_chosen(name: &str) -> bool {
    environment("ONLY").unwrap_or_default().split(',').any(|text| name.contains(text))
}

#[expect(clippy::disallowed_methods, reason = "a suite is told by its caller what to run")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
