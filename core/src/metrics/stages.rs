//! What a scheduler counts of the stages of its parts: how long they wait, how long they take, and why exchanges are repeated.

use std::time::Duration;

use super::named::{ByName, Name, StageDurations, StageWaits, WaitTimes};
use super::table::WorkerMetrics;
use crate::error::Error;

/// The times of stages. Only one thread at a time may add: the lock of the scheduler sees to that, so a number needs no atomic addition.
#[derive(Clone, Default, Debug)]
pub struct StageTimes {
    durations: StageDurations,
    waits: StageWaits,
    failures: ByName,
}

impl WorkerMetrics {
    /// Stages that count in these.
    pub fn stage_times(&self) -> StageTimes {
        StageTimes {
            durations: self.stage_duration_nanoseconds.clone(),
            waits: self.stage_wait_nanoseconds.clone(),
            failures: self.exchange_failures.clone(),
        }
    }
}

impl StageTimes {
    /// A part begins a stage, and waited so long in its queue.
    ///
    /// # Panics
    /// If the index of the stage is 16 or more.
    pub fn began(&self, stage: Name, waited: WaitTimes) {
        self.waits.add_alone(stage, waited);
    }

    /// A part began a stage that the ranks of a machine do together, and waited so long for the others. Any thread may say so.
    ///
    /// # Panics
    /// If the index of the stage is 16 or more.
    pub fn met(&self, stage: Name, peers: Duration) {
        self.waits.add_peers(stage, peers);
    }

    /// A stage of a part ended, which took so long.
    ///
    /// # Panics
    /// If the index of the stage is 16 or more.
    pub fn ended(&self, stage: Name, took: Duration) {
        self.durations.add_alone(stage, took);
    }

    /// An exchange failed because of `error`, and is to be repeated.
    pub fn repeats(&self, error: &Error) {
        let class = error.code();
        self.failures.add((class as usize, class.name()), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Cell, Histogram, Value};

    #[test]
    fn what_was_never_counted_is_not_shown() {
        let metrics = WorkerMetrics::default();
        let times = metrics.stage_times();
        assert_eq!(metrics.stage_duration_nanoseconds.value(), Value::Histograms(vec![]));
        let waited = |nanoseconds: [u64; 5]| nanoseconds.map(Duration::from_nanos);
        times.began((5, "PUSH"), waited([3, 4, 0, 0, 6]));
        times.clone().began((5, "PUSH"), waited([1, 0, 2, 0, 0]));
        times.ended((5, "PUSH"), Duration::from_micros(17));
        times.met((5, "PUSH"), Duration::from_nanos(7));
        let waits = [("queue", 4), ("credit", 4), ("order", 2), ("link", 0), ("device", 6), ("peers", 7)]
            .map(|(reason, time)| (vec!["PUSH".to_owned(), reason.to_owned()], time));
        assert_eq!(metrics.stage_wait_nanoseconds.value(), Value::Family(waits.to_vec()));
        let mut histogram = Histogram { nanoseconds: 17_000, ..Histogram::default() };
        histogram.buckets[1] = 1;
        assert_eq!(
            metrics.stage_duration_nanoseconds.value(),
            Value::Histograms(vec![(vec!["PUSH".to_owned()], histogram)])
        );
    }
}
