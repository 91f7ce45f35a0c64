//! The engine's metrics, counted together with the copies of its transport.

use std::sync::Arc;

pub use crate::metrics::WorkerMetrics as Metrics;

use super::followed::Waits;
use crate::collective::Traffic;
use crate::mem::Copies;
use crate::types::{Effect, Fate};

impl Metrics {
    /// All zero but for `copied_bytes`, which is the count of `copies`.
    pub(super) fn new(copies: &Copies) -> Self {
        Self { copied_bytes: copies.counter(), ..Self::default() }
    }

    /// Traffic between devices that counts in these.
    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            all_reduce: Arc::clone(&self.nccl_all_reduce_bytes),
            reduce_scatter: Arc::clone(&self.nccl_reduce_scatter_bytes),
            reduce: Arc::clone(&self.nccl_reduce_bytes),
            all_gather: Arc::clone(&self.nccl_all_gather_bytes),
            broadcast: Arc::clone(&self.nccl_broadcast_bytes),
            groups: Arc::clone(&self.nccl_groups),
            issue_nanoseconds: Arc::clone(&self.nccl_issue_nanoseconds),
        }
    }

    /// Waits that count in these.
    pub(super) fn waits(&self) -> Waits {
        Waits {
            streams: Arc::clone(&self.stream_waits),
            threads: Arc::clone(&self.host_waits),
            blocked_nanoseconds: Arc::clone(&self.caller_blocked_nanoseconds),
        }
    }

    /// Copies that count in `copied_bytes`.
    pub(super) fn copies(&self) -> Copies {
        Copies::counted_in(&self.copied_bytes)
    }

    /// Counts a change of a parameter by what became of it.
    pub fn count_change(&self, Effect { fate, lag, .. }: Effect) {
        let by_fate = match fate {
            Fate::Accepted | Fate::Kept => None,
            Fate::Scaled => Some(&self.changes_scaled),
            Fate::DiscardedStale => Some(&self.changes_discarded),
            Fate::DroppedLate => Some(&self.changes_late),
        };
        let by_lag = match lag {
            0 => &self.changes_of_lag_0,
            1..4 => &self.changes_of_lag_1_to_3,
            4..16 => &self.changes_of_lag_4_to_15,
            16..64 => &self.changes_of_lag_16_to_63,
            64.. => &self.changes_of_lag_64_or_more,
        };
        for counter in [Some(&self.changes), by_fate, Some(by_lag)].into_iter().flatten() {
            Self::add(counter, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Version;

    #[test]
    fn every_change_has_one_lag_and_what_was_not_done_as_it_is_is_counted_apart() {
        let metrics = Metrics::default();
        for (fate, lag) in [
            (Fate::Accepted, 0),
            (Fate::Kept, 0),
            (Fate::Accepted, 3),
            (Fate::Scaled, 4),
            (Fate::DiscardedStale, 15),
            (Fate::DiscardedStale, 63),
            (Fate::DroppedLate, 64),
        ] {
            metrics.count_change(Effect { version: Version(1), fate, lag });
        }
        let fates = [metrics.changes(), metrics.changes_scaled(), metrics.changes_discarded(), metrics.changes_late()];
        assert_eq!(fates, [7, 1, 2, 1]);
        let lags = [
            metrics.changes_of_lag_0(),
            metrics.changes_of_lag_1_to_3(),
            metrics.changes_of_lag_4_to_15(),
            metrics.changes_of_lag_16_to_63(),
            metrics.changes_of_lag_64_or_more(),
        ];
        assert_eq!(lags, [2, 1, 2, 1, 1]);
    }
}
