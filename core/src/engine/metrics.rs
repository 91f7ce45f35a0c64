//! The engine's metrics, counted together with the copies of its transport.

use std::sync::Arc;

pub use crate::metrics::WorkerMetrics as Metrics;

use crate::collective::Traffic;
use crate::mem::Copies;

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

    /// Copies that count in `copied_bytes`.
    pub(super) fn copies(&self) -> Copies {
        Copies::counted_in(&self.copied_bytes)
    }
}
