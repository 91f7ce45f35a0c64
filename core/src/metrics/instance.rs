//! The values of the metrics of one worker, server, coordinator or exporter.

/// The values of one worker, server, coordinator or exporter at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// The scope of its metrics.
    pub scope: &'static str,
    /// The value of the scope's label, such as the worker's rank.
    pub label: String,
    /// Further labels of all its values, with their values.
    pub further: Vec<(&'static str, String)>,
    /// Every metric of the scope by name.
    pub values: Vec<(&'static str, Value)>,
}

/// The value of a metric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// One number.
    Plain(u64),
    /// A number for each set of labels. The values of the labels stand in the order of [`Metric::labels`](super::Metric::labels).
    Family(Vec<(Vec<String>, u64)>),
    /// How often which durations were counted.
    Histogram(Histogram),
    /// A histogram for each set of labels, as those of a family.
    Histograms(Vec<(Vec<String>, Histogram)>),
}

/// A histogram of durations: each bucket counts the durations that are longer than those of the bucket before, and the last one those that
/// fit no other.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Histogram {
    /// How many durations each bucket has.
    pub buckets: [u64; Self::BUCKETS],
    /// The sum of all durations.
    pub nanoseconds: u64,
}

impl Histogram {
    /// The number of buckets: twelve with a bound, and one for what is longer.
    pub const BUCKETS: usize = 13;

    /// The longest duration of a bucket in nanoseconds: 16 us, and four times as long in each further one; 67 s in the twelfth. `None` for the
    /// last bucket, which has no bound.
    pub fn bound(bucket: usize) -> Option<u64> {
        (bucket + 1 < Self::BUCKETS).then(|| SHORTEST << (2 * bucket))
    }

    /// The bucket of a duration.
    pub fn bucket_of(nanoseconds: u64) -> usize {
        match nanoseconds.saturating_sub(1) / SHORTEST {
            0 => 0,
            longer => (longer.ilog2() as usize / 2 + 1).min(Self::BUCKETS - 1),
        }
    }

    /// How many durations there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |count, bucket| count.saturating_add(*bucket))
    }
}

impl Instance {
    /// The same with the labels of a member of a job.
    #[must_use]
    pub fn of_member(self, role: &str, index: u32) -> Self {
        Self { further: vec![("role", role.to_owned()), ("index", index.to_string())], ..self }
    }

    /// The values as plain numbers, for Python. Of a histogram these are the sum, under its own name, and the count, under the name with
    /// `_count` in place of the unit. What has labels is left out.
    pub fn plain(&self) -> Vec<(String, u64)> {
        let numbers = |(name, value): &(&'static str, Value)| match value {
            Value::Plain(value) => vec![((*name).to_owned(), *value)],
            Value::Histogram(histogram) => {
                let stem = name.strip_suffix("_nanoseconds").unwrap_or(name);
                vec![((*name).to_owned(), histogram.nanoseconds), (format!("{stem}_count"), histogram.count())]
            }
            Value::Family(_) | Value::Histograms(_) => Vec::new(),
        };
        self.values.iter().flat_map(numbers).collect()
    }

    /// The value of a metric.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The value of a metric that is one number.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(Value::Plain(value)) => Some(*value),
            Some(Value::Family(_) | Value::Histogram(_) | Value::Histograms(_)) | None => None,
        }
    }

    /// The numbers of a metric by their labels; none if it has no labels.
    pub fn family(&self, name: &str) -> impl Iterator<Item = (&[String], u64)> {
        let numbers = if let Some(Value::Family(numbers)) = self.value(name) { numbers.as_slice() } else { &[] };
        numbers.iter().map(|(labels, number)| (labels.as_slice(), *number))
    }

    /// The value of a metric that is one histogram.
    pub fn histogram(&self, name: &str) -> Option<&Histogram> {
        match self.value(name) {
            Some(Value::Histogram(histogram)) => Some(histogram),
            Some(Value::Plain(_) | Value::Family(_) | Value::Histograms(_)) | None => None,
        }
    }
}

/// The bound of the first bucket of a histogram, in nanoseconds.
const SHORTEST: u64 = 16_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::WorkerMetrics;

    #[test]
    fn each_bucket_is_four_times_as_wide_as_the_one_before() {
        for bucket in 0..Histogram::BUCKETS - 1 {
            let bound = Histogram::bound(bucket).unwrap();
            assert_eq!(bound, 16_000 * 4_u64.pow(bucket as u32));
            assert_eq!((Histogram::bucket_of(bound), Histogram::bucket_of(bound + 1)), (bucket, bucket + 1));
        }
        assert_eq!((Histogram::bucket_of(0), Histogram::bucket_of(u64::MAX)), (0, Histogram::BUCKETS - 1));
        assert_eq!(Histogram::bound(Histogram::BUCKETS - 1), None);
    }

    #[test]
    fn python_sees_the_sum_and_the_count_of_a_histogram() {
        let worker = WorkerMetrics::default();
        worker.push_pull_duration_nanoseconds.add(Duration::from_nanos(5));
        worker.push_pull_duration_nanoseconds.add(Duration::from_nanos(6));
        let plain = worker.instance(0).plain();
        for (name, value) in [("push_pull_duration_nanoseconds", 11), ("push_pull_duration_count", 2), ("pushes", 0)] {
            assert!(plain.contains(&(name.to_owned(), value)), "{name}: {plain:?}");
        }
    }
}
