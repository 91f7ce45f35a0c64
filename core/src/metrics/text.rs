//! The table of metrics for people, and values in Prometheus' text format.

use std::fmt::Write as _;

use super::instance::{Histogram, Instance, Value};
use super::row::{Kind, Metric, Unit};
use super::table::METRICS;
use crate::types::printable;

/// The values of `instances` in the [text exposition format] of Prometheus, version 0.0.4.
///
/// A metric is called `gradlane_<scope>_<name>`, and a counter ends in `_total`. Times are in seconds. The label of the scope tells the instances
/// apart. What every process has is called as Prometheus' own libraries call it, such as `process_open_fds`, in every scope. What a process says of
/// itself is called alike in every scope too, such as `gradlane_build_info`. There is no label for the job, because Prometheus adds its own label
/// `job` to what it collects.
///
/// [text exposition format]: https://prometheus.io/docs/instrumenting/exposition_formats/
pub fn prometheus(instances: &[Instance]) -> String {
    let mut text = String::new();
    for (at, metric) in METRICS.iter().enumerate() {
        let is_the_same =
            |other: &&Metric| other.name == metric.name && (other.scope == metric.scope || is_of_every_scope(metric));
        if METRICS[..at].iter().any(|before| is_the_same(&before)) {
            continue;
        }
        let value = |instance: &Instance| {
            let metric = METRICS.iter().filter(is_the_same).find(|metric| metric.scope == instance.scope)?;
            let value = instance.value(metric.name)?;
            let further = instance.further.iter().filter(|(name, _)| !metric.labels.contains(name));
            let further = further.map(|(name, value)| format!(",{}", label(name, value)));
            Some((label(metric.label, &instance.label) + &further.collect::<String>(), value.clone()))
        };
        let values: Vec<(String, Value)> =
            instances.iter().filter_map(value).filter(|(_, value)| !is_empty(value)).collect();
        if values.is_empty() {
            continue;
        }
        let (name, kind) = (exported_name(metric), metric.kind.name());
        writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escape(metric.help)).expect("a String takes all");
        for (of, value) in values {
            samples(&mut text, metric, &name, &of, &value);
        }
    }
    text
}

/// Whether a metric is called alike in all scopes.
fn is_of_every_scope(metric: &Metric) -> bool {
    is_of_process(metric) || metric.name.ends_with("_info")
}

/// Whether a metric is one that Prometheus' own libraries have too.
fn is_of_process(metric: &Metric) -> bool {
    metric.name.starts_with("process_")
}

/// Whether nothing is known of a metric.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Family(numbers) => numbers.is_empty(),
        Value::Histograms(histograms) => histograms.is_empty(),
        Value::Plain(_) | Value::Histogram(_) => false,
    }
}

/// The samples of one metric of one instance, which `of` names.
fn samples(text: &mut String, metric: &Metric, name: &str, of: &str, value: &Value) {
    let mut line = |suffix: &str, further: &str, value: String| {
        writeln!(text, "{name}{suffix}{{{of}{further}}} {value}").expect("a String takes all");
    };
    let with = |labels: &[String]| -> String {
        metric.labels.iter().zip(labels).map(|(name, value)| format!(",{}", label(name, value))).collect()
    };
    match value {
        Value::Plain(value) => line("", "", number(metric.unit, *value)),
        Value::Family(numbers) => {
            for (labels, value) in numbers {
                line("", &with(labels), number(metric.unit, *value));
            }
        }
        Value::Histogram(histogram) => of_histogram(metric.unit, histogram, "", line),
        Value::Histograms(histograms) => {
            for (labels, histogram) in histograms {
                of_histogram(metric.unit, histogram, &with(labels), &mut line);
            }
        }
    }
}

/// The samples of a histogram with these labels: the rest of the name, all labels, the value.
fn of_histogram(unit: Unit, histogram: &Histogram, labels: &str, mut line: impl FnMut(&str, &str, String)) {
    let mut count = 0_u64;
    for (bucket, in_bucket) in histogram.buckets.iter().enumerate() {
        count = count.saturating_add(*in_bucket);
        let bound = Histogram::bound(bucket).map_or_else(|| "+Inf".to_owned(), |bound| number(unit, bound));
        line("_bucket", &format!("{labels},{}", label("le", &bound)), count.to_string());
    }
    line("_sum", labels, number(unit, histogram.nanoseconds));
    line("_count", labels, count.to_string());
}

