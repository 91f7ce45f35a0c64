//! How values travel between processes: as pairs of a name and a number.

use std::collections::BTreeSet;

use super::instance::{Histogram, Instance, Value};
use super::row::{Kind, Metric};
use super::table::METRICS;

impl Instance {
    /// All values as pairs of a name and a number. [`from_pairs`](Self::from_pairs) reads them.
    ///
    /// A name is that of a metric, with the values of its labels in braces and commas between them, such as `late_nanoseconds{3,submit}`. Of
    /// a histogram these are the numbers of the buckets, from 0, and `sum`, behind its labels if it has some.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        self.pairs_within(usize::MAX)
    }

    /// As [`pairs`](Self::pairs), but at most `pairs_max`. Metrics that do not fit are left out as a whole. Those without labels get their room
    /// first, because the numbers of the others grow with the job.
    pub fn pairs_within(&self, pairs_max: usize) -> Vec<(String, u64)> {
        let mut metrics: Vec<Vec<(String, u64)>> =
            self.values.iter().map(|(name, value)| of_value(name, value)).collect();
        let mut room = pairs_max;
        for labelled in [false, true] {
            for ((_, value), pairs) in self.values.iter().zip(&mut metrics) {
                if matches!(value, Value::Family(_) | Value::Histograms(_)) == labelled {
                    match room.checked_sub(pairs.len()) {
                        Some(rest) => room = rest,
                        None => pairs.clear(),
                    }
                }
            }
        }
        metrics.into_iter().flatten().collect()
    }

    /// The values that `pairs` of a process say, which may have another version of this program: names that this one does not know are left
    /// out. `None` for a scope that this one does not know.
    pub fn from_pairs(scope: &str, label: &str, pairs: &[(String, u64)]) -> Option<Self> {
        let scope = METRICS.iter().find(|metric| metric.scope == scope)?.scope;
        let mut values: Vec<(&'static str, Value)> = Vec::new();
        // Where the value of each metric is, and which came last: pairs come in the order of the table.
        let (mut places, mut last) = (vec![None; METRICS.len()], 0);
        let mut seen = BTreeSet::new();
        for (text, number) in pairs.iter().filter(|(text, _)| seen.insert(text)) {
            let (name, labels) = match text.split_once('{') {
                Some((name, rest)) => (name, rest.strip_suffix('}')),
                None => (text.as_str(), None),
            };
            let (before, after) = METRICS.split_at(last);
            let is_it = |metric: &Metric| metric.scope == scope && metric.name == name;
            let found = after.iter().position(is_it).map(|at| last + at).or_else(|| before.iter().position(is_it));
            let Some(at) = found else { continue };
            last = at;
            let metric = &METRICS[at];
            let place = *places[last].get_or_insert_with(|| {
                values.push((metric.name, metric.nothing()));
                values.len() - 1
            });
            let (_, value) = &mut values[place];
            match (value, labels) {
                (Value::Plain(value), None) => *value = *number,
                (Value::Family(numbers), Some(labels)) => {
                    let labels: Vec<String> = labels.split(',').map(str::to_owned).collect();
                    if labels.len() == metric.labels.len() {
                        numbers.push((labels, *number));
                    }
                }
                (Value::Histogram(histogram), Some(which)) => histogram.set(which, *number),
                (Value::Histograms(histograms), Some(labels)) => {
                    let mut labels: Vec<String> = labels.split(',').map(str::to_owned).collect();
                    let which = labels.pop().unwrap_or_default();
                    if labels.len() == metric.labels.len() {
                        let known = histograms.iter().position(|(known, _)| *known == labels);
                        let at = known.unwrap_or_else(|| {
                            histograms.push((labels, Histogram::default()));
                            histograms.len() - 1
                        });
                        histograms[at].1.set(&which, *number);
                    }
                }
                (Value::Plain(_), Some(_)) | (Value::Family(_) | Value::Histogram(_) | Value::Histograms(_), None) => {}
            }
        }
        Some(Self { scope, label: label.to_owned(), further: Vec::new(), values })
    }
}

/// The pairs of one metric.
fn of_value(name: &str, value: &Value) -> Vec<(String, u64)> {
    match value {
        Value::Plain(value) => vec![(name.to_owned(), *value)],
        Value::Family(numbers) => {
            let of = |(labels, number): &(Vec<String>, u64)| (format!("{name}{{{}}}", labels.join(",")), *number);
            numbers.iter().map(of).collect()
        }
        Value::Histogram(histogram) => of_histogram(name, "", histogram),
        Value::Histograms(histograms) => {
            let of = |(labels, histogram): &(Vec<String>, Histogram)| {
                of_histogram(name, &(labels.join(",") + ","), histogram)
            };
            histograms.iter().flat_map(of).collect()
        }
    }
}

/// The pairs of a histogram; `labels` end with a comma, if there are some.
fn of_histogram(name: &str, labels: &str, Histogram { buckets, nanoseconds }: &Histogram) -> Vec<(String, u64)> {
    let bucket = |(at, count): (usize, &u64)| (format!("{name}{{{labels}{at}}}"), *count);
    let sum = (format!("{name}{{{labels}sum}}"), *nanoseconds);
    std::iter::once(sum).chain(buckets.iter().enumerate().map(bucket)).collect()
}

