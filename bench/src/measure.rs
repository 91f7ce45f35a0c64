//! Takes samples and computes medians, percentiles and spreads. The only place that reads the clock.

use std::fmt;
use std::time::{Duration, Instant};

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// The deadline `patience` from now.
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(crate) fn within(patience: Duration) -> Self {
        Self(Instant::now() + patience)
    }

    /// The time that is left; zero once the deadline has passed.
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// One figure, measured several times. Shown as its median and its spread: half the distance between the extremes, in per cent of the
/// median.
#[derive(Clone, Default, Debug)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds a speed: `bytes` in `duration`, in GB/s (10⁹ bytes).
    pub(crate) fn push_speed(&mut self, bytes: u64, duration: Duration) {
        // At least a nanosecond, the resolution of the clock: otherwise a clock that did not advance would make the speed infinite.
        self.0.push(bytes as f64 / duration.as_nanos().max(1) as f64);
    }

    /// Adds a cost: `duration` for `operations`, in nanoseconds each.
    pub(crate) fn push_cost(&mut self, operations: u64, duration: Duration) {
        self.0.push(duration.as_nanos() as f64 / operations as f64);
    }

    /// This divided by `other`, sample by sample. A disturbance that lasts longer than a sample affects both.
    ///
    /// # Panics
    /// If the two have different numbers of samples.
    pub(crate) fn over(&self, other: &Self) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "ratios are taken of pairs");
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// Adds a sample in any unit.
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// All samples, in the order in which they were taken.
    pub(crate) fn values(&self) -> &[f64] {
        &self.0
    }

    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that `percent` of all do not exceed; 0 is the smallest, 100 the largest.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let sorted = self.sorted();
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    /// The smallest sample.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn min(&self) -> f64 {
        self.percentile(0.0)
    }

    /// The largest sample.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn max(&self) -> f64 {
        self.percentile(100.0)
    }

    /// Every sample times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|sample| sample * factor).collect())
    }

    /// The middle sample, or the mean of the two middle samples.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
    }

    /// Half the distance between the smallest and the largest, divided by the median.
    pub(crate) fn spread(&self) -> f64 {
        let sorted = self.sorted();
        (sorted[sorted.len() - 1] - sorted[0]) / 2.0 / self.median()
    }

    fn sorted(&self) -> Vec<f64> {
        assert!(!self.0.is_empty(), "there is a sample");
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl From<Vec<f64>> for Samples {
    fn from(samples: Vec<f64>) -> Self {
        Self(samples)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        write!(f, "{:.digits$} ±{:.0}%", self.median(), self.spread() * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_an_outlier_and_the_spread_shows_it() {
        let samples = Samples(vec![9.0, 10.0, 30.0]);
        assert_eq!(samples.median(), 10.0);
        assert_eq!(samples.spread(), 1.05);
        assert_eq!(samples.to_string(), "10.0 ±105%");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples = Samples((1..=200).map(f64::from).collect());
        assert_eq!([0.0, 50.0, 99.0, 100.0].map(|percent| samples.percentile(percent)), [1.0, 100.0, 198.0, 200.0]);
    }

    #[test]
    fn a_ratio_is_taken_of_pairs() {
        let ratio = Samples(vec![2.0, 6.0]).over(&Samples(vec![1.0, 2.0]));
        assert_eq!(ratio.0, [2.0, 3.0]);
    }

    #[test]
    fn a_cost_is_in_nanoseconds_an_operation() {
        let mut samples = Samples::default();
        samples.push_cost(4, Duration::from_micros(1));
        assert_eq!(samples.median(), 250.0);
    }

    #[test]
    fn a_speed_is_in_gigabytes_a_second() {
        let mut samples = Samples::default();
        samples.push_speed(3_000_000_000, Duration::from_secs(2));
        assert_eq!(samples.median(), 1.5);
    }
}
