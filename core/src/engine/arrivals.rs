//! Numbers for the handles of barriers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Gives each barrier's handle a number of its own, far above those of submissions. The ends of all handles of an engine are told by their
/// numbers, so no two may be equal.
pub(super) struct Arrivals(AtomicU64);

impl Default for Arrivals {
    fn default() -> Self {
        Self(AtomicU64::new(1 << 63))
    }
}

impl Arrivals {
    /// The number for the next handle.
    pub(super) fn next_number(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