/// A value in the base unit of Prometheus.
fn number(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Count | Unit::Bytes | Unit::BytesPerSecond => value.to_string(),
        // With all its digits, which a float would not have.
        Unit::Nanoseconds => {
            let text = format!("{}.{:09}", value / NANOSECONDS, value % NANOSECONDS);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// All metrics, each with the heading of its scope: name, kind, unit, name in Prometheus with further labels, meaning.
pub fn rows() -> impl Iterator<Item = (String, [String; 5])> {
    METRICS.iter().map(|metric| {
        let unit = metric.unit.name().unwrap_or("-");
        let labels = if metric.labels.is_empty() { String::new() } else { format!("{{{}}}", metric.labels.join(",")) };
        let exported = exported_name(metric) + &labels;
        let row = [metric.name, metric.kind.name(), unit, &exported, metric.help].map(str::to_owned);
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

/// The name of a metric in Prometheus, without what a histogram adds to it.
fn exported_name(metric: &Metric) -> String {
    let suffix = match metric.kind {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "",
    };
    let name = match metric.name.strip_suffix("_nanoseconds") {
        Some(stem) => format!("{stem}_seconds"),
        None => metric.name.to_owned(),
    };
    match metric {
        metric if is_of_process(metric) => format!("{name}{suffix}"),
        metric if is_of_every_scope(metric) => format!("gradlane_{name}{suffix}"),
        metric => format!("gradlane_{}_{name}{suffix}", metric.scope),
    }
}

/// A label with its value. It may come from a peer and go to a terminal, so it is printable.
fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escape(&printable(value)).replace('"', "\\\""))
}

/// A text in which a backslash or an end of a line does not end its line of the format.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

const NANOSECONDS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::metrics::{
        CoordinatorMetrics, ExporterMetrics, LinkReading, OfProcess as _, ServerMetrics, WaitTimes, WorkerMetrics,
    };
    use crate::types::{Cause, Role, ServerId};

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
    fn times_are_seconds_with_all_their_digits() {
        let worker = WorkerMetrics::default();
        for (nanoseconds, seconds) in
            [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (u64::MAX, "18446744073.709551615")]
        {
            WorkerMetrics::set(&worker.nccl_issue_nanoseconds, nanoseconds);
            let text = prometheus(&[worker.instance(0)]);
            let line = format!("gradlane_worker_nccl_issue_seconds_total{{rank=\"0\"}} {seconds}\n");
            assert!(text.contains(&line) && !text.contains("nanoseconds"), "{seconds}: {text}");
        }
    }

    #[test]
    fn a_family_has_a_sample_for_each_set_of_labels() {
        let server = ServerMetrics::default();
        server.late_nanoseconds.show(2);
        server.late_nanoseconds.add(1, Cause::Submit, Duration::from_millis(71));
        let text = prometheus(&[server.instance(3)]);
        let line = |rank, cause, value| {
            format!("gradlane_server_late_seconds_total{{server=\"3\",rank=\"{rank}\",cause=\"{cause}\"}} {value}\n")
        };
        for line in [line(0, "submit", "0"), line(1, "submit", "0.071"), line(1, "transfer", "0")] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn buckets_count_all_that_is_shorter_too() {
        let worker = WorkerMetrics::default();
        for millis in [1, 1, 300] {
            worker.push_pull_duration_nanoseconds.add(Duration::from_millis(millis));
        }
        let text = prometheus(&[worker.instance(0)]);
        let of = |suffix: &str| format!("gradlane_worker_push_pull_duration_seconds{suffix}\n");
        for line in [
            of("_bucket{rank=\"0\",le=\"0.000256\"} 0"),
            of("_bucket{rank=\"0\",le=\"0.001024\"} 2"),
            of("_bucket{rank=\"0\",le=\"0.262144\"} 2"),
            of("_bucket{rank=\"0\",le=\"1.048576\"} 3"),
            of("_bucket{rank=\"0\",le=\"+Inf\"} 3"),
            of("_sum{rank=\"0\"} 0.302"),
            of("_count{rank=\"0\"} 3"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn a_histogram_with_labels_has_all_its_samples_for_each_of_them() {
        let worker = WorkerMetrics::default();
        worker.stage_times().ended((5, "PUSH"), Duration::from_millis(1));
        worker.stage_times().ended((6, "PULL"), Duration::from_millis(300));
        let text = prometheus(&[worker.instance(0)]);
        let of = |suffix: &str| format!("gradlane_worker_stage_duration_seconds{suffix}\n");
        for line in [
            of("_bucket{rank=\"0\",stage=\"PUSH\",le=\"0.001024\"} 1"),
            of("_bucket{rank=\"0\",stage=\"PULL\",le=\"0.262144\"} 0"),
            of("_bucket{rank=\"0\",stage=\"PULL\",le=\"+Inf\"} 1"),
            of("_sum{rank=\"0\",stage=\"PULL\"} 0.3"),
            of("_count{rank=\"0\",stage=\"PUSH\"} 1"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn every_metric_follows_the_rules_of_the_format() {
        let server = ServerMetrics::default();
        server.late_nanoseconds.show(2);
        server.last.show(2);
        server.lane_busy_nanoseconds.show(1);
        let worker = WorkerMetrics::default();
        worker.link(ServerId(0)).read(&LinkReading::default(), &reading());
        worker.stage_times().began((5, "PUSH"), WaitTimes::default());
        worker.stage_times().ended((5, "PUSH"), Duration::from_millis(1));
        worker.codec_raw_bytes.add((2, "fp16"), 4);
        worker.codec_wire_bytes.add((2, "fp16"), 2);
        [&worker.errors, &worker.exchange_failures].into_iter().for_each(|cell| cell.add((6, "unavailable"), 1));
        server.lane_parts.show(vec![Arc::default()]);
        worker.machine_late_nanoseconds.add(1, &[Duration::from_millis(1); Cause::ALL.len()]);
        worker.machine_last.add(1, 1);
        [&worker.clock_error_nanoseconds, &worker.clock_offset_nanoseconds].into_iter().for_each(|cell| cell.set(1));
        [&server.clock_error_nanoseconds, &server.clock_offset_nanoseconds].into_iter().for_each(|cell| cell.set(1));
        [&worker.nic_capacity_bytes_per_second, &server.nic_capacity_bytes_per_second]
            .into_iter()
            .for_each(|cell| cell.set(&[("eth0".to_owned(), 1)]));
        let coordinator = CoordinatorMetrics::default();
        worker.configured(7);
        worker.placed(Role::Worker, 0, "n1");
        coordinator.member_last_seen_nanoseconds.set(vec![((Role::Worker, 0), 1)]);
        coordinator.placed_bytes.set(0, Some(1));
        let text = prometheus(&[
            worker.instance(0),
            server.instance(0),
            WorkerMetrics::default().instance(1),
            coordinator.instance("night"),
            ExporterMetrics::default().instance("0.1.0"),
        ]);
        assert!(text.ends_with('\n'));
        let families = families(&text);
        let names: BTreeSet<String> = METRICS.iter().map(exported_name).collect();
        assert_eq!(families.len(), names.len(), "no name serves two metrics");
        for (name, (kind, labels)) in families {
            assert!(name.starts_with(|first: char| first.is_ascii_alphabetic()), "{name}");
            assert!(name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{name}: {labels:?}");
        }
    }

    #[test]
    fn what_every_process_has_is_called_as_elsewhere_and_stands_together() {
        let (worker, server) = (WorkerMetrics::default(), ServerMetrics::default());
        WorkerMetrics::set(&worker.process_open_fds, 40);
        ServerMetrics::set(&server.process_open_fds, 50);
        let text =
            prometheus(&[server.instance(3), worker.instance(0), CoordinatorMetrics::default().instance("night")]);
        let expected = "\
# TYPE process_open_fds gauge
process_open_fds{server=\"3\"} 50
process_open_fds{rank=\"0\"} 40
process_open_fds{job_name=\"night\"} 0
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("process_cpu_seconds_total{rank=\"0\"} 0\n"), "{text}");
        assert!(text.contains("gradlane_worker_run_delay_seconds_total{rank=\"0\"} 0\n"), "{text}");
    }

    #[test]
    fn what_a_member_is_stands_in_labels_each_once() {
        let worker = WorkerMetrics::default();
        worker.placed(Role::Worker, 3, "n{1},\"");
        worker.placed(Role::Worker, 4, "it has one place");
        worker.configured(0xab);
        let pairs = worker.instance(3).pairs();
        let told = Instance::from_pairs("worker", "3", &pairs).unwrap().of_member("worker", 3);
        let text = prometheus(&[told]);
        for line in [
            "gradlane_member_info{rank=\"3\",role=\"worker\",index=\"3\",host=\"n_1__\\\"\"} 1\n",
            "gradlane_config_info{rank=\"3\",role=\"worker\",index=\"3\",hash=\"00000000000000ab\"} 1\n",
            "gradlane_build_info{rank=\"3\",role=\"worker\",index=\"3\",version=\"",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let text = prometheus(&[WorkerMetrics::default().instance(0)]);
        assert!(!text.contains("link_rtt"), "{text}");
        let worker = WorkerMetrics::default();
        worker.link(ServerId(7)).read(&LinkReading::default(), &reading());
        let text = prometheus(&[worker.instance(0)]);
        assert!(text.contains("gradlane_worker_link_rtt_seconds{rank=\"0\",server=\"7\"} 0.00021\n"), "{text}");
        let limited = "gradlane_worker_link_limited_seconds_total{rank=\"0\",server=\"7\",by=\"cwnd\"} 1.5\n";
        assert!(text.contains(limited), "{text}");
    }

    #[test]
    fn a_label_with_special_characters_is_escaped() {
        let text = prometheus(&[ServerMetrics::default().instance("a\\b\"c\nd\u{9b}\u{202e}e")]);
        let label = r#"server="a\\b\"c\\nd\\u{9b}\\u{202e}e""#;
        assert!(text.contains(&format!("gradlane_server_sent_bytes_total{{{label}}} 0\n")), "{text}");
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

    fn reading() -> LinkReading {
        let limited_nanoseconds = [0, 0, 1_500_000_000, 0, 0];
        LinkReading { rtt: Duration::from_micros(210), limited_nanoseconds, ..LinkReading::default() }
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
                let rest = sample.strip_prefix(name).expect(line);
                let suffix = rest.split('{').next().expect("at least one");
                let suffixes = if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
                assert!(suffixes.contains(&suffix), "{line}");
                labels.push(rest);
            }
            assert!(!labels.is_empty(), "{name} has no value");
            assert!(families.insert(name, (kind, labels)).is_none(), "{name} twice");
        }
        families
    }
}
