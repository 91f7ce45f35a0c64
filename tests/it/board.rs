//! The board in `examples/observability` asks for metrics and labels that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::metrics::{
    CoordinatorMetrics, ExporterMetrics, LinkReading, OfProcess as _, ServerMetrics, WaitTimes, WorkerMetrics,
    prometheus,
};
use gradlane_core::types::{Cause, LinkLimit, Role, ServerId};

#[test]
fn every_expression_of_the_board_names_metrics_and_labels_that_there_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/observability/grafana.json");
    let board: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (shown, mut asked, mut wrong) = (shown(), BTreeSet::new(), Vec::new());
    for expression in expressions(&board) {
        let words = words(&expression);
        let metrics: Vec<&&str> = words.iter().filter(|word| word.starts_with("gradlane_")).collect();
        let chosen = words.iter().filter(|word| word.starts_with("\"$job")).count();
        if !expression.starts_with("label_values") && chosen != metrics.len() {
            wrong.push(format!("not each metric of it is that of the jobs that are chosen: {expression}"));
        }
        assert!(!metrics.is_empty(), "{expression}");
        let known: BTreeSet<&str> =
            metrics.iter().filter_map(|name| shown.get(**name)).flatten().map(String::as_str).chain(["job"]).collect();
        for name in metrics {
            asked.insert((*name).to_owned());
            if !shown.contains_key(*name) {
                wrong.push(format!("there is no {name}: {expression}"));
            }
        }
        wrong.extend(
            labels(&words)
                .into_iter()
                .filter(|label| !known.contains(label))
                .map(|label| format!("no metric of it has the label {label}: {expression}")),
        );
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(asked.contains("gradlane_server_late_seconds_total"), "{asked:?}");
}

#[test]
fn what_the_board_is_checked_by_finds_wrong_names() {
    let shown = shown();
    assert!(shown.contains_key("gradlane_worker_push_pull_duration_seconds_bucket"));
    assert!(!shown.contains_key("gradlane_worker_push_pull_duration_seconds"), "a histogram has no such sample");
    let late = &shown["gradlane_server_late_seconds_total"];
    assert_eq!(late.iter().collect::<Vec<_>>(), ["cause", "index", "rank", "role", "server"]);
    let text = "sum by (rank, le) (rate(a_b{job=~\"$job\", cause!=\"x by (y)\"}[5m])) / ignoring(z) c";
    assert_eq!(labels(&words(text)), ["rank", "le", "job", "cause", "z"]);
}

/// The labels of each sample that members and the coordinator show.
fn shown() -> BTreeMap<String, BTreeSet<String>> {
    let server = ServerMetrics::default();
    server.late_nanoseconds.show(1);
    server.last.show(1);
    server.lane_busy_nanoseconds.show(1);
    server.lane_parts.show(vec![Arc::default()]);
    assert_eq!(Cause::ALL.len(), 6);
    let worker = WorkerMetrics::default();
    let reading = LinkReading { limited_nanoseconds: [1; LinkLimit::ALL.len()], ..LinkReading::default() };
    worker.link(ServerId(0)).read(&LinkReading::default(), &reading);
    let push = (5, "PUSH");
    worker.stage_times().began(push, WaitTimes::default());
    worker.stage_times().ended(push, Duration::ZERO);
    worker.codec_raw_bytes.add((2, "fp16"), 4);
    worker.codec_wire_bytes.add((2, "fp16"), 2);
    worker.machine_late_nanoseconds.add(0, &[Duration::from_nanos(1); Cause::ALL.len()]);
    worker.machine_last.add(0, 1);
    [&worker.errors, &worker.exchange_failures].into_iter().for_each(|cell| cell.add((6, "unavailable"), 1));
    [&worker.clock_error_nanoseconds, &server.clock_error_nanoseconds].into_iter().for_each(|cell| cell.set(1));
    worker.configured(1);
    let coordinator = CoordinatorMetrics::default();
    coordinator.member_last_seen_nanoseconds.set(vec![((Role::Worker, 0), 1)]);
    coordinator.placed_bytes.set(0, Some(1));
    let text = prometheus(&[
        worker.instance(0).of_member(&Role::Worker.to_string(), 0),
        server.instance(0).of_member(&Role::Server.to_string(), 0),
        coordinator.instance("night"),
        ExporterMetrics::default().instance("0"),
    ]);
    let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap();
        let labels = rest.split(',').map(|label| label.split('=').next().unwrap().to_owned());
        shown.entry(name.to_owned()).or_default().extend(labels);
    }
    shown
}

/// All expressions below a value, of panels and of variables.
fn expressions(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(fields) => {
            let own = fields.iter().filter(|(name, _)| ["expr", "definition"].contains(&name.as_str()));
            let own = own.filter_map(|(_, text)| text.as_str().map(str::to_owned));
            own.chain(fields.values().flat_map(expressions)).collect()
        }
        serde_json::Value::Array(values) => values.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// The words and signs of an expression of PromQL. What stands in quotes is one word with its quotes.
fn words(expression: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |char: char| char.is_ascii_alphanumeric() || "_$:.".contains(char);
        let bytes = match first {
            '"' => 1 + rest[1..].find('"').map_or(rest.len() - 1, |end| end + 1),
            _ if is_word(first) => rest.find(|char| !is_word(char)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        words.push(&rest[..bytes]);
        rest = rest[bytes..].trim_start();
    }
    words
}

/// The labels that are named in braces, or behind `by`, `without`, `on` and `ignoring`.
fn labels<'a>(words: &[&'a str]) -> Vec<&'a str> {
    const LISTS: [&str; 4] = ["by", "without", "on", "ignoring"];
    let mut labels = Vec::new();
    let (mut in_braces, mut in_list) = (false, false);
    for (at, word) in words.iter().enumerate() {
        match *word {
            "{" => in_braces = true,
            "}" => in_braces = false,
            "(" => in_list = at.checked_sub(1).is_some_and(|before| LISTS.contains(&words[before])),
            ")" => in_list = false,
            name if name.starts_with(|char: char| char.is_ascii_lowercase()) => {
                let is_matched = in_braces && words.get(at + 1).is_some_and(|next| ["=", "!"].contains(next));
                if in_list || is_matched {
                    labels.push(name);
                }
            }
            _ => {}
        }
    }
    labels
}
