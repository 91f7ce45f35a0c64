//! The last minutes of a job, a point a second, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use gradlane_core::types::Time;

/// A job in one second. What is not known is absent.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Point {
    /// Which second of the clock.
    pub(crate) second: u64,
    /// How long a step took, in seconds. While a step takes longer than those before it, its time so far.
    pub(crate) step: Option<f32>,
    /// The share of the time in which workers waited for handles, on average.
    pub(crate) exposed: Option<f32>,
    /// Bytes a second that all workers sent to servers and received from them.
    pub(crate) bytes: Option<f32>,
}

/// The points of the last [`SECONDS`].
#[derive(Default, Debug)]
pub(crate) struct History {
    points: VecDeque<Point>,
    /// Steps of the last [`WINDOW`], each with the time when it was seen first; the last two at least.
    steps: VecDeque<(u64, Time)>,
}

impl History {
    /// Adds a point for the second of `now`; nothing if there is one. `step` is the number of the step.
    pub(crate) fn push(&mut self, now: Time, step: Option<u64>, exposed: Option<f64>, bytes: Option<f64>) {
        let second = now.since(Time::ZERO).as_secs();
        if self.points.back().is_some_and(|last| last.second >= second) {
            return;
        }
        let step = step.and_then(|step| self.step_time(now, step));
        let short = |value: f64| value as f32;
        let point = Point {
            second,
            step: step.map(|step| short(step.as_secs_f64())),
            exposed: exposed.map(short),
            bytes: bytes.map(short),
        };
        self.points.push_back(point);
        while self.points.front().is_some_and(|first| first.second + SECONDS <= second) {
            self.points.pop_front();
        }
    }

    /// The points, the oldest first.
    pub(crate) fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }

    /// How long a step took on average, because many steps of a second are not a whole number of them.
    fn step_time(&mut self, now: Time, step: u64) -> Option<Duration> {
        match self.steps.back() {
            Some((last, _)) if step == *last => {}
            Some((last, _)) if step > *last => self.steps.push_back((step, now)),
            // The first one, or the job has formed again, and steps are counted anew.
            Some(_) | None => self.steps = [(step, now)].into(),
        }
        while self.steps.len() > 2 && self.steps[0].1 + WINDOW < now {
            self.steps.pop_front();
        }
        let ((first, began), (last, since)) = (self.steps.front()?, self.steps.back()?);
        let took = (last > first).then(|| since.since(*began).div_f64((last - first) as f64))?;
        Some(took.max(now.since(*since)))
    }
}

/// The time over which steps are averaged.
const WINDOW: Duration = Duration::from_secs(5);

/// How many seconds a history has.
pub(crate) const SECONDS: u64 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_a_point_a_second_for_five_minutes() {
        let mut history = History::default();
        for tenth in 0..10_000 {
            history.push(Time(tenth * 100_000_000), None, Some(0.5), None);
        }
        let points = history.points();
        assert_eq!((points.len(), points[0].second, points[299].second), (300, 700, 999));
        assert_eq!((points[0].exposed, points[0].step, points[0].bytes), (Some(0.5), None, None));
    }

    #[test]
    fn a_step_is_as_long_as_those_of_the_last_seconds_on_average() {
        let mut history = History::default();
        // Two steps in one second, three in the next one.
        (0..60).for_each(|second| history.push(Time(second * 1_000_000_000), Some(second * 5 / 2), None, None));
        let steps: Vec<f32> = history.points().iter().filter_map(|point| point.step).collect();
        assert!(steps[5..].iter().all(|step| (0.38..0.43).contains(step)), "{steps:?}");
        assert!(history.steps.len() < 10, "{:?}", history.steps);
    }

    #[test]
    fn a_step_that_takes_longer_than_the_last_one_is_as_long_as_it_has_taken_so_far() {
        let mut history = History::default();
        let at = |second: u64| Time(second * 1_000_000_000);
        for (second, step) in [(0, 5), (1, 9), (2, 9), (3, 9), (4, 10), (5, 2), (6, 3)] {
            history.push(at(second), Some(step), None, None);
        }
        let steps: Vec<Option<f32>> = history.points().iter().map(|point| point.step).collect();
        assert_eq!(steps, [None, Some(0.25), Some(1.0), Some(2.0), Some(0.8), None, Some(1.0)]);
    }
}
