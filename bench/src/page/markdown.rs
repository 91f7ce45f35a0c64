//! The text of a page of results.

use std::fmt::Write as _;

use gradlane_core::config::units::print_bytes;
use serde_json::Value;

use super::{Content, Source};

/// The page; `pictures` are pairs of a source's name and a file.
pub(super) fn page(sources: &[Source], pictures: &[(String, String)]) -> String {
    let mut text = String::from("# Results of gradlane-bench\n\n");
    text.push_str("Written by `gradlane-bench page`. Medians of the repetitions, ± half the distance of the extremes; `gradlane-bench ");
    text.push_str("SUBCOMMAND --help` defines the columns. Ratios are ours ÷ the peer's, repetition by repetition.\n");
    for Source { name, content } in sources {
        writeln!(text, "\n## {name}\n").expect(STRING);
        match content {
            Content::Text(words) => writeln!(text, "```\n{}\n```", words.trim_end()).expect(STRING),
            Content::Results(results) => {
                head(&mut text, results);
                for (_, picture) in pictures.iter().filter(|(of, _)| of == name) {
                    writeln!(text, "\n![{name}]({picture})").expect(STRING);
                }
                table(&mut text, results);
            }
        }
    }
    text
}

fn head(text: &mut String, results: &Value) {
    if let Some(command) = results["command"].as_str() {
        writeln!(text, "`{command}`\n").expect(STRING);
    }
    for line in results["setting"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(text, "- {line}").expect(STRING);
    }
    let machine = &results["machine"];
    let word = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    let cores = machine["cores"].as_u64().unwrap_or(0);
    writeln!(text, "- {}, {cores} cores, Linux {}, load {}", word("cpu"), word("kernel"), word("load")).expect(STRING);
    writeln!(text, "- wrong elements: {}", results["wrong"].as_u64().unwrap_or(0)).expect(STRING);
}

fn table(text: &mut String, results: &Value) {
    let peers = peers(results);
    write!(
        text,
        "\n| size | type | op | contender | place | time µs | p50 µs | p99 µs | algbw | busbw | wirebw | cpu s/GB |"
    )
    .expect(STRING);
    peers.iter().for_each(|peer| write!(text, " ÷ {peer} |").expect(STRING));
    writeln!(text, "\n|{}", "--:|".repeat(12 + peers.len())).expect(STRING);
    for row in results["rows"].as_array().into_iter().flatten() {
        for place in ["out_of_place", "in_place"] {
            let figures = &row[place];
            if figures.is_null() {
                continue;
            }
            let word = |name: &str| row[name].as_str().unwrap_or("").to_owned();
            let size = print_bytes(row["size"].as_u64().unwrap_or(0));
            let contender = format!("{} {}", word("contender"), word("variant"));
            write!(
                text,
                "| {size} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                word("type"),
                word("redop"),
                contender.trim(),
                if place == "in_place" { "in" } else { "out" },
                median(&figures["time_us"]),
                number(&figures["exchange_us"]["p50"]),
                number(&figures["exchange_us"]["p99"]),
                median(&figures["algbw"]),
                number(&figures["busbw"]["median"]),
                number(&figures["wirebw"]["median"]),
                number(&figures["cpu_seconds_per_gb"]["median"]),
            )
            .expect(STRING);
            for peer in &peers {
                write!(text, " {} |", median(&ratio(results, row, peer, place)["algbw"])).expect(STRING);
            }
            text.push('\n');
        }
    }
}

/// The contenders that are not ours.
fn peers(results: &Value) -> Vec<String> {
    let mut peers: Vec<String> = Vec::new();
    for ratio in results["ratios"].as_array().into_iter().flatten() {
        let peer = ratio["peer"].as_str().unwrap_or("?").to_owned();
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    peers
}

fn ratio<'a>(results: &'a Value, row: &Value, peer: &str, place: &str) -> &'a Value {
    let same = ["contender", "size", "type", "redop", "variant"];
    let found = results["ratios"].as_array().into_iter().flatten().find(|ratio| {
        ratio["peer"] == peer && ratio["place"] == place && same.iter().all(|name| ratio[*name] == row[*name])
    });
    found.unwrap_or(&Value::Null)
}

/// `median ±spread`.
fn median(samples: &Value) -> String {
    match (samples["median"].as_f64(), samples["spread"].as_f64()) {
        (Some(median), Some(spread)) => format!("{} ±{:.0}%", digits(median), spread * 100.0),
        (Some(median), None) => digits(median),
        (None, _) => String::new(),
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, digits)
}

fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

const STRING: &str = "writing to a string does not fail";
