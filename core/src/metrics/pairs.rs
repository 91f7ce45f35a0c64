//! How values travel between processes: as pairs of a name and a number.

use std::collections::BTreeSet;

use super::instance::{Histogram, Instance, Value};
use super::table::{Kind, METRICS, Metric};

impl Instance {
    /// All values as pairs of a name and a number. [`from_pairs`](Self::from_pairs) reads them.
    ///
    /// A name is that of a metric, with the values of its labels in braces and commas between them, such as `late_nanoseconds{3,submit}`. Of
    /// a histogram these are the numbers of the buckets, from 0, and `sum`.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        let mut pairs = Vec::with_capacity(self.values.len());
        for (name, value) in &self.values {
            match value {
                Value::Plain(value) => pairs.push(((*name).to_owned(), *value)),
                Value::Family(numbers) => {
                    pairs.extend(
                        numbers.iter().map(|(labels, number)| (format!("{name}{{{}}}", labels.join(",")), *number)),
                    );
                }
                Value::Histogram(Histogram { buckets, nanoseconds }) => {
                    pairs.push((format!("{name}{{sum}}"), *nanoseconds));
                    let bucket = |(at, count): (usize, &u64)| (format!("{name}{{{at}}}"), *count);
                    pairs.extend(buckets.iter().enumerate().map(bucket));
                }
            }
        }
        pairs
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
                (Value::Histogram(histogram), Some("sum")) => histogram.nanoseconds = *number,
                (Value::Histogram(histogram), Some(bucket)) => {
                    if let Some(count) = bucket.parse().ok().and_then(|at: usize| histogram.buckets.get_mut(at)) {
                        *count = *number;
                    }
                }
                (Value::Plain(_), Some(_)) | (Value::Family(_) | Value::Histogram(_), None) => {}
            }
        }
        Some(Self { scope, label: label.to_owned(), further: Vec::new(), values })
    }
}

impl Metric {
    /// The value of a metric of which nothing is known.
    fn nothing(&self) -> Value {
        match self.kind {
            Kind::Histogram => Value::Histogram(Histogram::default()),
            Kind::Counter | Kind::Gauge if self.labels.is_empty() => Value::Plain(0),
            Kind::Counter | Kind::Gauge => Value::Family(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::ServerMetrics;
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
            }
        }
        assert_eq!(Instance::from_pairs("observer", "4", &pairs), None);
    }
}
