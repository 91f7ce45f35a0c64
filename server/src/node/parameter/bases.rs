//! The values from which workers compute gradients that are compensated, after others have taken their place.
//!
//! A worker computes from the version that it has read last. That version is kept for it when the next one takes its place, and goes when no
//! worker computes from it any more. What is kept is a row of frozen blocks, so keeping it copies nothing.

use std::collections::BTreeMap;

use gradlane_core::types::{NodeId, Version};

/// What is known of the bases of a part. Of a mode that compensates nothing it stays empty.
#[derive(Default, Debug)]
pub(super) struct Bases {
    /// The version that each worker was given last.
    read: BTreeMap<NodeId, Version>,
    /// The versions before the present one that are kept, with the bytes that are booked for each.
    kept: BTreeMap<Version, u64>,
}

/// Versions that are kept no more, with the bytes that were booked for each.
pub(super) type Released = BTreeMap<Version, u64>;

impl Bases {
    /// A worker is given this version.
    pub(super) fn read(&mut self, node: NodeId, version: Version) -> Released {
        self.read.insert(node, version);
        self.release()
    }

    /// Whether this worker was given a version before.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.read.contains_key(&node)
    }

    /// Whether a worker may compute from this version.
    pub(super) fn is_read(&self, version: Version) -> bool {
        self.read.values().any(|read| *read == version)
    }

    /// Whether this worker was given this version last.
    pub(super) fn has_read(&self, node: NodeId, version: Version) -> bool {
        self.read.get(&node) == Some(&version)
    }

    /// This version is kept although the next one takes its place.
    pub(super) fn keep(&mut self, version: Version, bytes: u64) {
        self.kept.insert(version, bytes);
    }

    /// Whether this version is kept.
    pub(super) fn keeps(&self, version: Version) -> bool {
        self.kept.contains_key(&version)
    }

    /// Only these workers are left.
    pub(super) fn retain(&mut self, is_left: impl Fn(NodeId) -> bool) -> Released {
        self.read.retain(|node, _| is_left(*node));
        self.release()
    }

    /// Bytes that are booked.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.values().sum()
    }

    fn release(&mut self) -> Released {
        let is_read = |version: &Version| self.read.values().any(|of| of == version);
        let (kept, released) = std::mem::take(&mut self.kept).into_iter().partition(|(version, _)| is_read(version));
        self.kept = kept;
        released
    }
}
