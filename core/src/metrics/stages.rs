//! What a scheduler counts of the stages of its parts: how long they wait, and how long they take.

use std::time::Duration;

use super::named::{Name, StageDurations, StageWaits};
use super::table::WorkerMetrics;

/// The times of stages. Only one thread at a time may add: the lock of the scheduler sees to that, so a number needs no atomic addition.
#[derive(Clone, Default, Debug)]
pub struct StageTimes {
    durations: StageDurations,
    waits: StageWaits,
}

impl WorkerMetrics {
    /// Stages that count in these.
    pub fn stage_times(&self) -> StageTimes {
        StageTimes { durations: self.stage_duration_nanoseconds.clone(), waits: self.stage_wait_nanoseconds.clone() }
    }
}

impl StageTimes {
    /// A part begins a stage. For so long it waited in the queue, without and with credit missing.
    ///
    /// # Panics
    /// If the index of the stage is 16 or more.
    pub fn began(&self, stage: Name, queue: Duration, credit: Duration) {
        self.waits.add_alone(stage, queue, credit);
    }

    /// A stage of a part ended, which took so long.
    ///
    /// # Panics
    /// If the index of the stage is 16 or more.
    pub fn ended(&self, stage: Name, took: Duration) {
        self.durations.add_alone(stage, took);
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
        times.began((5, "PUSH"), Duration::from_nanos(3), Duration::from_nanos(4));
        times.clone().began((5, "PUSH"), Duration::from_nanos(1), Duration::ZERO);
        times.ended((5, "PUSH"), Duration::from_micros(17));
        let waits =
            [("queue", 4), ("credit", 4)].map(|(reason, time)| (vec!["PUSH".to_owned(), reason.to_owned()], time));
        assert_eq!(metrics.stage_wait_nanoseconds.value(), Value::Family(waits.to_vec()));
        let mut histogram = Histogram { nanoseconds: 17_000, ..Histogram::default() };
        histogram.buckets[1] = 1;
        assert_eq!(
            metrics.stage_duration_nanoseconds.value(),
            Value::Histograms(vec![(vec!["PUSH".to_owned()], histogram)])
        );
    }
}
