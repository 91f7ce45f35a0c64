//! Counters of one server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in and out since the start.
#[derive(Default, Debug)]
pub struct Stats {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Stats {
    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of contributions that arrived whole.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of sums that were handed over.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }
}
