//! The mean and the quantiles of a histogram.

use gradlane_core::metrics::Histogram;
use serde::{Deserialize, Serialize};

/// Durations that were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    /// All of them together.
    pub(crate) sum_ns: u64,
    /// About: the buckets of the histogram are wide, see [`quantile`].
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
}

impl Times {
    /// The times of all these histograms together.
    pub(super) fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut all = Histogram::default();
        for histogram in histograms {
            all.nanoseconds = all.nanoseconds.saturating_add(histogram.nanoseconds);
            for (sum, count) in all.buckets.iter_mut().zip(histogram.buckets) {
                *sum = sum.saturating_add(count);
            }
        }
        Self { count: all.count(), sum_ns: all.nanoseconds, p50_ns: quantile(&all, 0.5), p99_ns: quantile(&all, 0.99) }
    }

    /// On average.
    pub(crate) fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }
}

/// The duration that `share` of the durations do not exceed, in nanoseconds. Within a bucket they are taken to grow by equal factors, so that the
/// result is wrong by the width of a bucket at most: a factor of four. `None` if nothing was counted.
fn quantile(histogram: &Histogram, share: f64) -> Option<u64> {
    let count = histogram.count();
    let wanted = (count as f64 * share).ceil().max(1.0);
    let mut below = 0.0;
    for (bucket, in_it) in histogram.buckets.iter().enumerate().filter(|(_, in_it)| **in_it > 0) {
        let in_it = *in_it as f64;
        if below + in_it >= wanted {
            let lower = bucket.checked_sub(1).and_then(Histogram::bound);
            return Some(match (lower, Histogram::bound(bucket)) {
                // The last bucket has no end.
                (Some(lower), None) => lower,
                (lower, upper) => {
                    let (upper, lower) = (upper.unwrap_or_default() as f64, lower.map(|lower| lower as f64));
                    let lower = lower.unwrap_or(upper / 4.0);
                    (lower * (upper / lower).powf((wanted - below) / in_it)) as u64
                }
            });
        }
        below += in_it;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_in_the_bucket_that_has_it() {
        let mut histogram = Histogram::default();
        assert_eq!(quantile(&histogram, 0.5), None);
        histogram.buckets[3] = 90;
        histogram.buckets[5] = 10;
        let (lower, upper) = (Histogram::bound(2).unwrap(), Histogram::bound(3).unwrap());
        let half = quantile(&histogram, 0.5).unwrap();
        assert!(lower < half && half < upper, "{lower} {half} {upper}");
        assert_eq!(quantile(&histogram, 0.9), Some(upper));
        let worst = quantile(&histogram, 0.99).unwrap();
        assert!(Histogram::bound(4).unwrap() < worst && worst < Histogram::bound(5).unwrap(), "{worst}");
        histogram.buckets[Histogram::BUCKETS - 1] = 1000;
        assert_eq!(quantile(&histogram, 0.99), Histogram::bound(Histogram::BUCKETS - 2), "the last one has no end");
    }

    #[test]
    fn histograms_of_many_members_are_added() {
        let mut one = Histogram { nanoseconds: 40, ..Histogram::default() };
        one.buckets[0] = 4;
        let times = Times::of([&one, &one].into_iter());
        assert_eq!((times.count, times.sum_ns, times.mean_ns()), (8, 80, Some(10)));
        assert_eq!(Times::default().mean_ns(), None);
    }
}
