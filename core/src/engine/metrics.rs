//! The engine's metrics, counted together with the copies of its transport.

pub use crate::metrics::WorkerMetrics as Metrics;

use crate::mem::Copies;

impl Metrics {
    /// All zero but for `copied_bytes`, which is the count of `copies`.
    pub(super) fn new(copies: &Copies) -> Self {
        Self { copied_bytes: copies.counter(), ..Self::default() }
    }

    /// Copies that count in `copied_bytes`.
    pub(super) fn copies(&self) -> Copies {
        Copies::counted_in(&self.copied_bytes)
    }
}
