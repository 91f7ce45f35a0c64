//! Where a worker or a server counts the events that say what it did.

use super::sinks::{BySink, Sink};
use super::table::{ServerMetrics, WorkerMetrics};

/// Where the events of a process are counted. All clones are one.
#[derive(Clone, Default, Debug)]
pub struct TraceCounts {
    /// All events.
    pub events: BySink,
    /// Those among them that are missing.
    pub lost: BySink,
}

impl TraceCounts {
    /// The flight recorder has had so many events, of which so many are missing.
    pub fn recorded(&self, events: u64, lost: u64) {
        self.events.set(Sink::Recorder, events);
        self.lost.set(Sink::Recorder, lost);
    }
}

impl WorkerMetrics {
    /// Where the events of this worker are counted.
    pub fn trace_counts(&self) -> TraceCounts {
        TraceCounts { events: self.trace_events.clone(), lost: self.trace_events_lost.clone() }
    }
}

impl ServerMetrics {
    /// Where the events of this server are counted.
    pub fn trace_counts(&self) -> TraceCounts {
        TraceCounts { events: self.trace_events.clone(), lost: self.trace_events_lost.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Cell, Value};

    #[test]
    fn events_are_counted_by_where_they_go_also_before_there_are_any() {
        let metrics = WorkerMetrics::default();
        let family = |recorder, timeline| {
            let rows = [("recorder", recorder), ("timeline", timeline)];
            Value::Family(rows.map(|(sink, count)| (vec![sink.to_owned()], count)).to_vec())
        };
        assert_eq!(metrics.trace_events.value(), family(0, 0));
        let counts = metrics.trace_counts();
        counts.recorded(7, 1);
        counts.recorded(9, 1);
        counts.events.add(Sink::Timeline, 3);
        assert_eq!((metrics.trace_events.value(), metrics.trace_events_lost.value()), (family(9, 3), family(1, 0)));
    }
}
