//! The text of a page of results.

use std::fmt::Write as _;

use gradlane_core::config::units::print_bytes;
use serde_json::Value;

use super::source::{Content, Source};

/// The page; `pictures` are pairs of a source's name and a file, `notes` go above all tables.
pub(super) fn page(sources: &[Source], pictures: &[(String, String)], notes: &[String]) -> String {
    let mut text = String::from("# Results of gradlane-bench\n\n");
    text.push_str("Written by `gradlane-bench page`. Medians of the repetitions, in parentheses the smallest and the largest; \
                   `gradlane-bench SUBCOMMAND --help` defines the columns. Bandwidths are in GB/s (10^9 bytes). Ratios are our algbw ÷ the \
                   peer's, repetition by repetition.\n");
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        // Messages of other programs may have several lines.
        writeln!(text, "- {}", note.lines().collect::<Vec<_>>().join(" ")).expect(STRING);
    }
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
    let number = |name: &str| machine[name].as_f64().unwrap_or(0.0);
    writeln!(
        text,
        "- {}, {} cores, {} GiB, Linux {}; load {} at the beginning, {} at the end",
        word("cpu"),
        number("cores"),
        number("memory_gib"),
        word("kernel"),
        word("load_at_begin"),
        word("load_at_end")
    )
    .expect(STRING);
    if results["complete"] == Value::Bool(false) {
        text.push_str("- **not complete**: the run ended before everything was measured\n");
    }
    writeln!(text, "- wrong elements: {}", results["wrong"].as_u64().unwrap_or(0)).expect(STRING);
    for expectation in results["expectations"].as_array().into_iter().flatten() {
        let holds = if expectation["holds"] == Value::Bool(true) { "met" } else { "MISSED" };
        writeln!(text, "- expectation `{}`: {holds}", expectation["text"].as_str().unwrap_or("?")).expect(STRING);
    }
}

/// A column: its heading, and a function that makes its cell from the row, the name of the place and the figures there.
type Column<'a> = (String, Box<dyn Fn(&Value, &str, &Value) -> String + 'a>);

/// The columns of these results. A column without a value in any row is left out.
fn columns(results: &Value) -> Vec<Column<'_>> {
    let word = |name: &'static str| move |row: &Value, _: &str, _: &Value| row[name].as_str().unwrap_or("").to_owned();
    let samples = |path: &'static str| {
        move |_: &Value, _: &str, figures: &Value| median(figures.pointer(path).unwrap_or(&Value::Null))
    };
    let plain = |path: &'static str| {
        move |_: &Value, _: &str, figures: &Value| number(figures.pointer(path).unwrap_or(&Value::Null))
    };
    let mut columns: Vec<Column<'_>> = vec![
        ("size".to_owned(), Box::new(|row, _, _| size(row))),
        ("type".to_owned(), Box::new(word("type"))),
        ("op".to_owned(), Box::new(word("redop"))),
        ("contender".to_owned(), Box::new(|row, _, _| contender(row))),
        ("place".to_owned(), Box::new(|_, place, _| if place == "in_place" { "in" } else { "out" }.to_owned())),
        ("time µs".to_owned(), Box::new(samples("/time_us"))),
        ("p50 µs".to_owned(), Box::new(plain("/exchange_us/p50"))),
        ("p99 µs".to_owned(), Box::new(plain("/exchange_us/p99"))),
        ("algbw".to_owned(), Box::new(samples("/algbw"))),
        ("busbw".to_owned(), Box::new(samples("/busbw"))),
        ("wirebw".to_owned(), Box::new(samples("/wirebw"))),
        ("bytes of bodies".to_owned(), Box::new(plain("/body_bytes/median"))),
        ("cpu s/GB".to_owned(), Box::new(samples("/cpu_seconds_per_gb"))),
        (
            "touched".to_owned(),
            Box::new(|_, _, figures| {
                figures["bound"]["touched"].as_u64().map_or_else(String::new, |of| format!("{of} S"))
            }),
        ),
        ("copy GB/s".to_owned(), Box::new(samples("/bound/copy"))),
        ("of bound".to_owned(), Box::new(samples("/bound/reached"))),
        (
            "optimum ms".to_owned(),
            Box::new(|_, _, figures| {
                figures["optimum"]["time_us"].as_f64().map_or_else(String::new, |us| digits(us / 1e3))
            }),
        ),
        ("÷ optimum on wire bytes".to_owned(), Box::new(samples("/optimum/over"))),
        ("÷ undisturbed".to_owned(), Box::new(samples("/cost"))),
    ];
    for peer in peers(results) {
        let heading = format!("÷ {peer}");
        columns.push((heading, Box::new(move |row, place, _| median(&ratio(results, row, &peer, place)["algbw"]))));
    }
    let cells = |cell: &dyn Fn(&Value, &str, &Value) -> String| {
        measured(results).any(|(row, place)| !cell(row, place, &row[place]).is_empty())
    };
    columns.retain(|(_, cell)| cells(cell));
    columns
}

fn table(text: &mut String, results: &Value) {
    let columns = columns(results);
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| heading.as_str()).collect();
    writeln!(text, "\n| {} |\n|{}", headings.join(" | "), "--:|".repeat(columns.len())).expect(STRING);
    for (row, place) in measured(results) {
        let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(row, place, &row[place])).collect();
        writeln!(text, "| {} |", cells.join(" | ")).expect(STRING);
    }
}

/// Pairs of a row and a place in which it has figures.
fn measured(results: &Value) -> impl Iterator<Item = (&Value, &'static str)> {
    let rows = results["rows"].as_array().into_iter().flatten();
    rows.flat_map(|row| ["out_of_place", "in_place"].map(|place| (row, place)))
        .filter(|(row, place)| !row[*place].is_null())
}

/// The size with a unit, or a plain number if the row has no elements.
fn size(row: &Value) -> String {
    let size = row["size"].as_u64().unwrap_or(0);
    if row["type"] == "none" { size.to_string() } else { print_bytes(size) }
}

fn contender(row: &Value) -> String {
    let word = |name: &str| row[name].as_str().unwrap_or("").to_owned();
    format!("{} {}", word("contender"), word("variant")).trim().to_owned()
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

/// `median (min-max)`.
fn median(samples: &Value) -> String {
    let figure = |name: &str| samples[name].as_f64().map(digits);
    match (figure("median"), figure("min"), figure("max")) {
        (Some(median), Some(min), Some(max)) => format!("{median} ({min}-{max})"),
        (Some(median), _, _) => median,
        (None, _, _) => String::new(),
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, digits)
}

fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 || value == 0.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

const STRING: &str = "writing to a string does not fail";
