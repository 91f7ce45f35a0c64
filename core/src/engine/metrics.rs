//! The engine's metrics, counted together with the copies of its transport.

use std::sync::Arc;
use std::time::Duration;

pub use crate::metrics::WorkerMetrics as Metrics;

use super::followed::{ALONE_BOUND, Followed, Waits};
use crate::collective::Traffic;
use crate::collective::agreement::Last;
use crate::error::Result;
use crate::mem::Copies;
use crate::runtime::Clock;
use crate::types::{CodecSpec, Effect, Fate};
use crate::wire::Body;

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

    /// The operations that streams wait for in a job of one worker. Its waits count in these.
    pub fn followed_alone(&self) -> Followed {
        Followed::counting(self.waits(), Clock::start(), ALONE_BOUND)
    }

    /// Copies that count in `copied_bytes`.
    pub(super) fn copies(&self) -> Copies {
        Copies::counted_in(&self.copied_bytes)
    }

    /// Counts a contribution or a sum that travelled under a codec, whose elements have `raw_bytes`.
    pub(super) fn count_codec(&self, body: Body, raw_bytes: u64) {
        if body.codec != CodecSpec::PLAIN {
            let name = (body.codec.encoding() as usize, body.codec.name());
            self.codec_raw_bytes.add(name, raw_bytes);
            self.codec_wire_bytes.add(name, body.bytes);
        }
    }

    /// Counts who came last to a sum of this machine.
    pub(super) fn count_last(&self, Last { rank, late, is_step }: &Last) {
        let rank = rank.0 as usize;
        Self::add(&self.machine_steps, u64::from(*is_step));
        self.machine_last.add(rank, 1);
        self.machine_late_nanoseconds.add(rank, late);
    }

    /// Counts an operation on so many tensors that has ended, and took so long.
    pub(super) fn count_resolved(&self, outcome: &Result<()>, tensors: u64, took: Duration) {
        self.push_pull_duration_nanoseconds.add(took);
        Self::add(&self.resolved, tensors);
        if let Err(error) = outcome {
            Self::add(&self.failed, tensors);
            self.errors.add((error.code() as usize, error.code().name()), tensors);
        }
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
    use crate::error::Error;
    use crate::metrics::{Cell, Value};
    use crate::types::{Encoding, Version};

    #[test]
    fn bodies_of_a_codec_are_counted_by_its_name_without_its_parameters() {
        let metrics = Metrics::default();
        let int8 = CodecSpec::of(Encoding::Int8);
        let topk = CodecSpec::of(Encoding::TopK);
        for (codec, bytes) in [(int8, 30), (int8, 120), (topk, 4), (CodecSpec::PLAIN, 120)] {
            metrics.count_codec(Body { codec, ..Body::plain(bytes) }, 120);
        }
        let family =
            |rows: [(&str, u64); 2]| Value::Family(rows.map(|(codec, bytes)| (vec![codec.to_owned()], bytes)).to_vec());
        assert_eq!(metrics.codec_raw_bytes.value(), family([("int8", 240), ("topk", 120)]));
        assert_eq!(metrics.codec_wire_bytes.value(), family([("int8", 150), ("topk", 4)]));
    }

    #[test]
    fn operations_that_fail_are_counted_by_the_class_of_their_error() {
        let metrics = Metrics::default();
        let unavailable = || Err(Error::Unavailable { what: String::new(), cause: String::new() });
        for (outcome, tensors) in
            [(Ok(()), 2), (Err(Error::Cancelled), 3), (unavailable(), 1), (Err(Error::Cancelled), 4)]
        {
            metrics.count_resolved(&outcome, tensors, Duration::ZERO);
        }
        let errors = [("unavailable", 1), ("cancelled", 7)].map(|(class, count)| (vec![class.to_owned()], count));
        assert_eq!(metrics.errors.value(), Value::Family(errors.to_vec()));
        assert_eq!((metrics.resolved(), metrics.failed()), (10, 8));
    }

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
