//! The report as JSON: every repetition, so that whoever reads it can compute what the table does not show.

use gradlane_core::types::Op;
use serde_json::{Value, json};

use super::{Figures, Place, Report, Row, Verdict};
use crate::measure::Samples;

/// The whole report.
pub(super) fn of(report: &Report, verdicts: &[Verdict]) -> Value {
    let (wrong, wrong_at) = report.wrong();
    let mut all = json!({
        "question": report.question,
        "version": env!("CARGO_PKG_VERSION"),
        "command": command(),
        "setting": report.setting,
        "machine": machine(),
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "ratios": ratios(report),
        "expectations": verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "wrong": wrong,
        "wrong_at": wrong_at,
    });
    let members = all.as_object_mut().expect("it was written as an object");
    members.extend(report.extra.clone());
    all
}

fn row(row: &Row) -> Value {
    json!({
        "contender": row.contender,
        "ours": row.ours,
        "size": row.bytes,
        "count": row.count,
        "type": row.dtype.name(),
        "redop": redop(row.op),
        "root": -1,
        "variant": row.variant,
        "out_of_place": row.out_of_place.as_ref().map(figures),
        "in_place": row.in_place.as_ref().map(figures),
    })
}

fn redop(op: Option<Op>) -> String {
    op.map_or_else(|| "none".to_owned(), |op| op.to_string())
}

fn figures(figures: &Figures) -> Value {
    let at = |percent| figures.exchanges.percentile(percent);
    json!({
        "time_us": samples(&figures.time_us),
        "algbw": samples(&figures.algbw),
        "busbw": samples(&figures.busbw),
        "wirebw": figures.wirebw.as_ref().map(samples),
        "cpu_seconds_per_gb": samples(&figures.cpu_per_gb),
        "over_optimum": figures.over_optimum.as_ref().map(samples),
        "exchange_us": {
            "count": figures.exchanges.len(), "min": at(0.0), "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "max": at(100.0),
        },
        "late": figures.late,
        "wrong": figures.wrong,
        "wrong_at": figures.wrong_at,
    })
}

/// Median, half the distance of the extremes in parts of it, and all of them.
fn samples(samples: &Samples) -> Value {
    json!({ "median": samples.median(), "spread": samples.spread(), "samples": samples.values() })
}

fn ratios(report: &Report) -> Vec<Value> {
    let mut found = Vec::new();
    for row in report.rows.iter().filter(|row| row.ours) {
        for peer in report.peers() {
            for (place, word) in [(Place::Out, "out_of_place"), (Place::In, "in_place")] {
                if let Some(ratio) = report.ratio(row, &peer, place) {
                    found.push(json!({
                        "contender": row.contender, "peer": peer, "size": row.bytes, "type": row.dtype.name(),
                        "redop": redop(row.op), "variant": row.variant, "place": word, "algbw": samples(&ratio),
                    }));
                }
            }
        }
    }
    found
}

fn verdict(verdict: &Verdict) -> Value {
    let found: Vec<Value> =
        verdict.found.iter().map(|(at, figure, holds)| json!({ "at": at, "figure": figure, "holds": holds })).collect();
    json!({ "text": verdict.text, "holds": verdict.holds(), "found": found })
}

/// The command line, without the folder of the program.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("gradlane-bench {}", words.join(" ")).trim_end().to_owned()
}

/// What the figures depend on besides the program.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.to_owned()));
    json!({
        "cpu": model,
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{report, row as a_row};

    #[test]
    fn every_repetition_is_in_the_file() {
        let report = report(vec![a_row("quic", true, 4096, 1.0), a_row("gloo", false, 4096, 0.5)]);
        let json = of(&report, &[]);
        assert_eq!(json["rows"][0]["in_place"]["algbw"]["samples"], json!([1.0, 1.0]));
        assert_eq!(json["ratios"][0]["algbw"]["median"], 2.0);
        assert_eq!((&json["rows"][0]["out_of_place"], &json["wrong"]), (&Value::Null, &json!(0)));
    }
}
