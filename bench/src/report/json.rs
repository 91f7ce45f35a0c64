//! The report as JSON. It holds every repetition, so that a reader can compute figures that the table lacks.

use gradlane_core::types::{DType, Op};
use serde_json::{Value, json};

use super::expect::Verdict;
use super::figures::{Figures, Place, Report, Row};
use crate::measure::Samples;

/// The whole report.
pub(super) fn of(report: &Report, verdicts: &[Verdict]) -> Value {
    let (wrong, wrong_at) = report.wrong();
    json!({
        "question": report.question,
        "version": env!("CARGO_PKG_VERSION"),
        "command": command(),
        "setting": report.setting,
        "machine": report.machine.describe(),
        "complete": report.complete,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "ratios": ratios(report),
        "expectations": verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "wrong": wrong,
        "wrong_at": wrong_at,
    })
}

fn row(row: &Row) -> Value {
    json!({
        "contender": row.contender,
        "ours": row.ours,
        "size": row.bytes,
        "count": row.count,
        "type": dtype(row.dtype),
        "redop": redop(row.op),
        "collective": row.collective,
        "root": -1,
        "variant": row.variant,
        "out_of_place": row.out_of_place.as_ref().map(figures),
        "in_place": row.in_place.as_ref().map(figures),
    })
}

fn dtype(dtype: Option<DType>) -> &'static str {
    dtype.map_or("none", DType::name)
}

fn redop(op: Option<Op>) -> String {
    op.map_or_else(|| "none".to_owned(), |op| op.to_string())
}

fn figures(figures: &Figures) -> Value {
    let at = |percent| figures.exchanges.percentile(percent);
    json!({
        "time_us": samples(&figures.time_us),
        "algbw": figures.algbw.as_ref().map(samples),
        "busbw": figures.busbw.as_ref().map(samples),
        "wirebw": figures.wirebw.as_ref().map(samples),
        "body_bytes": figures.body_bytes.as_ref().map(samples),
        "cpu_seconds_per_gb": figures.cpu_per_gb.as_ref().map(samples),
        "bound": figures.bound.as_ref().map(|bound| json!({
            "touched": bound.touched, "copy": samples(&bound.copy), "reached": samples(&bound.reached),
        })),
        "optimum": figures.optimum.as_ref().map(|optimum| json!({ "time_us": optimum.time_us, "over": samples(&optimum.over) })),
        "cost": figures.cost.as_ref().map(samples),
        "exchange_us": {
            "count": figures.exchanges.len(), "min": at(0.0), "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "max": at(100.0),
        },
        "late": figures.late,
        "wrong": figures.wrong,
        "wrong_at": figures.wrong_at,
    })
}

/// Median, extremes, half their distance divided by the median, and all samples.
fn samples(samples: &Samples) -> Value {
    json!({
        "median": samples.median(), "min": samples.min(), "max": samples.max(), "spread": samples.spread(),
        "samples": samples.values(),
    })
}

fn ratios(report: &Report) -> Vec<Value> {
    let mut found = Vec::new();
    for row in report.rows.iter().filter(|row| row.ours) {
        for peer in report.peers() {
            for (place, word) in [(Place::Out, "out_of_place"), (Place::In, "in_place")] {
                if let Some(ratio) = report.ratio(row, &peer, place) {
                    found.push(json!({
                        "contender": row.contender, "peer": peer, "size": row.bytes, "type": dtype(row.dtype),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::{report, row as a_row};

    #[test]
    fn every_repetition_is_in_the_file() {
        let report = report(vec![a_row("quic", true, 4096, 1.0), a_row("gloo", false, 4096, 0.5)]);
        let json = of(&report, &[]);
        assert_eq!(json["rows"][0]["in_place"]["algbw"]["samples"], json!([1.0, 1.0]));
        assert_eq!(json["ratios"][0]["algbw"]["median"], 2.0);
        assert_eq!((&json["rows"][0]["out_of_place"], &json["wrong"]), (&Value::Null, &json!(0)));
    }
}
