//! Counters of one server.

use std::sync::atomic::{AtomicU64, Ordering};

use gradlane_core::mem::Copies;

/// Bytes in and out since the start, and those copied in between.
#[derive(Default, Debug)]
pub struct Stats {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    copies: Copies,
}

impl Stats {
    /// How everybody in this server copies bytes of bodies and sums.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of contributions that arrived, those of repeats too.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were copied between where they were received and their accumulator, or between that and where they are sent from.
    /// Neither an addition counts nor the first write of an accumulator.
    pub fn copied_bytes(&self) -> u64 {
        self.copies.bytes()
    }

    /// Bytes of sums that were handed over.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }
}