impl Histogram {
    /// Sets the number of a bucket, or the `sum`. Ignores anything else.
    fn set(&mut self, which: &str, number: u64) {
        if which == "sum" {
            self.nanoseconds = number;
        } else if let Some(count) = which.parse().ok().and_then(|at: usize| self.buckets.get_mut(at)) {
            *count = number;
        }
    }
}

impl Metric {
    /// The value of a metric of which nothing is known.
    fn nothing(&self) -> Value {
        match self.kind {
            Kind::Histogram if self.labels.is_empty() => Value::Histogram(Histogram::default()),
            Kind::Histogram => Value::Histograms(Vec::new()),
            Kind::Counter | Kind::Gauge if self.labels.is_empty() => Value::Plain(0),
            Kind::Counter | Kind::Gauge => Value::Family(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{ServerMetrics, WorkerMetrics};
    use crate::types::Cause;

    #[test]
    fn values_are_read_as_they_were_written() {
        let server = ServerMetrics::default();
        ServerMetrics::add(&server.sent_bytes, 7);
        server.late_nanoseconds.show(2);
        server.late_nanoseconds.add(1, Cause::Queue, Duration::from_micros(3));
        server.round_duration_nanoseconds.add(Duration::from_millis(2));
        let instance = server.instance(4);
        let pairs = instance.pairs();
        assert!(pairs.contains(&("late_nanoseconds{1,queue}".to_owned(), 3_000)), "{pairs:?}");
        let known = |instance: &Instance| {
            let is_empty = |value: &Value| matches!(value, Value::Family(numbers) if numbers.is_empty());
            instance.values.iter().filter(|(_, value)| !is_empty(value)).cloned().collect::<Vec<_>>()
        };
        let read = Instance::from_pairs("server", "4", &pairs).unwrap();
        assert_eq!(known(&read), known(&instance));
    }

    #[test]
    fn metrics_that_do_not_fit_are_left_out_as_a_whole_those_with_labels_first() {
        let server = ServerMetrics::default();
        server.late_nanoseconds.show(9);
        server.lane_busy_nanoseconds.show(3);
        let instance = server.instance(4);
        let all = instance.pairs();
        let of = |within: usize, name: &str| {
            let pairs = instance.pairs_within(within);
            assert!(pairs.len() <= within, "{within}");
            pairs.iter().filter(|(pair, _)| pair.starts_with(name)).count()
        };
        let labelled = |within: usize| (of(within, "late_"), of(within, "lane_busy_"));
        let late = 9 * Cause::ALL.len();
        assert_eq!((labelled(all.len()), labelled(all.len() - 1)), ((late, 3), (late, 0)), "the last one does not fit");
        assert_eq!(labelled(all.len() - 4), (0, 3), "nor does a longer one, but one behind it");
        let plain = all.iter().filter(|(name, _)| !name.contains('{')).count();
        assert_eq!((of(plain, "sent_bytes"), of(plain, ""), of(0, "")), (1, plain, 0));
    }

    #[test]
    fn histograms_with_labels_are_read_as_they_were_written() {
        let worker = WorkerMetrics::default();
        let times = worker.stage_times();
        times.ended((5, "PUSH"), Duration::from_millis(2));
        times.ended((6, "PULL"), Duration::from_micros(2));
        times.ended((6, "PULL"), Duration::from_secs(200));
        let pairs = worker.instance(0).pairs();
        assert!(pairs.contains(&("stage_duration_nanoseconds{PUSH,sum}".to_owned(), 2_000_000)), "{pairs:?}");
        let read = Instance::from_pairs("worker", "0", &pairs).unwrap();
        let name = "stage_duration_nanoseconds";
        assert_eq!(read.value(name), worker.instance(0).value(name));

        let foreign = ["{PUSH}", "{PUSH,a,1}", "{}", "{1}"].map(|labels| (format!("{name}{labels}"), 9));
        let read = Instance::from_pairs("worker", "0", &foreign).unwrap();
        assert_eq!(read.value(name), Some(&Value::Histograms(vec![])));
    }

    #[test]
    fn names_that_nobody_knows_and_foreign_forms_are_left_out() {
        let pairs = [
            "sent_bytes{1}",
            "sent_bytes{",
            "future",
            "late_nanoseconds",
            "late_nanoseconds{1}",
            "late_nanoseconds{1,a,b}",
            "round_duration_nanoseconds{99}",
            "round_duration_nanoseconds{}",
            "round_duration_nanoseconds",
        ];
        let pairs = pairs.map(|name| (name.to_owned(), 9));
        let read = Instance::from_pairs("server", "4", &pairs).unwrap();
        assert_eq!(read.number("future"), None);
        for (name, value) in &read.values {
            match value {
                Value::Plain(value) => assert!([0, 9].contains(value), "{name}"),
                Value::Family(numbers) => assert_eq!(*numbers, [], "{name}"),
                Value::Histogram(histogram) => assert_eq!(*histogram, Histogram::default(), "{name}"),
                Value::Histograms(histograms) => assert_eq!(*histograms, [], "{name}"),
            }
        }
        assert_eq!(Instance::from_pairs("observer", "4", &pairs), None);
    }
}
