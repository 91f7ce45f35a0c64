//! The table of metrics for people, and values in Prometheus' text format.

use std::fmt::Write as _;

use super::table::{Instance, Kind, METRICS, Metric};

/// The values of `instances` in the [text exposition format] of Prometheus, version 0.0.4.
///
/// A metric is called `gradlane_<scope>_<name>`, and a counter ends in `_total`. The label of the scope tells the instances apart. There
/// is no label for the job, because Prometheus adds its own label `job` to what it collects.
///
/// [text exposition format]: https://prometheus.io/docs/instrumenting/exposition_formats/
pub fn prometheus(instances: &[Instance]) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let value = |instance: &Instance| {
            let found = instance.values.iter().find(|(name, _)| *name == metric.name && instance.scope == metric.scope);
            found.map(|(_, value)| (escape(&instance.label).replace('"', "\\\""), *value))
        };
        let mut values = instances.iter().filter_map(value).peekable();
        if values.peek().is_none() {
            continue;
        }
        let (name, label) = (exported_name(metric), metric.label);
        let kind = metric.kind.name();
        writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escape(metric.help)).expect("a String takes all");
        for (instance, value) in values {
            writeln!(text, "{name}{{{label}=\"{instance}\"}} {value}").expect("a String takes all");
        }
    }
    text
}

/// All metrics, each with the heading of its scope: name, kind, unit, name in Prometheus, meaning.
pub fn rows() -> impl Iterator<Item = (String, [String; 5])> {
    METRICS.iter().map(|metric| {
        let unit = metric.unit.name().unwrap_or("-");
        let row = [metric.name, metric.kind.name(), unit, &exported_name(metric), metric.help].map(str::to_owned);
        (format!("Each {}, in Prometheus with the label `{}`", metric.scope, metric.label), row)
    })
}

/// [`rows`] as a text, one line a metric.
pub fn report() -> String {
    let (headings, rows): (Vec<String>, Vec<[String; 5]>) = rows().unzip();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (names, kinds, units, exported_names) = (width(0), width(1), width(2), width(3));
    let mut text = String::new();
    let mut last = "";
    for (heading, [name, kind, unit, exported, help]) in headings.iter().zip(&rows) {
        if last != heading {
            let gap = if last.is_empty() { "" } else { "\n" };
            last = heading;
            writeln!(text, "{gap}{heading}").expect("a String takes all");
        }
        writeln!(text, "  {name:names$}  {kind:kinds$}  {unit:units$}  {exported:exported_names$}  {help}")
            .expect("a String takes all");
    }
    text
}

fn exported_name(metric: &Metric) -> String {
    let suffix = match metric.kind {
        Kind::Counter => "_total",
        Kind::Gauge => "",
    };
    format!("gradlane_{}_{}{suffix}", metric.scope, metric.name)
}

/// A text in which a backslash or an end of a line does not end its line of the format.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::metrics::{CoordinatorMetrics, ExporterMetrics, ServerMetrics, WorkerMetrics};

    #[test]
    fn values_stand_below_the_help_and_the_type_of_their_metric() {
        let workers = [WorkerMetrics::default(), WorkerMetrics::default()];
        WorkerMetrics::add(&workers[0].push_bytes, 40);
        WorkerMetrics::add(&workers[1].push_bytes, 2);
        let text = prometheus(&[workers[0].instance(0), workers[1].instance(1)]);
        let expected = "\
# HELP gradlane_worker_push_bytes_total Bytes of the contributions, without headers.
# TYPE gradlane_worker_push_bytes_total counter
gradlane_worker_push_bytes_total{rank=\"0\"} 40
gradlane_worker_push_bytes_total{rank=\"1\"} 2
# HELP gradlane_worker_pulls_total ";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("gradlane_server_"), "there is none: {text}");
    }

    #[test]
    fn every_metric_follows_the_rules_of_the_format() {
        let text = prometheus(&[
            WorkerMetrics::default().instance(0),
            ServerMetrics::default().instance(0),
            WorkerMetrics::default().instance(1),
            CoordinatorMetrics::default().instance("night"),
            ExporterMetrics::default().instance("0.1.0"),
        ]);
        assert!(text.ends_with('\n'));
        let families = families(&text);
        assert_eq!(families.len(), METRICS.len(), "no name serves two metrics");
        for (name, (kind, labels)) in families {
            assert!(name.starts_with(|first: char| first.is_ascii_alphabetic()), "{name}");
            assert!(name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{name}: {labels:?}");
        }
    }

    #[test]
    fn a_label_with_special_characters_is_escaped() {
        let text = prometheus(&[ServerMetrics::default().instance("a\\b\"c\nd")]);
        assert!(text.contains("gradlane_server_sent_bytes_total{server=\"a\\\\b\\\"c\\nd\"} 0\n"), "{text}");
    }

    #[test]
    fn the_report_has_a_line_for_each_metric() {
        let report = report();
        assert_eq!(report.lines().filter(|line| line.starts_with("  ")).count(), METRICS.len());
        let line = report.lines().find(|line| line.contains("  push_bytes ")).unwrap();
        for shown in ["counter", "bytes", "gradlane_worker_push_bytes_total", "without headers"] {
            assert!(line.contains(shown), "{line}");
        }
    }

    /// The type and the label sets of each metric, after a check that the lines of a metric stand together: help, type, values.
    fn families(text: &str) -> BTreeMap<&str, (&str, Vec<&str>)> {
        let mut families: BTreeMap<&str, (&str, Vec<&str>)> = BTreeMap::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
            assert!(!help.is_empty(), "{line}");
            let line = lines.next().expect("a type");
            let (typed, kind) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')).expect(line);
            assert_eq!(typed, name);
            let mut labels = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (sample, value) = line.rsplit_once(' ').expect(line);
                assert!(value.parse::<f64>().is_ok(), "{line}");
                labels.push(sample.strip_prefix(name).expect(line));
            }
            assert!(!labels.is_empty(), "{name} has no value");
            assert!(families.insert(name, (kind, labels)).is_none(), "{name} twice");
        }
        families
    }
}
